"""The locks of a hall: one process writes to a home, and to a database of a workflow's own."""

from __future__ import annotations

import fcntl
import json
import os
import time
from typing import IO, TYPE_CHECKING, Any

from guildhall.core.clock import stamp
from guildhall.core.errors import HallInUse, HallUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from guildhall.core.clock import Clock
    from guildhall.core.paths import Home

LOCK_PATIENCE = 1.0  # seconds: a command that only looks holds the lock for a moment


def lock_home(home: Home, clock: Clock, *, patience: float = 0.0, told: Mapping[str, Any] | None = None) -> IO[Any]:
    """The home's lock, held until it is closed or the process ends. `patience`: how long one that is held is tried."""
    home.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = home.lock.open("a+")
    if not _taken(handle, clock, patience):
        handle.seek(0)
        holder, way_out = _holder(handle.read())
        handle.close()
        raise HallInUse(
            f"the hall at {home.path} is in use by {holder}",
            hint=f"{way_out}, or set GUILDHALL_HOME to another folder.",
        )
    handle.truncate(0)
    handle.write(json.dumps({"pid": os.getpid(), "since": stamp(clock.now()), **(told or {})}))
    handle.flush()
    return handle


def lock_database(path: Path, clock: Clock, *, patience: float = 0.0) -> IO[Any]:
    """The lock of a database outside of the home, which other homes may name too. Nothing is written into it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.fdopen(os.open(path.with_name(f"{path.name}.lock"), flags, 0o600), "r")
    except OSError as error:
        reason = error.strerror or str(error)
        hint = "Name another file in `context.config.db`."
        raise HallUnavailable(f"the database cannot be locked: {reason}", where=str(path), hint=hint) from None
    if _taken(handle, clock, patience):
        return handle
    handle.close()
    hint = "Run `guild hall stop` with its GUILDHALL_HOME, or name another file in `context.config.db`."
    raise HallInUse("the database is in use by the hall of another home", where=str(path), hint=hint)


def _taken(handle: IO[Any], clock: Clock, patience: float) -> bool:
    until = clock.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if clock.monotonic() >= until:
                return False
            time.sleep(0.02)
        else:
            return True


def _holder(text: str) -> tuple[str, str]:
    """Who holds the lock, and what to do about it."""
    wait = "Wait for it to end"
    try:
        told = json.loads(text)
        if told["pid"] == os.getpid():
            return "another thread or event loop of this program", wait
        since = f"(process {int(told['pid'])}, since {told['since']})"
        if told.get("hall"):
            return f"its own process {since}", "End it with `guild hall stop`"
        return f"another guild command {since}", wait
    except (ValueError, KeyError, TypeError):
        return "another guild command", wait
