"""Idle tracker: detects that a run can only wait for the user, and measures how long it has waited.

A run is idle if all its open calls wait and no client is attached. A child run is never idle by itself: its wait counts
as a wait of the call in its parent.

Does not pause the run: `runs.execution.segment` does.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

    from guildhall.core.clock import Clock

# The calls of one answer start one after another. The delay distinguishes "all wait" from "the first one waits".
_CONFIRM_DELAY_S = 0.05
_EXPECT_TIMEOUT_S = 5.0  # a program may never make a call that its model has requested


class IdleTracker:
    """Counter of the open and the waiting calls of a run. Sets `idle` when the run only waits and has no client."""

    def __init__(
        self,
        clock: Clock,
        *,
        clients: int,
        parent: IdleTracker | None = None,
        expect_timeout_s: float = _EXPECT_TIMEOUT_S,
    ) -> None:
        self.idle = asyncio.Event()
        self.clients = clients  # terminals that are attached to the run
        self._clock = clock
        self._parent = parent
        self._expect_timeout_s = expect_timeout_s
        self._open = 0
        self._waiting = 0
        self._expected = 0
        self._expect_timer: asyncio.TimerHandle | None = None
        self._idle_seconds = 0.0
        self._idle_since: float | None = None

    def add_clients(self, count: int) -> None:
        """Attach this many clients, or detach them if the count is negative."""
        self.clients += count
        self._update()

    @contextmanager
    def call(self) -> Generator[None]:
        """Count a call through a door as open."""
        self._open += 1
        self._update()
        try:
            yield
        finally:
            self._open -= 1
            self._update()

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Count an open call as waiting for the user."""
        self.add_waiting(1)
        try:
            yield
        finally:
            self.add_waiting(-1)

    def add_waiting(self, count: int) -> None:
        self._waiting += count
        self._update()

    def expect_calls(self, count: int) -> None:
        """Treat the run as busy until a program has made this many calls, or for a few seconds."""
        self._expected = count
        if self._expect_timer is not None:
            self._expect_timer.cancel()
        loop = asyncio.get_running_loop()
        self._expect_timer = loop.call_later(self._expect_timeout_s, self.expect_calls, 0) if count else None
        self._update()

    def idle_seconds(self) -> float:
        """Return how long the run has only waited. This time does not count for its timeout."""
        now = self._clock.monotonic()
        return self._idle_seconds + (0.0 if self._idle_since is None else now - self._idle_since)

    @property
    def is_waiting(self) -> bool:
        """Return True if every open call waits for the user."""
        return self._open > 0 and self._waiting == self._open and not self._expected

    def _update(self) -> None:
        was_waiting = self._idle_since is not None
        self._idle_seconds = self.idle_seconds()
        self._idle_since = self._clock.monotonic() if self.is_waiting else None
        if self._parent is not None:
            if was_waiting != self.is_waiting:
                self._parent.add_waiting(1 if self.is_waiting else -1)
        elif self.is_waiting and not self.clients:
            asyncio.get_running_loop().call_later(_CONFIRM_DELAY_S, self._confirm)

    def _confirm(self) -> None:
        if self.is_waiting and not self.clients:
            self.idle.set()
