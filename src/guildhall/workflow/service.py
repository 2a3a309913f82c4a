"""The workflow service of a hall: starts, resumes, stops and steers workflows, and routes events to their teams.

A new start under a tag is the next generation of that workflow. A worker that is started without a workflow file
becomes an agent of the workflow `global:main` of its project.
Does not execute the team (`team.py`) or deliver scheduled messages (`wakeup_schedules.py`).

Invariant: at most one generation of a workflow and tag is alive in a project.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import Conflict, GuildError, NotFound, UsageError
from guildhall.core.events import Event, EventBus, ToolOutputData
from guildhall.room import mentions
from guildhall.room.model import ALL, Actor, MessageText, RoomEvent
from guildhall.room.service import Room, Rooms, RoomSettings, perform_in
from guildhall.runs.limits import current_bounds
from guildhall.runs.model import ENDED, Ask, RunRequest, SegmentEnd
from guildhall.runs.owner_hooks import RunHooks
from guildhall.runs.purpose import WorkflowPurpose
from guildhall.runs.record import records as run_records
from guildhall.runs.record.entries import Resumed
from guildhall.workers.lifecycle import check_usable
from guildhall.workers.registry import choose_model
from guildhall.workflow import queries, records
from guildhall.workflow.agent_steps import FIRST_PAUSE_S
from guildhall.workflow.instance import FINAL_PHASES, Instance, Schedule, SendResult, Start
from guildhall.workflow.loader import from_record, to_record
from guildhall.workflow.plan import plan_summary
from guildhall.workflow.setup_commands import TOOLS, Commands, command_environment, shell_tool
from guildhall.workflow.start_values import (
    anchor_models,
    check_not_replaced,
    check_paths,
    check_tag_free,
    move_documents_aside,
    recorded_input,
    room_settings,
    standalone_agent,
    standalone_workflow,
    start_values,
    team_budget,
    workflow_worker,
)
from guildhall.workflow.target import GLOBAL, MAIN, Target
from guildhall.workflow.team import DEBOUNCE_S, Team
from guildhall.workflow.wakeup_schedules import next_due

if TYPE_CHECKING:
    from datetime import tzinfo

    from sqlalchemy import Connection

    from guildhall.core.config import Settings
    from guildhall.core.paths import Home
    from guildhall.core.request_frame import Frame
    from guildhall.runs.execution.preparation import Grant, Prepared
    from guildhall.runs.execution.runs import Runs
    from guildhall.runs.record.queries import History
    from guildhall.store.engine import Store
    from guildhall.tools.model import Execute
    from guildhall.workers.model import Worker
    from guildhall.workflow.definition import Wakeup
    from guildhall.workflow.instance import AgentState
    from guildhall.workflow.model import Workflow
    from guildhall.workflow.recorded_turn_order import TurnOrder


@dataclass(frozen=True, kw_only=True)
class WorkflowPolicy:
    """The timing and order of agents, and the executor of setup commands."""

    first_pause_s: float = FIRST_PAUSE_S  # before the first retry after a transient failure; doubled each time
    debounce_s: float = DEBOUNCE_S  # without activity before a team counts as idle
    order: TurnOrder | None = None  # of a recording
    commands: Callable[..., Execute] | None = None  # replaces `Commands`


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
    _start_lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # of two starts of a tag, one is refused

    # Start

    async def prepare(self, start: Start, workflow: Workflow, request: RunRequest, frame: Frame) -> Prepared:
        """Return a new generation of a workflow, ready to be launched."""
        async with self._start_lock:
            return await self._prepare(workflow, start, request, frame)

    async def _prepare(self, workflow: Workflow, start: Start, request: RunRequest, frame: Frame) -> Prepared:
        request = anchor_models(request, frame)
        # Agents without a workflow file belong to the project of the command.
        project = str((frame if workflow.name == GLOBAL else workflow.frame(frame)).root.resolve())
        frame = workflow.frame(frame)
        settings = self.settings(frame)
        has_budget = request.budget is not None or workflow.budget is not None
        request = replace(request, budget=team_budget(workflow, settings, request.budget) if has_budget else None)
        values = start_values(workflow, tag=start.tag, params=start.params, frame=frame, allowed=settings.env)
        check_paths(workflow, values, self.home, frame)
        key = (project, workflow.name, start.tag)
        previous = self.store.read(lambda connection: records.newest_instance(connection, *key))
        check_tag_free(previous, workflow, fresh=start.fresh)
        if start.fresh and (room := self.rooms.find(*key)) is not None:
            is_same_file = previous is not None and previous.path == str(workflow.path)
            documents = move_documents_aside(room.read_record()) if is_same_file else None
            await self.rooms.close(room.id, documents=documents)
        names = [agent.name for agent in workflow.agents]
        room = await self.rooms.open(*key, names, room_settings(workflow, values))
        at = self.clock.now()

        def record_start(connection: Connection, run: str) -> None:
            instance = Instance(
                id=run,
                room=room.id,
                project=project,
                name=workflow.name,
                tag=start.tag,
                generation=previous.generation + 1 if previous else 1,
                mode=start.mode,
                status="setup",
                reason=None,
                path=str(workflow.path),
                source=workflow.text,
                definition=to_record(workflow),
                created_at=stamp(at),
                ended_at=None,
            )
            records.add_instance(connection, instance, names)
            # The question about the held messages of the last generation is closed.
            perform_in(connection, room.id, "drop_held", Actor.person(), stamp(at))
            self._set_schedules(connection, room.id, workflow)

        request = replace(
            request,
            worker=str(workflow.path),
            input=recorded_input(workflow),
            purpose=WorkflowPurpose(tag=start.tag, params=dict(start.params), mode=start.mode),
        )
        hooks = self._build_hooks(workflow, frame, record_start, request)
        return await self.runs.prepare(request, frame, worker=workflow_worker(workflow), hooks=hooks)

    async def start_worker(self, worker: Worker, request: RunRequest, frame: Frame) -> Prepared | Instance:
        """Add a worker to `global:main` of its project. Return the running workflow, or one ready to be launched."""
        agent = standalone_agent(worker, request, frame)
        async with self._start_lock:
            key = (str(frame.root.resolve()), GLOBAL, MAIN)
            instance = self.store.read(lambda connection: records.newest_instance(connection, *key))
            if instance is None or instance.status in FINAL_PHASES:
                start = Start(file="", params={}, mode="start")
                workflow = standalone_workflow(self.home, [agent])
                return await self._prepare(workflow, start, RunRequest(worker="", input=""), frame)
            statuses = {state.name: state.status for state in self.list_agents(instance.id)}
            if statuses.get(agent.name, "stopped") != "stopped":
                message = f"cannot start {agent.name}: it was already started, its status is {statuses[agent.name]}"
                hint = f"Send it a message: guild send {agent.name} ... Or stop it first: guild stop {agent.name}"
                raise Conflict(message, hint=hint)
            agents = from_record(instance.source, instance.definition).agents
            others = [other for other in agents if other.name != agent.name]
            workflow = standalone_workflow(self.home, [*others, agent])
            await self._set_agents(instance, workflow)
            if (team := self.team(instance.room)) is None:
                return await self.prepare_resume(instance.id, frame)
            team.add_agent(workflow, agent.name)
            return instance

    async def _set_agents(self, instance: Instance, workflow: Workflow) -> None:
        """Replace the agents of a running workflow."""

        def write(connection: Connection) -> None:
            records.change_instance(connection, instance.id, source=workflow.text, definition=to_record(workflow))
            known = {state.name: state.status for state in records.list_agents(connection, instance.id)}
            for agent in workflow.agents:
                if agent.name not in known:
                    records.add_agent(connection, instance.id, agent.name, len(known))
                elif known[agent.name] == "stopped":
                    records.change_agent(connection, instance.id, agent.name, status="idle", attempts=0)

        await self.store.write(write)
        settings = RoomSettings(max_hops=workflow.definition.limits.max_hops)
        names = [agent.name for agent in workflow.agents]
        await self.rooms.open(instance.project, instance.name, instance.tag, names, settings)

    async def prepare_resume(self, run: str, frame: Frame, grant: Grant | None = None) -> Prepared:
        """Return a stopped workflow, ready to be launched."""
        instance = self.get_instance(run)
        key = (instance.project, instance.name, instance.tag)
        check_not_replaced(instance, self.store.read(lambda connection: records.newest_instance(connection, *key)))
        workflow = from_record(instance.source, instance.definition)
        if grant is not None:
            self._check_grant(run, grant)
        workflow_frame = workflow.frame(frame)
        granted = grant.budget if grant is not None else None
        budget = granted if granted is not None else current_bounds(self.history.journal(run)).budget
        request = replace(self.history.get(run).request, budget=budget)
        hooks = self._build_hooks(workflow, workflow_frame, lambda connection, run: None, request)
        return await self.runs.prepare_resume(run, frame, grant=grant, hooks=hooks)

    def _check_grant(self, run: str, grant: Grant) -> None:
        """Raise if a grant does not exceed the usage of a stopped agent."""
        for agent in self.list_agents(run):
            if agent.status == "failed" and agent.run is not None:
                children = (self.history.journal(child.id) for child in self.history.descendants(agent.run))
                grant.check_above_usage(self.history.journal(agent.run), tuple(children))

    def launch(self, prepared: Prepared) -> None:
        """Start the team of a prepared workflow."""
        instance = self.get_instance(prepared.run_id)
        workflow = from_record(instance.source, instance.definition)
        request = self.history.get(prepared.run_id).request
        params = self.history.purpose(prepared.run_id, WorkflowPurpose).params
        allowed = self.settings(prepared.frame).env
        values = start_values(workflow, tag=instance.tag, params=params, frame=prepared.frame, allowed=allowed)
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
            first_pause_s=self.policy.first_pause_s,
            debounce_s=self.policy.debounce_s,
            order=self.policy.order,
            granted=last.bounds if isinstance(last, Resumed) and last.was == "failed" else None,
        )
        self._teams[instance.room] = team
        self.runs.launch(prepared, team)

    def _build_hooks(
        self, workflow: Workflow, frame: Frame, record: Callable[[Connection, str], None], request: RunRequest
    ) -> RunHooks:
        """Return the hooks of the workflow's own run: its setup commands, its start and end, and its summary line."""
        env, can_cost = command_environment(workflow, frame), self._can_cost(workflow, frame, request)
        plan_line = plan_summary(workflow, request, frame, self.settings(frame), can_cost=can_cost)

        def create_executor(run: str) -> Execute:
            def publish_output(key: str, text: str) -> None:
                self.runs.ledger(run).publish(ToolOutputData, {"id": key, "tool": shell_tool.name, "text": text})

            return (self.policy.commands or Commands)(folder=workflow.folder, env=env, on_output=publish_output)

        return RunHooks(
            tools=TOOLS,
            executor=create_executor,
            record_start=record,
            record_stop=self._record_end,
            plan_line=plan_line,
            can_cost=can_cost,
        )

    def _can_cost(self, workflow: Workflow, frame: Frame, request: RunRequest) -> bool:
        """Return False if no agent, and no worker that an agent may call, has a model with a price."""
        assembler, settings, override = self.runs.assembler, self.settings(frame), request.override_model
        for agent in workflow.agents:
            try:
                model = choose_model(agent.worker, frame, settings, caller=request.model, override=override).model
            except GuildError:  # the agent cannot run
                continue
            if assembler.preflight.is_priced(model, frame) is not False:
                return True
            if assembler.can_callee_cost(agent.worker, frame, model, override):
                return True
        return False

    def _record_end(self, connection: Connection, run: str, end: SegmentEnd) -> None:
        phase = {"completed": "done", "failed": "failed"}.get(end.status, "paused")
        ended = stamp(self.clock.now()) if phase in FINAL_PHASES else None
        records.change_instance(connection, run, status=phase, reason=end.reason, ended_at=ended)

    # Queries

    def get_instance(self, run: str) -> Instance:
        """Return the workflow instance of a run. Raise NotFound if the run is not a workflow."""
        instance = self.store.read(lambda connection: records.find_instance(connection, run))
        if instance is None:
            raise NotFound(f"the run {run} is not a workflow", hint="List the workflows: guild ls --all")
        return instance

    def find_instance(self, wanted: Target) -> Instance:
        return self.store.read(lambda connection: queries.find_instance(connection, wanted))

    def list_agents(self, run: str) -> list[AgentState]:
        return self.store.read(lambda connection: records.list_agents(connection, run))

    def team(self, room: str) -> Team | None:
        """Return the live team of a room, or None."""
        team = self._teams.get(room)
        return team if team is not None and self.runs.is_alive(team.instance.id) else None

    def active_rooms(self) -> list[Room]:
        """Return the rooms of the teams in this hall."""
        return [team.room for team in self._teams.values()]

    # Agents without a workflow file

    async def _remove_agent(self, instance: Instance, name: str) -> list[str]:
        """Remove a stopped agent from `global:main`. Stop the workflow if it was the last agent."""
        async with self._start_lock:
            current = self.get_instance(instance.id)
            others = [agent for agent in from_record(current.source, current.definition).agents if agent.name != name]
            if not others:
                return await self.stop(instance.id)
            workflow = standalone_workflow(self.home, others)
            await self._set_agents(instance, workflow)
            if (team := self.team(instance.room)) is not None:
                team.workflow = workflow
            return []

    def _set_schedules(self, connection: Connection, room: str, workflow: Workflow) -> None:
        """Set the schedules of the file at the start of a generation, and restart the schedules of the user."""
        now = self.clock.now()
        schedules = {schedule.agent: schedule for schedule in records.list_schedules(connection, room)}
        for agent in workflow.agents:
            if (wakeup := agent.wakeup) is not None:
                schedules[agent.name] = Schedule(
                    agent=agent.name, every=wakeup.every, cron=wakeup.cron, prompt=None, due_at=None
                )
        for schedule in schedules.values():
            due_at = stamp(next_due(replace(schedule, due_at=None), now, self.zone))
            records.put_schedule(connection, room, replace(schedule, due_at=due_at), stamp(now))

    # Messages

    async def send(self, text: str, to: Target) -> SendResult:
        """Send a message of the user to an agent, or to a room: to the mentioned agents, else to all."""
        instance = _check_alive(self.find_instance(to), to)
        room = self.rooms.room(instance.room)
        addressed = [to.agent] if to.agent else []
        if not addressed:
            mentioned = mentions.find(MessageText.own(text), [member.agent for member in room.list_agents()])
            addressed = [] if mentioned.reached or mentioned.missed else [ALL]

        def check(connection: Connection) -> None:
            _check_alive(records.find_instance(connection, instance.id) or instance, to)  # it may have ended meanwhile

        posted = await room.send(text, Actor.person(), to=addressed, check=check)
        stopped = {agent.name for agent in self.list_agents(instance.id) if agent.status in ("stopped", "failed")}
        return SendResult(
            run=instance.id,
            target=to,
            status=self.get_instance(instance.id).status,
            posted=posted,
            stopped=tuple(name for name in posted.reached if name in stopped),
        )

    # Stop and restart of agents

    async def stop(self, run: str) -> list[str]:
        """Stop a workflow and cancel the runs of its agents. Return the ids of the cancelled runs."""
        at = stamp(self.clock.now())

        def record_stop(connection: Connection) -> None:
            records.change_instance(connection, run, status="stopped", reason="by the user", ended_at=at)
            for agent in records.list_agents(connection, run):
                records.change_agent(connection, run, agent.name, status="stopped", run=None, due_at=None)

        return await self.runs.cancel(run, record_stop)

    async def stop_agent(self, wanted: Target) -> list[str]:
        """Stop one agent and cancel its run. Return the ids of the cancelled runs."""
        instance, name = _check_alive(self.find_instance(wanted), wanted), _agent_name(wanted)
        if next(agent.status for agent in self.list_agents(instance.id) if agent.name == name) == "stopped":
            raise Conflict(f"{wanted} is already stopped", hint=f"Start it again: guild start {wanted}")
        if (team := self.team(instance.room)) is not None:
            await team.remove_agent(name)
        now = stamp(self.clock.now())

        def write(connection: Connection) -> list[str]:
            run_id = records.get_agent(connection, instance.id, name).run
            run = run_records.find_run(connection, run_id) if run_id else None
            records.change_agent(connection, instance.id, name, status="stopped", run=None, due_at=None)
            is_unfinished = run is not None and run.status not in ENDED
            return run_records.cancel_with_child_runs(connection, run.id, now) if run and is_unfinished else []

        cancelled = await self.store.write(write)
        return [*cancelled, *(await self._remove_agent(instance, name) if instance.name == GLOBAL else [])]

    async def start_agent(self, wanted: Target) -> Instance:
        """Start a stopped or failed agent again, and deliver its dead letters."""
        instance, name = _check_alive(self.find_instance(wanted), wanted), _agent_name(wanted)
        at = stamp(self.clock.now())

        def write(connection: Connection) -> None:
            if records.get_agent(connection, instance.id, name).status not in ("stopped", "failed"):
                message = f"cannot start {wanted}: it is not stopped"
                raise Conflict(message, hint=f"Send it a message: guild send {wanted} ...")
            records.change_agent(connection, instance.id, name, status="idle", attempts=0, run=None, due_at=None)
            perform_in(connection, instance.room, "redeliver", Actor.person(), at, agent=name)

        await self.store.write(write)
        await self.rooms.room(instance.room).export_files()
        if (team := self.team(instance.room)) is not None:
            team.add_agent(team.workflow, name)
            team.wake(frozenset({name}))
        return instance

    # Schedules

    async def schedule(self, wanted: Target, wakeup: Wakeup, prompt: str | None) -> Schedule:
        """Set the schedule of an agent or, without an agent, of all agents without a schedule of their own."""
        instance, now = _check_alive(self.find_instance(wanted), wanted), self.clock.now()
        for agent in from_record(instance.source, instance.definition).agents:
            if wanted.agent in (None, agent.name):
                check_usable(agent.worker, "schedule")
        new = Schedule(agent=wanted.agent, every=wakeup.every, cron=wakeup.cron, prompt=prompt, due_at=None)
        new = replace(new, due_at=stamp(next_due(new, now, self.zone)))
        await self.store.write(lambda c: records.put_schedule(c, instance.room, new, stamp(now)))
        self._reload_schedules(instance)
        return new

    async def unschedule(self, wanted: Target) -> bool:
        """Delete a schedule. Return True if it existed."""
        instance = self.find_instance(wanted)
        dropped = await self.store.write(lambda c: records.drop_schedule(c, instance.room, wanted.agent))
        self._reload_schedules(instance)
        return dropped

    def _reload_schedules(self, instance: Instance) -> None:
        if (team := self.team(instance.room)) is not None:
            team.wakeups.reload()

    # Notifications

    def wake(self, room: str, agents: frozenset[str]) -> None:
        if (team := self.team(room)) is not None:
            team.wake(agents)

    def on_room_event(self, event: RoomEvent) -> None:
        """Pass an event of a room to its team, and publish it as an event of the workflow's run."""
        if (team := self._teams.get(event.room)) is not None:
            team.on_room_event(event.type)
            root = team.instance.id
            # The `type` of a proposal would hide the type of the event.
            fields = {"proposal": event.data} if event.type == "proposal" else event.data
            data = {"actor": event.actor, **fields}
            self.bus.publish(Event(type=event.type, run=root, root=root, at=event.at, data=data))

    def on_answer(self, ask: Ask) -> None:
        for team in self._teams.values():
            if team.instance.id == ask.root:
                team.on_answer(ask)


def _check_alive(instance: Instance, wanted: Target) -> Instance:
    """Return the instance. Raise Conflict if it has ended."""
    if instance.status not in FINAL_PHASES:
        return instance
    if instance.name == GLOBAL:
        raise Conflict(f"{wanted} is not running", hint=f"Start it: guild start {wanted.agent or 'WORKER'}")
    tag = "" if instance.tag == MAIN else f" --tag {instance.tag}"
    hint = f"Start it again: guild {instance.mode} {shlex.quote(instance.path)}{tag}"
    raise Conflict(f"{instance.target} has ended ({instance.status})", hint=hint)


def _agent_name(wanted: Target) -> str:
    if wanted.agent is None:
        raise UsageError(f"{wanted} is a workflow, not an agent", hint=f"Write AGENT{wanted}.")
    return wanted.agent
