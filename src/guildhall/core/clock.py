"""Time as an object. Nothing else in the package asks the operating system what time it is."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """The system's clock, or a test's."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own time."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        import asyncio  # here: commands that only look need none of it

        await asyncio.sleep(seconds)


def stamp(moment: datetime) -> str:
    """A moment as it is stored and shown: UTC, milliseconds, sortable as text."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment(text: str) -> datetime:
    """The moment behind a stamp."""
    return datetime.fromisoformat(text)
