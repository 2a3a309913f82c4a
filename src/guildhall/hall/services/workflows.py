"""The service of workflows, their agents and schedules."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from heapq import merge
from typing import TYPE_CHECKING

from guildhall.core.errors import UsageError
from guildhall.hall.client.interface import Workflows
from guildhall.hall.services.rooms import find_instance
from guildhall.workers.lifecycle import usable
from guildhall.workflow import looking, records

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from sqlalchemy import Connection

    from guildhall.core.events import Event
    from guildhall.core.frame import Frame
    from guildhall.hall.composition.hall import Hall
    from guildhall.hall.services.runs import RunService
    from guildhall.runs.model import RunRequest
    from guildhall.runs.prepare import Prepared
    from guildhall.workflow.instance import Schedule, Start, WorkflowShown
    from guildhall.workflow.plan import WorkflowPlan
    from guildhall.workflow.steering import Steering
    from guildhall.workflow.target import Target

_MAX_PROMPT_CHARS = 20_000


class WorkflowService(Workflows):
    def __init__(self, hall: Hall, runs: RunService, *, stays: bool) -> None:
        self._hall = hall
        self._runs = runs
        self._stays = stays

    async def plan(self, request: RunRequest, frame: Frame, *, tag: str, params: Mapping[str, str]) -> WorkflowPlan:
        from guildhall.hall.workflows import plan_workflow

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
        from guildhall.hall.workflows import demand, load_workflow
        from guildhall.workflow.start import bound

        workflow = load_workflow(self._hall, start.file, frame)
        bound(workflow, start.params)  # the user is not asked to trust a workflow that cannot start
        demand(self._hall, workflow, request, frame)
        part = await self._hall.annexes.for_workflow(workflow, start, frame)
        return await part.workflows.begin(start, workflow, request, frame)

    async def start_worker(self, request: RunRequest, frame: Frame) -> WorkflowShown:
        from guildhall.hall.composition.callee_trust import demand_trust
        from guildhall.runs.prepare import Prepared

        frame = replace(frame, interactive=False)
        worker = self._hall.find_worker(request.worker, frame)
        usable(worker, "name")
        demand_trust(self._hall, worker, frame)
        seated = await self._hall.workflows.seat(worker, request, frame)
        if isinstance(seated, Prepared):
            self._hall.launch(seated)
        return await self.find_by_run(seated.run if isinstance(seated, Prepared) else seated.id)

    async def start_agent(self, target: Target) -> WorkflowShown:
        return await self.find_by_run((await self._steering(target).start_agent(target)).id)

    async def stop_agent(self, target: Target) -> Sequence[str]:
        return await self._steering(target).stop_agent(target)

    def _steering(self, target: Target) -> Steering:
        return self._hall.annexes.of_team(target).workflows.steering

    async def list(self, *, over: bool = True) -> Sequence[WorkflowShown]:
        def read(connection: Connection) -> Sequence[WorkflowShown]:
            return [looking.shown(connection, one) for one in records.listed(connection, over=over)]

        found = (part.store.read(read) for part in (self._hall, *self._hall.annexes.every()))
        return [*merge(*found, key=lambda shown: shown.created_at, reverse=True)]

    async def get(self, target: Target) -> WorkflowShown:
        store = self._hall.annexes.of_team(target).store
        return store.read(lambda connection: looking.shown(connection, looking.named(connection, target)))

    async def find_by_run(self, run: str) -> WorkflowShown:
        store, instance = find_instance(self._hall, run)
        return store.read(lambda connection: looking.shown(connection, instance))

    async def schedules(self, target: Target) -> Sequence[Schedule]:
        def read(connection: Connection) -> Sequence[Schedule]:
            found = records.schedules_of(connection, looking.named(connection, target).room)
            own = [one for one in found if target.agent in (None, one.agent)]
            return own or [one for one in found if one.agent is None]

        return self._hall.annexes.of_team(target).store.read(read)

    async def set_schedule(self, target: Target, when: str, *, prompt: str | None = None) -> Schedule:
        from guildhall.room.model import check_text
        from guildhall.workflow.wakeup import wakeup_of

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
