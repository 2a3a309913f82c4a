"""The verbs about meetings: the part of `HallClient` that is about talking with a worker in a project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from guildhall.core.events import Event
    from guildhall.core.frame import Frame
    from guildhall.projects.meetings.model import Meeting, MeetingDetails
    from guildhall.projects.meetings.states import MeetingStatus


class MeetingClient(Protocol):
    """What can be done with meetings. Whoever leaves a stream early lets the answer go on."""

    # newest first
    async def meetings(self, *, project: str | None = None, status: MeetingStatus | None = None) -> list[Meeting]: ...

    async def meeting(self, id: str) -> MeetingDetails: ...

    # a new one, in which the person has said this; it is answered when somebody comes
    async def meeting_open(self, worker: str, words: str, frame: Frame, *, project: str | None = None) -> Meeting: ...

    # the events until all that was said is answered, and none where it is; `renew`: with a new session; the others are
    # what it may use up from now on, where it has stopped at a limit
    def meeting_come(
        self,
        id: str,
        frame: Frame,
        *,
        renew: bool = False,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        budget: float | None = None,
    ) -> AsyncIterator[Event]: ...

    # what the person says, on record; then the events of the answer, until the worker listens again
    def meeting_say(self, id: str, words: str, frame: Frame) -> AsyncIterator[Event]: ...

    async def meeting_interrupt(self, id: str) -> None: ...  # ends the answer under way; the meeting goes on

    async def meeting_accept(self, id: str) -> Meeting: ...

    async def meeting_decline(self, id: str, *, reason: str | None = None) -> Meeting: ...

    async def meeting_defer(self, id: str, until: str) -> Meeting: ...  # a date, or a time

    async def meeting_close(
        self, id: str, frame: Frame, *, summarise: bool = True, leave_work: bool = False
    ) -> Meeting: ...

    async def meeting_delete(self, id: str) -> None: ...  # one that is over, off the record
