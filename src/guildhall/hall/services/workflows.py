"""Services of workflows and rooms: plan, start, stop and schedule workflows, and post to and read their rooms.

Before a workflow starts, its setup and the code of its agents must be trusted and each agent must be able to run.
The check applies to the loaded workflow, not to a later version of its file.
Does not schedule agents: `workflow.scheduler` does. Does not store messages: `guildhall.room` does.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from heapq import merge
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.core import yaml
from guildhall.core.errors import NotFound, UsageError
from guildhall.core.paths import project_root
from guildhall.core.text import did_you_mean
from guildhall.hall.client.interface import Rooms, Workflows
from guildhall.hall.client.model import Document, Voted
from guildhall.hall.composition import workers
from guildhall.room.tools import room_tools
from guildhall.runs.assembly.preflight import refuse
from guildhall.runs.plan.planner import PlannedSeat
from guildhall.workers.lifecycle import usable
from guildhall.workers.registry import choose_model
from guildhall.workers.trust import Trust
from guildhall.workflow import control, records
from guildhall.workflow.loader import demand_trust, load
from guildhall.workflow.plan import WorkflowPlan, as_far_as_known, plan
from guildhall.workflow.replay import WorkflowReplays
from guildhall.workflow.start import budget_of, from_here
from guildhall.workflow.target import Instance, Schedule, Sent, Start, Target, WorkflowShown, workflows_in

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from sqlalchemy import Connection

    from guildhall.core.events import Event
    from guildhall.core.frame import Frame
    from guildhall.hall.composition.hall import Hall
    from guildhall.hall.composition.run_services import RunServices
    from guildhall.hall.services.runs import RunService
    from guildhall.room.document_stores import Listed as DocumentListed
    from guildhall.room.model import Message
    from guildhall.room.room import Room
    from guildhall.runs.execution.prepare import Prepared
    from guildhall.runs.model import RunRequest
    from guildhall.runs.plan.model import Plan
    from guildhall.runs.replay.replay import Replayed
    from guildhall.store.engine import Store
    from guildhall.workflow.control import Steering
    from guildhall.workflow.model import Values, Workflow


class RoomService(Rooms):
    def __init__(self, hall: Hall) -> None:
        self._hall = hall

    async def messages(self, run: str, *, since: int = 0) -> Sequence[Message]:
        store, instance = find_instance(self._hall, run)
        return store.read(lambda connection: control.said(connection, instance, since=since))

    async def send(self, target: Target, text: str) -> Sent:
        return await self._hall.workflow_databases.of_team(target).workflows.steering.send(text, target)

    async def documents(self, target: Target) -> Sequence[DocumentListed]:
        return await self._room(target).documents.listing()

    async def read_document(self, target: Target, *, file: str | None = None) -> Document:
        path, content, digest = await self._room(target).documents.look(file)
        return Document(path=path, content=content, digest=digest)

    async def write_document(
        self, target: Target, content: str, *, file: str | None = None, base: str | None = None
    ) -> Document:
        from guildhall.room.model import Actor

        room = self._room(target)
        base = base or await room.documents.digest(file)
        await room.perform("document_write", Actor.person(), file=file, content=content, base=base)
        return await self.read_document(target, file=file)

    async def append_document(self, target: Target, content: str, *, file: str | None = None) -> Document:
        from guildhall.room.model import Actor

        await self._room(target).perform("document_append", Actor.person(), file=file, content=content)
        return await self.read_document(target, file=file)

    async def proposals(self, target: Target) -> Sequence[Voted]:
        room = self._room(target)
        return [Voted(proposal=one, votes=room.votes(one)) for one in room.proposals()]

    def _room(self, target: Target) -> Room:
        part = self._hall.workflow_databases.of_team(target)
        instance = part.store.read(lambda connection: control.named(connection, target))
        return part.rooms.room(instance.room)


def find_instance(hall: Hall, run: str) -> tuple[Store, Instance]:
    """Return the workflow that a run belongs to, and its database. Raise NotFound if it belongs to none."""
    part = hall.where(run)
    root = part.history.get(run).root
    found = part.store.read(lambda connection: records.find(connection, root))
    if found is None:
        raise NotFound(f"the run {run} belongs to no workflow", hint=f"See guild show {run}.")
    return part.store, found


_MAX_PROMPT_CHARS = 20_000


class WorkflowService(Workflows):
    def __init__(self, hall: Hall, runs: RunService, *, stays: bool) -> None:
        self._hall = hall
        self._runs = runs
        self._stays = stays

    async def plan(self, request: RunRequest, frame: Frame, *, tag: str, params: Mapping[str, str]) -> WorkflowPlan:

        return await plan_workflow(self._hall, request, frame, tag=tag, params=params)

    async def run(self, start: Start, request: RunRequest, frame: Frame) -> AsyncGenerator[Event]:
        prepared = await self._begin(start, request, frame)
        async with aclosing(self._runs.launch(prepared)) as events:
            async for event in events:
                yield event

    async def start(self, start: Start, request: RunRequest, frame: Frame) -> WorkflowShown:
        if not self._stays:
            raise UsageError(
                "nothing would keep it: this command is the hall itself, and ends with it",
                hint="Leave out --background, or unset GUILDHALL_EMBEDDED so that the hall has a process of its own.",
            )
        prepared = await self._begin(start, request, replace(frame, interactive=False))
        self._hall.where(prepared.run).launch(prepared)
        return await self.find_by_run(prepared.run)

    async def _begin(self, start: Start, request: RunRequest, frame: Frame) -> Prepared:
        from guildhall.workflow.start import bound

        workflow = load_workflow(self._hall, start.file, frame)
        bound(workflow, start.params)  # the user is not asked to trust a workflow that cannot start
        demand(self._hall, workflow, request, frame)
        part = await self._hall.workflow_databases.for_workflow(workflow, start, frame)
        return await part.workflows.begin(start, workflow, request, frame)

    async def start_worker(self, request: RunRequest, frame: Frame) -> WorkflowShown:
        from guildhall.hall.composition.workers import check_trust
        from guildhall.runs.execution.prepare import Prepared

        frame = replace(frame, interactive=False)
        worker = self._hall.workers.find(request.worker, frame)
        usable(worker, "name")
        check_trust(self._hall.workers, worker, frame)
        seated = await self._hall.workflows.seat(worker, request, frame)
        if isinstance(seated, Prepared):
            self._hall.main.launch(seated)
        return await self.find_by_run(seated.run if isinstance(seated, Prepared) else seated.id)

    async def start_agent(self, target: Target) -> WorkflowShown:
        return await self.find_by_run((await self._steering(target).start_agent(target)).id)

    async def stop_agent(self, target: Target) -> Sequence[str]:
        return await self._steering(target).stop_agent(target)

    def _steering(self, target: Target) -> Steering:
        return self._hall.workflow_databases.of_team(target).workflows.steering

    async def list(self, *, over: bool = True) -> Sequence[WorkflowShown]:
        def read(connection: Connection) -> Sequence[WorkflowShown]:
            return [control.shown(connection, one) for one in records.listed(connection, over=over)]

        found = (part.store.read(read) for part in self._hall.databases())
        return [*merge(*found, key=lambda shown: shown.created_at, reverse=True)]

    async def get(self, target: Target) -> WorkflowShown:
        store = self._hall.workflow_databases.of_team(target).store
        return store.read(lambda connection: control.shown(connection, control.named(connection, target)))

    async def find_by_run(self, run: str) -> WorkflowShown:
        store, instance = find_instance(self._hall, run)
        return store.read(lambda connection: control.shown(connection, instance))

    async def schedules(self, target: Target) -> Sequence[Schedule]:
        def read(connection: Connection) -> Sequence[Schedule]:
            found = records.schedules_of(connection, control.named(connection, target).room)
            own = [one for one in found if target.agent in (None, one.agent)]
            return own or [one for one in found if one.agent is None]

        return self._hall.workflow_databases.of_team(target).store.read(read)

    async def set_schedule(self, target: Target, when: str, *, prompt: str | None = None) -> Schedule:
        from guildhall.room.model import check_text
        from guildhall.workflow.definition import wakeup_of

        try:
            wakeup = wakeup_of(when)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if prompt is not None:
            check_text(prompt, "the prompt", most=_MAX_PROMPT_CHARS)
            if not prompt.strip():
                raise UsageError("the prompt is empty", hint="Leave it out, or say what the agent is to do.")
        return await self._steering(target).schedule(target, wakeup, prompt)

    async def clear_schedule(self, target: Target) -> bool:
        return await self._steering(target).unschedule(target)


_SCRIPT = "script:"


def load_workflow(hall: Hall, file: str | Path, frame: Frame) -> Workflow:
    """The workflow in a file, relative to where the request comes from. Workers are looked for in its own project."""
    try:
        path = frame.cwd / Path(file).expanduser()
        there_is_one = path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # a name too long, ~nobody, a NUL
        raise UsageError(f"{str(file)[:100]!r} cannot be a file: {error}") from None
    if not there_is_one:
        near = {one.name for one in workflows_in(path.parent)}
        raise NotFound("there is no such file", where=str(path), hint=did_you_mean(path.name, near))
    folder = path.parent.resolve()
    there = replace(frame, cwd=folder, root=project_root(folder))
    return load(path, lambda name: hall.workers.find(name, there))


def demand(hall: Hall, workflow: Workflow, request: RunRequest, frame: Frame) -> None:
    """Raises where a workflow may not start, or an agent of it could not run: nothing of it begins then.

    It is the workflow as it was loaded that is trusted or not, and no later state of its file.
    """
    if hall.environment.policy.runs_setup_commands:
        demand_trust(workflow, hall.workers.supply.trust(), hall.home)
    request, frame = from_here(request, frame), workflow.frame(frame)
    settings = hall.settings(frame)
    for agent in workflow.agents:
        usable(agent.worker, "name")
        own = choose_model(agent.worker, frame, settings, caller=request.model, override=request.override_model)
        script = own.by == "worker"
        if not script and own.model.startswith(_SCRIPT):
            yaml.read_text(frame.cwd / own.model.removeprefix(_SCRIPT))  # raises where it is not there
        refuse(hall.workers.supply.lacking(agent.worker, frame, script=script, thorough=False), agent.worker.place)
        workers.check_trust(hall.workers, agent.worker, frame)


async def plan_workflow(
    hall: Hall, request: RunRequest, frame: Frame, *, tag: str, params: Mapping[str, str]
) -> WorkflowPlan:
    """What could happen if a workflow were started. `request` has its file in the place of a worker."""
    workflow = load_workflow(hall, request.worker, frame)
    settings = hall.settings(workflow.frame(frame))
    starting = as_far_as_known(workflow, tag=tag, params=params, frame=frame, home=hall.home, settings=settings)
    return plan(
        workflow,
        await plans_of_agents(hall, workflow, starting.values, request, frame),
        starting,
        frame=frame,
        home=hall.home,
        trust=Trust(hall.workers.pins()),
        budget=budget_of(workflow, settings, request.budget),
    )


async def plans_of_agents(
    hall: Hall, workflow: Workflow, values: Values, request: RunRequest, frame: Frame
) -> dict[str, Plan]:
    """The plan of each agent in its seat."""
    there, request = workflow.frame(frame), from_here(request, frame)
    found: dict[str, Plan] = {}
    for agent in workflow.agents:
        own = replace(request, worker=agent.name, budget=None)
        tools = room_tools() if workflow.definition.context.enabled else ()
        seat = PlannedSeat(tools=tools, around=workflow.around(agent))
        worker = replace(agent.worker, keeps=workflow.keeps(values))
        found[agent.name] = await hall.workers.planner.plan(worker, there, own, seat=seat)
    return found


async def replay(services: RunServices, run: str, frame: Frame) -> Replayed:
    """Plays a run again, be it a worker's or a workflow's, with all that it has called."""
    if services.history.workflow_of(run) is None:
        return await services.recordings.replay(run, frame)
    replays = WorkflowReplays(
        store=services.store,
        history=services.history,
        recordings=services.recordings,
        find=services.workers.find,
        settings=services.environment.settings,
    )
    return await replays.replay(run, frame)
