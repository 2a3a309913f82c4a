"""Services of workflows and rooms: plan, start, stop and schedule workflows, and post to and read their rooms.

Before a workflow starts, its setup and the code of its agents must be trusted and each agent must be able to run.
The check applies to the loaded workflow, not to a later version of its file.
Does not schedule agents: `workflow.team` does. Does not store messages: `guildhall.room` does.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from heapq import merge
from typing import TYPE_CHECKING

from guildhall.core.errors import NotFound, UsageError
from guildhall.hall.client.interface import Rooms, Workflows
from guildhall.hall.client.model import Document, ProposalVotes
from guildhall.hall.composition.hall import Hall, HallService
from guildhall.room.model import Actor, Message, check_text
from guildhall.workflow import queries, records

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.core.events import Event
    from guildhall.core.request_frame import Frame
    from guildhall.room.document_stores import DocumentInfo as DocumentListed
    from guildhall.room.service import Room
    from guildhall.runs.model import RunRequest
    from guildhall.store.engine import Store
    from guildhall.workflow.instance import Instance, Schedule, SendResult, Start, WorkflowSummary
    from guildhall.workflow.plan import WorkflowPlan
    from guildhall.workflow.target import Target


class RoomService(HallService, Rooms):
    async def messages(self, run: str, *, since: int = 0) -> Sequence[Message]:
        store, instance = find_instance(self._hall, run)
        return store.read(lambda connection: queries.list_messages(connection, instance, since=since))

    async def send(self, target: Target, text: str) -> SendResult:
        return await self._hall.workflow_databases.services_of_team(target).workflows.send(text, target)

    async def documents(self, target: Target) -> Sequence[DocumentListed]:
        return await self._room(target).documents.contents.list()

    async def read_document(self, target: Target, *, file: str | None = None) -> Document:
        path, content, digest = await self._room(target).documents.read(file)
        return Document(path=path, content=content, digest=digest)

    async def write_document(
        self, target: Target, content: str, *, file: str | None = None, base: str | None = None
    ) -> Document:
        room = self._room(target)
        base = base or await room.documents.digest(file)
        await room.perform("document_write", Actor.person(), file=file, content=content, base=base)
        return await self.read_document(target, file=file)

    async def append_document(self, target: Target, content: str, *, file: str | None = None) -> Document:
        await self._room(target).perform("document_append", Actor.person(), file=file, content=content)
        return await self.read_document(target, file=file)

    async def proposals(self, target: Target) -> Sequence[ProposalVotes]:
        room = self._room(target)
        proposals = room.list_proposals()
        return [ProposalVotes(proposal=proposal, votes=room.list_votes(proposal)) for proposal in proposals]

    def _room(self, target: Target) -> Room:
        services = self._hall.workflow_databases.services_of_team(target)
        instance = services.store.read(lambda connection: queries.find_instance(connection, target))
        return services.rooms.room(instance.room)


def find_instance(hall: Hall, run: str) -> tuple[Store, Instance]:
    """Return the database and the workflow of a run. Raise NotFound if the run does not belong to a workflow."""
    services = hall.services_of(run)
    root = services.history.get(run).root
    found = services.store.read(lambda connection: records.find_instance(connection, root))
    if found is None:
        raise NotFound(f"the run {run} does not belong to a workflow", hint="List the workflows: guild ls --all")
    return services.store, found


_MAX_PROMPT_BYTES = 20_000


class WorkflowService(HallService, Workflows):
    async def plan(self, request: RunRequest, frame: Frame, *, tag: str, params: Mapping[str, str]) -> WorkflowPlan:
        from guildhall.hall.composition.workflow_preparation import plan_workflow

        return await plan_workflow(self._hall, request, frame, tag=tag, params=params)

    async def run(self, start: Start, request: RunRequest, frame: Frame) -> AsyncGenerator[Event]:
        from guildhall.hall.composition.workflow_preparation import prepare_workflow

        services, prepared = await prepare_workflow(self._hall, start, request, frame)
        async with aclosing(services.stream(prepared)) as events:
            async for event in events:
                yield event

    async def start(self, start: Start, request: RunRequest, frame: Frame) -> WorkflowSummary:
        from guildhall.hall.composition.workflow_preparation import prepare_workflow

        if not self._hall.is_persistent:
            raise UsageError(
                "cannot start in the background: the hall runs in this command and ends with it",
                hint="Omit --background, or unset GUILDHALL_EMBEDDED so that the hall has a process of its own.",
            )
        services, prepared = await prepare_workflow(self._hall, start, request, replace(frame, interactive=False))
        services.launch(prepared)
        return await self.find_by_run(prepared.run_id)

    async def start_worker(self, request: RunRequest, frame: Frame) -> WorkflowSummary:
        from guildhall.runs.assembly.preflight import raise_problems
        from guildhall.runs.execution.preparation import Prepared

        frame = replace(frame, interactive=False)
        worker = self._hall.workers.find_for_work(request.worker, frame)
        plan = await self._hall.workers.planner.plan(worker, frame, request)
        raise_problems([problem.error for problem in plan.problems], worker.place)
        started = await self._hall.main.workflows.start_worker(worker, request, frame)
        if isinstance(started, Prepared):
            self._hall.main.launch(started)
        return await self.find_by_run(started.run_id if isinstance(started, Prepared) else started.id)

    async def start_agent(self, target: Target) -> WorkflowSummary:
        instance = await self._hall.workflow_databases.services_of_team(target).workflows.start_agent(target)
        return await self.find_by_run(instance.id)

    async def stop_agent(self, target: Target) -> Sequence[str]:
        return await self._hall.workflow_databases.services_of_team(target).workflows.stop_agent(target)

    async def list(self, *, over: bool = True) -> Sequence[WorkflowSummary]:
        def read(connection: Connection) -> Sequence[WorkflowSummary]:
            instances = records.list_instances(connection, include_ended=over)
            return [queries.describe(connection, instance) for instance in instances]

        found = (services.store.read(read) for services in self._hall.all_services())
        return [*merge(*found, key=lambda workflow: workflow.created_at, reverse=True)]

    async def get(self, target: Target) -> WorkflowSummary:
        store = self._hall.workflow_databases.services_of_team(target).store
        return store.read(lambda connection: queries.describe(connection, queries.find_instance(connection, target)))

    async def find_by_run(self, run: str) -> WorkflowSummary:
        store, instance = find_instance(self._hall, run)
        return store.read(lambda connection: queries.describe(connection, instance))

    async def schedules(self, target: Target) -> Sequence[Schedule]:
        def read(connection: Connection) -> Sequence[Schedule]:
            found = records.list_schedules(connection, queries.find_instance(connection, target).room)
            matching = [schedule for schedule in found if target.agent in (None, schedule.agent)]
            return matching or [schedule for schedule in found if schedule.agent is None]

        return self._hall.workflow_databases.services_of_team(target).store.read(read)

    async def set_schedule(self, target: Target, when: str, *, prompt: str | None = None) -> Schedule:
        from guildhall.workflow.definition import parse_wakeup

        try:
            wakeup = parse_wakeup(when)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if prompt is not None:
            check_text(prompt, "the prompt", max_bytes=_MAX_PROMPT_BYTES)
            if not prompt.strip():
                raise UsageError("invalid prompt: empty", hint="Omit the prompt, or write a task for the agent.")
        return await self._hall.workflow_databases.services_of_team(target).workflows.schedule(target, wakeup, prompt)

    async def clear_schedule(self, target: Target) -> bool:
        return await self._hall.workflow_databases.services_of_team(target).workflows.unschedule(target)
