"""Launcher: a program that confines itself and then executes another program.

Usage: `python -I -S launcher.py FD`. FD is a descriptor with the specification from `sandbox.jail`.
A keeper process stays outside of the confinement. When its parent or the program ends, it kills all processes that the
program started.
Does not choose the confinement. Does not import Guildhall, so that it starts fast.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import stat
import struct
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

_LIBC = ctypes.CDLL(None, use_errno=True)
_OPENAT2, _RESTRICT, _ADD_RULE, _CREATE_RULESET, _MOUNT_SETATTR = 437, 446, 445, 444, 442
_NO_SYMLINKS, _AT_FDCWD, _RECURSIVE, _RDONLY = 0x04, -100, 0x8000, 0x01
_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = (
    0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
_PDEATHSIG, _SUBREAPER, _NO_NEW_PRIVS, _SECCOMP, _CAPBSET_DROP = 1, 36, 38, 22, 24
_CAPABILITY_VERSION = 0x20080522
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL_DEV = 1, 2, 4, 8, 1 << 14, 1 << 15
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_BIND, _CONNECT, _PORT_RULE = 1, 2, 2
_DEVICES = 1 << 6 | 1 << 11  # creating device files is never permitted


def main() -> NoReturn:
    with os.fdopen(int(sys.argv[1]), "rb") as source:
        spec: dict[str, Any] = json.load(source)
    try:
        code = _keep(spec)
    except OSError as error:
        print(f"cannot confine the program: {error}", file=sys.stderr)  # noqa: T201
        code = 126
    sys.exit(code)


# The keeper


def _keep(spec: dict[str, Any]) -> int:
    """Start the program, wait for its end, and kill all processes that it started."""
    if spec["namespaces"]:
        _enter_namespaces(spec)
    else:
        _prctl(_SUBREAPER, 1)  # orphans of the program become children of this process
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    _prctl(_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != spec["parent"]:
        return 1
    child = os.fork()
    if child == 0:
        _run_in_child(_run_init if spec["namespaces"] else _execute, spec)
    try:
        status = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # not reaped, so that the pid is not reused
        if status is None:
            return 1
        return status.si_status if status.si_code == os.CLD_EXITED else 128 + status.si_status
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)  # in namespaces the child is process 1, and its end kills all others
        if not spec["namespaces"]:
            _kill_children()


def _kill_children() -> None:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        for child in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def _children() -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == os.getpid():
                    found.append(int(entry.name))
    return found


def _run_in_child(step: Any, spec: dict[str, Any]) -> NoReturn:
    """Run a step in a forked process, then exit. The process never continues with the code of its parent."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        os._exit(step(spec))
    except OSError as error:
        os.write(2, f"cannot confine the program: {error}\n".encode())
    finally:
        os._exit(126)


def _run_init(spec: dict[str, Any]) -> int:
    """Run process 1 of the namespace. Reap processes until the program has ended, and return its exit code."""
    _prctl(_PDEATHSIG, signal.SIGKILL)
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    program = os.fork()
    if program == 0:
        _run_in_child(_execute, spec)
    while True:
        ended, status = os.wait()
        if ended == program:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


# The program


def _execute(spec: dict[str, Any]) -> NoReturn:
    """Confine this process and replace it by the program."""
    os.setsid()
    _prctl(_PDEATHSIG, signal.SIGKILL)
    drop_capabilities()
    restrict(spec["rules"], spec["port"])
    os.chdir(spec["cwd"])
    install_filter(bytes.fromhex(spec["seccomp"]))
    os.execve(spec["argv"][0], spec["argv"], dict(os.environ))


def drop_capabilities() -> None:
    for capability in range(64):
        _LIBC.prctl(_CAPBSET_DROP, capability, 0, 0, 0)  # fails for a missing capability
    header = struct.pack("=II", _CAPABILITY_VERSION, 0)
    _check(_LIBC.capset(header, bytes(24)), "capset")


def restrict(rules: list[tuple[str, str]], port: int | None = None) -> None:
    """Restrict this process to real paths, each for reading or writing.

    With a `port`, the process can connect to that port only, if the kernel supports that.
    """
    _prctl(_NO_NEW_PRIVS, 1)
    version = _LIBC.syscall(_CREATE_RULESET, None, 0, 1)
    all_rights = {3: (1 << 15) - 1, 4: (1 << 15) - 1}.get(version, (1 << 16) - 1)
    scoped = 3 if version >= 6 else 0  # no abstract sockets, no signals to processes outside
    ports = _BIND | _CONNECT if port is not None and version >= 4 else 0
    attributes = struct.pack("=QQQ", all_rights, ports, scoped)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    ruleset = _check(_LIBC.syscall(_CREATE_RULESET, attributes, len(attributes), 0), "landlock")
    for path, access in rules:
        rights = all_rights & {"write": ~_DEVICES, "look": _READ & ~_EXECUTE}.get(access, _READ)
        with contextlib.suppress(FileNotFoundError, PermissionError):
            _add_rule(ruleset, path, rights)
    if ports:
        rule = struct.pack("=QQ", _CONNECT, port)
        _check(_LIBC.syscall(_ADD_RULE, ruleset, _PORT_RULE, rule, 0), "landlock")
    _check(_LIBC.syscall(_RESTRICT, ruleset, 0), "landlock")
    os.close(ruleset)


def _add_rule(ruleset: int, path: str, rights: int) -> None:
    """Permit access to a path. Skip a path with a link, because the link was created after the plan was computed."""
    how = struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC, 0, _NO_SYMLINKS)
    opened = _LIBC.syscall(_OPENAT2, _AT_FDCWD, os.fsencode(path), how, len(how))
    if opened < 0:
        return
    if not stat.S_ISDIR(os.fstat(opened).st_mode):
        rights &= _FILE_RIGHTS
    _check(_LIBC.syscall(_ADD_RULE, ruleset, 1, struct.pack("=Qi", rights, opened), 0), path)
    os.close(opened)


def install_filter(code: bytes) -> None:
    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))

    program = Program(len(code) // 8, code)
    _check(_LIBC.prctl(_SECCOMP, 2, ctypes.byref(program), 0, 0), "seccomp")


# Namespaces


def _enter_namespaces(spec: dict[str, Any]) -> None:
    user, group = os.geteuid(), os.getegid()
    flags = _NEWUSER | _NEWNS | _NEWPID | _NEWIPC | _NEWUTS | (0 if spec["network"] else _NEWNET)
    _check(_LIBC.unshare(flags), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    if spec["loopback"]:
        _enable_loopback()
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    # A shown path below a hidden folder cannot be opened by its name after the folder is covered.
    opened = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path, access in spec["mounts"] if access != "hidden"}
    for path, access in spec["mounts"]:
        if access != "hidden":
            if not Path(path).exists():  # an empty tmpfs covers the hidden folder around it
                Path(path).mkdir(parents=True)
            _mount(f"/proc/self/fd/{opened[path]}", path, None, _MS_BIND | _MS_REC)
        elif Path(path).is_dir():
            _mount("tmpfs", path, "tmpfs", _MS_NOSUID | _MS_NODEV)
        else:
            _mount("/dev/null", path, None, _MS_BIND)
    for descriptor in opened.values():
        os.close(descriptor)
    scratch, size = spec["scratch"]
    _set_read_only("/", on=True)
    for path, access in spec["mounts"]:
        _set_read_only(path, on=access != "write")
    _mount("tmpfs", scratch, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={size},mode=0700")


def _enable_loopback() -> None:
    """Enable the loopback interface, which is disabled in a new network namespace."""
    import fcntl
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP | _IFF_RUNNING))


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    _check(_LIBC.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]), f"mount {target}")


def _set_read_only(path: str, *, on: bool) -> None:
    attributes = struct.pack("=QQQQ", _RDONLY if on else 0, 0 if on else _RDONLY, 0, 0)
    name = os.fsencode(path)
    _check(_LIBC.syscall(_MOUNT_SETATTR, _AT_FDCWD, name, _RECURSIVE, attributes, len(attributes)), f"mount {path}")


def _prctl(option: int, value: int) -> None:
    _check(_LIBC.prctl(option, value, 0, 0, 0), "prctl")


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


if __name__ == "__main__":
    main()
