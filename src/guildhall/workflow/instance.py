"""Types of workflow instances: the instance, its agents, its schedules, and their summaries in listings.

Does not have I/O. Queries are in `records.py` and `queries.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from guildhall.workflow.target import Target

if TYPE_CHECKING:
    from guildhall.room.model import Message, PostResult
    from guildhall.workflow.definition import Wakeup

Mode = Literal["run", "start"]
Phase = Literal["setup", "election", "kickoff", "live", "idle", "done", "stopped", "failed", "paused"]
FINAL_PHASES: frozenset[Phase] = frozenset({"done", "stopped", "failed"})
SETUP_KEY_PREFIX = "setup/"  # of the keys of setup commands
AgentStatus = Literal["idle", "running", "backoff", "waiting", "failed", "stopped"]


@dataclass(frozen=True, kw_only=True)
class Start:
    """A request to start a workflow file under a tag."""

    file: str
    tag: str = "main"
    params: Mapping[str, str]
    mode: Mode = "run"
    fresh: bool = False


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One generation of a workflow and tag in a project. It is a run without a model, and its agents are child runs."""

    id: str  # id of the run
    room: str
    project: str  # root of the project
    name: str
    tag: str
    generation: int
    mode: Mode
    status: Phase
    reason: str | None
    path: str
    source: str  # content of the file at the start
    definition: Mapping[str, Any]  # the resolved agents at the start
    created_at: str
    ended_at: str | None

    @property
    def target(self) -> Target:
        return Target(None, self.name, self.tag, Path(self.project))


@dataclass(frozen=True, kw_only=True)
class AgentState:
    """The row of an agent."""

    name: str
    status: AgentStatus
    run: str | None  # the current run, or a run that can be resumed
    attempts: int  # failed runs since the last success
    due_at: str | None  # time of the next attempt


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The schedule of an agent. Without an agent, it is for all agents that have no schedule of their own."""

    agent: str | None
    every: float | None  # in seconds; either `every` or `cron` is set
    cron: str | None
    prompt: str | None  # None for the prompt of the file, or a reminder
    due_at: str | None

    @property
    def wakeup(self) -> Wakeup:
        from guildhall.workflow.definition import Wakeup

        return Wakeup(every=self.every, cron=self.cron)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class AgentSummary:
    """An agent in listings."""

    target: Target
    status: AgentStatus | Literal["paused"]  # `paused`: its run stopped with the workflow
    run: str | None
    attempts: int
    due_at: str | None
    task: str | None  # set by the agent
    state: str | None
    unread: int
    runs: int
    cost_usd: float | None  # with child runs; None without a price
    schedule: Schedule | None
    messages_to_user: tuple[Message, ...]  # the last ones of this generation, oldest first, with their whole texts
    answer: Any  # output of its last run that has one

    @property
    def name(self) -> str:
        return self.target.agent or ""

    def as_dict(self) -> dict[str, Any]:
        schedule = self.schedule.as_dict() if self.schedule else None
        messages = [message.as_dict() for message in self.messages_to_user]
        changed = {"target": str(self.target), "schedule": schedule, "messages_to_user": messages}
        return {"agent": self.name, **vars(self), **changed}


@dataclass(frozen=True, kw_only=True)
class WorkflowSummary:
    """A workflow and tag in listings: its last generation and its agents."""

    run: str
    project: str  # root of the project
    name: str
    tag: str
    generation: int
    mode: Mode
    status: Phase
    reason: str | None
    file: str
    created_at: str
    ended_at: str | None
    cost_usd: float | None
    messages: int
    agents: tuple[AgentSummary, ...]

    @property
    def target(self) -> Target:
        return Target(None, self.name, self.tag, Path(self.project))

    def as_dict(self) -> dict[str, Any]:
        """Return the summary for `--json`."""
        names = ("generation", "mode", "status", "reason", "file", "created_at", "ended_at", "cost_usd", "messages")
        return {
            "run": self.run,
            "project": self.project,
            "workflow": self.name,
            "tag": self.tag,
            "target": str(self.target),
            **{name: getattr(self, name) for name in names},
            "agents": [agent.as_dict() for agent in self.agents],
        }


@dataclass(frozen=True, kw_only=True)
class SendResult:
    """The result of a message that the user sent to a workflow."""

    run: str  # run of the workflow
    target: Target
    status: Phase
    posted: PostResult
    stopped: tuple[str, ...]  # recipients that were stopped or have given up

    def as_dict(self) -> dict[str, Any]:
        posted = self.posted.as_dict()
        return {
            "run": self.run,
            "target": str(self.target),
            "status": self.status,
            "message": posted.pop("id"),
            **posted,
            "stopped": list(self.stopped),
        }
