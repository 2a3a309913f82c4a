"""How anyone reaches a hall. The command line and the library know this and nothing behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from guildhall.hall.commission_client import CommissionClient
from guildhall.hall.job_client import JobClient
from guildhall.hall.meeting_client import MeetingClient
from guildhall.hall.package_client import PackageClient
from guildhall.hall.project_client import ProjectClient
from guildhall.hall.roster_client import RosterClient
from guildhall.hall.team_client import TeamClient
from guildhall.runs.model import Usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from guildhall.core.errors import GuildError
    from guildhall.core.events import Event
    from guildhall.core.frame import Frame
    from guildhall.memory.model import EntryHistory, Listing, MemoryEntry, Scope
    from guildhall.runs.fork import Forked
    from guildhall.runs.model import Answer, Ask, Run, RunRequest
    from guildhall.runs.plan import Executes, Plan
    from guildhall.runs.record.entries import Entry, Payload
    from guildhall.runs.replay import Replayed
    from guildhall.workers.model import Listed, Worker
    from guildhall.workers.trust import Pin, Seen
    from guildhall.workflow.plan import WorkflowPlan


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of `guild doctor`."""

    name: str
    ok: bool
    detail: str
    hint: str | None = None


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """One thing that is not as a test recorded it."""

    text: str  # what differs, then lines with - (recorded) and + (now)
    worker: str | None = None
    run: int | None = None  # the how-manieth run of the worker, from 1
    answer: int | None = None  # before which answer of the model, from 1


@dataclass(frozen=True, kw_only=True)
class Tested:
    """What came of one test."""

    file: Path
    worker: str | None  # None: the file could not be read
    deviations: Sequence[Deviation]
    updated: bool = False  # the file says now what is, so that there is nothing to fail for
    trusted: Seen | None = None  # the file as it is now, where it was trusted before it was updated
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return self.updated or not self.deviations


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A run with all that belongs to it."""

    run: Run
    below: Sequence[Run]  # those that it has called, and those that these have called
    asks: Sequence[Ask]  # of all of them
    messages: Sequence[Mapping[str, Any]]  # the conversation: role, content, calls
    attachments: Sequence[Mapping[str, Any]] = ()  # name, media_type, bytes, digest
    runtime: str = "pydantic"  # what executes it between its doors

    @property
    def usage(self) -> Usage:
        """What the run and all below it used up."""
        return Usage.total(run.usage for run in (self.run, *self.below))


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A worker, what it declares and cannot be given here, and what is probably not meant."""

    worker: Worker
    problems: Sequence[GuildError]
    doubts: Sequence[str]
    plan: Plan | None = None  # None: it cannot be made, and the problems say why


@dataclass(frozen=True, kw_only=True)
class Trusting:
    """The code of a folder, or of one worker: what would be executed, by whom, and how it stands."""

    folder: Path
    code: Sequence[Executes]
    plans: Sequence[Plan]  # of the workers that would execute it
    problems: Sequence[GuildError]  # what cannot be read, and so cannot be trusted

    @property
    def open(self) -> tuple[Seen, ...]:
        """The files that a person has not trusted as they are, each once."""
        files = {seen.path: seen for code in self.code if not code.trusted for seen in code.files}
        return tuple(seen for seen in files.values() if seen.standing != "trusted")

    def as_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "trusted": not self.open,
            "code": [code.as_dict() for code in self.code],
            "workers": [plan.worker for plan in self.plans],
            "problems": [error.as_dict() for error in self.problems],
        }


class HallClient(
    TeamClient, JobClient, RosterClient, ProjectClient, PackageClient, CommissionClient, MeetingClient, Protocol
):
    """The verbs of a hall. Embedded in this process, or in a process of its own: callers cannot tell."""

    # runs: the stream begins with run_started and ends with run_ended; leaving it early parks the run
    def run(self, request: RunRequest, frame: Frame) -> AsyncIterator[Event]: ...

    def resume(
        self,
        run: str,
        frame: Frame,
        *,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        budget: float | None = None,
    ) -> AsyncIterator[Event]: ...

    # the events of a live run from now on, after the one that it began with; none where it is not alive here
    def follow(self, run: str, frame: Frame) -> AsyncIterator[Event]: ...

    async def park(self, run: str) -> None: ...  # a live run, for now; only a person lets it go on

    async def stop(self, run: str) -> list[str]: ...  # for good, a workflow too; the ids of all that were ended

    async def replay(self, run: str, frame: Frame) -> Replayed: ...

    async def fork(self, run: str, at: int, frame: Frame, *, model: str | None = None) -> Forked: ...

    async def script(self, run: str) -> str: ...  # a recorded run, with its sub-runs, as a script with a test

    def test(self, files: Sequence[Path], *, update: bool = False) -> AsyncIterator[Tested]: ...

    async def show(self, run: str) -> Shown: ...

    async def runs(self, *, everything: bool = False, called: bool = False) -> list[Run]: ...

    async def journal(self, run: str, after: int = -1) -> list[Entry[Payload]]: ...

    # asks
    async def asks(self) -> list[Ask]: ...

    async def ask(self, ask: str) -> Ask: ...

    async def answer(self, ask: str, answer: Answer) -> Ask: ...

    # workers
    async def workers(self, frame: Frame) -> list[Listed]: ...

    async def worker(self, name: str, frame: Frame) -> Worker: ...

    async def worker_check(self, name: str, frame: Frame) -> Checked: ...

    async def worker_new(self, name: str, frame: Frame, *, force: bool = False) -> Path: ...

    async def worker_lock(self, name: str, frame: Frame) -> Worker: ...

    async def worker_unlock(self, name: str, frame: Frame) -> Worker: ...

    async def worker_promote(self, name: str, frame: Frame) -> Worker: ...

    async def worker_retire(self, name: str, frame: Frame) -> Worker: ...

    # what could happen, and what may be executed; only a person trusts: no run and no tool comes here
    async def plan(self, request: RunRequest, frame: Frame) -> Plan: ...

    # the request has the workflow's file in the place of a worker
    async def plan_workflow(
        self, request: RunRequest, frame: Frame, *, tag: str, params: Mapping[str, str]
    ) -> WorkflowPlan: ...

    async def trust_look(self, frame: Frame, *, at: Path | None = None, worker: str | None = None) -> Trusting: ...

    # the workers that only `*` lets a worker call, and whose code is not trusted: a run begins without them
    async def untrusted_of_all(self, worker: str, frame: Frame) -> list[str]: ...

    async def trust(self, files: Sequence[Seen]) -> None: ...

    async def trust_forget(self, folder: Path) -> list[Pin]: ...

    # Memory. The scope "worker" needs `worker`; with the scope "project", `worker` selects the project of its file.

    async def memory_ls(self, frame: Frame, *, scope: Scope | None = None, worker: str | None = None) -> Listing:
        """List the entries of a scope, or of all scopes if none is given."""
        ...

    async def memory_show(self, key: str, frame: Frame, *, scope: Scope, worker: str | None = None) -> MemoryEntry:
        """Return an entry with its content."""
        ...

    async def memory_write(
        self, key: str, content: str, frame: Frame, *, scope: Scope, worker: str | None = None
    ) -> MemoryEntry:
        """Create or replace an entry in the name of the user."""
        ...

    async def memory_rm(self, key: str, frame: Frame, *, scope: Scope, worker: str | None = None) -> MemoryEntry:
        """Remove an entry and return it. Its content stays in the log."""
        ...

    async def memory_blame(self, key: str, frame: Frame, *, scope: Scope, worker: str | None = None) -> EntryHistory:
        """Return an entry with all its logged changes."""
        ...

    async def memory_revert(
        self, key: str, frame: Frame, *, scope: Scope, worker: str | None = None, to: int | None = None
    ) -> MemoryEntry:
        """Restore the content of the change `to`, or the last content that differs from the current content."""
        ...

    # the place itself
    async def doctor(self, frame: Frame) -> list[Check]: ...

    async def settle(self) -> list[Event]: ...  # waits for what goes on in the background; what no stream has told

    async def close(self) -> None: ...
