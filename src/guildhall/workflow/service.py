"""The workflow service of a hall: starts, resumes, stops and steers workflows, and routes events to their teams.

A new start under a tag is the next generation of that workflow. A worker that is started without a workflow file gets
a seat in the workflow `global:main`.
Does not execute the team (`scheduler.py`) or deliver scheduled messages (`schedules.py`).

Invariant: at most one generation of a workflow and tag is alive.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import Conflict, ModelUnusable, NotFound, UsageError
from guildhall.core.events import Event, EventBus, ToolOutputData
from guildhall.room import mentions
from guildhall.room.model import ALL, Actor, RoomEvent, Said
from guildhall.room.service import Room, Rooms, RoomSettings, perform_in
from guildhall.runs.execution.grants import Grant, has_price
from guildhall.runs.hooks import RunHooks
from guildhall.runs.limits import current_bounds
from guildhall.runs.model import ENDED, Ask, RunRequest, SegmentEnd
from guildhall.runs.purpose import WorkflowPurpose
from guildhall.runs.record import records as run_records
from guildhall.runs.record.entries import Resumed
from guildhall.workers.registry import choose_model
from guildhall.workflow import queries, records
from guildhall.workflow.agent_turn import FIRST_PAUSE
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
    recorded_hooks,
    refuse_alive,
    refuse_replaced,
    set_aside,
    values_of,
    workflow_of,
)
from guildhall.workflow.target import GLOBAL, MAIN, OVER, AgentState, Instance, Schedule, Sent, Start, Target

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import tzinfo

    from sqlalchemy import Connection

    from guildhall.core.config import Settings
    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.runs.execution.prepare import Prepared
    from guildhall.runs.execution.runs import Runs
    from guildhall.runs.record.history import History
    from guildhall.store.engine import Store
    from guildhall.tools.model import Execute
    from guildhall.workers.model import Worker
    from guildhall.workflow.definition import Wakeup
    from guildhall.workflow.model import Workflow
    from guildhall.workflow.ordering import RecordedOrder


@dataclass(frozen=True, kw_only=True)
class WorkflowPolicy:
    """The timing and order of agents, and what executes setup commands."""

    first_pause: float = FIRST_PAUSE  # seconds before a disturbed agent is retried; doubled each time
    debounce: float = DEBOUNCE  # seconds without activity before a team counts as quiet
    order: RecordedOrder | None = None  # makes agents move in the order of a recording
    commands: Callable[..., Execute] | None = None  # replaces `Commands`, with the same arguments; None: run them


@dataclass(kw_only=True, eq=False)
class Workflows:
    """Starts workflows and keeps them alive."""

    home: Home
    store: Store
    clock: Clock
    bus: EventBus
    runs: Runs
    history: History
    rooms: Rooms
    settings: Callable[[Frame], Settings]
    zone: tzinfo
    policy: WorkflowPolicy
    _teams: dict[str, Team] = field(default_factory=dict[str, Team])  # by room
    _beginning: asyncio.Lock = field(default_factory=asyncio.Lock)  # two starts of one tag: one start and one refusal

    # Starting

    async def begin(self, start: Start, workflow: Workflow, request: RunRequest, frame: Frame) -> Prepared:
        """A workflow under a tag, ready to be launched: a new one, or the next generation of one that is over."""
        async with self._beginning:
            return await self._begin(workflow, start, request, frame)

    async def _begin(self, workflow: Workflow, start: Start, request: RunRequest, frame: Frame) -> Prepared:
        request = from_here(request, frame)
        frame = workflow.frame(frame)
        settings = self.settings(frame)
        explicit = request.budget is not None or workflow.budget is not None
        request = replace(request, budget=budget_of(workflow, settings, request.budget) if explicit else None)
        self._check_prices(workflow, request, frame, settings)
        values = values_of(workflow, tag=start.tag, params=start.params, frame=frame, allowed=settings.env)
        check_places(workflow, values, self.home, frame)
        before = self.store.read(lambda connection: records.newest(connection, workflow.name, start.tag))
        refuse_alive(before, workflow, fresh=start.fresh)
        if start.fresh and (room := self.rooms.find(workflow.name, start.tag)) is not None:
            own = before is not None and before.path == str(workflow.path)
            await self.rooms.close(room.id, documents=set_aside(room.record()) if own else None)
        seats = [agent.name for agent in workflow.agents]
        room = await self.rooms.open(workflow.name, start.tag, seats, furnished(workflow, values))
        at = self.clock.now()

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
            records.add(connection, instance, seats)
            # The user was asked about the held messages of the last generation, which is over.
            perform_in(connection, room.id, "dropped", Actor.person(), stamp(at))
            self._set_alarms(connection, room.id, workflow)

        asked = replace(
            request,
            worker=str(workflow.path),
            input=asked_of(workflow),
            purpose=WorkflowPurpose(tag=start.tag, params=dict(start.params), mode=start.mode),
        )
        hooks = replace(self._conductor(workflow, frame, began), plan_line=opening_of(workflow, asked, frame, settings))
        return await self.runs.prepare(asked, frame, worker=conducting(workflow), hooks=hooks)

    async def seat(self, worker: Worker, request: RunRequest, frame: Frame) -> Prepared | Instance:
        """A worker takes a seat in `global:main`: the workflow, where it lives, or ready to be launched with it."""
        agent = recorded_hooks(worker, request, frame)
        async with self._beginning:
            before = self.store.read(lambda connection: records.newest(connection, GLOBAL, "main"))
            if before is None or before.status in OVER:
                start = Start(file="", params={}, mode="start")
                workflow = workflow_of(self.home, [agent])
                return await self._begin(workflow, start, RunRequest(worker="", input=""), frame)
            there = {state.name: state.status for state in self.agents(before.id)}
            if there.get(agent.name, "stopped") != "stopped":
                hint = f"Speak to it with `guild send {agent.name} ...`, or end it with `guild stop {agent.name}`."
                raise Conflict(f"{agent.name} is there already: {there[agent.name]}", hint=hint)
            seated = [one for one in thawed(before.source, before.definition).agents if one.name != agent.name]
            workflow = workflow_of(self.home, [*seated, agent])
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

        await self.store.write(write)
        furnishing = RoomSettings(max_hops=workflow.definition.limits.max_hops)
        await self.rooms.open(instance.name, instance.tag, [agent.name for agent in workflow.agents], furnishing)

    def _check_prices(self, workflow: Workflow, request: RunRequest, frame: Frame, settings: Settings) -> None:
        """Raises where an agent's model has no price, so that the team's budget could not be kept."""
        for agent in workflow.agents if request.budget is not None else ():
            choice = choose_model(agent.worker, frame, settings, caller=request.model, override=request.override_model)
            source = self.runs.source_of(choice.model, frame, False)
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
        refuse_replaced(instance, self.store.read(lambda c: records.newest(c, instance.name, instance.tag)))
        workflow = thawed(instance.source, instance.definition)
        if grant is not None:
            self._refuse_too_little(run, grant)
        there = workflow.frame(frame)
        hooks = self._conductor(workflow, there, lambda connection, run: None)
        granted = grant.budget if grant is not None else None
        budget = granted if granted is not None else current_bounds(self.history.journal(run)).budget
        request = replace(self.history.get(run).request, budget=budget)
        hooks = replace(hooks, plan_line=opening_of(workflow, request, there, self.settings(there)))
        return await self.runs.prepare_resume(run, frame, grant=grant, hooks=hooks)

    def _refuse_too_little(self, run: str, grant: Grant) -> None:
        """Raises where agents that stopped at a limit have used up already what they are to have."""
        for agent in self.agents(run):
            if agent.status == "failed" and agent.run is not None:
                below = (self.history.journal(one.id) for one in self.history.descendants(agent.run))
                grant.check_above_usage(self.history.journal(agent.run), tuple(below))

    def launch(self, prepared: Prepared) -> None:
        """Lets a workflow live that was made ready."""
        instance = self.instance(prepared.run)
        workflow = thawed(instance.source, instance.definition)
        request = self.history.get(prepared.run).request
        params = self.history.purpose(prepared.run, WorkflowPurpose).params
        allowed = self.settings(prepared.frame).env
        values = values_of(workflow, tag=instance.tag, params=params, frame=prepared.frame, allowed=allowed)
        last = prepared.journal.entries[-1].data
        team = Team(
            instance=instance,
            workflow=workflow,
            values=values,
            room=self.rooms.room(instance.room),
            store=self.store,
            clock=self.clock,
            runs=self.runs,
            request=request,
            zone=self.zone,
            first_pause=self.policy.first_pause,
            debounce=self.policy.debounce,
            order=self.policy.order,
            granted=last.bounds if isinstance(last, Resumed) and last.was == "failed" else None,
        )
        self._teams[instance.room] = team
        self.runs.launch(prepared, team)

    def _conductor(self, workflow: Workflow, frame: Frame, began: Callable[[Connection, str], None]) -> RunHooks:
        """The seat of the workflow's own run: the commands of its setup, and what its end means."""
        env = environment(workflow, frame)

        def commands(run: str) -> Execute:
            def told(key: str, text: str) -> None:
                self.runs.ledger(run).publish(ToolOutputData, {"id": key, "tool": shell_tool.name, "text": text})

            return (self.policy.commands or Commands)(folder=workflow.folder, env=env, told=told)

        return RunHooks(tools=TOOLS, executor=commands, record_start=began, record_stop=self._ended)

    def _ended(self, connection: Connection, run: str, end: SegmentEnd) -> None:
        phase = {"completed": "done", "failed": "failed"}.get(end.status, "paused")
        ended = stamp(self.clock.now()) if phase in OVER else None
        records.change(connection, run, status=phase, reason=end.reason, ended_at=ended)

    # Looking

    def instance(self, run: str) -> Instance:
        found = self.store.read(lambda connection: records.find(connection, run))
        if found is None:
            raise NotFound(f"the run {run} is not a workflow")
        return found

    def named(self, wanted: Target) -> Instance:
        """The workflow that a target names."""
        return self.store.read(lambda connection: queries.named(connection, wanted))

    def agents(self, run: str) -> list[AgentState]:
        return self.store.read(lambda connection: records.agents_of(connection, run))

    def team(self, room: str) -> Team | None:
        """The team of a room, if it is alive here."""
        team = self._teams.get(room)
        return team if team is not None and self.runs.is_alive(team.instance.id) else None

    def rooms_alive(self) -> list[Room]:
        """The rooms in which a team is at work."""
        return [team.room for team in self._teams.values()]

    # The seats of those who stand alone

    async def _give_up_seat(self, instance: Instance, name: str) -> list[str]:
        """An agent that stands alone has left; the last one takes the workflow with it."""
        async with self._beginning:
            now = self.instance(instance.id)
            seated = [agent for agent in thawed(now.source, now.definition).agents if agent.name != name]
            if not seated:
                return await self.stop(instance.id)
            workflow = workflow_of(self.home, seated)
            await self._seat_again(instance, workflow)
            if (team := self.team(instance.room)) is not None:
                team.workflow = workflow
            return []

    def _set_alarms(self, connection: Connection, room: str, workflow: Workflow) -> None:
        """A generation begins: what the file says is set, and what a person has set is due anew."""
        now = self.clock.now()
        kept = {schedule.agent: schedule for schedule in records.schedules_of(connection, room)}
        for agent in workflow.agents:
            if (wakeup := agent.wakeup) is not None:
                kept[agent.name] = Schedule(
                    agent=agent.name, every=wakeup.every, cron=wakeup.cron, prompt=None, due_at=None
                )
        for schedule in kept.values():
            due = stamp(next_due(replace(schedule, due_at=None), now, self.zone))
            records.put_schedule(connection, room, replace(schedule, due_at=due), stamp(now))

    # Speaking

    async def send(self, text: str, to: Target) -> Sent:
        """A person says something to an agent, or to the room: to those whom it mentions there, else to all."""
        instance = _alive(self.named(to), to)
        room = self.rooms.room(instance.room)
        addressed = [to.agent] if to.agent else []
        if not addressed:
            found = mentions.find(Said.own(text), [seat.agent for seat in room.seats()])
            addressed = [] if found.reached or found.missed else [ALL]

        def check(connection: Connection) -> None:
            _alive(records.find(connection, instance.id) or instance, to)  # it may just have come to its end

        posted = await room.send(text, Actor.person(), to=addressed, check=check)
        stopped = {agent.name for agent in self.agents(instance.id) if agent.status == "stopped"}
        return Sent(
            run=instance.id,
            target=to,
            status=self.instance(instance.id).status,
            posted=posted,
            stopped=tuple(name for name in posted.reached if name in stopped),
        )

    # Ending

    async def stop(self, run: str) -> list[str]:
        """Ends a workflow for good, with all that its agents are at; the ids of the runs that were ended."""
        at = stamp(self.clock.now())

        def also(connection: Connection) -> None:
            records.change(connection, run, status="stopped", reason="by the user", ended_at=at)
            for agent in records.agents_of(connection, run):
                records.change_agent(connection, run, agent.name, status="stopped", run=None, due_at=None)

        return await self.runs.cancel(run, also)

    async def stop_agent(self, wanted: Target) -> list[str]:
        """Ends what one agent is at, and lets it do no more; the others go on. The ids of the runs that were ended."""
        instance, name = _alive(self.named(wanted), wanted), _agent(wanted)
        if next(one.status for one in self.agents(instance.id) if one.name == name) == "stopped":
            raise Conflict(f"{wanted} is stopped", hint=f"To let it work again: guild start {wanted}")
        if (team := self.team(instance.room)) is not None:
            await team.leave(name)
        now = stamp(self.clock.now())

        def write(connection: Connection) -> list[str]:
            run = records.agent(connection, instance.id, name).run
            found = run_records.find_run(connection, run) if run else None
            records.change_agent(connection, instance.id, name, status="stopped", run=None, due_at=None)
            unfinished = found is not None and found.status not in ENDED
            return run_records.cancel_tree(connection, found.id, now) if found and unfinished else []

        ended = await self.store.write(write)
        return [*ended, *(await self._give_up_seat(instance, name) if instance.name == GLOBAL else [])]

    async def start_agent(self, wanted: Target) -> Instance:
        """Lets an agent work again that was stopped alone, or that has failed: its dead letters are unread again."""
        instance, name = _alive(self.named(wanted), wanted), _agent(wanted)
        at = stamp(self.clock.now())

        def write(connection: Connection) -> None:
            if records.agent(connection, instance.id, name).status not in ("stopped", "failed"):
                raise Conflict(f"{wanted} works already", hint=f"Speak to it: guild send {wanted} ...")
            records.change_agent(connection, instance.id, name, status="idle", attempts=0, run=None, due_at=None)
            perform_in(connection, instance.room, "delivered_again", Actor.person(), at, agent=name)

        await self.store.write(write)
        await self.rooms.room(instance.room).project()
        if (team := self.team(instance.room)) is not None:
            team.sit(team.workflow, name)
            team.wake(frozenset({name}))
        return instance

    # Schedules

    async def schedule(self, wanted: Target, wakeup: Wakeup, prompt: str | None) -> Schedule:
        """Sets when an agent wakes by itself; without an agent, when all do that have no schedule of their own."""
        instance, now = _alive(self.named(wanted), wanted), self.clock.now()
        new = Schedule(agent=wanted.agent, every=wakeup.every, cron=wakeup.cron, prompt=prompt, due_at=None)
        new = replace(new, due_at=stamp(next_due(new, now, self.zone)))
        await self.store.write(lambda c: records.put_schedule(c, instance.room, new, stamp(now)))
        self._rescheduled(instance)
        return new

    async def unschedule(self, wanted: Target) -> bool:
        """Forgets when an agent, or all, wake; whether something was set."""
        instance = self.named(wanted)
        dropped = await self.store.write(lambda c: records.drop_schedule(c, instance.room, wanted.agent))
        self._rescheduled(instance)
        return dropped

    def _rescheduled(self, instance: Instance) -> None:
        if (team := self.team(instance.room)) is not None:
            team.alarms.look_again()

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
            self.bus.publish(Event(type=happened.type, run=root, root=root, at=happened.at, data=data))

    def answered(self, ask: Ask) -> None:
        """Something that a workflow, or a run below it, asks is open no more."""
        for team in self._teams.values():
            if team.instance.id == ask.root:
                team.answered(ask)


def _alive(instance: Instance, wanted: Target) -> Instance:
    """The instance, unless it is over."""
    if instance.status not in OVER:
        return instance
    if instance.name == GLOBAL:
        raise Conflict(f"{wanted} is not there", hint=f"To seat it: guild start {wanted.agent or 'WORKER'}")
    tag = "" if instance.tag == MAIN else f" --tag {instance.tag}"
    hint = f"To begin again: guild {instance.mode} {instance.path}{tag}"
    raise Conflict(f"{instance.target} is {instance.status}: nobody is there", hint=hint)


def _agent(wanted: Target) -> str:
    if wanted.agent is None:
        raise UsageError(f"{wanted} names no agent", hint="Write agent@workflow:tag.")
    return wanted.agent
