"""Discovery of the hall of a home: finds its live process, starts one if necessary, and stops it.

A hall is alive while its process holds the home's lock. `hall.json` contains its address and the user's token.
Concurrent commands start a single hall together.
Does not serve requests: `hall.server.process` is the process that this module starts.
Does not import slow modules, because every command imports this module.

Invariant: nothing is sent to the address of a stale `hall.json`. A file is stale if no process holds the lock, or if
its boot id differs from the boot id in the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import stat
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from guildhall import __version__
from guildhall.core.atomic_file import replace_file
from guildhall.core.errors import HallUnavailable, TimedOut

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home

EMBEDDED_VARIABLE = "GUILDHALL_EMBEDDED"
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30.0
_MAX_LOG_BYTES = 5_000_000  # a larger log is renamed to hall.log.1
_MAX_LOG_LINES = 5  # in the error if a start fails


@dataclass(frozen=True, kw_only=True)
class Address:
    """The address of a hall and the token for it."""

    pid: int
    boot: str
    version: str
    url: str
    since: str
    token: str = field(repr=False)  # the user's token

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def write(self, path: Path) -> None:
        """Write the address file atomically, readable by the user only."""
        replace_file(path, json.dumps(asdict(self)).encode())


def is_embedded(environ: Mapping[str, str]) -> bool:
    """Return True if each command opens the hall in its own process. The hall's process needs Linux."""
    return sys.platform != "linux" or environ.get(EMBEDDED_VARIABLE, "") not in ("", "0")


def find_hall(home: Home) -> Address | None:
    """Return the address of the live hall of a home, or None."""
    holder = _lock_holder(home)
    if holder is None or not holder.get("hall"):
        return None
    address = _read_address(home.address)
    return address if address is not None and address.boot == holder.get("boot") else None


def find_hall_pid(home: Home) -> int | None:
    """Return the process id of the live hall, or None. The address file may be missing."""
    holder = _lock_holder(home)
    pid = holder.get("pid") if holder and holder.get("hall") else None
    return pid if type(pid) is int else None


def _lock_holder(home: Home) -> dict[str, Any] | None:
    """Return the content of the home's lock file, or None if no process holds the lock."""
    try:
        descriptor = os.open(home.lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return _parse_object(file.read(10_000))
    return None


def _read_address(path: Path) -> Address | None:
    """Return the address in the file, or None if the file is missing or invalid."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            hint = "Stop the hall with `guild hall stop`. The next command starts a new hall."
            message = "invalid address file: not a regular file, or other users can read or change it"
            raise HallUnavailable(message, where=str(path), hint=hint)
        fields = _parse_object(file.read(10_000))
    try:
        address = Address(**fields)
        is_valid = address.url == f"http://127.0.0.1:{address.port}" and type(address.pid) is int
    except (TypeError, ValueError):
        return None
    return address if is_valid else None


def _parse_object(text: bytes) -> dict[str, Any]:
    """Return a JSON object, or an empty object if the text is something else."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def check_same_version(address: Address) -> Address:
    """Return the address. Raise HallUnavailable if the hall has another version."""
    if address.version != __version__:
        hint = "Stop it with `guild hall stop`. Its runs resume with the next command."
        message = f"cannot use the running hall: it has version {address.version}, this command has {__version__}"
        raise HallUnavailable(message, hint=hint)
    return address


def find_or_start(home: Home, environ: Mapping[str, str]) -> Address:
    """Return the address of the live hall of a home. Start a hall if none is live."""
    if (address := find_hall(home)) is not None:
        return address
    home.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    with home.start_lock.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # only one of several concurrent commands starts the hall
        if (address := find_hall(home)) is not None:
            return address
        _start_process(home, environ)
    if (address := find_hall(home)) is not None:
        return address
    raise HallUnavailable("cannot use the hall: it exited right after starting", hint=f"Read its log: {home.log}")


def _start_process(home: Home, environ: Mapping[str, str]) -> None:
    """Start a hall that outlives this process, and wait until it serves."""
    import subprocess

    read_fd, write_fd = os.pipe()
    try:
        with _open_log(home) as log:
            log_size = log.tell()
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "guildhall.hall.server.process", str(home.path), str(write_fd)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=home.path,
                env={name: value for name, value in environ.items() if not name.startswith("GIT_")},
                pass_fds=[write_fd],
                start_new_session=True,
            )
    finally:
        os.close(write_fd)
    try:
        outcome = _read_outcome(read_fd)
    finally:
        os.close(read_fd)
        with contextlib.suppress(OSError):
            process.poll()
        process.returncode = process.returncode or 0  # Popen must not wait for the process, which outlives this command
    if outcome is None:
        lines = home.log.read_bytes()[log_size:].decode(errors="replace").splitlines()[-_MAX_LOG_LINES:]
        log_tail = "".join(f"\n{line}" for line in ("The last lines of the log:", *lines)) if lines else ""
        hint = f"Check the installation: guild doctor{log_tail}"
        message = "cannot start the hall: its process ended before it was ready"
        raise HallUnavailable(message, where=str(home.log), hint=hint)
    if "error" in outcome:
        from guildhall.hall.client.codec import decode_error

        raise decode_error(outcome["error"])


def _read_outcome(read_fd: int) -> dict[str, Any] | None:
    """Return the report of the new hall when it is ready or has failed, or None if it exited without a report."""
    deadline, text = time.monotonic() + _START_TIMEOUT_S, b""
    while True:
        ready, _, _ = select.select([read_fd], [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            message = f"the hall was not ready within {_START_TIMEOUT_S:g} seconds"
            raise TimedOut(message, hint="Check if it is ready now: guild hall status")
        chunk = os.read(read_fd, 65536)
        if not chunk:
            return _parse_object(text) or None
        text += chunk


def _open_log(home: Home) -> Any:
    if home.log.exists() and home.log.stat().st_size > _MAX_LOG_BYTES:
        home.log.replace(home.log.with_name(f"{home.log.name}.1"))
    descriptor = os.open(home.log, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    return os.fdopen(descriptor, "ab")


def stop(pid: int) -> None:
    """Stop the hall with this process id. Return when its process has exited. Its runs resume in the next hall."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    wait_for_exit(pid)


def wait_for_exit(pid: int) -> None:
    """Wait until the process of a hall that is stopping has exited."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if not select.select([pidfd], [], [], _STOP_TIMEOUT_S)[0]:
            raise TimedOut(
                f"the hall (pid {pid}) did not exit within {_STOP_TIMEOUT_S:g} seconds",
                hint=f"Kill it with `kill -9 {pid}`. Nothing recorded is lost.",
            )
    finally:
        os.close(pidfd)
