"""The meetings of a hall: asked for, opened, talked in, left and come back to, closed. Only the person closes one."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict, GuildError, NotDeletable, NotFound
from guildhall.core.ids import MEETING, new_id
from guildhall.projects.meetings import records
from guildhall.projects.meetings.closing import Closing
from guildhall.projects.meetings.model import (
    Meeting,
    branch_of,
    checked_topic,
    checked_words,
    demand_open,
)
from guildhall.projects.meetings.projection import Projection
from guildhall.projects.meetings.requests import Requests, refuse_too_many
from guildhall.projects.meetings.seating import seated
from guildhall.projects.meetings.sitting import Sittings
from guildhall.projects.meetings.summary import Summaries
from guildhall.projects.meetings.tools import SERVER, meeting_tools
from guildhall.runs import records as run_records
from guildhall.runs.asks import checked
from guildhall.runs.fit import refuse_talking
from guildhall.runs.model import ENDED
from guildhall.runs.purpose import MeetingPurpose
from guildhall.runs.seat import seat_on_record

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from sqlalchemy import Connection

    from guildhall.core.events import Event
    from guildhall.core.frame import Frame
    from guildhall.projects.meetings.ground import Ground
    from guildhall.projects.meetings.model import MeetingShown
    from guildhall.projects.meetings.register import Register
    from guildhall.projects.model import Project
    from guildhall.runs.grants import Grant
    from guildhall.runs.model import Answer, Ask, Run
    from guildhall.runs.prepare import Prepared
    from guildhall.runs.seat import Seat

_log = logging.getLogger("guildhall.meetings")


class Meetings:
    """All that can be done with meetings."""

    def __init__(self, register: Register, ground: Ground) -> None:
        self.register = register
        self._ground = ground
        self._summaries = Summaries(ground.runs)
        self._requests = Requests(register)
        self._sittings = Sittings(register, ground, self._summaries)
        self._closing = Closing(register, ground, self._summaries)
        self._projection = Projection(register, ground)
        self._tasks: set[asyncio.Task[None]] = set()

    # asked for

    async def request(
        self, project: Project, worker: str, topic: str, *, by: str, made_by: str, linked: Sequence[str] = ()
    ) -> Meeting:
        """A meeting that a run asks for, with an ask in the inbox that outlives that run."""
        self._ground.redact(checked_topic(topic))
        meeting = await self._requests.request(project, worker, topic, by=by, made_by=made_by, linked=linked)
        await self._project(meeting)
        return meeting

    async def accept(self, id: str) -> Meeting:
        """The person wants it: it is open. Its worker speaks first, when the person comes."""
        most = self._ground.project(self.register.get(id)).settings.max_meetings
        meeting = await self.register.store.write(lambda c: self._requests.accepted(c, id, most))
        await self._project(meeting)
        return meeting

    async def decline(self, id: str, reason: str | None = None) -> Meeting:
        meeting = await self._requests.decline(id, self._ground.redact(reason or "") or None)
        await self._project(meeting)
        return meeting

    async def call_off(self, made_by: str, reason: str) -> None:
        """The meetings that the hall has asked for in the name of a run are not needed any more."""
        for meeting in await self._requests.call_off(made_by, reason):
            await self._project(meeting)

    async def defer(self, id: str, until: str) -> Meeting:
        meeting = await self._requests.defer(id, until)
        await self._project(meeting)
        return meeting

    async def answer(self, ask: Ask, answer: Answer) -> Meeting:
        """What the person says to the ask by which a meeting was asked for."""
        meeting, answer = self._requests.of_ask(ask.id), checked(ask, answer)
        if answer.choice == "yes":
            return await self.accept(meeting.id)
        if answer.choice == "no":
            return await self.decline(meeting.id, answer.note)
        return await self.defer(meeting.id, answer.choice)

    # opened and talked in

    async def open(self, worker: str, words: str, frame: Frame, *, project: str | None = None) -> Meeting:
        """A new meeting, in which the person speaks first. Nothing is answered before somebody comes."""
        words = checked_words(words)
        place = self._place(frame, project)
        now = self.register.now()
        id = new_id(MEETING)
        meeting = Meeting(
            id=id,
            project=place.name,
            worker=worker,
            topic=checked_topic(words),
            status="open",
            branch=branch_of(id),
            created_at=now,
            changed_at=now,
        )
        there = self._ground.frame(meeting, frame)
        try:
            met = self._ground.find(worker, there)
        except NotFound:
            if not worker.startswith(f"{MEETING}-"):
                raise
            message = f"there is no meeting {worker[:60]!r}, and no worker of that name"
            raise NotFound(message, hint="`guild meeting ls` lists the meetings.") from None
        refuse_talking(met)
        self._ground.models.now(met, there)

        self._ground.redact(meeting.topic)

        def write(connection: Connection) -> None:
            refuse_too_many(connection, place.name, place.settings.max_meetings)
            records.add(connection, meeting, "opened by the person")
            records.add_words(connection, id, "", words, now)

        await self.register.store.write(write)
        await self._project(meeting)
        return meeting

    def _place(self, frame: Frame, name: str | None) -> Project:
        projects = self._ground.projects()
        if name is not None:
            return projects.get(name)
        if (found := projects.at(frame.cwd)) is not None:
            return found
        raise NotFound(
            f"{frame.cwd} lies in no project, and meetings are held in one",
            hint="`guild project add .` registers the repository you are in; or name one: --project NAME.",
        )

    async def come(
        self, id: str, frame: Frame, *, renew: bool = False, grant: Grant | None = None, stays: bool = True
    ) -> AsyncGenerator[Event]:
        """The events until all that was said so far is answered: none where nothing is left to be answered.

        `renew`: with a new session, which is told in short what was said so far. `grant`: with more than before.
        """
        said = self.register.words(self.register.get(id).id)
        number = said[-1].number if said else 0
        async with aclosing(self._sittings.turn(id, number, frame, renew=renew, grant=grant, stays=stays)) as events:
            async for event in events:
                yield event

    async def say(self, id: str, words: str, frame: Frame, *, stays: bool = True) -> AsyncGenerator[Event]:
        """What the person says, on record; then the events of the answer, until the worker listens again."""
        checked_words(words)
        self.register.get(id)
        now = self.register.now()

        def write(connection: Connection) -> int:
            meeting = records.find(connection, id)
            assert meeting is not None
            demand_open(meeting)
            return records.add_words(connection, id, meeting.run or "", words, now)

        number = await self.register.store.write(write)
        async with aclosing(self._sittings.turn(id, number, frame, stays=stays)) as events:
            async for event in events:
                yield event

    async def interrupt(self, id: str) -> None:
        """Ends the answer under way, and keeps the meeting."""
        async with self._sittings.steering[id]:
            meeting = self.register.get(id)
            if meeting.run is not None:
                await self._sittings.cut_short(meeting)

    async def shown(self, id: str) -> MeetingShown:
        """All about a meeting, and what does not fit together."""
        shown = self.register.shown(id)
        return replace(shown, doubts=await asyncio.to_thread(self._projection.doubts, shown.meeting))

    # over

    async def close_meeting(
        self, id: str, frame: Frame, *, summarise: bool = True, leave_work: bool = False
    ) -> Meeting:
        """Ends it for good, with notes. Whoever goes away meanwhile leaves it closed, or open."""
        self.register.get(id)
        return await asyncio.shield(self._close(id, frame, summarise=summarise, leave_work=leave_work))

    async def _close(self, id: str, frame: Frame, *, summarise: bool, leave_work: bool) -> Meeting:
        async with self._sittings.steering[id]:
            return await self._closing.close(id, frame, summarise=summarise, leave_work=leave_work)

    async def delete(self, id: str) -> None:
        """Takes a meeting that is over off the record; its notes and its runs stay."""
        meeting = self.register.get(id)
        if meeting.status not in ("closed", "declined"):
            hint = f"guild meeting {'close' if meeting.status == 'open' else 'decline'} {id} first."
            raise NotDeletable(f"the meeting {id} is {meeting.status}: it cannot be deleted", hint=hint)
        await self._closing.put_away(meeting)
        await self.register.store.write(lambda connection: records.remove(connection, id, self.register.now()))

    async def _project(self, meeting: Meeting) -> None:
        await asyncio.to_thread(self._projection.write, meeting)

    # as those who give runs their seats (runs/seat.py)

    async def again(self, run: str, frame: Frame, grant: Grant | None = None) -> Prepared:
        found = self.register.history.get(run)
        async with self._sittings.steering[self.register.history.purpose(run, MeetingPurpose).id]:
            return await self._sittings.again(found, frame, grant)

    async def stop(self, run: str) -> list[str]:
        """Closes the meeting that a run is, with what notes there are."""
        id = self.register.history.purpose(run, MeetingPurpose).id
        meeting = self.register.get(id)
        if meeting.status != "open":
            raise Conflict(f"the meeting {id} is {meeting.status}: there is nothing to stop", hint=f"guild show {id}")
        frame = self._ground.frame_at(self._ground.project(meeting).path)
        await self.close_meeting(id, frame, summarise=False)
        return [run]

    async def could_not_go_on(self, run: Run, error: GuildError) -> None:
        """Its run has failed; the meeting is still open, and a new session may be had."""
        standing = self.register.history.get(run.id).status
        if standing == "running" or standing in ENDED:
            return
        now = self.register.now()
        await self.register.store.write(lambda c: run_records.give_up(c, run.id, error.as_dict(), now))

    async def follow(self, run: str) -> None:
        """Nothing of a meeting changes with the end of its run."""

    async def answered(self, ask: Ask) -> None:
        """What a run in a meeting asks is applied by the run itself."""

    def keep_going(self, go_on: Callable[[Run], Awaitable[None]]) -> None:
        """What a crash has interrupted is brought to its end."""
        task = asyncio.create_task(self.recover())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def recover(self) -> None:
        """Closes what was being closed, puts away what is closed, and has rows, artifacts and checkouts there again."""
        await asyncio.to_thread(self._projection.recover)
        for meeting, how in self._closing.interrupted():
            try:
                frame = self._ground.frame_at(self._ground.project(meeting).path)
                await self.close_meeting(meeting.id, frame, **how)
            except GuildError as error:
                _log.warning("%s stays open: %s", meeting.id, error)
        await asyncio.to_thread(self._restore)
        for meeting in self._closing.left_behind():
            await self._closing.put_away(meeting)

    def _restore(self) -> None:
        """The checkouts of open meetings that somebody has sat in are there, also where they were taken away."""
        for meeting in self.register.all(status="open"):
            if meeting.run is not None and meeting.branch is not None:
                try:
                    wanted = (self._ground.project(meeting), meeting.id, meeting.branch, self.register.scope(meeting))
                    self._ground.worktrees.restore([wanted])
                except GuildError as error:
                    _log.warning("%s: its checkout cannot be made: %s", meeting.id, error)

    @property
    def expecting(self) -> bool:
        return bool(self._tasks) or self._sittings.busy

    def close(self) -> None:
        self._sittings.close()
        for task in self._tasks:
            task.cancel()


def seat_of(run: Run) -> Seat | None:
    """The seat of a run that is a meeting, as a replay sees it."""
    if run.kind != "meeting":
        return None
    return seat_on_record(meeting_tools(), seated, converses=True, server=SERVER)
