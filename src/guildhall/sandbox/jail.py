"""Jail: starts programs that see only the folders of a run and the programs of the system.

`spawn` uses the strongest kind of confinement that works on the machine. `bubblewrap` uses the program of that name.
`namespaces` (with Landlock) uses the kernel directly through `sandbox.launcher`. `landlock` is for machines that forbid
namespaces. docs/tools-exec.md lists the gaps of each kind.

Does not choose the visible paths (see `sandbox.mounts`) or the permitted system calls (see `sandbox.seccomp`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from guildhall.core.errors import ToolUnavailable
from guildhall.sandbox import seccomp
from guildhall.sandbox.loopback import LoopbackDoor
from guildhall.sandbox.mounts import Access, Confinement, Mount, MountPlan, hold_placeholders, plan_mounts
from guildhall.sandbox.view import View

_BUBBLEWRAP = "bwrap"
_SIZE_OPTION_VERSION = (0, 7)
_VERSION_TIMEOUT_S = 10
_NAMESPACES = ("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL")


@functools.cache
def _has_size_option(program: str) -> bool:
    """Return True if this bubblewrap can limit the size of a tmpfs."""
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    version = re.search(r"(\d+)\.(\d+)", done.stdout)
    return version is not None and (int(version[1]), int(version[2])) >= _SIZE_OPTION_VERSION


def bubblewrap_arguments(confinement: Confinement, plan: MountPlan, path: str, filter_fd: int | None) -> list[str]:
    """Return the command line of bubblewrap up to the program. `filter_fd`: a descriptor of the seccomp filter.

    The command line does not contain the environment, because every user of the machine can read it.
    """
    program = shutil.which(_BUBBLEWRAP, path=path) or _BUBBLEWRAP
    scratch = ["--size", str(confinement.scratch_bytes)] if _has_size_option(program) else []
    argv = [program, *_NAMESPACES]
    if confinement.network:
        argv.append("--share-net")
    for link, target in plan.links:
        argv += ["--symlink", target, str(link)]
    # Root may write kernel settings in /proc/sys, and bubblewrap does not cover them.
    argv += ["--proc", "/proc", "--remount-ro", "/proc"]
    # The tmpfs of --dev may grow to half of the memory. Only /dev/shm is needed, with a limit.
    argv += ["--dev", "/dev", *([*scratch, "--tmpfs", "/dev/shm"] if scratch else []), "--remount-ro", "/dev"]
    argv += [*scratch, "--tmpfs", "/tmp"]
    covered: list[str] = []
    for mount in plan.mounts:
        if mount.access == "write":
            argv += ["--bind", str(mount.source), str(mount.path)]
        elif mount.access == "read":
            argv += ["--ro-bind", str(mount.source), str(mount.path)]
        elif mount.source.is_dir():
            argv += ["--tmpfs", str(mount.path)]
            covered += ["--remount-ro", str(mount.path)]  # after the mounts below it are made
        else:
            argv += ["--ro-bind", "/dev/null", str(mount.path)]
    if filter_fd is not None:
        argv += ["--seccomp", str(filter_fd)]
    # A write outside of all mounts would be lost, so it must fail.
    return [*argv, *covered, "--remount-ro", "/", "--chdir", str(plan.cwd), "--"]


LAUNCHER = Path(__file__).with_name("launcher.py")
_CREATE_RULESET, _QUERY_VERSION = 444, 1
_MIN_LANDLOCK = 3  # earlier versions do not prevent truncating files outside
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_MAX_ENTRIES = 5_000  # of a folder that is split into rules for its entries
_RANK = {"hidden": 0, "read": 1, "write": 2}

Rule = tuple[str, str]  # a real path and its access, read or write


def has_landlock() -> bool:
    """Return True if this kernel has a recent Landlock and its system calls are known."""
    if not sys.platform.startswith("linux") or seccomp.compile_filter(seccomp.Filter(families=frozenset())) is None:
        return False
    version = ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, 0, _QUERY_VERSION)
    return version >= _MIN_LANDLOCK


def launcher_specification(
    confinement: Confinement,
    plan: MountPlan,
    argv: Sequence[str],
    *,
    namespaces: bool,
    scratch: Path,
    loopback: bool = False,
    port: int | None = None,
) -> bytes:
    """Return the specification for the launcher. `loopback`: the program has its own network namespace with loopback.

    `port`: the only port that the program may connect to, if the kernel can enforce that.
    """
    mounts = [mount for mount in plan.mounts if mount.access != "hidden" and not mount.is_pin]
    if namespaces:
        rules: list[Rule] = [(str(mount.source), mount.access) for mount in mounts]
    else:
        rules = [rule for mount in mounts for rule in _mount_rules(mount, plan)]
    rules += [(f"/dev/{name}", "write") for name in _DEVICES]
    rules += [("/proc", "read"), (str(scratch), "write")]
    # Loopback of the host would reach all programs of the machine.
    families = seccomp.socket_families(network=confinement.network, loopback=loopback)
    filter_ = seccomp.compile_filter(
        seccomp.Filter(families=families, may_change_modes=namespaces, may_use_datagrams=port is None)
    )
    cwd = plan.cwd if any(mount.contains(plan.cwd) for mount in mounts) else scratch
    spec: dict[str, Any] = {
        "parent": os.getpid(),
        "namespaces": namespaces,
        "network": confinement.network,
        "loopback": loopback,
        "port": port,
        "rules": [rule for rule in dict.fromkeys(rules) if Path(rule[0]).exists()],
        "mounts": _needed_mounts(plan) if namespaces else [],
        "scratch": [str(scratch), confinement.scratch_bytes],
        "seccomp": (filter_ or b"").hex(),
        "cwd": str(cwd),
        "argv": list(argv),
    }
    return json.dumps(spec).encode()


def _needed_mounts(plan: MountPlan) -> list[tuple[str, Access]]:
    """Return the mounts that are not read-only, and the mounts inside them. The root is read-only anyway."""
    others = {mount.source for mount in plan.mounts if mount.access != "read"}
    return [
        (str(mount.source), mount.access)
        for mount in plan.mounts
        if mount.access != "read" or not others.isdisjoint(mount.source.parents)
    ]


def _mount_rules(mount: Mount, plan: MountPlan) -> Iterable[Rule]:
    """Return the rules for a mount, except for the mounts below it that have less access."""
    inner = [
        other
        for other in plan.mounts
        if mount.source in other.source.parents and _RANK[other.access] < _RANK[mount.access] and not other.is_pin
    ]
    return _path_rules(mount.source, mount.access, inner)


def _path_rules(path: Path, access: Access, inner: list[Mount]) -> Iterable[Rule]:
    """Yield a rule for the path, or for its entries if it contains an inner mount, which a rule cannot exclude."""
    if path.is_symlink() or any(other.source == path for other in inner):
        return
    below = [other for other in inner if path in other.source.parents]
    if not below:
        yield str(path), access
        return
    if all(other.access == "read" for other in below):
        yield str(path), "read"
    for number, entry in enumerate(sorted(path.iterdir())):
        if number == _MAX_ENTRIES:
            break
        yield from _path_rules(entry, access, below)


__all__ = ["ConfinedProcess", "Confinement", "Kind", "LoopbackDoor", "open_door", "spawn", "strongest_kind"]

Kind = Literal["bubblewrap", "namespaces", "landlock"]

_PATH = "/usr/local/bin:/usr/bin:/bin"
_PROBE_TIMEOUT_S = 10
_KILL_TIMEOUT_S = 5
_LIMITS_SCRIPT = (
    "{{ ulimit -c 0; ulimit -f {file_blocks}; ulimit -d {data_kilobytes}; "
    'ulimit -u {processes} || ulimit -p {processes}; }} 2>/dev/null; exec "$@"'
)


def strongest_kind(path: str | None = None) -> Kind | None:
    """Return the strongest kind of confinement that works with the programs on `path`, or None."""
    return _strongest_kind(path or os.environ.get("PATH", _PATH))


@functools.cache
def _strongest_kind(path: str) -> Kind | None:
    if shutil.which(_BUBBLEWRAP, path=path) and _works("bubblewrap", path):
        return "bubblewrap"
    if not has_landlock():
        return None
    return next((kind for kind in ("namespaces", "landlock") if _works(kind, path)), None)


def _works(kind: Kind, path: str) -> bool:
    """Return True if a confined program starts. Containers and distributions forbid namespaces in many ways."""
    confinement = Confinement(view=View(cwd=Path("/")))
    with contextlib.ExitStack() as resources:
        command = _prepare(["/bin/sh", "-c", ":"], confinement, kind, path, resources)
        try:
            done = subprocess.run(
                command.argv,
                env=command.env,
                pass_fds=command.fds,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PROBE_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0


@dataclass(frozen=True, kw_only=True)
class _Command:
    argv: list[str]
    env: Mapping[str, str]
    fds: tuple[int, ...]


def _prepare(
    argv: Sequence[str],
    confinement: Confinement,
    kind: Kind,
    path: str,
    resources: contextlib.ExitStack,
    door: LoopbackDoor | None = None,
) -> _Command:
    plan = plan_mounts(confinement)
    port = None
    if door is not None:
        argv = door.wrap_command(argv)
        port = None if door.has_own_network or confinement.network else door.port
        confinement = confinement if door.has_own_network else replace(confinement, network=True)
    if kind != "landlock":  # Landlock forbids all new names in the folder around a protected path
        plan = plan.exclude(resources.enter_context(hold_placeholders(plan.placeholders)))
    program = _with_limits(argv, confinement)
    if kind == "bubblewrap":
        families = seccomp.socket_families(network=confinement.network, loopback=True)
        code = seccomp.compile_filter(seccomp.Filter(families=families))
        filter_ = None if code is None else _memory_file(code, resources)
        prefix = bubblewrap_arguments(confinement, plan, path, filter_)
        env = _environment(confinement, "/tmp")
        return _Command(argv=[*prefix, *program], env=env, fds=() if filter_ is None else (filter_,))
    scratch = resources.enter_context(tempfile.TemporaryDirectory(prefix="guild-", ignore_cleanup_errors=True))
    spec = launcher_specification(
        confinement,
        plan,
        program,
        namespaces=kind == "namespaces",
        loopback=door is not None and door.has_own_network,
        port=port,
        scratch=Path(os.path.realpath(scratch)),
    )
    fd = _memory_file(spec, resources)
    launcher = [os.path.realpath(sys.executable), "-I", "-S", str(LAUNCHER), str(fd)]
    return _Command(argv=launcher, env=_environment(confinement, scratch), fds=(fd,))


def _memory_file(data: bytes, resources: contextlib.ExitStack) -> int:
    """Return the descriptor of a file in memory that a child process can read."""
    fd = os.memfd_create("guild", 0)
    resources.callback(os.close, fd)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _with_limits(argv: Sequence[str], confinement: Confinement) -> list[str]:
    """Return a command line that sets limits first. `ulimit -d` counts allocated memory, not address space."""
    limits = _LIMITS_SCRIPT.format(
        file_blocks=confinement.file_bytes // 512,
        data_kilobytes=confinement.memory_bytes // 1024,
        processes=_running_tasks() + confinement.processes,
    )
    return ["/bin/sh", "-c", limits, "sh", *argv]


def _running_tasks() -> int:
    """Return the number of threads of the machine. The limit of processes counts all threads of the user."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError):
        return 32_768


def _environment(confinement: Confinement, scratch: str) -> dict[str, str]:
    """Return the variables of the program. LD_* would affect the launcher, and GIT_* would redirect git."""
    env = {name: value for name, value in confinement.env.items() if not name.startswith(("LD_", "GIT_"))}
    home = scratch if confinement.home is None else str(confinement.home)
    # Git fails if it cannot read a configuration file, and the file of the system may be unreadable.
    return {"PATH": _PATH, **env, "HOME": home, "TMPDIR": home, "GIT_CONFIG_NOSYSTEM": "1"}


@dataclass(kw_only=True)
class ConfinedProcess:
    process: asyncio.subprocess.Process
    kind: Kind
    _resources: contextlib.ExitStack = field(repr=False)

    async def wait(self) -> int:
        """Return the exit code. A code above 128 is 128 plus the number of the signal that ended the program."""
        code = await self.process.wait()
        await asyncio.to_thread(self._resources.close)
        return code if code >= 0 else 128 - code

    async def kill(self) -> None:
        """Kill the program and all processes that it started, even if the caller is cancelled."""
        await asyncio.shield(self._kill())

    async def _kill(self) -> None:
        # The keeper process of the other kinds kills the rest when it gets SIGTERM.
        first = signal.SIGKILL if self.kind == "bubblewrap" else signal.SIGTERM
        for number in (first, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)
            try:
                async with asyncio.timeout(_KILL_TIMEOUT_S):
                    await self.wait()
                return
            except TimeoutError:
                continue


async def _finish(work: Coroutine[Any, Any, _Command]) -> _Command:
    """Wait for the work even if the caller is cancelled, so that the caller can close the resources of the work."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def open_door(kind: Kind | None = None, *, path: str | None = None, network: bool = False) -> LoopbackDoor:
    """Return a door for a confined program, which the caller closes. `network`: the program uses the host network."""
    chosen = await _choose_kind(kind, path or os.environ.get("PATH", _PATH))
    return LoopbackDoor(has_own_network=chosen != "landlock" and not network)


async def _choose_kind(kind: Kind | None, path: str) -> Kind:
    chosen: Kind | None = kind or await asyncio.to_thread(_strongest_kind, path)
    if chosen is None:
        hint = "Install bubblewrap (the package `bubblewrap`), or use Linux 6.2 or newer with Landlock enabled."
        raise ToolUnavailable("cannot start the program: no kind of confinement works on this machine", hint=hint)
    return chosen


async def spawn(
    argv: Sequence[str],
    confinement: Confinement,
    *,
    kind: Kind | None = None,
    path: str | None = None,
    door: LoopbackDoor | None = None,
    stdin: int = asyncio.subprocess.DEVNULL,
    stdout: int = asyncio.subprocess.PIPE,
    stderr: int = asyncio.subprocess.STDOUT,
    pass_fds: Sequence[int] = (),
) -> ConfinedProcess:
    """Start a confined program. `kind`: the kind of confinement, by default the strongest.

    With a `door` of the same kind and without a network, the program can connect only to this process.
    """
    path = path or os.environ.get("PATH", _PATH)
    chosen = await _choose_kind(kind, path)
    with contextlib.ExitStack() as resources:
        command = await _finish(asyncio.to_thread(_prepare, argv, confinement, chosen, path, resources, door))
        process = await asyncio.create_subprocess_exec(
            *command.argv,
            env=command.env,
            cwd="/",
            pass_fds=(*command.fds, *pass_fds, *(door.fds if door is not None else ())),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        return ConfinedProcess(process=process, kind=chosen, _resources=resources.pop_all())


def describe_exit(code: int) -> str:
    """Return a phrase for the exit code that `ConfinedProcess.wait` returned."""
    if code <= 128:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(code - 128).name}"
    except ValueError:
        return f"was killed by signal {code - 128}"
