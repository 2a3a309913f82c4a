"""The scheduler: executes a workflow: setup, election, kickoff, then turns of agents until the team is quiet.

`Team` is the runtime of the workflow's run, and the agents are runs below it. A loop for each agent reads the next step
from the database and takes a turn. A quiet workflow ends in mode `run`, and waits for a message in mode `start`.
Does not decide the next step (`agent_turn.py`) or quiescence (`quiescence.py`). Does not execute runs (`runs`).

Invariant: a wake-up only makes an agent read the database. A lost wake-up costs at most 30 seconds.
"""

from __future__ import annotations

import asyncio
import shlex
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import Clock, parse_stamp, stamp
from guildhall.core.errors import GuildError, InvalidFile, NotFound
from guildhall.core.events import TroubleData, WorkflowData
from guildhall.room import mentions, voting
from guildhall.room import records as room_records
from guildhall.room.model import Actor, RoomEventType
from guildhall.room.tools import RoomTools, room_tools
from guildhall.runs.execution.segment import StopSegment
from guildhall.runs.hooks import RunHooks
from guildhall.runs.purpose import PLAIN
from guildhall.runs.record.entries import Answered, LoopAsked
from guildhall.runtimes.model import Assignment, Doors, Outcome
from guildhall.workflow import election, records
from guildhall.workflow.agent_turn import AgentTurn, Step, grant_for, next_step, result_of, try_again
from guildhall.workflow.loop_guard import drop, loop_question, release
from guildhall.workflow.ordering import who
from guildhall.workflow.quiescence import Standing, look, movable, who_waits_for
from guildhall.workflow.schedules import Alarms
from guildhall.workflow.setup import run_steps
from guildhall.workflow.start import after_setup, kickoff, wakes_nobody
from guildhall.workflow.target import OVER, Instance, Phase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import tzinfo

    from sqlalchemy import Connection

    from guildhall.room.operation import Turn
    from guildhall.room.service import Room
    from guildhall.runs.execution.runs import Runs
    from guildhall.runs.model import Ask, Run, RunRequest
    from guildhall.store.engine import Store
    from guildhall.tools.model import Execute, ToolCall
    from guildhall.workflow.model import Agent, Values, Workflow
    from guildhall.workflow.ordering import RecordedOrder, TakeTurn

POLL = 30.0  # seconds: how often is looked whether a wake-up got lost
_LOOP = "loop/"  # before the number of an ask about one
DEBOUNCE = 0.2  # seconds: what a person says in this time still finds the team together


@dataclass(kw_only=True)
class Team:
    """Executes the run of one workflow."""

    instance: Instance
    workflow: Workflow
    values: Values
    room: Room
    store: Store
    clock: Clock
    runs: Runs
    request: RunRequest  # of the whole workflow: models and modes are handed down from it
    zone: tzinfo
    first_pause: float  # seconds before an agent is tried again that was disturbed
    debounce: float
    order: RecordedOrder | None = None  # of a test
    granted: Mapping[str, Any] | None = None  # a person goes on with what has failed, and grants these bounds
    _serving: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, "asyncio.Task[None]"])
    _at: Phase = "setup"
    _wakes: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])
    _rests: asyncio.Event = field(default_factory=asyncio.Event)  # somebody has nothing to do
    _looped: asyncio.Event = field(default_factory=asyncio.Event)  # something may have been held back
    _proposed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._take_turn: TakeTurn = self._take if self.order is None else self.order.turns(self._take, self._step)
        self.alarms = Alarms(
            run=self.instance.id,
            room=self.room,
            store=self.store,
            clock=self.clock,
            zone=self.zone,
            seats=lambda: (self.workflow, self.values),
        )

    async def execute(self, assignment: Assignment, doors: Doors) -> Outcome:
        if self.instance.status != "setup":  # it was cut off
            await self.room.mend()
        if not self._goes_on():
            await self._phase("setup")
        outputs = await run_steps(self.workflow, self.values, doors.tool)
        self.values = after_setup(self.workflow, self.values, outputs)
        elected = election.Election(
            instance=self.instance.id,
            workflow=self.workflow,
            room=self.room,
            store=self.store,
            clock=self.clock,
            runs=self.runs,
            request=self.request,
            order=self.order,
        )
        if election.is_needed(self.workflow, self.room.record()) or elected.cut_off():
            await self._phase("election")
            await elected.hold()
        await self._phase("kickoff")
        await self._kick_off()
        if self.granted is not None:
            at = stamp(self.clock.now())
            await self.store.write(lambda connection: try_again(connection, self.instance, at))
            await self.room.project()
        await self._phase("live")
        for agent in self.workflow.agents:
            self._begin(agent)
        minding = (self._mind_loops(), self._mind_proposals(), self._mind_wakes(), self.alarms.keep())
        beside = [asyncio.create_task(one) for one in minding]
        try:
            await self._until_quiet(beside)
        finally:
            tasks = [*self._serving.values(), *beside]
            self._serving.clear()
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError, Exception):
                    await task
        output = result_of(self.workflow, self.instance, self.room, self.store)
        return Outcome(output=output, messages=[])

    # Hearing

    def wake(self, agents: frozenset[str]) -> None:
        """Agents have mail, or may go on: they look at once, or when their turn ends."""
        for agent in agents:
            if agent in self._wakes:
                self._wakes[agent].set()

    def answered(self, ask: Ask) -> None:
        """Something that was asked is open no more: whoever waits for it goes on."""
        self.wake(self.store.read(lambda connection: who_waits_for(connection, self.instance.id, ask)))

    def happened(self, type: RoomEventType) -> None:
        """Something has happened in the room."""
        if type == "proposal":
            self._proposed.set()
        elif type == "held":
            self._looped.set()

    # Coming and going

    def sit(self, workflow: Workflow, name: str) -> None:
        """An agent has a seat now, or works again; `workflow` has all that are seated."""
        self.workflow = workflow
        if self._at in ("live", "quiet"):
            self._begin(workflow.agent(name))

    async def leave(self, name: str) -> None:
        """An agent works no more: what it is at is cut off. The rest go on."""
        if (task := self._serving.pop(name, None)) is not None:
            task.cancel()
            await asyncio.wait({task})
        self._rests.set()

    def _begin(self, agent: Agent) -> None:
        if agent.name not in self._serving:
            self._serving[agent.name] = asyncio.create_task(self._serve(agent))

    # Beginning

    def _goes_on(self) -> bool:
        """Whether it was past its beginning already, which is then gone through again but not done again."""
        if not self.workflow.definition.kickoff:
            return self.instance.status != "setup"
        kicked = partial(room_records.recorded, room=self.room.id, run=self.instance.id, key="kickoff")
        return self.store.read(kicked) is not None

    async def _kick_off(self) -> None:
        if self.instance.mode == "run" and (doubt := wakes_nobody(self.workflow)):
            self.runs.ledger(self.instance.id).publish(TroubleData, {"message": doubt})
        said = kickoff(self.workflow, self.values)
        if not said.text.strip():
            return
        names = [agent.name for agent in self.workflow.agents]
        everyone = self.alone and not mentions.find(said, names).reached
        actor = Actor.system(run=self.instance.id, key="kickoff")
        try:
            await self.room.send(said, actor, to=names if everyone else ())
        except NotFound as error:  # going on would say the same again
            path = self.workflow.place
            hint = f"Correct the kickoff, then begin anew: guild run {shlex.quote(path)}"
            raise InvalidFile(f"kickoff: {error.message}", where=path, hint=hint) from None

    async def _phase(self, phase: Phase) -> None:
        """Record and publish the phase that the team enters."""
        values: dict[str, Any] = {"status": phase, "reason": None, "ended_at": None}
        await self.store.write(lambda connection: records.change(connection, self.instance.id, **values))
        self._at = phase
        data = {"phase": phase, "reason": None, "steps": len(self.workflow.definition.setup)}
        self.runs.ledger(self.instance.id).publish(WorkflowData, data)

    # The agents

    async def _serve(self, agent: Agent) -> None:
        wake = self._wakes.setdefault(agent.name, asyncio.Event())
        while True:
            wake.clear()
            step = self._step(agent.name)
            if step.something:
                if self._at == "quiet":
                    await self._phase("live")
                run = await self._take_turn(agent, step)
                if run is not None and run.status == "paused":  # so is the whole team, in a moment
                    await asyncio.get_running_loop().create_future()
                self._looped.set()
                continue
            self._rests.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_until(step.until)):
                    await wake.wait()

    def _step(self, name: str, until: int | None = None) -> Step:
        at, attended = stamp(self.clock.now()), self._attended
        return self.store.read(
            lambda connection: next_step(
                connection, self.instance, self.workflow, name, at=at, attended=attended, until=until
            )
        )

    async def _take(self, agent: Agent, step: Step) -> Run | None:
        """A turn of an agent, to its end or until it stops for now; None: it could not be begun."""
        told: list[Turn] = []
        turn = AgentTurn(
            instance=self.instance.id,
            room=self.room.id,
            agent=agent.name,
            step=step,
            clock=self.clock,
            most_rounds=self.workflow.definition.limits.max_rounds_without_progress,
            first_pause=self.first_pause,
            told=told,
        )
        hooks = self._hooks(agent, turn, step.number)
        try:
            if step.run is not None:
                grant = self.store.read(partial(grant_for, run=step.run, granted=self.granted or {}))
                return await self.runs.resume_child(self.instance.id, step.run, hooks, grant)
            worker = self.workflow.seated(agent, self.values)
            request = replace(self.request, worker=agent.name, input=step.text, purpose=PLAIN, budget=None)
            key = f"{agent.name}/{step.number}"
            return await self.runs.run_child(
                self.instance.id, key, request, worker=worker, hooks=hooks, cwd=agent.place
            )
        except GuildError as error:
            failure = error.as_dict()
            await self.store.write(lambda connection: turn.could_not_begin(connection, failure))
            return None
        finally:
            for one in told:
                await self.room.follow(one)
            await self.room.project()  # the end of a run changes the state of its mail

    def _hooks(self, agent: Agent, turn: AgentTurn, number: int) -> RunHooks:
        return RunHooks(
            tools=() if self.alone else room_tools(),
            executor=partial(self._executor, agent.name, number),
            record_start=turn.began,
            record_stop=turn.ended,
            block_reason=None if self.alone else self._closed,
            other_capabilities=self.workflow.around(agent),
        )

    def _executor(self, agent: str, number: int, run: str) -> Execute:
        """Return the function that executes the room tools of a run."""
        call = RoomTools(self.room, agent, run).call
        return call if self.order is None else self.order.calls(who(agent, number), call)

    def _closed(self, call: ToolCall) -> str | None:
        """Why the team keeps a tool closed for now."""
        guard = self.room.guard_of(call.tool)
        return None if guard is None else str(voting.closed_by(guard, call.tool))

    @property
    def alone(self) -> bool:
        """Whether the agents share nothing: each works by itself on what the kickoff says."""
        return not self.workflow.definition.context.enabled

    @property
    def _attended(self) -> bool:
        if self.order is not None and self.order.is_unattended:
            return False
        return self.runs.is_attended(self.instance.id)

    # Tasks beside the turns of agents

    async def _mind_loops(self) -> None:
        """Ask the user about held messages, one question at a time."""
        while True:
            self._looped.clear()
            if self.store.read(lambda connection: bool(room_records.in_status(connection, self.room.id, "held"))):
                await self._ask_about_loop()
            else:
                await self._looped.wait()

    async def _ask_about_loop(self) -> None:
        ledger = self.runs.ledger(self.instance.id)
        answers = [entry for entry in ledger.journal.all(Answered) if (entry.key or "").startswith(_LOOP)]
        key = f"{_LOOP}{len(answers) + 1}"
        limits = self.workflow.definition.limits
        question = self.store.read(lambda connection: loop_question(connection, self.instance, limits))
        ask = await ledger.open("loop", key, [key], question, lambda ask: LoopAsked(title=question.title, ask=ask))
        self._rests.set()
        ask = await ledger.wait_closed(ask)
        if (answer := ask.answer) is None:  # withdrawn: the workflow was stopped
            await asyncio.get_running_loop().create_future()
            return
        turns: list[Turn | None] = []

        def then(connection: Connection) -> None:
            at = stamp(self.clock.now())
            turns.append((release if answer.choice == "yes" else drop)(connection, self.instance, at))

        await ledger.apply(ask, key, then=then)
        for turn in filter(None, turns):
            await self.room.follow(turn)
        self._rests.set()

    async def _mind_proposals(self) -> None:
        """End proposals when their time is up."""
        while True:
            self._proposed.clear()
            due = self.store.read(lambda connection: voting.next_end(connection, self.room.id))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_until(due)):
                    await self._proposed.wait()
                continue
            if due is not None and due <= stamp(self.clock.now()):
                await self.room.perform("expire", Actor.system())
                self._rests.set()

    def _seconds_until(self, due: str | None) -> float | None:
        """Return the time to wait for a moment, at most `POLL`, or None if there is no such moment."""
        return None if due is None else max(0.0, min(POLL, (parse_stamp(due) - self.clock.now()).total_seconds()))

    async def _mind_wakes(self) -> None:
        """Repeat lost wake-ups. One query for all agents: many agents cost no more."""
        while True:
            await self.clock.sleep(POLL)
            at, attended = stamp(self.clock.now()), self._attended
            can_move = partial(movable, instance=self.instance, at=at, attended=attended)
            self.wake(self.store.read(can_move))
            self._rests.set()

    # The end

    async def _until_quiet(self, beside: Sequence[asyncio.Task[None]]) -> None:
        """Returns when nobody can move any more. What keeps it from being done is raised as how the run stands.

        One that was started, and not only run, never is done: it is quiet until somebody says something.
        """
        while True:
            resting = asyncio.ensure_future(self._rests.wait())
            others = {*beside, *self._serving.values()}
            done, _ = await asyncio.wait({resting, *others}, return_when=asyncio.FIRST_COMPLETED)
            resting.cancel()
            for task in done - {resting}:
                if task.cancelled():
                    continue  # the agent has left
                task.result()  # an agent's own loop broke: that is not to be kept quiet
            self._rests.clear()
            if self._look().busy:
                continue
            await self.clock.sleep(self.debounce)
            standing = await self.store.write(self._end_if_quiet)
            if standing.turn is not None:
                self._rests.set()  # it may have woken nobody
                await self.room.follow(standing.turn)
            if not standing.busy and self.instance.mode == "start":
                await self._rest()
            elif not standing.busy:
                if standing.end_of_segment is not None:
                    raise StopSegment(standing.end_of_segment)
                return

    async def _rest(self) -> None:
        """Nobody has anything to do for now; whoever was woken meanwhile has."""
        if self._at == "live":
            await self._phase("quiet")
            if self._look().busy:
                await self._phase("live")

    def _look(self) -> Standing:
        at, attended = stamp(self.clock.now()), self._attended
        return self.store.read(lambda connection: look(connection, self.instance, at, attended=attended))

    def _end_if_quiet(self, connection: Connection) -> Standing:
        at = stamp(self.clock.now())
        standing = look(connection, self.instance, at, attended=self._attended, settle=True)
        if not standing.busy and self.instance.mode == "run":
            ended = at if standing.phase in OVER else None
            records.change(connection, self.instance.id, status=standing.phase, ended_at=ended)
        return standing
