"""The verbs about meetings, carried out in this process."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from guildhall.core.events import Event
    from guildhall.core.frame import Frame
    from guildhall.hall.composition.hall import Hall
    from guildhall.projects.meetings.model import Meeting, MeetingDetails
    from guildhall.projects.meetings.states import MeetingStatus


class MeetingVerbs:
    """That part of a hall inside this process."""

    _hall: Hall
    _stays: bool

    async def meetings(self, *, project: str | None = None, status: MeetingStatus | None = None) -> list[Meeting]:
        meetings = self._hall.meetings
        found = meetings.all(project, status)
        if project is not None and not found and not meetings.all(project):
            self._hall.projects.get(project)  # there may be some of one that is registered no more
        return found

    async def meeting(self, id: str) -> MeetingDetails:
        return await self._hall.meetings.details(id)

    async def meeting_open(self, worker: str, words: str, frame: Frame, *, project: str | None = None) -> Meeting:
        return await self._hall.meetings.open(worker, words, frame, project=project)

    async def meeting_come(
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
        come = self._hall.meetings.come(id, frame, renew=renew, grant=grant, stays=self._stays)
        async with aclosing(come) as events:
            async for event in events:
                yield event

    async def meeting_say(self, id: str, words: str, frame: Frame) -> AsyncGenerator[Event]:
        async with aclosing(self._hall.meetings.say(id, words, frame, stays=self._stays)) as events:
            async for event in events:
                yield event

    async def meeting_interrupt(self, id: str) -> None:
        await self._hall.meetings.interrupt(id)

    async def meeting_accept(self, id: str) -> Meeting:
        return await self._hall.meetings.accept(id)

    async def meeting_decline(self, id: str, *, reason: str | None = None) -> Meeting:
        from guildhall.projects.commissions.model import check_reason

        return await self._hall.meetings.decline(id, None if reason is None else check_reason(reason))

    async def meeting_defer(self, id: str, until: str) -> Meeting:
        return await self._hall.meetings.defer(id, until)

    async def meeting_close(
        self, id: str, frame: Frame, *, summarise: bool = True, leave_work: bool = False
    ) -> Meeting:
        return await self._hall.meetings.close_meeting(id, frame, summarise=summarise, leave_work=leave_work)

    async def meeting_delete(self, id: str) -> None:
        await self._hall.meetings.delete(id)
