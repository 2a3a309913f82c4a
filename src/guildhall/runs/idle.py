"""Idle tracker: detects that a run can only wait for the user, and measures how long it has waited.

A run is idle if all its open calls wait and no user is attached by a terminal. A called run is never idle by itself:
its wait counts as a wait of the call in the run above.

Does not park the run: `runs.execution.segment` does.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

    from guildhall.core.clock import Clock

# Calls of one answer begin one after another: a moment's rest tells "all of them wait" from "the first of them waits".
_SETTLED = 0.05
_AWAITED = 5.0  # seconds for a program to make a call that its model has asked for; it may never make it


class Patience:
    """Counts the open calls of a run and those of them that wait. An idle run is `stuck`: it can be parked."""

    def __init__(self, clock: Clock, *, hold: int, parent: Patience | None = None, awaited: float = _AWAITED) -> None:
        """`awaited`: seconds for a call that is still to come."""
        self.stuck = asyncio.Event()
        self._clock = clock
        self._hold = int(hold)  # how many people sit at a terminal
        self._parent = parent
        self._awaited = awaited
        self._open = 0
        self._waiting = 0
        self._due = 0
        self._overdue: asyncio.TimerHandle | None = None
        self._idle = 0.0
        self._idle_since: float | None = None

    def hold(self, more: int) -> None:
        """So many people more, or less, sit at a terminal."""
        self._hold += more
        self._look()

    @property
    def people(self) -> int:
        """How many sit at a terminal."""
        return self._hold

    @contextmanager
    def call(self) -> Generator[None]:
        """Around every call through a door."""
        self._open += 1
        self._look()
        try:
            yield
        finally:
            self._open -= 1
            self._look()

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Around the part of a call that waits for a person."""
        self.wait(1)
        try:
            yield
        finally:
            self.wait(-1)

    def wait(self, more: int) -> None:
        """So many calls more, or less, wait for a person."""
        self._waiting += more
        self._look()

    def expect(self, calls: int) -> None:
        """So many calls are still to come, from a program that is slower than we are: all of them wait as one."""
        self._due = calls
        if self._overdue is not None:
            self._overdue.cancel()
        self._overdue = asyncio.get_running_loop().call_later(self._awaited, self.expect, 0) if calls else None
        self._look()

    def idle_seconds(self) -> float:
        """How long the run has only waited; that time is not its own."""
        now = self._clock.monotonic()
        return self._idle + (0.0 if self._idle_since is None else now - self._idle_since)

    @property
    def only_waits(self) -> bool:
        """Whether nothing goes on but waiting for people."""
        return self._open > 0 and self._waiting == self._open and not self._due

    def _look(self) -> None:
        now = self._clock.monotonic()
        waited = self._idle_since is not None
        if self._idle_since is not None:
            self._idle += now - self._idle_since
        self._idle_since = now if self.only_waits else None
        if self._parent is not None:
            if waited != self.only_waits:
                self._parent.wait(1 if self.only_waits else -1)
        elif self.only_waits and not self._hold:
            asyncio.get_running_loop().call_later(_SETTLED, self._confirm)

    def _confirm(self) -> None:
        if self.only_waits and not self._hold:
            self.stuck.set()
