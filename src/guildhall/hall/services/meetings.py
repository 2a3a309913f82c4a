"""The service of meetings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.hall.client.interface import Meetings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from guildhall.core.events import Event
    from guildhall.core.frame import Frame
    from guildhall.hall.composition.hall import Hall
    from guildhall.projects.meetings.model import Meeting, MeetingDetails
    from guildhall.projects.meetings.states import MeetingStatus


class MeetingService(Meetings):
    def __init__(self, hall: Hall, *, stays: bool) -> None:
        self._hall = hall
        self._stays = stays

    async def list(self, *, project: str | None = None, status: MeetingStatus | None = None) -> Sequence[Meeting]:
        meetings = self._hall.meetings
        found = meetings.all(project, status)
        if project is not None and not found and not meetings.all(project):
            self._hall.projects.get(project)  # raises, unless the project is registered or was
        return found

    async def get(self, id: str) -> MeetingDetails:
        return await self._hall.meetings.details(id)

    async def open(self, worker: str, words: str, frame: Frame, *, project: str | None = None) -> Meeting:
        return await self._hall.meetings.open(worker, words, frame, project=project)

    def join(
        self,
        id: str,
        frame: Frame,
        *,
        renew: bool = False,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        budget: float | None = None,
    ) -> AsyncGenerator[Event]:
        from guildhall.runs.grants import Grant

        wanted = Grant(max_turns=max_turns, max_tokens=max_tokens, budget=budget)
        grant = None if wanted == Grant() else wanted
        return self._hall.meetings.come(id, frame, renew=renew, grant=grant, stays=self._stays)

    def say(self, id: str, words: str, frame: Frame) -> AsyncGenerator[Event]:
        return self._hall.meetings.say(id, words, frame, stays=self._stays)

    async def interrupt(self, id: str) -> None:
        await self._hall.meetings.interrupt(id)

    async def accept(self, id: str) -> Meeting:
        return await self._hall.meetings.accept(id)

    async def decline(self, id: str, *, reason: str | None = None) -> Meeting:
        from guildhall.projects.commissions.model import check_reason

        return await self._hall.meetings.decline(id, None if reason is None else check_reason(reason))

    async def defer(self, id: str, until: str) -> Meeting:
        return await self._hall.meetings.defer(id, until)

    async def close(self, id: str, frame: Frame, *, summarise: bool = True, leave_work: bool = False) -> Meeting:
        return await self._hall.meetings.close_meeting(id, frame, summarise=summarise, leave_work=leave_work)

    async def delete(self, id: str) -> None:
        await self._hall.meetings.delete(id)
