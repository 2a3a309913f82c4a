"""Discovery of the hall of a home: finds the live process, starts a process if there is none, and stops it.

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
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from guildhall import __version__
from guildhall.core.atomic_file import replace_file
from guildhall.core.errors import HallUnavailable, TimedOut

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from guildhall.core.paths import Home

EMBEDDED_VARIABLE = "GUILDHALL_EMBEDDED"
_READY_WITHIN = 60.0  # seconds
_GONE_WITHIN = 30.0
_LARGEST_LOG = 5_000_000  # bytes; then a new one is begun
_TAIL = 5  # lines of the log that are shown when a start fails


@dataclass(frozen=True, kw_only=True)
class Address:
    """The address of a hall and the token for it."""

    pid: int
    boot: str
    version: str
    url: str
    since: str
    token: str = field(repr=False)  # of the user

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def write(self, path: Path) -> None:
        """Write the address file atomically, readable by the user only."""
        replace_file(path, json.dumps(asdict(self)).encode())


def is_embedded(environ: Mapping[str, str]) -> bool:
    """Return True if each command opens the hall in its own process. The hall's process needs Linux."""
    return sys.platform != "linux" or environ.get(EMBEDDED_VARIABLE, "") not in ("", "0")


# finding


def find_hall(home: Home) -> Address | None:
    """Return the address of the live hall of a home, or None."""
    told = _holder(home)
    if told is None or not told.get("hall"):
        return None
    address = _read(home.address)
    return address if address is not None and address.boot == told.get("boot") else None


def find_hall_pid(home: Home) -> int | None:
    """Return the process id of the live hall, also if its address file is missing, or None."""
    told = _holder(home)
    pid = told.get("pid") if told and told.get("hall") else None
    return pid if type(pid) is int else None


def _holder(home: Home) -> dict[str, Any] | None:
    """Return the content of the home's lock file, or None if no process holds the lock."""
    try:
        descriptor = os.open(home.lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return _object(file.read(10_000))
    return None


def _read(path: Path) -> Address | None:
    """Return the address in the file, or None if the file is missing or invalid."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise HallUnavailable(
                "this file may be read or changed by others, so it is not believed",
                where=str(path),
                hint="`guild hall stop` ends the hall; the next command starts one with a file of its own.",
            )
        told = _object(file.read(10_000))
    try:
        address = Address(**told)
        known = address.url == f"http://127.0.0.1:{address.port}" and type(address.pid) is int
    except (TypeError, ValueError):
        return None
    return address if known else None


def _object(text: bytes) -> dict[str, Any]:
    try:
        told = json.loads(text)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def check_same_version(address: Address) -> Address:
    """Return the address. Raise HallUnavailable if the hall has another version."""
    if address.version != __version__:
        raise HallUnavailable(
            f"the hall that is running is of version {address.version}, this command of {__version__}",
            hint="`guild hall stop` ends it; its runs go on with the next command.",
        )
    return address


# starting


def find_or_start(home: Home, environ: Mapping[str, str]) -> Address:
    """Return the address of the live hall of a home. Start a hall if none is live."""
    if (address := find_hall(home)) is not None:
        return address
    home.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    with home.start_lock.open("a") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # of concurrent commands, one starts the hall
        if (address := find_hall(home)) is not None:
            return address
        _start(home, environ)
    if (address := find_hall(home)) is not None:
        return address
    raise HallUnavailable("the hall ended as soon as it was there", hint=f"See {home.log}.")


def _start(home: Home, environ: Mapping[str, str]) -> None:
    """Start a hall that outlives this process, and wait until it serves."""
    import subprocess

    reading, writing = os.pipe()
    try:
        with _log(home) as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "guildhall.hall.server.process", str(home.path), str(writing)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=home.path,
                env={name: value for name, value in environ.items() if not name.startswith("GIT_")},
                pass_fds=[writing],
                start_new_session=True,
            )
    finally:
        os.close(writing)
    try:
        told = _told(reading)
    finally:
        os.close(reading)
        with contextlib.suppress(OSError):
            process.poll()
        process.returncode = process.returncode or 0  # the process outlives this command, so it is not waited for
    if told is None:
        raise HallUnavailable("the hall could not be started", where=str(home.log), hint=_tail(home.log))
    if "error" in told:
        from guildhall.hall.client.codec import decode_error

        raise decode_error(told["error"])


def _told(reading: int) -> dict[str, Any] | None:
    """Return the message of the new hall when it is ready or has failed, or None if it ended without one."""
    until, text = time.monotonic() + _READY_WITHIN, b""
    while True:
        ready, _, _ = select.select([reading], [], [], max(until - time.monotonic(), 0))
        if not ready:
            raise TimedOut(
                f"the hall was not ready within {_READY_WITHIN:g} seconds",
                hint="`guild hall status` says how it stands.",
            )
        piece = os.read(reading, 65536)
        if not piece:
            return _object(text) or None
        text += piece


def _log(home: Home) -> Any:
    if home.log.exists() and home.log.stat().st_size > _LARGEST_LOG:
        home.log.replace(home.log.with_name(f"{home.log.name}.1"))
    descriptor = os.open(home.log, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    return os.fdopen(descriptor, "ab")


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-_TAIL:]
    return "Its last words:\n" + "\n".join(lines) if lines else "Its log is empty."


# ending


def stop(pid: int) -> None:
    """Stop the hall and return when its process has ended. Its runs resume when the next hall starts."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    wait_for_end(pid)


def wait_for_end(pid: int) -> None:
    """Wait until the process of a hall that is leaving has ended."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if not select.select([watched], [], [], _GONE_WITHIN)[0]:
            raise TimedOut(
                f"the hall (process {pid}) has not left within {_GONE_WITHIN:g} seconds",
                hint=f"`kill -9 {pid}` ends it at once; nothing on record is lost.",
            )
    finally:
        os.close(watched)
