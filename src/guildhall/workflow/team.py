"""The runtime of a workflow: setup, election, kickoff, then the agents work until nobody can move any more.

A workflow is a run without a model. Its doors carry the setup; its agents are runs below it. What each of them does
next is read from the database, so that a team which was killed goes on where it stood: a wake-up only says "look".
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import moment, stamp
from guildhall.room import inbox
from guildhall.room.model import Actor
from guildhall.room.toolbox import Desk, room_tools
from guildhall.runs import records as run_records
from guildhall.runs.execute import Stops
from guildhall.runs.seat import Seat
from guildhall.runtimes.model import Outcome
from guildhall.workflow import election, records
from guildhall.workflow.alarms import Alarms
from guildhall.workflow.instance import OVER
from guildhall.workflow.quiet import Standing, look
from guildhall.workflow.setup import run_steps
from guildhall.workflow.start import after_setup, kickoff
from guildhall.workflow.turn import AgentTurn, effects_of, first_message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import tzinfo

    from sqlalchemy import Connection

    from guildhall.core.clock import Clock
    from guildhall.room.model import Mail
    from guildhall.room.room import Room
    from guildhall.room.turn import Turn
    from guildhall.runs.lifecycle import Runs
    from guildhall.runs.model import Run, RunRequest
    from guildhall.runtimes.model import Assignment, Doors
    from guildhall.store.engine import Store
    from guildhall.workflow.instance import Instance, Phase
    from guildhall.workflow.interpolate import Values
    from guildhall.workflow.model import Agent, Workflow

DEBOUNCE = 0.2  # seconds: what a person says in this time still finds the team together
_POLL = 30.0  # seconds: a wake-up that got lost all the same is made good


@dataclass(frozen=True, kw_only=True)
class Step:
    """What an agent does next: go on with a run, or take up its mail; or when to look again."""

    run: str | None = None
    batch: Sequence[Mail] = ()
    until: str | None = None
    before: str = ""
    number: int = 0
    more: int = 0

    @property
    def something(self) -> bool:
        return self.run is not None or bool(self.batch)


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
    _serving: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, "asyncio.Task[None]"])
    _at: Phase = "setup"
    _wakes: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])
    _rests: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.alarms = Alarms(
            run=self.instance.id,
            room=self.room,
            store=self.store,
            clock=self.clock,
            zone=self.zone,
            seats=lambda: (self.workflow, self.values),
        )

    async def execute(self, assignment: Assignment, doors: Doors) -> Outcome:
        await self._phase("setup")
        outputs = await run_steps(self.workflow, self.values, doors.tool)
        self.values = after_setup(self.workflow, self.values, outputs)
        if election.is_needed(self.workflow, self.room.record()):
            await self._phase("election")
            await self._elect()
        await self._phase("kickoff")
        await self._kick_off()
        await self._phase("live")
        for agent in self.workflow.agents:
            self._begin(agent)
        ringing = asyncio.create_task(self.alarms.keep())
        try:
            await self._until_quiet(ringing)
        finally:
            tasks = [*self._serving.values(), ringing]
            self._serving.clear()
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError, Exception):
                    await task
        return Outcome(output=self._result(), messages=[])

    def wake(self, agents: frozenset[str]) -> None:
        """Agents have mail, or may go on: they look at once, or when their turn ends."""
        for agent in agents:
            if agent in self._wakes:
                self._wakes[agent].set()

    def wake_all(self) -> None:
        self.wake(frozenset(self._wakes))

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

    async def _elect(self) -> None:
        await election.Election(
            instance=self.instance.id,
            workflow=self.workflow,
            room=self.room,
            store=self.store,
            clock=self.clock,
            runs=self.runs,
            request=self.request,
        ).hold()

    async def _kick_off(self) -> None:
        said = kickoff(self.workflow, self.values)
        if said.text.strip():
            await self.room.send(said, Actor.system(run=self.instance.id, key="kickoff"))

    async def _phase(self, phase: Phase, reason: str | None = None) -> None:
        at = stamp(self.clock.now())
        ended = at if phase in OVER else None
        columns: Mapping[str, Any] = {"status": phase, "reason": reason, "ended_at": ended}
        await self.store.write(lambda connection: records.change(connection, self.instance.id, **columns))
        self._at = phase
        self.runs.ledger(self.instance.id).publish("workflow", phase=phase, reason=reason)

    # The agents

    async def _serve(self, agent: Agent) -> None:
        wake = self._wakes.setdefault(agent.name, asyncio.Event())
        while True:
            wake.clear()
            step = self.store.read(lambda connection: self._step(connection, agent.name))
            if step.something:
                if self._at == "quiet":
                    await self._phase("live")
                await self._take(agent, step)
                continue
            self._rests.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_until(step.until)):
                    await wake.wait()

    def _step(self, connection: Connection, name: str) -> Step:
        state = records.agent(connection, self.instance.id, name)
        if state.status in ("running", "backoff") and state.run is not None:
            if state.due_at is not None and state.due_at > stamp(self.clock.now()):
                return Step(until=state.due_at)
            return Step(run=state.run)
        if state.status == "waiting" and state.run is not None:
            asked = run_records.list_asks(connection, run=state.run, status="open")
            return Step() if asked else Step(run=state.run)
        if state.status == "stopped" or state.run is not None:
            return Step()
        batch = inbox.unread(connection, self.room.id, name)
        number = records.runs_of_agent(connection, self.instance.id, name) + 1
        more = inbox.waiting(connection, self.room.id).get(name, 0) - len(batch)
        before = self._before(connection, name, number) if state.attempts else ""
        return Step(batch=batch, number=number, more=more, before=before)

    def _before(self, connection: Connection, name: str, number: int) -> str:
        last = run_records.run_of_call(connection, self.instance.id, f"{name}/{number - 1}")
        return effects_of(connection, last.id) if last else ""

    async def _take(self, agent: Agent, step: Step) -> Run:
        """A turn of an agent, to its end or until it stops for now."""
        told: list[Turn] = []
        turn = AgentTurn(
            instance=self.instance.id,
            room=self.room.id,
            agent=agent.name,
            batch=step.batch,
            more=step.more,
            clock=self.clock,
            first_pause=self.first_pause,
            told=told,
        )
        seat = self._seat(agent, turn)
        try:
            if step.run is not None:
                return await self.runs.sit_down_again(self.instance.id, step.run, seat)
            names = [one.name for one in self.workflow.agents]
            text = first_message(agent.name, names, step.batch, more=step.more, before=step.before)
            worker = self.workflow.seated(agent, self.values)
            request = replace(self.request, worker=agent.name, input=text, workflow=None, budget=None)
            key = f"{agent.name}/{step.number}"
            return await self.runs.take_seat(
                self.instance.id, key, request, worker=worker, seat=seat, place=agent.place
            )
        finally:
            for one in told:
                await self.room.follow(one)

    def _seat(self, agent: Agent, turn: AgentTurn) -> Seat:
        return Seat(
            tools=room_tools(self.room, agent.name),
            execute=lambda run: Desk(self.room, agent.name, run).execute,
            began=turn.began,
            ended=turn.ended,
            around=self.workflow.around(agent),
        )

    def _seconds_until(self, due: str | None) -> float:
        if due is None:
            return _POLL
        return max(0.0, min(_POLL, (moment(due) - self.clock.now()).total_seconds()))

    # The end

    async def _until_quiet(self, ringing: asyncio.Task[None]) -> None:
        """Returns when nobody can move any more. What keeps it from being done is raised as how the run stands.

        One that was started, and not only run, never is done: it is quiet until somebody says something.
        """
        while True:
            resting = asyncio.ensure_future(self._rests.wait())
            others = {ringing, *self._serving.values()}
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
                await self.room.follow(standing.turn)
            if not standing.busy and self.instance.mode == "start":
                await self._rest()
            elif not standing.busy:
                if standing.stretch is not None:
                    raise Stops(standing.stretch)
                return

    async def _rest(self) -> None:
        """Nobody has anything to do for now; whoever was woken meanwhile has."""
        if self._at == "live":
            await self._phase("quiet")
            if self._look().busy:
                await self._phase("live")

    def _look(self) -> Standing:
        return self.store.read(lambda connection: look(connection, self.instance, stamp(self.clock.now())))

    def _end_if_quiet(self, connection: Connection) -> Standing:
        at = stamp(self.clock.now())
        standing = look(connection, self.instance, at, settle=True)
        if not standing.busy and self.instance.mode == "run":
            ended = at if standing.phase in OVER else None
            columns: Mapping[str, Any] = {"status": standing.phase, "ended_at": ended}
            records.change(connection, self.instance.id, **columns)
        return standing

    def _result(self) -> str:
        return result_of(self.workflow, self.room, since=self.instance.created_at)


def result_of(workflow: Workflow, room: Room, *, since: str = "") -> str:
    """The last that an agent said to all, after the time at which this generation began."""
    names = {agent.name for agent in workflow.agents}
    for message in reversed(room.messages(newest=True)):
        if message.sender in names and message.kind == "message" and message.at >= since:
            return message.content
    return ""
