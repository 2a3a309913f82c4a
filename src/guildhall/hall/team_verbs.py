"""The verbs about workflows, carried out in this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import aclosing
from dataclasses import replace
from heapq import merge
from typing import TYPE_CHECKING

from guildhall.core.errors import NotFound, UsageError
from guildhall.hall.team_client import Document, Voted
from guildhall.workers.lifecycle import usable
from guildhall.workflow import looking, records

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from sqlalchemy import Connection

    from guildhall.core.events import Event
    from guildhall.core.frame import Frame
    from guildhall.hall.composition.hall import Hall
    from guildhall.room.document_stores import Listed as DocumentListed
    from guildhall.room.model import Message
    from guildhall.room.room import Room
    from guildhall.runs.model import RunRequest
    from guildhall.runs.prepare import Prepared
    from guildhall.store.engine import Store
    from guildhall.workflow.instance import Instance, Schedule, Sent, Start, WorkflowShown
    from guildhall.workflow.steering import Steering
    from guildhall.workflow.target import Target

_LONGEST_PROMPT = 20_000


class TeamVerbs(ABC):
    """That part of a hall inside this process."""

    _hall: Hall
    _stays: bool

    @abstractmethod
    def _follow(self, prepared: Prepared) -> AsyncGenerator[Event]: ...

    # beginning and ending

    async def run_workflow(self, start: Start, request: RunRequest, frame: Frame) -> AsyncGenerator[Event]:
        prepared = await self._begun(start, request, frame)
        async with aclosing(self._follow(prepared)) as events:
            async for event in events:
                yield event

    async def start_workflow(self, start: Start, request: RunRequest, frame: Frame) -> WorkflowShown:
        self._must_stay()
        prepared = await self._begun(start, request, replace(frame, interactive=False))
        self._hall.where(prepared.run).launch(prepared)
        return await self.workflow_of(prepared.run)

    async def _begun(self, start: Start, request: RunRequest, frame: Frame) -> Prepared:
        from guildhall.hall.workflows import demand, load_workflow
        from guildhall.workflow.start import bound

        workflow = load_workflow(self._hall, start.file, frame)
        bound(workflow, start.params)  # nobody is asked to trust what could not start
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
        return await self.workflow_of(seated.run if isinstance(seated, Prepared) else seated.id)

    def _must_stay(self) -> None:
        if not self._stays:
            raise UsageError(
                "nothing would keep it: this command is the hall itself, and ends with it",
                hint="Leave out --background, or unset GUILDHALL_EMBEDDED so that the hall has a process of its own.",
            )

    async def start_agent(self, target: Target) -> WorkflowShown:
        return await self.workflow_of((await self._steering(target).start_agent(target)).id)

    async def stop_agent(self, target: Target) -> list[str]:
        return await self._steering(target).stop_agent(target)

    def _steering(self, target: Target) -> Steering:
        return self._hall.annexes.of_team(target).workflows.steering

    def _everywhere(self) -> Sequence[Hall]:
        """The hall, and whatever is on record in databases of workflows' own."""
        return (self._hall, *self._hall.annexes.every())

    # looking

    async def workflows(self, *, over: bool = True) -> list[WorkflowShown]:
        def read(connection: Connection) -> list[WorkflowShown]:
            return [looking.shown(connection, one) for one in records.listed(connection, over=over)]

        found = (part.store.read(read) for part in self._everywhere())
        return list(merge(*found, key=lambda shown: shown.created_at, reverse=True))

    async def workflow(self, target: Target) -> WorkflowShown:
        store = self._hall.annexes.of_team(target).store
        return store.read(lambda connection: looking.shown(connection, looking.named(connection, target)))

    async def workflow_of(self, run: str) -> WorkflowShown:
        store, instance = self._instance_of(run)
        return store.read(lambda connection: looking.shown(connection, instance))

    def _instance_of(self, run: str) -> tuple[Store, Instance]:
        part = self._hall.where(run)
        root = part.history.get(run).root
        found = part.store.read(lambda connection: records.find(connection, root))
        if found is None:
            raise NotFound(f"the run {run} belongs to no workflow", hint=f"See guild show {run}.")
        return part.store, found

    async def channel(self, run: str, *, since: int = 0) -> list[Message]:
        store, instance = self._instance_of(run)
        return store.read(lambda connection: looking.said(connection, instance, since=since))

    async def send(self, target: Target, text: str) -> Sent:
        return await self._steering(target).send(text, target)

    # the room

    def _room(self, target: Target) -> Room:
        part = self._hall.annexes.of_team(target)
        instance = part.store.read(lambda connection: looking.named(connection, target))
        return part.rooms.room(instance.room)

    async def documents(self, target: Target) -> list[DocumentListed]:
        return await self._room(target).documents.listing()

    async def document_read(self, target: Target, *, file: str | None = None) -> Document:
        path, content, digest = await self._room(target).documents.look(file)
        return Document(path=path, content=content, digest=digest)

    async def document_write(
        self, target: Target, content: str, *, file: str | None = None, base: str | None = None
    ) -> Document:
        from guildhall.room.model import Actor

        room = self._room(target)
        base = base or await room.documents.digest(file)
        await room.perform("document_write", Actor.person(), file=file, content=content, base=base)
        return await self.document_read(target, file=file)

    async def document_append(self, target: Target, content: str, *, file: str | None = None) -> Document:
        from guildhall.room.model import Actor

        await self._room(target).perform("document_append", Actor.person(), file=file, content=content)
        return await self.document_read(target, file=file)

    async def proposals(self, target: Target) -> list[Voted]:
        room = self._room(target)
        return [Voted(proposal=one, votes=room.votes(one)) for one in room.proposals()]

    # schedules

    async def schedules(self, target: Target) -> list[Schedule]:
        def read(connection: Connection) -> list[Schedule]:
            found = records.schedules_of(connection, looking.named(connection, target).room)
            own = [one for one in found if target.agent in (None, one.agent)]
            return own or [one for one in found if one.agent is None]

        return self._hall.annexes.of_team(target).store.read(read)

    async def schedule_set(self, target: Target, when: str, *, prompt: str | None = None) -> Schedule:
        from guildhall.room.model import check_text
        from guildhall.workflow.wakeup import wakeup_of

        try:
            wakeup = wakeup_of(when)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if prompt is not None:
            check_text(prompt, "the prompt", most=_LONGEST_PROMPT)
            if not prompt.strip():
                raise UsageError("the prompt is empty", hint="Leave it out, or say what the agent is to do.")
        return await self._steering(target).schedule(target, wakeup, prompt)

    async def schedule_clear(self, target: Target) -> bool:
        return await self._steering(target).unschedule(target)
