"""Timers that resume a run which waits for the user: when nothing blocks it any more, or when an ask expires."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from guildhall.core.clock import moment
from guildhall.runs.record.entries import QuestionAsked

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from guildhall.core.clock import Clock
    from guildhall.runs.asks import Asks
    from guildhall.runs.history import History
    from guildhall.runs.model import Ask, Run


class ResumeTimers:
    """Resumes waiting runs by `resume`, one timer for each run."""

    def __init__(self, *, asks: Asks, history: History, clock: Clock, resume: Callable[[Run], Awaitable[None]]) -> None:
        self._asks = asks
        self._history = history
        self._clock = clock
        self._resume = resume
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def busy(self) -> bool:
        """Return True if a timer is set."""
        return bool(self._tasks)

    def expect(self, run: str) -> None:
        """Resume a parked run: at once if no open ask blocks it, else when the first of these asks expires."""
        blocking = [ask for ask in self._asks.of_run(run) if ask.status == "open" and self._is_blocking(ask)]
        times = [ask.expires_at for ask in blocking if ask.expires_at is not None]
        self.forget(run)
        if not blocking or times:
            self._tasks[run] = asyncio.create_task(self._wait(run, min(times, default=None)))

    def forget(self, run: str) -> None:
        if (task := self._tasks.pop(run, None)) is not None:
            task.cancel()

    def close(self) -> None:
        for run in list(self._tasks):
            self.forget(run)

    def _is_blocking(self, ask: Ask) -> bool:
        """Return True if the run cannot resume without the answer. A question blocks if its call waits."""
        asked = self._history.journal(ask.run).last(ask.key, QuestionAsked) if ask.kind == "question" else None
        return asked is None or asked.data.wait

    async def _wait(self, run: str, until: str | None) -> None:
        if until is not None:
            await self._clock.sleep(max((moment(until) - self._clock.now()).total_seconds(), 0.0))
        del self._tasks[run]
        found = self._history.get(run)
        if found.status == "waiting":
            await self._resume(found)
