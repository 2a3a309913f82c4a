"""Idle time: waiting for the user does not count as running time, also in child runs."""

from __future__ import annotations

import asyncio

from guildhall.core.clock import SystemClock
from guildhall.runs.idle_tracker import IdleTracker


class ManualClock(SystemClock):
    """A clock that the test sets."""

    time = 0.0

    def monotonic(self) -> float:
        return self.time


def test_callers_are_idle_while_a_child_waits_for_the_user() -> None:
    clock = ManualClock()
    boss = IdleTracker(clock, client_count=1)
    middle = IdleTracker(clock, client_count=1, parent=boss)
    hand = IdleTracker(clock, client_count=1, parent=middle)
    with boss.open_call(), middle.open_call(), hand.open_call():
        clock.time = 10.0
        assert [one.waited_s() for one in (boss, middle, hand)] == [0, 0, 0]
        with hand.waiting_call():
            clock.time = 1010.0
            assert [one.waited_s() for one in (boss, middle, hand)] == [1000, 1000, 1000]
        clock.time = 1015.0
    assert [one.waited_s() for one in (boss, middle, hand)] == [1000, 1000, 1000]


def test_the_caller_is_running_while_a_sibling_works() -> None:
    clock = ManualClock()
    boss = IdleTracker(clock, client_count=1)
    hand, other = (IdleTracker(clock, client_count=1, parent=boss) for _ in range(2))
    with boss.open_call(), boss.open_call(), hand.open_call(), hand.waiting_call():
        with other.open_call():
            clock.time = 100.0
            assert (boss.waited_s(), hand.waited_s()) == (0, 100)
            with other.waiting_call():
                clock.time = 130.0
                assert (boss.waited_s(), hand.waited_s()) == (30, 130)
        clock.time = 150.0
        assert (boss.waited_s(), hand.waited_s()) == (30, 150)


def test_a_run_does_not_become_idle_while_a_client_is_connected() -> None:
    async def scene() -> None:
        tracker = IdleTracker(SystemClock(), client_count=1)
        with tracker.open_call(), tracker.waiting_call():
            tracker.adjust_client_count(1)
            tracker.adjust_client_count(-1)
            await asyncio.sleep(0.07)
            assert not tracker.idle.is_set()
            tracker.adjust_client_count(-1)
            await asyncio.wait_for(tracker.idle.wait(), 5)

    asyncio.run(scene())


def test_a_client_that_reconnects_in_time_keeps_the_run_from_becoming_idle() -> None:
    async def scene() -> None:
        tracker = IdleTracker(SystemClock(), client_count=0)
        with tracker.open_call(), tracker.waiting_call():
            tracker.adjust_client_count(1)
            await asyncio.sleep(0.07)
            assert not tracker.idle.is_set()

    asyncio.run(scene())


def test_expected_calls_keep_the_run_from_becoming_idle() -> None:
    """Programs make the calls of one answer one after another, with pauses between them."""

    async def scene() -> None:
        tracker = IdleTracker(SystemClock(), client_count=0)
        tracker.expect_calls(2)
        tracker.expect_calls(1)
        with tracker.open_call(), tracker.waiting_call():
            await asyncio.sleep(0.1)
            assert not tracker.idle.is_set()
            tracker.expect_calls(0)
            with tracker.open_call():
                await asyncio.sleep(0.1)
                assert not tracker.idle.is_set()
                with tracker.waiting_call():
                    await asyncio.wait_for(tracker.idle.wait(), 5)

    asyncio.run(scene())


def test_an_expected_call_that_never_comes_times_out() -> None:
    async def scene() -> None:
        tracker = IdleTracker(SystemClock(), client_count=0, expect_timeout_s=0.1)
        tracker.expect_calls(1)
        with tracker.open_call(), tracker.waiting_call():
            await asyncio.wait_for(tracker.idle.wait(), 5)

    asyncio.run(scene())
