"""Idle tracker: detects that a run can only wait for the user, and measures how long the run has waited.

A run waits if it has open calls and all of them wait for the user. A waiting root run without clients becomes idle. A
waiting child run never becomes idle: it counts as a waiting call of its parent.

Does not pause the run: `runs.execution.segment` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from guildhall.core.clock import Clock

# The calls of a model response open one after another. The delay gives the next call the time to open.
_CONFIRM_DELAY_S = 0.05
_EXPECT_TIMEOUT_S = 5.0  # a program might not make a call that its model has requested


class IdleTracker:
    """Counter of the open calls, the waiting calls and the clients of a run. Sets `idle`."""

    def __init__(
        self,
        clock: Clock,
        *,
        client_count: int,
        parent: IdleTracker | None = None,
        expect_timeout_s: float = _EXPECT_TIMEOUT_S,
    ) -> None:
        self.idle = asyncio.Event()
        self.client_count = client_count
        self._clock = clock
        self._parent = parent
        self._expect_timeout_s = expect_timeout_s
        self._open_count = 0
        self._waiting_count = 0
        self._expected_count = 0
        self._expect_timer: asyncio.TimerHandle | None = None
        self._earlier_waits_s = 0.0
        self._waiting_since: float | None = None

    def adjust_client_count(self, delta: int) -> None:
        self.client_count += delta
        self._update()

    @contextmanager
    def open_call(self) -> Generator[None]:
        """Count a call through a door as open."""
        self._open_count += 1
        self._update()
        try:
            yield
        finally:
            self._open_count -= 1
            self._update()

    @contextmanager
    def waiting_call(self) -> Generator[None]:
        """Count an open call as waiting for the user."""
        self.adjust_waiting_count(1)
        try:
            yield
        finally:
            self.adjust_waiting_count(-1)

    def adjust_waiting_count(self, delta: int) -> None:
        self._waiting_count += delta
        self._update()

    def expect_calls(self, count: int) -> None:
        """Treat the run as busy until a program has made this many calls, or until a timeout."""
        self._expected_count = count
        if self._expect_timer is not None:
            self._expect_timer.cancel()
        loop = asyncio.get_running_loop()
        self._expect_timer = loop.call_later(self._expect_timeout_s, self.expect_calls, 0) if count else None
        self._update()

    def waited_s(self) -> float:
        """Return how many seconds the run has waited. They do not count for its timeout."""
        current = 0.0 if self._waiting_since is None else self._clock.monotonic() - self._waiting_since
        return self._earlier_waits_s + current

    @property
    def is_waiting(self) -> bool:
        """Return True if the run has open calls, all of them wait for the user, and no other call is expected."""
        return 0 < self._open_count == self._waiting_count and not self._expected_count

    def _update(self) -> None:
        was_waiting = self._waiting_since is not None
        self._earlier_waits_s = self.waited_s()
        self._waiting_since = self._clock.monotonic() if self.is_waiting else None
        if self._parent is not None:
            if was_waiting != self.is_waiting:
                self._parent.adjust_waiting_count(1 if self.is_waiting else -1)
        elif self.is_waiting and not self.client_count:
            asyncio.get_running_loop().call_later(_CONFIRM_DELAY_S, self._confirm)

    def _confirm(self) -> None:
        if self.is_waiting and not self.client_count:
            self.idle.set()
