"""Dates: parses ISO dates and counts workdays."""

from __future__ import annotations

from datetime import date, timedelta

_SATURDAY = 5
_MAX_WORKDAYS = 3_660


def parse_day(text: str) -> date:
    """Return the day of an ISO date such as 2026-05-31."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"invalid day {text!r}: write it as 2026-05-31") from None


def is_workday(day: date, free: frozenset[date]) -> bool:
    return day.weekday() < _SATURDAY and day not in free


def workdays_after(start: date, count: int, free: frozenset[date]) -> date:
    """Return the day that is `count` workdays after the start, or before it if `count` is negative."""
    if abs(count) > _MAX_WORKDAYS:
        raise ValueError(f"invalid count: at most {_MAX_WORKDAYS} workdays")
    step = timedelta(days=1 if count >= 0 else -1)
    left, found = abs(count), start
    while left:
        found += step
        left -= is_workday(found, free)
    return found
