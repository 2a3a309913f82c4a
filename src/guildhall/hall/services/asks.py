"""The service of asks."""

from __future__ import annotations

from heapq import merge
from typing import TYPE_CHECKING

from guildhall.hall.client.interface import Asks
from guildhall.hall.composition.hall import Hall
from guildhall.runs.records import find_ask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guildhall.runs import asks
    from guildhall.runs.model import Answer, Ask


class AskService(Asks):
    def __init__(self, hall: Hall, *, stays: bool) -> None:
        self._hall = hall
        self._stays = stays

    async def list(self) -> Sequence[Ask]:
        found = (part.asks.open() for part in (self._hall, *self._hall.annexes.every()))
        return [*merge(*found, key=lambda ask: ask.created_at)]

    async def get(self, ask: str) -> Ask:
        asks = self._asks_with(ask)
        return asks.seen(asks.get(ask))

    async def answer(self, ask: str, answer: Answer) -> Ask:
        asks = self._asks_with(ask)
        if (found := asks.get(ask)).kind == "meeting":  # the meeting and its ask change together
            await self._hall.meetings.answer(found, answer)
            return asks.get(ask)
        answered = await asks.answer(ask, answer)
        await self._notify_owner(answered)
        return answered

    async def _notify_owner(self, ask: Ask) -> None:
        """Notify the job, commission, meeting or workflow of the run, and resume the run if it waits for the answer."""
        from guildhall.hall.composition.recovery import go_on

        part = self._hall.where(ask.root)
        if (runs := Hall.runs.of(part).peek()) is not None:
            await runs.gone(ask.root)  # a run that is being parked does not resume by itself
        root = part.history.get(ask.root)
        if (seating := self._hall.seating(root.kind)) is None:
            return
        await seating.answered(ask)
        if self._stays and root.status == "waiting":
            await go_on(self._hall, root)

    def _asks_with(self, ask: str) -> asks.Asks:
        return self._hall.annexes.where(lambda connection: find_ask(connection, ask) is not None).asks
