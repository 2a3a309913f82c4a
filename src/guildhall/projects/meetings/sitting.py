"""The sittings of a meeting: its run is made, walked through its journal again, or renewed; and hears the person.

What the person says is on record first. Then the run that listens is woken, or the one that was put away goes on: it
is looked at once more whenever a stretch of it ends, because the words may come at that very moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from contextlib import ExitStack, aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import Conflict, ContextTooLong, GuildError, Refused, RuntimeFailed
from guildhall.core.events import Event
from guildhall.projects.meetings import records
from guildhall.projects.meetings.allowance import left
from guildhall.projects.meetings.model import branch_of, demand_open
from guildhall.projects.meetings.notes import notes
from guildhall.projects.meetings.register import Sitting
from guildhall.projects.meetings.seating import first_message, renewed_message, seated
from guildhall.projects.meetings.summary import Summary
from guildhall.projects.meetings.tools import SERVER, MeetingTools, linkable, meeting_tools
from guildhall.projects.meetings.transcript import as_text
from guildhall.runs.cutting import cut_short
from guildhall.runs.model import RunRequest
from guildhall.runs.purpose import MeetingPurpose
from guildhall.runs.seat import Seat
from guildhall.tools.define import call_method

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from sqlalchemy import Connection

    from guildhall.core.frame import Frame
    from guildhall.projects.meetings.ground import Ground
    from guildhall.projects.meetings.model import Meeting
    from guildhall.projects.meetings.register import Register
    from guildhall.projects.meetings.summary import Summaries
    from guildhall.runs.grants import Grant
    from guildhall.runs.model import Run, Stretch
    from guildhall.runs.prepare import Prepared
    from guildhall.tools.model import Tool, ToolCall, ToolResult

_log = logging.getLogger("guildhall.meetings")
_MOST_EVENTS = 1_000  # that are kept for one who reads slowly
_KEPT = 60.0  # seconds that a run is kept alive after a turn, for a person at a terminal who is typing
# Of a run that failed with one of these every further try would fail alike: only a new session can go on.
_SPENT = (ContextTooLong.code, RuntimeFailed.code)
_ALWAYS = ("ask_opened", "ask_closed", "error", "run_started", "run_ended")  # whoever's turn it is


class Sittings:
    """Lets the runs of meetings live."""

    def __init__(self, register: Register, ground: Ground, summaries: Summaries) -> None:
        self._register = register
        self._ground = ground
        self._summaries = summaries
        self.steering: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by meeting
        self._ears: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)  # by meeting: something was said
        self._following: defaultdict[str, int] = defaultdict(int)  # by meeting: how many see a turn through
        self._kept: dict[str, asyncio.TimerHandle] = {}  # by run: until when somebody counts as being there
        self._saying: dict[str, str] = {}  # by run: the answer that is being given
        self._tasks: set[asyncio.Task[None]] = set()

    # a turn

    async def turn(
        self,
        id: str,
        number: int,
        frame: Frame,
        *,
        renew: bool = False,
        grant: Grant | None = None,
        stays: bool = True,
    ) -> AsyncGenerator[Event]:
        """The events until the words of this number are answered and the worker listens again.

        `renew`: in a new session. `grant`: what it may use up from now on. `stays`: the hall is a process of its own,
        and a person at a terminal may say more in a moment.
        """
        self._following[id] += 1
        try:
            again = True
            while again:
                again = False
                stretch = self._stretch(id, number, frame, renew=renew, grant=grant, stays=stays)
                async with aclosing(stretch) as events:
                    async for event in events:
                        yield event
                        again = event.type == "run_ended" and self._goes_on(id, event)
                renew, grant = False, None
        finally:
            self._following[id] -= 1

    async def _stretch(
        self, id: str, number: int, frame: Frame, *, renew: bool, grant: Grant | None, stays: bool
    ) -> AsyncGenerator[Event]:
        """The events of the run from now on, until the turn is over or the run has stopped."""
        with ExitStack() as stack:
            async with self.steering[id]:
                meeting = self._register.get(id)
                demand_open(meeting)
                if not renew and self._register.unanswered(id) is None:
                    _refuse_grant(grant, f"the meeting {id} owes no answer")
                    return
                prepared, told = await self._prepared(meeting, frame, renew=renew, grant=grant)
                run, after = self._last(id)
                events = stack.enter_context(self._ground.bus.listening(run, _MOST_EVENTS))
                stack.callback(self._hold(run, frame, launched=prepared is not None, stays=stays))
                mine = prepared is not None or self._register.stands_at(run) == number - after
                if prepared is not None:
                    self._ground.runs().launch(prepared)
                self._ears[id].set()
            for event in told:
                yield event
            async for event in events:
                self._listen_in(run, event)
                heard = event.data["number"] - 1 + after if event.type == "listening" and event.run == run else -1
                if mine or event.type in _ALWAYS:
                    yield event
                mine = mine or heard == number - 1
                if heard >= number or (event.type == "run_ended" and event.run == run):
                    return

    def _listen_in(self, run: str, event: Event) -> None:
        """Keeps what the worker is just saying, in case that it is cut off."""
        if event.run == run and event.type == "text_delta":
            self._saying[run] = self._saying.get(run, "") + str(event.data["text"])
        elif event.run == run and event.type in ("turn_end", "run_started", "listening", "run_ended"):
            self._saying.pop(run, None)

    def _goes_on(self, id: str, ended: Event) -> bool:
        """Whether a run that was put away is to go on: what was said came just then, or it must be renewed."""
        meeting = self._register.get(id)
        if meeting.status != "open" or ended.run != meeting.run or self._register.unanswered(id) is None:
            return False
        run = self._register.history.get(ended.run)
        if run.status == "failed":
            return (run.error or {}).get("code") == ContextTooLong.code and self._has_answered(run)
        return run.pause == "message"

    def _has_answered(self, run: Run) -> bool:
        """Whether a session has got anywhere: after one that has not, another one would fare no better."""
        return bool(self._register.history.journal(run.id).kind("model_answered"))

    def _hold(self, run: str, frame: Frame, *, launched: bool, stays: bool) -> Callable[[], None]:
        """Somebody is there now; what to call when they are not any more."""
        runs = self._ground.runs()
        if (kept := self._kept.pop(run, None)) is not None:
            kept.cancel()
            self._let_go(run)
        if not frame.interactive:
            return lambda: None
        if not launched:  # one that is launched for a person counts that person
            runs.hold(run, 1)

        def leave() -> None:
            if not self._ground.alive(run):
                return
            if stays:
                self._kept[run] = asyncio.get_running_loop().call_later(_KEPT, self._let_go, run)
            else:
                self._let_go(run)

        return leave

    def _let_go(self, run: str) -> None:
        """Nobody counts as being there any more; the run may have been put away, and live again, meanwhile."""
        self._kept.pop(run, None)
        if self._ground.alive(run) and self._ground.runs().attended(run):
            self._ground.runs().hold(run, -1)

    # the run

    def _last(self, id: str) -> tuple[str, int]:
        last = self._register.sittings(id)[-1]
        return last.run, last.after

    async def _prepared(
        self, meeting: Meeting, frame: Frame, *, renew: bool, grant: Grant | None
    ) -> tuple[Prepared | None, list[Event]]:
        """The run, ready to be launched; None: it lives. With what is to be told of it."""
        if meeting.run is None:
            _refuse_grant(grant, f"the meeting {meeting.id} has not begun")
            return await self._begin(meeting, frame), []
        if renew:
            await self._ground.runs().park(meeting.run, "user")
        await self._ground.runs().gone(meeting.run)
        if self._ground.alive(meeting.run):
            _refuse_grant(grant, f"the meeting {meeting.id} is at work")
            return None, []
        run = self._register.history.get(meeting.run)
        self._ground.trusted(run.id, frame)
        try:
            self._refuse_spent(run, renew=renew)
            return await self.again(run, frame, grant), []
        except (Conflict, Refused, ContextTooLong, RuntimeFailed) as error:
            prepared = await self.renew(meeting, frame, why=error.message, grant=grant)
            return prepared, [self._told(prepared.run, error)]

    def _refuse_spent(self, run: Run, *, renew: bool) -> None:
        """Raises where going on with a run would be in vain, or is not wanted."""
        if renew:
            raise Conflict("the person wanted it")
        code = str((run.error or {}).get("code"))
        if run.status == "failed" and code in _SPENT:
            said = (
                "the conversation no longer fits"
                if code == ContextTooLong.code
                else "its record cannot be gone on with"
            )
            raise Conflict(said)
        if run.status in ("completed", "cancelled"):
            raise Conflict(f"its run was {run.status}")

    def _told(self, run: str, error: GuildError) -> Event:
        said = f"the session was renewed, with a summary of what was said so far: {error.message}"
        data = {"code": error.code, "message": said, "transient": True, "renewed": True}
        return Event(type="error", run=run, root=run, at=self._register.now(), data=data)

    async def _begin(self, meeting: Meeting, frame: Frame) -> Prepared:
        said = self._register.words(meeting.id)
        message = first_message(meeting, [one.words for one in said])
        return await self._sit_down(meeting, frame, message, "the first sitting begins")

    async def renew(self, meeting: Meeting, frame: Frame, *, why: str, grant: Grant | None) -> Prepared:
        """A new session of the same meeting: it is told in short what was said so far, and the last of it whole."""
        limits = left(self._register.history, meeting.run, grant) if meeting.run else {}
        exchanges = self._register.exchanges(meeting.id)
        last = self._register.history.get(meeting.run) if meeting.run else None
        if frame.model is None and last is not None:  # what the person has named before counts on
            frame = replace(frame, model=last.request.model)
        model = last.model if last else None
        place = self._ground.frame(meeting, frame)
        summary = await self._summaries.of_text(as_text(exchanges, meeting.worker), place, model)
        pending = self._register.unanswered(meeting.id) or []
        before = [one for one in exchanges if one.number not in {words.number for words in pending}]
        message = renewed_message(meeting, summary.text, before, [one.words for one in pending])
        without = "" if summary.text else f" (without a summary: {summary.problem})"
        return await self._sit_down(meeting, frame, message, f"renewed: {why}{without}", **limits)

    async def _sit_down(self, meeting: Meeting, frame: Frame, message: str, reason: str, **limits: Any) -> Prepared:
        """A new run of a meeting, in its checkout."""
        register, ground = self._register, self._ground
        worker = ground.find(meeting.worker, ground.frame(meeting, frame))
        if meeting.branch is None:
            branch = branch_of(meeting.id)
            await register.store.write(lambda c: records.change(c, meeting.id, register.now(), branch=branch))
            meeting = register.get(meeting.id)
        worktree = await ground.checkout(meeting, worker.definition.checkout)
        said = register.words(meeting.id)
        after = said[-1].number if said else 0
        purpose = MeetingPurpose(id=meeting.id, sitting=meeting.sittings + 1, after=after)
        request = RunRequest(worker=meeting.worker, input=message, model=frame.model, purpose=purpose, **limits)
        seat = self.seat(purpose, reason)
        place = ground.frame(meeting, frame, worktree)
        return await ground.runs().preparation.prepare(request, place, worker=seated(worker), seat=seat)

    async def again(self, run: Run, frame: Frame, grant: Grant | None = None) -> Prepared:
        """The run of a meeting that stopped, ready to go on in its seat."""
        purpose = self._register.history.purpose(run.id, MeetingPurpose)
        meeting = self._register.get(purpose.id)
        demand_open(meeting)
        await self._ground.checkout(meeting, self._register.scope(meeting))
        return await self._ground.runs().preparation.prepare_again(run.id, frame, grant=grant, seat=self.seat(purpose))

    def seat(self, purpose: MeetingPurpose, reason: str = "") -> Seat:
        id, after = purpose.id, purpose.after

        def began(connection: Connection, run: str) -> None:
            meeting = records.find(connection, id)
            assert meeting is not None
            self._register.add_sitting(connection, meeting, Sitting(run=run, after=after), reason)

        return Seat(
            tools=meeting_tools(),
            execute=lambda run: partial(self._call_tool, id, run),
            began=began,
            server=SERVER,
            seated=seated,
            settled=partial(self._settled, id),
            hear=partial(self._hear, id, after),
        )

    async def _call_tool(self, id: str, run: str, tool: Tool, call: ToolCall) -> ToolResult:
        register = self._register
        tools = MeetingTools(
            meeting=id,
            store=register.store,
            now=register.now,
            artifact=lambda path: linkable(register.worktree(register.get(id)), path),
            key=f"{run}/{call.key}",
        )
        return await call_method(tools, tool, call)

    async def cut_short(self, meeting: Meeting) -> None:
        """Ends the answer under way. What there was of it is on record as the answer: the next words are heard then."""
        assert meeting.run is not None
        said = self._saying.get(meeting.run, "")
        await self._ground.runs().park(meeting.run, "user")
        await cut_short(self._register.history.journal(meeting.run), said)

    # hearing

    async def _hear(self, id: str, after: int, number: int) -> str:
        """What the person says for the how-manieth time in this sitting, once it is said.

        Where it was said already, the run does not say that it listens; whoever has said something before hears here
        that they are answered.
        """
        self._aside(asyncio.to_thread(self._keep, id))
        waited = False
        while True:
            self._ears[id].clear()
            said = self._register.store.read(lambda connection: records.words(connection, id, after + number))
            if said is not None:
                break
            waited = True
            await self._ears[id].wait()
        if not waited:
            run, at = self._last(id)[0], self._register.now()
            self._ground.bus.publish(Event(type="listening", run=run, root=run, at=at, data={"number": number}))
        return said.words

    def _keep(self, id: str) -> None:
        """After each exchange: the transcript has it, and what is to go into the notes is known without its secrets."""
        self._register.keep_transcript(id)
        notes(self._register.shown(id), Summary(), self._ground.redact)

    async def _settled(self, id: str, run: str, stretch: Stretch) -> None:
        """A stretch has ended. What was said at that moment is heard all the same, if nobody sees to it already."""
        await asyncio.to_thread(self._keep, id)
        waits = stretch.pause == "message"
        if waits and not self._following[id] and self._register.unanswered(id) is not None:
            self._aside(self._go_on(id))

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        """Does something that nobody waits for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _go_on(self, id: str) -> None:
        meeting = self._register.get(id)
        said = self._register.words(id)
        try:
            frame = self._ground.frame_at(self._ground.project(meeting).path)
            async for _ in self.turn(id, said[-1].number if said else 0, frame, stays=True):
                pass
        except GuildError as error:
            _log.warning("%s: what was said last is not answered: %s", id, error)

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    def close(self) -> None:
        for handle in self._kept.values():
            handle.cancel()
        self._kept.clear()
        for task in self._tasks:
            task.cancel()


def _refuse_grant(grant: Grant | None, why: str) -> None:
    """Raises where somebody is given more, and nobody takes it."""
    if grant is not None:
        raise Conflict(f"{why}: it needs no more of anything now", hint="Leave the limits out.")
