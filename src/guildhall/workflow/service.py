"""The workflow service of a hall: starts, resumes and launches workflows, and routes events to their teams.

A new start under a tag is the next generation of that workflow. A worker that is started without a workflow file gets
a seat in the workflow `global:main`.
Does not perform the user's operations on running workflows (`control.py`). Does not execute the team (`scheduler.py`).

Invariant: at most one generation of a workflow and tag is alive.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import Conflict, ModelUnusable, NotFound
from guildhall.core.events import Event, EventBus, ToolOutputData
from guildhall.room.model import Actor, RoomEvent
from guildhall.room.service import Rooms, RoomSettings
from guildhall.room.tools import perform_in
from guildhall.runs.execution.grants import Grant, has_price
from guildhall.runs.hooks import Seat
from guildhall.runs.limits import in_force
from guildhall.runs.model import Ask, RunRequest, Stretch
from guildhall.runs.purpose import WorkflowPurpose
from guildhall.runs.record.entries import Resumed
from guildhall.workers.registry import choose_model
from guildhall.workflow import queries, records
from guildhall.workflow import start as standalone
from guildhall.workflow.agent_turn import FIRST_PAUSE
from guildhall.workflow.control import Steering
from guildhall.workflow.loader import frozen, thawed
from guildhall.workflow.plan import opening_of
from guildhall.workflow.scheduler import DEBOUNCE, Team
from guildhall.workflow.schedules import next_due
from guildhall.workflow.setup import TOOLS, Commands, environment, shell_tool
from guildhall.workflow.start import (
    asked_of,
    budget_of,
    check_places,
    conducting,
    from_here,
    furnished,
    refuse_alive,
    refuse_replaced,
    set_aside,
    values_of,
)
from guildhall.workflow.target import GLOBAL, OVER, AgentState, Instance, Schedule, Start, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import tzinfo

    from sqlalchemy import Connection

    from guildhall.core.config import Settings
    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.room.room import Room
    from guildhall.runs.execution.prepare import Prepared
    from guildhall.runs.execution.runs import Runs
    from guildhall.runs.record.history import History
    from guildhall.store.engine import Store
    from guildhall.tools.model import Execute
    from guildhall.workers.model import Worker
    from guildhall.workflow.model import Values, Workflow
    from guildhall.workflow.ordering import RecordedOrder


@dataclass(frozen=True, kw_only=True)
class WorkflowPolicy:
    """The timing and order of agents, and what executes setup commands."""

    first_pause: float = FIRST_PAUSE  # seconds before a disturbed agent is retried; doubled each time
    debounce: float = DEBOUNCE  # seconds without activity before a team counts as quiet
    order: RecordedOrder | None = None  # makes agents move in the order of a recording
    commands: Callable[..., Execute] | None = None  # replaces `Commands`, with the same arguments; None: run them


class Workflows:
    """Starts workflows and keeps them alive."""

    def __init__(
        self,
        *,
        home: Home,
        store: Store,
        clock: Clock,
        bus: EventBus,
        runs: Runs,
        history: History,
        rooms: Rooms,
        settings: Callable[[Frame], Settings],
        zone: tzinfo,
        policy: WorkflowPolicy | None = None,
    ) -> None:
        self._home = home
        self._store = store
        self._clock = clock
        self._bus = bus
        self._runs = runs
        self._history = history
        self._rooms = rooms
        self._settings = settings
        self._zone = zone
        self._policy = policy or WorkflowPolicy()
        self._teams: dict[str, Team] = {}  # by room
        self.steering = Steering(self, store=store, clock=clock, runs=runs, rooms=rooms, zone=zone)
        self._beginning = asyncio.Lock()  # two starts of one tag at once are one start and one refusal

    # Starting

    async def begin(self, start: Start, workflow: Workflow, request: RunRequest, frame: Frame) -> Prepared:
        """A workflow under a tag, ready to be launched: a new one, or the next generation of one that is over."""
        async with self._beginning:
            return await self._begin(workflow, start, request, frame)

    async def _begin(self, workflow: Workflow, start: Start, request: RunRequest, frame: Frame) -> Prepared:
        request = from_here(request, frame)
        frame = workflow.frame(frame)
        settings = self._settings(frame)
        explicit = request.budget is not None or workflow.budget is not None
        request = replace(request, budget=budget_of(workflow, settings, request.budget) if explicit else None)
        self._check_prices(workflow, request, frame, settings)
        values = values_of(workflow, tag=start.tag, params=start.params, frame=frame, allowed=settings.env)
        check_places(workflow, values, self._home, frame)
        before = self._store.read(lambda connection: records.newest(connection, workflow.name, start.tag))
        refuse_alive(before, workflow, fresh=start.fresh)
        if start.fresh and (room := self._rooms.find(workflow.name, start.tag)) is not None:
            own = before is not None and before.path == str(workflow.path)
            await self._rooms.close(room.id, documents=set_aside(room.record()) if own else None)
        room = await self._open_room(workflow, values)
        at = self._clock.now()

        def began(connection: Connection, run: str) -> None:
            instance = Instance(
                id=run,
                room=room.id,
                name=workflow.name,
                tag=start.tag,
                generation=before.generation + 1 if before else 1,
                mode=start.mode,
                status="setup",
                reason=None,
                path=str(workflow.path),
                source=workflow.text,
                definition=frozen(workflow),
                created_at=stamp(at),
                ended_at=None,
            )
            records.add(connection, instance, [agent.name for agent in workflow.agents])
            # The user was asked about the held messages of the last generation, which is over.
            perform_in(connection, room.id, "dropped", Actor.person(), stamp(at))
            self._set_alarms(connection, room.id, workflow)

        asked = replace(
            request,
            worker=str(workflow.path),
            input=asked_of(workflow),
            purpose=WorkflowPurpose(tag=start.tag, params=dict(start.params), mode=start.mode),
        )
        seat = replace(self._conductor(workflow, frame, began), plan=opening_of(workflow, asked, frame, settings))
        return await self._runs.prepare(asked, frame, worker=conducting(workflow), seat=seat)

    async def seat(self, worker: Worker, request: RunRequest, frame: Frame) -> Prepared | Instance:
        """A worker takes a seat in `global:main`: the workflow, where it lives, or ready to be launched with it."""
        agent = standalone.seat_of(worker, request, frame)
        async with self._beginning:
            before = self._store.read(lambda connection: records.newest(connection, GLOBAL, "main"))
            if before is None or before.status in OVER:
                start = Start(file="", params={}, mode="start")
                workflow = standalone.workflow_of(self._home, [agent])
                return await self._begin(workflow, start, RunRequest(worker="", input=""), frame)
            there = {state.name: state.status for state in self.agents(before.id)}
            if there.get(agent.name, "stopped") != "stopped":
                hint = f"Speak to it with `guild send {agent.name} ...`, or end it with `guild stop {agent.name}`."
                raise Conflict(f"{agent.name} is there already: {there[agent.name]}", hint=hint)
            seated = [one for one in thawed(before.source, before.definition).agents if one.name != agent.name]
            workflow = standalone.workflow_of(self._home, [*seated, agent])
            await self._seat_again(before, workflow)
            if (team := self.team(before.room)) is None:
                return await self.again(before.id, frame)
            team.sit(workflow, agent.name)
            return before

    async def _seat_again(self, instance: Instance, workflow: Workflow) -> None:
        """Exactly these agents are seated from now on."""

        def write(connection: Connection) -> None:
            records.change(connection, instance.id, source=workflow.text, definition=frozen(workflow))
            known = {state.name: state.status for state in records.agents_of(connection, instance.id)}
            for agent in workflow.agents:
                if agent.name not in known:
                    records.add_agent(connection, instance.id, agent.name, len(known))
                elif known[agent.name] == "stopped":
                    records.change_agent(connection, instance.id, agent.name, status="idle", attempts=0)

        await self._store.write(write)
        furnishing = RoomSettings(max_hops=workflow.definition.limits.max_hops)
        await self._rooms.open(instance.name, instance.tag, [agent.name for agent in workflow.agents], furnishing)

    def _check_prices(self, workflow: Workflow, request: RunRequest, frame: Frame, settings: Settings) -> None:
        """Raises where an agent's model has no price, so that the team's budget could not be kept."""
        for agent in workflow.agents if request.budget is not None else ():
            choice = choose_model(agent.worker, frame, settings, caller=request.model, override=request.override_model)
            source = self._runs.source_of(choice.model, frame, False)
            if not has_price(source):
                raise ModelUnusable(
                    f"the agent {agent.name}: its model {source.name} has no known price, so that the team's budget "
                    "cannot be kept",
                    where=workflow.place,
                    hint="Use a model with a price for it, or leave the budget out and limit its max_turns.",
                )

    async def again(self, run: str, frame: Frame, grant: Grant | None = None) -> Prepared:
        """A workflow that stopped, ready to go on where it was."""
        instance = self.instance(run)
        refuse_replaced(instance, self._store.read(lambda c: records.newest(c, instance.name, instance.tag)))
        workflow = thawed(instance.source, instance.definition)
        if grant is not None:
            self._refuse_too_little(run, grant)
        there = workflow.frame(frame)
        seat = self._conductor(workflow, there, lambda connection, run: None)
        seat = replace(seat, plan=self._opening(run, workflow, there, grant))
        return await self._runs.prepare_again(run, frame, grant=grant, seat=seat)

    def _opening(self, run: str, workflow: Workflow, frame: Frame, grant: Grant | None) -> str:
        """What could happen when it goes on, in a line."""
        request = self._history.get(run).request
        granted = grant.budget if grant is not None else None
        budget = granted if granted is not None else in_force(self._history.journal(run)).budget
        return opening_of(workflow, replace(request, budget=budget), frame, self._settings(frame))

    def _refuse_too_little(self, run: str, grant: Grant) -> None:
        """Raises where agents that stopped at a limit have used up already what they are to have."""
        for agent in self.agents(run):
            if agent.status == "failed" and agent.run is not None:
                below = (self._history.journal(one.id) for one in self._history.below(agent.run))
                grant.refuse_too_little(self._history.journal(agent.run), tuple(below))

    def launch(self, prepared: Prepared) -> None:
        """Lets a workflow live that was made ready."""
        instance = self.instance(prepared.run)
        workflow = thawed(instance.source, instance.definition)
        request = self._history.get(prepared.run).request
        params = self._history.purpose(prepared.run, WorkflowPurpose).params
        allowed = self._settings(prepared.frame).env
        values = values_of(workflow, tag=instance.tag, params=params, frame=prepared.frame, allowed=allowed)
        team = Team(
            instance=instance,
            workflow=workflow,
            values=values,
            room=self._rooms.room(instance.room),
            store=self._store,
            clock=self._clock,
            runs=self._runs,
            request=request,
            zone=self._zone,
            first_pause=self._policy.first_pause,
            debounce=self._policy.debounce,
            order=self._policy.order,
            granted=_granted(prepared),
        )
        self._teams[instance.room] = team
        self._runs.launch(prepared, team)

    async def _open_room(self, workflow: Workflow, values: Values) -> Room:
        seats = [agent.name for agent in workflow.agents]
        return await self._rooms.open(workflow.name, values.tag, seats, furnished(workflow, values))

    def _conductor(self, workflow: Workflow, frame: Frame, began: Callable[[Connection, str], None]) -> Seat:
        """The seat of the workflow's own run: the commands of its setup, and what its end means."""
        env = environment(workflow, frame)

        def commands(run: str) -> Execute:
            def told(key: str, text: str) -> None:
                self._runs.ledger(run).publish(ToolOutputData, {"id": key, "tool": shell_tool.name, "text": text})

            return (self._policy.commands or Commands)(folder=workflow.folder, env=env, told=told)

        return Seat(tools=TOOLS, execute=commands, began=began, ended=self._ended)

    def _ended(self, connection: Connection, run: str, stretch: Stretch) -> None:
        phases = {"completed": "done", "failed": "failed", "waiting": "paused", "parked": "paused"}
        phase = phases.get(stretch.status, "paused")
        ended = stamp(self._clock.now()) if phase in OVER else None
        records.change(connection, run, status=phase, reason=stretch.reason, ended_at=ended)

    # Looking

    def instance(self, run: str) -> Instance:
        found = self._store.read(lambda connection: records.find(connection, run))
        if found is None:
            raise NotFound(f"the run {run} is not a workflow")
        return found

    def named(self, wanted: Target) -> Instance:
        """The workflow that a target names."""
        return self._store.read(lambda connection: queries.named(connection, wanted))

    def agents(self, run: str) -> list[AgentState]:
        return self._store.read(lambda connection: records.agents_of(connection, run))

    def team(self, room: str) -> Team | None:
        """The team of a room, if it is alive here."""
        team = self._teams.get(room)
        return team if team is not None and self._runs.alive(team.instance.id) else None

    def rooms_alive(self) -> list[Room]:
        """The rooms in which a team is at work."""
        return [team.room for team in self._teams.values()]

    # The seats of those who stand alone

    async def gave_up_seat(self, instance: Instance, name: str) -> list[str]:
        """An agent that stands alone has left; the last one takes the workflow with it."""
        async with self._beginning:
            now = self.instance(instance.id)
            seated = [agent for agent in thawed(now.source, now.definition).agents if agent.name != name]
            if not seated:
                return await self.steering.stop(instance.id)
            workflow = standalone.workflow_of(self._home, seated)
            await self._seat_again(instance, workflow)
            if (team := self.team(instance.room)) is not None:
                team.workflow = workflow
            return []

    def _set_alarms(self, connection: Connection, room: str, workflow: Workflow) -> None:
        """A generation begins: what the file says is set, and what a person has set is due anew."""
        now = self._clock.now()
        kept = {schedule.agent: schedule for schedule in records.schedules_of(connection, room)}
        for agent in workflow.agents:
            if (wakeup := agent.wakeup) is not None:
                kept[agent.name] = Schedule(
                    agent=agent.name, every=wakeup.every, cron=wakeup.cron, prompt=None, due_at=None
                )
        for schedule in kept.values():
            due = stamp(next_due(replace(schedule, due_at=None), now, self._zone))
            records.put_schedule(connection, room, replace(schedule, due_at=due), stamp(now))

    # Hearing

    def wake(self, room: str, agents: frozenset[str]) -> None:
        """Agents of a room have mail."""
        if (team := self.team(room)) is not None:
            team.wake(agents)

    def happened(self, happened: RoomEvent) -> None:
        """Something happened in a room: whoever follows the workflow sees it."""
        if (team := self._teams.get(happened.room)) is not None:
            team.happened(happened.type)
            root = team.instance.id
            told = {"proposal": happened.data} if happened.type == "proposal" else happened.data  # it has a type too
            data = {"actor": happened.actor, **told}
            self._bus.publish(Event(type=happened.type, run=root, root=root, at=happened.at, data=data))

    def answered(self, ask: Ask) -> None:
        """Something that a workflow, or a run below it, asks is open no more."""
        for team in self._teams.values():
            if team.instance.id == ask.root:
                team.answered(ask)


def _granted(prepared: Prepared) -> Mapping[str, Any] | None:
    """What a person who goes on with a workflow that has failed lets it use up; None: nobody does."""
    last = prepared.journal.entries[-1].data
    return last.bounds if isinstance(last, Resumed) and last.was == "failed" else None
