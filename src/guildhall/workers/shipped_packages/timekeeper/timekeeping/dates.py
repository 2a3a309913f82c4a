"""Dates as people write them, and which of them are workdays."""

from __future__ import annotations

from datetime import date, timedelta

_SATURDAY = 5
_LONGEST = 3_660  # days: ten years


def day(text: str) -> date:
    """A day written as 2026-05-31."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no day; write it as 2026-05-31") from None


def is_workday(one: date, free: frozenset[date]) -> bool:
    return one.weekday() < _SATURDAY and one not in free


def workdays_after(start: date, count: int, free: frozenset[date]) -> date:
    """The day that is so many workdays after another one; before it, where the number is below 0."""
    if abs(count) > _LONGEST:
        raise ValueError(f"at most {_LONGEST} workdays")
    step = timedelta(days=1 if count >= 0 else -1)
    left, found = abs(count), start
    while left:
        found += step
        left -= is_workday(found, free)
    return found
