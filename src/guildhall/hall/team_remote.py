"""The verbs about workflows, asked for over HTTP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from guildhall.core.events import Event
    from guildhall.core.frame import Frame
    from guildhall.hall.team_client import Document, Voted
    from guildhall.room.document_stores import Listed as DocumentListed
    from guildhall.room.model import Message
    from guildhall.runs.model import RunRequest
    from guildhall.workflow.instance import Schedule, Sent, Start, WorkflowShown
    from guildhall.workflow.target import Target


class RemoteTeams(ABC):
    """That part of a remote hall."""

    @abstractmethod
    async def _call(self, name: str, /, **arguments: Any) -> Any: ...

    @abstractmethod
    def _followed(self, name: str, /, **arguments: Any) -> AsyncGenerator[Event]: ...

    def run_workflow(self, start: Start, request: RunRequest, frame: Frame) -> AsyncGenerator[Event]:
        return self._followed("run_workflow", start=start, request=request, frame=frame)

    async def start_workflow(self, start: Start, request: RunRequest, frame: Frame) -> WorkflowShown:
        return await self._call("start_workflow", start=start, request=request, frame=frame)

    async def start_worker(self, request: RunRequest, frame: Frame) -> WorkflowShown:
        return await self._call("start_worker", request=request, frame=frame)

    async def start_agent(self, target: Target) -> WorkflowShown:
        return await self._call("start_agent", target=target)

    async def stop_agent(self, target: Target) -> list[str]:
        return await self._call("stop_agent", target=target)

    async def workflows(self, *, over: bool = True) -> list[WorkflowShown]:
        return await self._call("workflows", over=over)

    async def workflow(self, target: Target) -> WorkflowShown:
        return await self._call("workflow", target=target)

    async def workflow_of(self, run: str) -> WorkflowShown:
        return await self._call("workflow_of", run=run)

    async def channel(self, run: str, *, since: int = 0) -> list[Message]:
        return await self._call("channel", run=run, since=since)

    async def send(self, target: Target, text: str) -> Sent:
        return await self._call("send", target=target, text=text)

    async def documents(self, target: Target) -> list[DocumentListed]:
        return await self._call("documents", target=target)

    async def document_read(self, target: Target, *, file: str | None = None) -> Document:
        return await self._call("document_read", target=target, file=file)

    async def document_write(
        self, target: Target, content: str, *, file: str | None = None, base: str | None = None
    ) -> Document:
        return await self._call("document_write", target=target, content=content, file=file, base=base)

    async def document_append(self, target: Target, content: str, *, file: str | None = None) -> Document:
        return await self._call("document_append", target=target, content=content, file=file)

    async def proposals(self, target: Target) -> list[Voted]:
        return await self._call("proposals", target=target)

    async def schedules(self, target: Target) -> list[Schedule]:
        return await self._call("schedules", target=target)

    async def schedule_set(self, target: Target, when: str, *, prompt: str | None = None) -> Schedule:
        return await self._call("schedule_set", target=target, when=when, prompt=prompt)

    async def schedule_clear(self, target: Target) -> bool:
        return await self._call("schedule_clear", target=target)
