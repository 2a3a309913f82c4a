"""Types that the verbs of a hall return and that no other package owns: reports, test results, run details.

Does not contain the types of runs, jobs or projects: the `model` module of each package does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from guildhall.runs.model import Ask, ConversationMessage, Run, Usage

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.errors import GuildError
    from guildhall.members.model import MemberStatus
    from guildhall.room.model import Proposal, Vote
    from guildhall.runs.plan.model import ExecutedCode, Plan
    from guildhall.workers.model import FileTrust, Worker


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """The settings that a hall sends to a client that connects."""

    env: tuple[str, ...]  # names of the environment variables that a frame may carry
    problem: GuildError | None = None  # the reason if the settings cannot be read


class Health(TypedDict):
    """The response of `/healthz`."""

    boot: str  # changes each time a hall starts
    version: str
    state: Literal["serving", "leaving"]


class ProcessStatus(TypedDict):
    """The status of the process of a hall. An embedded hall has no address, clients or idle time."""

    pid: int
    state: Literal["embedded", "recovering", "serving", "leaving"]
    url: NotRequired[str]
    since: NotRequired[str]
    clients: NotRequired[int]
    idle: NotRequired[float | None]  # seconds without runs, clients and requests before the exit


class HallStatus(ProcessStatus):
    """The status of a hall."""

    boot: str
    version: str
    runs: int  # number of live runs
    members: list[MemberStatus]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of `guild doctor`."""

    name: str
    ok: bool
    detail: str
    hint: str | None = None
    is_missing: bool = False  # an optional program that is not installed


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """A difference between a run and its recording in a test."""

    text: str  # what differs, then lines with - (recorded) and + (now)
    worker: str | None = None
    run: int | None = None  # ordinal of the run among the worker's runs, from 1
    answer: int | None = None  # number of the model response that follows the difference, from 1


@dataclass(frozen=True, kw_only=True)
class TestResult:
    """The result of one test."""

    file: Path
    worker: str | None  # None if the file cannot be read
    deviations: Sequence[Deviation]
    updated: bool = False  # the expectations in the file were rewritten
    trusted: FileTrust | None = None  # the updated file, if it was trusted before
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return self.updated or not self.deviations


@dataclass(frozen=True, kw_only=True)
class RunDetails:
    """A run with its child runs, asks and conversation."""

    run: Run
    below: Sequence[Run]  # all descendants
    asks: Sequence[Ask]  # asks of the run and its descendants
    messages: Sequence[ConversationMessage]
    attachments: Sequence[Mapping[str, Any]] = ()  # name, media_type, bytes, digest
    runtime: str = "pydantic"
    reserved_usd: float = 0.0  # for model calls that were cut off; counts against the limits
    reserved_tokens: int = 0

    @property
    def usage(self) -> Usage:
        """Return the usage of the run and its child runs."""
        return Usage.total(run.usage for run in (self.run, *self.below))


@dataclass(frozen=True, kw_only=True)
class WorkerReport:
    """A worker with its problems (declarations that cannot be met here) and doubts (probable mistakes)."""

    worker: Worker
    problems: Sequence[GuildError]
    doubts: Sequence[str]
    plan: Plan | None = None  # None if a problem prevents planning


@dataclass(frozen=True, kw_only=True)
class TrustReport:
    """The code that a folder or a worker would execute, and whether it is trusted."""

    folder: Path
    code: Sequence[ExecutedCode]
    plans: Sequence[Plan]  # plans of the workers that would execute the code
    problems: Sequence[GuildError]  # errors of files that cannot be read

    @property
    def untrusted_files(self) -> tuple[FileTrust, ...]:
        """Return the files that the user has not trusted in their current version, without duplicates."""
        files = {file.path: file for code in self.code if not code.trusted for file in code.files}
        return tuple(file for file in files.values() if file.state != "trusted")

    def as_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "trusted": not self.untrusted_files,
            "code": [code.as_dict() for code in self.code],
            "workers": [plan.worker for plan in self.plans],
            "problems": [error.as_dict() for error in self.problems],
        }


@dataclass(frozen=True, kw_only=True)
class Document:
    """The current version of a document of a room."""

    path: str
    digest: str
    content: str

    def as_dict(self) -> dict[str, Any]:
        return {"path": self.path, "digest": self.digest, "content": self.content}


@dataclass(frozen=True, kw_only=True)
class ProposalVotes:
    """A proposal with the votes that were cast so far."""

    proposal: Proposal
    votes: Sequence[Vote]

    def as_dict(self) -> dict[str, Any]:
        votes = [{"agent": vote.agent, "choice": vote.choice, "reason": vote.reason} for vote in self.votes]
        return {**self.proposal.as_dict(), "votes": votes}
