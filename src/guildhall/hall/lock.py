"""The lock of a home: one process at a time owns what is on record there."""

from __future__ import annotations

import fcntl
import json
import os
import time
from typing import IO, TYPE_CHECKING, Any

from guildhall.core.clock import stamp
from guildhall.core.errors import HallUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.core.clock import Clock
    from guildhall.core.paths import Home


def locked(home: Home, clock: Clock, *, patience: float = 0.0, told: Mapping[str, Any] | None = None) -> IO[Any]:
    """The home's lock, held until it is closed or the process ends. `patience`: how long one that is held is tried."""
    home.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = home.lock.open("a+")
    until = clock.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if clock.monotonic() < until:
                time.sleep(0.02)
                continue
            handle.seek(0)
            holder, way_out = _holder(handle.read())
            handle.close()
            raise HallUnavailable(
                f"the hall at {home.path} is in use by {holder}",
                hint=f"{way_out}, or set GUILDHALL_HOME to another folder.",
            ) from None
        handle.truncate(0)
        handle.write(json.dumps({"pid": os.getpid(), "since": stamp(clock.now()), **(told or {})}))
        handle.flush()
        return handle


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
