"""Clock: provides time as an object that tests can replace, and converts timestamps to text and back.

A timestamp is stored and shown in UTC with milliseconds, so that its text sorts by time.

Does not serve helper processes and process supervision, which measure their timeouts with `time.monotonic`.

Invariant: every recorded timestamp comes from a `Clock`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Protocol

_LOCAL_ZONE_FILE = Path("/etc/localtime")


class Clock(Protocol):
    """The system clock, or a clock of a test."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The time of the machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        import asyncio  # imported late, because read-only commands do not need it

        await asyncio.sleep(seconds)


def stamp(moment: datetime) -> str:
    """Return a time as stored and shown: UTC with milliseconds, sortable as text."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_stamp(text: str) -> datetime:
    """Parse a time that `stamp` formatted."""
    return datetime.fromisoformat(text)


def local_zone(environ: Mapping[str, str]) -> tzinfo:
    """Return the time zone of the user, with its daylight saving rules."""
    from zoneinfo import ZoneInfo

    name = environ.get("TZ", "").removeprefix(":")
    try:
        if name:
            return ZoneInfo(name)
        with _LOCAL_ZONE_FILE.open("rb") as file:
            return ZoneInfo.from_file(file)
    except (OSError, ValueError, KeyError):  # KeyError: no such zone
        return datetime.now().astimezone().tzinfo or UTC
