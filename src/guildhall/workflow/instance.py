"""The nouns of a workflow that lives: the instance under its tag, and how each of its agents stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from guildhall.workflow.target import Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.room.model import Posted
    from guildhall.workflow.wakeup import Wakeup

Mode = Literal["run", "start"]
Phase = Literal["setup", "election", "kickoff", "live", "quiet", "done", "stopped", "failed", "paused"]
OVER: frozenset[Phase] = frozenset({"done", "stopped", "failed"})
AgentStatus = Literal["idle", "running", "backoff", "waiting", "failed", "stopped"]


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a caller asks for: a workflow file under a tag."""

    file: str
    tag: str = "main"
    params: Mapping[str, str]
    mode: Mode = "run"
    fresh: bool = False


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One generation of a workflow under one tag. It is a run without a model, below which its agents run."""

    id: str  # of that run
    room: str
    name: str
    tag: str
    generation: int
    mode: Mode
    status: Phase
    reason: str | None
    path: str
    source: str  # the file's text when it started
    definition: Mapping[str, Any]  # what the text names, as it was then
    created_at: str
    ended_at: str | None

    @property
    def target(self) -> Target:
        return Target(None, self.name, self.tag)

    def as_dict(self) -> dict[str, Any]:
        """The instance as `--json` prints it."""
        return {
            "run": self.id,
            "workflow": self.name,
            "tag": self.tag,
            "target": str(self.target),
            "generation": self.generation,
            "mode": self.mode,
            "status": self.status,
            "reason": self.reason,
            "file": self.path,
            "created_at": self.created_at,
            "ended_at": self.ended_at,
        }


@dataclass(frozen=True, kw_only=True)
class AgentState:
    """How an agent stands."""

    name: str
    status: AgentStatus
    run: str | None  # the one that it is at, or that it can go on with
    attempts: int  # that have failed since it last did what it was asked
    due_at: str | None  # when the next one begins

    def as_dict(self) -> dict[str, Any]:
        return {
            "agent": self.name,
            "status": self.status,
            "run": self.run,
            "attempts": self.attempts,
            "due_at": self.due_at,
        }


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When an agent wakes without being mentioned. Without an agent: all of a workflow that have none of their own."""

    agent: str | None
    every: float | None  # seconds; this, or a cron line
    cron: str | None
    prompt: str | None  # what the agent is told; None: what the file says, or that it is time
    due_at: str | None

    @property
    def wakeup(self) -> Wakeup:
        from guildhall.workflow.wakeup import Wakeup

        return Wakeup(every=self.every, cron=self.cron)

    def as_dict(self) -> dict[str, Any]:
        return {
            "agent": self.agent,
            "every": self.every,
            "cron": self.cron,
            "prompt": self.prompt,
            "due_at": self.due_at,
        }


@dataclass(frozen=True, kw_only=True)
class AgentShown:
    """An agent as listings show it."""

    target: Target
    status: AgentStatus
    run: str | None
    attempts: int
    due_at: str | None
    task: str | None  # what it says that it does
    state: str | None
    unread: int
    runs: int
    cost_usd: float | None  # of its runs, and of those that these have called; None: no price
    schedule: Schedule | None

    @property
    def name(self) -> str:
        return self.target.agent or ""

    def as_dict(self) -> dict[str, Any]:
        names = ("status", "run", "attempts", "due_at", "task", "state", "unread", "runs", "cost_usd")
        return {
            "agent": self.name,
            "target": str(self.target),
            **{name: getattr(self, name) for name in names},
            "schedule": self.schedule.as_dict() if self.schedule else None,
        }


@dataclass(frozen=True, kw_only=True)
class WorkflowShown:
    """A workflow under a tag as listings show it: its last generation, and how its agents stand."""

    run: str
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
    agents: tuple[AgentShown, ...]

    @property
    def target(self) -> Target:
        return Target(None, self.name, self.tag)

    @property
    def over(self) -> bool:
        return self.status in OVER

    def as_dict(self) -> dict[str, Any]:
        """The workflow as `--json` prints it."""
        names = ("generation", "mode", "status", "reason", "file", "created_at", "ended_at", "cost_usd", "messages")
        return {
            "run": self.run,
            "workflow": self.name,
            "tag": self.tag,
            "target": str(self.target),
            **{name: getattr(self, name) for name in names},
            "agents": [agent.as_dict() for agent in self.agents],
        }


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What became of what a person said to agents."""

    run: str  # of the workflow
    target: Target
    status: Phase
    posted: Posted
    stopped: tuple[str, ...]  # those reached that do not work until they are started again

    def as_dict(self) -> dict[str, Any]:
        told = self.posted.as_dict()
        return {
            "run": self.run,
            "target": str(self.target),
            "status": self.status,
            "message": told.pop("id"),
            **told,
            "stopped": list(self.stopped),
        }
