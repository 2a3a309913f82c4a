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
    boss = IdleTracker(clock, clients=1)
    middle = IdleTracker(clock, clients=1, parent=boss)
    hand = IdleTracker(clock, clients=1, parent=middle)
    with boss.call(), middle.call(), hand.call():
        clock.time = 10.0
        assert [one.idle_seconds() for one in (boss, middle, hand)] == [0, 0, 0]
        with hand.waiting():
            clock.time = 1010.0
            assert [one.idle_seconds() for one in (boss, middle, hand)] == [1000, 1000, 1000]
        clock.time = 1015.0
    assert [one.idle_seconds() for one in (boss, middle, hand)] == [1000, 1000, 1000]


def test_the_caller_is_running_while_a_sibling_works() -> None:
    clock = ManualClock()
    boss = IdleTracker(clock, clients=1)
    hand, other = (IdleTracker(clock, clients=1, parent=boss) for _ in range(2))
    with boss.call(), boss.call(), hand.call(), hand.waiting():
        with other.call():
            clock.time = 100.0
            assert (boss.idle_seconds(), hand.idle_seconds()) == (0, 100)
            with other.waiting():
                clock.time = 130.0
                assert (boss.idle_seconds(), hand.idle_seconds()) == (30, 130)
        clock.time = 150.0
        assert (boss.idle_seconds(), hand.idle_seconds()) == (30, 150)


def test_a_run_does_not_become_idle_while_a_client_is_connected() -> None:
    async def scene() -> None:
        tracker = IdleTracker(SystemClock(), clients=1)
        with tracker.call(), tracker.waiting():
            tracker.add_clients(1)
            tracker.add_clients(-1)
            await asyncio.sleep(0.07)
            assert not tracker.idle.is_set()
            tracker.add_clients(-1)
            await asyncio.wait_for(tracker.idle.wait(), 5)

    asyncio.run(scene())


def test_a_client_that_reconnects_in_time_keeps_the_run_from_becoming_idle() -> None:
    async def scene() -> None:
        tracker = IdleTracker(SystemClock(), clients=0)
        with tracker.call(), tracker.waiting():
            tracker.add_clients(1)
            await asyncio.sleep(0.07)
            assert not tracker.idle.is_set()

    asyncio.run(scene())


def test_expected_calls_keep_the_run_from_becoming_idle() -> None:
    """Programs make the calls of one answer one after another, with pauses between them."""

    async def scene() -> None:
        tracker = IdleTracker(SystemClock(), clients=0)
        tracker.expect_calls(2)
        tracker.expect_calls(1)
        with tracker.call(), tracker.waiting():
            await asyncio.sleep(0.1)
            assert not tracker.idle.is_set()
            tracker.expect_calls(0)
            with tracker.call():
                await asyncio.sleep(0.1)
                assert not tracker.idle.is_set()
                with tracker.waiting():
                    await asyncio.wait_for(tracker.idle.wait(), 5)

    asyncio.run(scene())


def test_an_expected_call_that_never_comes_times_out() -> None:
    async def scene() -> None:
        tracker = IdleTracker(SystemClock(), clients=0, expect_timeout_s=0.1)
        tracker.expect_calls(1)
        with tracker.call(), tracker.waiting():
            await asyncio.wait_for(tracker.idle.wait(), 5)

    asyncio.run(scene())
