"""Time stamps: sortable as text, with a precision of a millisecond."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from guildhall.core.clock import SystemClock, parse_stamp, stamp

TIMES = st.datetimes(
    min_value=datetime(1970, 1, 2),  # noqa: DTZ001 - hypothesis adds the zone
    max_value=datetime(2200, 1, 1),  # noqa: DTZ001
    timezones=st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)


def test_a_stamp_is_utc_in_milliseconds():
    summer = datetime(2026, 7, 1, 14, 0, 0, 123456, tzinfo=timezone(timedelta(hours=2)))
    assert stamp(summer) == "2026-07-01T12:00:00.123Z"


@given(TIMES)
def test_a_stamp_can_be_read_back(when: datetime):
    assert timedelta(0) <= when - parse_stamp(stamp(when)) < timedelta(milliseconds=1)


@given(TIMES, TIMES)
def test_stamps_sort_like_their_times(one: datetime, other: datetime):
    if one <= other:
        assert stamp(one) <= stamp(other)


def test_the_system_clock_advances():
    async def scene() -> None:
        clock = SystemClock()
        before = clock.monotonic()
        assert clock.now().tzinfo is UTC
        await clock.sleep(0.01)
        assert clock.monotonic() - before >= 0.01

    asyncio.run(scene())
