"""When an agent wakes without being mentioned: every so often, or by a cron line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from guildhall.core.config import duration
from guildhall.core.errors import UsageError
from guildhall.core.yaml import shown

if TYPE_CHECKING:
    from datetime import datetime

SHORTEST = 1.0  # seconds
_HOW = 'Write 30s, 5m, 1h, or a cron line with five fields such as "0 9 * * 1-5".'
_FIELDS = re.compile(r"\S+(\s+\S+){4,5}")
_LONGEST = 200


@dataclass(frozen=True, kw_only=True)
class Wakeup:
    """One of the two is set."""

    every: float | None = None  # seconds
    cron: str | None = None

    def after(self, moment: datetime) -> datetime:
        """The next time that it is due. Cron lines are read in the time zone of the moment."""
        if self.every is not None:
            return moment + timedelta(seconds=self.every)
        from cronsim import CronSim

        return next(CronSim(self.cron or "", moment))

    def __str__(self) -> str:
        return f"cron {self.cron}" if self.cron is not None else f"every {in_words(self.every or 0)}"


def wakeup_of(value: object) -> Wakeup:
    """A wake-up as people write it. ValueError: what is wrong, in a sentence."""
    if isinstance(value, Wakeup):
        return value
    if isinstance(value, str) and _FIELDS.fullmatch(value.strip()) and len(value) <= _LONGEST:
        return Wakeup(cron=_checked(value.strip()))
    try:
        seconds = duration(value)
    except UsageError:
        raise ValueError(f"{shown(value)} is no time to wake at. {_HOW}") from None
    if seconds < SHORTEST:
        raise ValueError(f"{shown(value)} is too often: at most once in a second")
    return Wakeup(every=seconds)


def _checked(line: str) -> str:
    from datetime import UTC, datetime

    from cronsim import CronSim, CronSimError

    try:
        next(CronSim(line, datetime(2024, 1, 1, tzinfo=UTC)))
    except CronSimError as error:
        raise ValueError(f"{shown(line)} is not a cron line: {error}. {_HOW}") from None
    except StopIteration:
        raise ValueError(f"{shown(line)} is a cron line that is never due") from None
    return line


def in_words(seconds: float) -> str:
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s"
