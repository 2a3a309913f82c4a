"""The tools of the timekeeper."""

from __future__ import annotations

from datetime import timedelta

from guildhall import tool

from .dates import day, is_workday, workdays_after


@tool(repeatable=True)
def days_between(start: str, end: str) -> str:
    """How many days, weeks and workdays (Monday to Friday) lie between two days.

    Args:
        start: The first day, as 2026-05-31.
        end: The last day.
    """
    first, last = sorted((day(start), day(end)))
    days = (last - first).days
    if days > 36_600:
        raise ValueError("at most a hundred years")
    work = sum(is_workday(first + timedelta(days=number), frozenset()) for number in range(1, days + 1))
    return f"{days} days ({days // 7} weeks and {days % 7} days), {work} workdays; {end} is a {day(end):%A}."


@tool(repeatable=True)
def add_workdays(start: str, count: int, free: list[str] | None = None) -> str:
    """The day that is so many workdays (Monday to Friday) after a day; before it where the number is negative.

    Args:
        start: The day, as 2026-05-31.
        count: How many workdays.
        free: Further days on which nobody works.
    """
    found = workdays_after(day(start), count, frozenset(map(day, free or ())))
    return f"{found.isoformat()}, a {found:%A}"
