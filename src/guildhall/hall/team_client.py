"""The verbs about workflows: the part of `HallClient` that is about teams, their rooms and their schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from guildhall.core.events import Event
    from guildhall.core.frame import Frame
    from guildhall.room.document_stores import Listed as DocumentListed
    from guildhall.room.model import Message, Proposal, Vote
    from guildhall.runs.model import RunRequest
    from guildhall.workflow.instance import Schedule, Sent, Start, WorkflowShown
    from guildhall.workflow.target import Target


@dataclass(frozen=True, kw_only=True)
class Document:
    """A document of a room as it is now."""

    path: str
    digest: str
    content: str

    def as_dict(self) -> dict[str, Any]:
        return {"path": self.path, "digest": self.digest, "content": self.content}


@dataclass(frozen=True, kw_only=True)
class Voted:
    """A proposal, and the votes on it so far."""

    proposal: Proposal
    votes: Sequence[Vote]

    def as_dict(self) -> dict[str, Any]:
        votes = [{"agent": vote.agent, "choice": vote.choice, "reason": vote.reason} for vote in self.votes]
        return {**self.proposal.as_dict(), "votes": votes}


class TeamClient(Protocol):
    """What can be done with workflows. A target without an agent is the workflow itself."""

    # a workflow is a run too: the same stream, with all that happens in its room
    def run_workflow(self, start: Start, request: RunRequest, frame: Frame) -> AsyncIterator[Event]: ...

    # the same without a stream: nobody follows it, and the process of the hall keeps it
    async def start_workflow(self, start: Start, request: RunRequest, frame: Frame) -> WorkflowShown: ...

    # the request's worker takes a seat in global:main, from where the request comes; the stream is that of global:main,
    # and whoever leaves it parks nothing
    async def start_worker(self, request: RunRequest, frame: Frame) -> WorkflowShown: ...

    # one that was stopped alone, or has failed, works again
    async def start_agent(self, target: Target) -> WorkflowShown: ...

    async def stop_agent(self, target: Target) -> list[str]: ...  # one alone; the runs that were ended

    # looking: the last generation of each workflow and tag, newest first
    async def workflows(self, *, over: bool = True) -> list[WorkflowShown]: ...

    async def workflow(self, target: Target) -> WorkflowShown: ...

    async def workflow_of(self, run: str) -> WorkflowShown: ...  # by its run, or that of one of its agents

    async def channel(self, run: str, *, since: int = 0) -> list[Message]: ...  # what was said in one generation

    async def send(self, target: Target, text: str) -> Sent: ...  # a person speaks

    # the room
    async def documents(self, target: Target) -> list[DocumentListed]: ...

    async def document_read(self, target: Target, *, file: str | None = None) -> Document: ...

    # without a base it replaces whatever is there
    async def document_write(
        self, target: Target, content: str, *, file: str | None = None, base: str | None = None
    ) -> Document: ...

    async def document_append(self, target: Target, content: str, *, file: str | None = None) -> Document: ...

    async def proposals(self, target: Target) -> list[Voted]: ...

    # schedules; without an agent: of all that have none of their own
    async def schedules(self, target: Target) -> list[Schedule]: ...

    async def schedule_set(self, target: Target, when: str, *, prompt: str | None = None) -> Schedule: ...

    async def schedule_clear(self, target: Target) -> bool: ...
