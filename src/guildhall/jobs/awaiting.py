"""Jobs whose runs are put away until a person answers: they go on when nothing holds them, or the time is over."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from guildhall.core.clock import moment

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from guildhall.core.clock import Clock
    from guildhall.runs.asks import Asks
    from guildhall.runs.history import History
    from guildhall.runs.model import Ask, Run


class Awaiting:
    """Knows when a run that waits can go on without anybody."""

    def __init__(self, *, asks: Asks, history: History, clock: Clock, go_on: Callable[[Run], Awaitable[None]]) -> None:
        self._asks = asks
        self._history = history
        self._clock = clock
        self._go_on = go_on
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def busy(self) -> bool:
        """Whether something is to happen by itself."""
        return bool(self._tasks)

    def expect(self, run: str) -> None:
        """A run has been put away: it goes on at once if nothing holds it any more, or when the first time is over."""
        held = [ask for ask in self._asks.of_run(run) if ask.status == "open" and self._holds(ask)]
        times = [ask.expires_at for ask in held if ask.expires_at is not None]
        self.forget(run)
        if not held or times:
            self._tasks[run] = asyncio.create_task(self._wait(run, min(times, default=None)))

    def forget(self, run: str) -> None:
        if (task := self._tasks.pop(run, None)) is not None:
            task.cancel()

    def close(self) -> None:
        for run in list(self._tasks):
            self.forget(run)

    def _holds(self, ask: Ask) -> bool:
        """Whether the run goes on only with the answer: of a question the call says so."""
        asked = self._history.journal(ask.run).last(ask.key, "question_asked") if ask.kind == "question" else None
        return asked is None or bool(asked.data["wait"])

    async def _wait(self, run: str, until: str | None) -> None:
        if until is not None:
            await self._clock.sleep(max((moment(until) - self._clock.now()).total_seconds(), 0.0))
        del self._tasks[run]
        found = self._history.get(run)
        if found.status == "waiting":
            await self._go_on(found)
