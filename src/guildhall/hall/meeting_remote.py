"""The verbs about meetings, asked for over HTTP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from guildhall.core.events import Event
    from guildhall.core.frame import Frame
    from guildhall.projects.meetings.model import Meeting, MeetingDetails
    from guildhall.projects.meetings.states import MeetingStatus


class RemoteMeetings(ABC):
    """That part of a remote hall."""

    @abstractmethod
    async def _call(self, name: str, /, **arguments: Any) -> Any: ...

    @abstractmethod
    def _stream(self, name: str, /, **arguments: Any) -> AsyncGenerator[Any]: ...

    async def meetings(self, *, project: str | None = None, status: MeetingStatus | None = None) -> list[Meeting]:
        return await self._call("meetings", project=project, status=status)

    async def meeting(self, id: str) -> MeetingDetails:
        return await self._call("meeting", id=id)

    async def meeting_open(self, worker: str, words: str, frame: Frame, *, project: str | None = None) -> Meeting:
        return await self._call("meeting_open", worker=worker, words=words, frame=frame, project=project)

    def meeting_come(
        self,
        id: str,
        frame: Frame,
        *,
        renew: bool = False,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        budget: float | None = None,
    ) -> AsyncGenerator[Event]:
        more: dict[str, Any] = {"max_turns": max_turns, "max_tokens": max_tokens, "budget": budget}
        return self._stream("meeting_come", id=id, frame=frame, renew=renew, **more)

    def meeting_say(self, id: str, words: str, frame: Frame) -> AsyncGenerator[Event]:
        return self._stream("meeting_say", id=id, words=words, frame=frame)

    async def meeting_interrupt(self, id: str) -> None:
        await self._call("meeting_interrupt", id=id)

    async def meeting_accept(self, id: str) -> Meeting:
        return await self._call("meeting_accept", id=id)

    async def meeting_decline(self, id: str, *, reason: str | None = None) -> Meeting:
        return await self._call("meeting_decline", id=id, reason=reason)

    async def meeting_defer(self, id: str, until: str) -> Meeting:
        return await self._call("meeting_defer", id=id, until=until)

    async def meeting_close(
        self, id: str, frame: Frame, *, summarise: bool = True, leave_work: bool = False
    ) -> Meeting:
        return await self._call("meeting_close", id=id, frame=frame, summarise=summarise, leave_work=leave_work)

    async def meeting_delete(self, id: str) -> None:
        await self._call("meeting_delete", id=id)
