"""The tools of the timekeeper."""

from __future__ import annotations

from datetime import timedelta

from guildhall import tool

from .dates import is_workday, parse_day, workdays_after


@tool(repeatable=True)
def days_between(start: str, end: str) -> str:
    """Count the days, weeks and workdays (Monday to Friday) between two days.

    Args:
        start: The first day, as 2026-05-31.
        end: The last day.
    """
    first, last = sorted((parse_day(start), parse_day(end)))
    days = (last - first).days
    if days > 36_600:
        raise ValueError("invalid range: at most 100 years")
    work = sum(is_workday(first + timedelta(days=number), frozenset()) for number in range(1, days + 1))
    return f"{days} days ({days // 7} weeks and {days % 7} days), {work} workdays; {end} is a {parse_day(end):%A}."


@tool(repeatable=True)
def add_workdays(start: str, count: int, free: list[str] | None = None) -> str:
    """Return the day that is a number of workdays (Monday to Friday) after a day, or before it if negative.

    Args:
        start: The day, as 2026-05-31.
        count: Number of workdays.
        free: Holidays, as 2026-05-31.
    """
    found = workdays_after(parse_day(start), count, frozenset(map(parse_day, free or ())))
    return f"{found.isoformat()}, a {found:%A}"
