"""The nouns of a workflow that lives: the instance under its tag, and how each of its agents stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from guildhall.workflow.target import Target

if TYPE_CHECKING:
    from collections.abc import Mapping

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
