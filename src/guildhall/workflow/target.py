"""Targets and listings: parses `agent@workflow:tag`, and defines the types of instances, agents and schedules.

`global` and `main` may be left out of a target. Also parses params of a command line and finds the workflow files of a
project.
Does not look up the instance that a target names (`queries.py`).
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from guildhall.core import yaml
from guildhall.core.errors import GuildError, NotFound, UsageError
from guildhall.core.ids import is_name
from guildhall.core.text import suggest_or

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from guildhall.room.model import PostResult
    from guildhall.workflow.definition import Wakeup

GLOBAL = "global"
MAIN = "main"
_MAX_SHOWN_CHARS = 80


@dataclass(frozen=True, order=True)
class Target:
    """An agent of a workflow, or (without an agent) the workflow itself, under one tag."""

    agent: str | None
    workflow: str = GLOBAL
    tag: str = MAIN

    @property
    def full(self) -> str:
        """Return the target with `global` and `main`: alice@global:main, @review:main."""
        return f"{self.agent or ''}@{self.workflow}:{self.tag}"

    @property
    def workflow_target(self) -> Target:
        """Return the target of the workflow itself."""
        return Target(None, self.workflow, self.tag)

    def __str__(self) -> str:
        """Return the target without `global` and `main`."""
        if self.tag != MAIN:
            return self.full
        if self.agent is None:
            return f"@{self.workflow}"
        return self.agent if self.workflow == GLOBAL else f"{self.agent}@{self.workflow}"


def parse(text: str) -> Target:
    """Return the target that a text names. Raise UsageError if it is not a target."""
    agent, at, rest = text.partition("@")
    workflow, colon, tag = rest.partition(":")
    names = {"an agent": agent, "a workflow": workflow, "a tag": tag}
    problems = {
        "more than one @": text.count("@") > 1,
        "a tag requires a workflow": not at and ":" in text,
        "more than one colon": colon and text.count(":") > 1,
        **{f"{_excerpt(name)!r} cannot name {what}": name and not is_name(name) for what, name in names.items()},
        "no workflow after the @": at and not workflow,
        "no tag after the colon": colon and not tag,
        "empty": not at and not agent,
    }
    if found := [problem for problem, applies in problems.items() if applies]:
        raise UsageError(f"invalid target {_excerpt(text)!r}: {found[0]}", hint=_target_hint(text))
    return Target(agent or None, workflow or GLOBAL, tag or MAIN)


def check_names(target: Target) -> None:
    """Raise UsageError if a name in a target is invalid. `parse` has checked the targets that it returned."""
    for name in (target.workflow, target.tag, *([] if target.agent is None else [target.agent])):
        if not is_name(name):
            raise UsageError(f"invalid name in a target: {_excerpt(name)!r}", hint=_target_hint(""))


def unknown_target(target: Target, known: Iterable[Target], *, hint: str | None = None) -> NotFound:
    """Return the error for an unknown target. Its hint is the nearest known target, unless `hint` is given."""
    hint = hint or suggest_or(str(target), {str(one) for one in known}, "List them: guild ls --all")
    return NotFound(f"unknown {'agent' if target.agent else 'workflow'} {target}", hint=hint)


def check_tag(tag: str) -> str:
    """Return the tag. Raise UsageError if it is not valid."""
    if not is_name(tag):
        hint = "Use letters, digits, '_', '-' and '.', a letter or digit first, at most 64."
        raise UsageError(f"invalid tag: {_excerpt(tag)!r}", hint=hint)
    return tag


def _target_hint(text: str) -> str:
    """Return a hint with the probable target, or with the syntax of targets."""
    agent, at, rest = text.partition("@")
    workflow, _, tag = rest.partition(":")
    guess = None
    if not at and ":" in text:  # review:pr-123
        guess = f"@{text}"
    elif at and not workflow and agent:  # alice@, alice@:dev
        guess = str(Target(agent, GLOBAL, tag or MAIN))
    elif at and workflow and not tag and rest.endswith(":"):  # @review:
        guess = text[:-1]
    elif any(map(str.isspace, text)):
        guess = "".join(text.split())
    if guess is not None:
        try:
            return f"Did you mean {str(parse(guess))!r}?"
        except UsageError:
            pass
    return "Write agent, agent@workflow, agent@workflow:tag, @workflow or @workflow:tag."


def _excerpt(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."


_MAX_VALUE_CHARS = 100_000  # characters


def parse_params(pairs: Sequence[str]) -> dict[str, str]:
    """Return the params of a command line (name=value). Raise UsageError for duplicates and invalid values."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--param {yaml.format_value(pair)} has no value", hint="Write --param name=value.")
        if name in found:
            raise UsageError(f"duplicate --param {yaml.format_value(name)}", hint="Pass it once.")
        if "\0" in value or len(value) > _MAX_VALUE_CHARS:
            message = f"invalid --param {yaml.format_value(name)}: the value is too long, or not text"
            raise UsageError(message, hint="Pass a file name instead.")
        found[name] = value
    return found


WORKFLOW_SUFFIXES = (".yaml", ".yml", ".json")
WORKFLOWS = "workflows"  # a folder of a project
_AGENTS = re.compile(rb"^agents[ \t]*:", re.MULTILINE)


def is_workflow_file(path: Path) -> bool:
    """Return True if a file looks like a workflow file. `load` reports its errors."""
    try:
        if path.suffix not in WORKFLOW_SUFFIXES or not path.is_file():
            return False
        with path.open("rb") as file:
            content = file.read(yaml.MAX_BYTES)
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return False
    if path.suffix != ".json" and _AGENTS.search(content) is not None:
        return True
    if b"agents" not in content:
        return False
    try:  # JSON, or YAML that is written like it
        data = cast("object", yaml.read(path).data)
    except GuildError:
        return False
    return isinstance(data, dict) and "agents" in data


def find_workflow_files(folder: Path) -> Iterator[Path]:
    """Yield the workflow files of a project: in its root and in workflows/."""
    for place in (folder, folder / WORKFLOWS):
        try:
            paths = sorted(place.iterdir())
        except OSError:
            continue
        yield from (path for path in paths if not path.name.startswith(".") and is_workflow_file(path))


Mode = Literal["run", "start"]
Phase = Literal["setup", "election", "kickoff", "live", "idle", "done", "stopped", "failed", "paused"]
FINAL_PHASES: frozenset[Phase] = frozenset({"done", "stopped", "failed"})
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
    """One generation of a workflow and tag. It is a run without a model, and its agents are child runs."""

    id: str  # of its run
    room: str
    name: str
    tag: str
    generation: int
    mode: Mode
    status: Phase
    reason: str | None
    path: str
    source: str  # the text of the file at the start
    definition: Mapping[str, Any]  # the resolved agents at the start
    created_at: str
    ended_at: str | None

    @property
    def target(self) -> Target:
        return Target(None, self.name, self.tag)


@dataclass(frozen=True, kw_only=True)
class AgentState:
    """The row of an agent."""

    name: str
    status: AgentStatus
    run: str | None  # the current run, or one that can be resumed
    attempts: int  # failed runs since the last success
    due_at: str | None  # of the next attempt


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The schedule of an agent. Without an agent, it is for all agents that have no schedule of their own."""

    agent: str | None
    every: float | None  # seconds; either this or `cron` is set
    cron: str | None
    prompt: str | None  # None: the prompt of the file, or a reminder
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
    status: AgentStatus
    run: str | None
    attempts: int
    due_at: str | None
    task: str | None  # set by the agent
    state: str | None
    unread: int
    runs: int
    cost_usd: float | None  # with child runs; None: no price
    schedule: Schedule | None

    @property
    def name(self) -> str:
        return self.target.agent or ""

    def as_dict(self) -> dict[str, Any]:
        schedule = self.schedule.as_dict() if self.schedule else None
        return {"agent": self.name, **vars(self), "target": str(self.target), "schedule": schedule}


@dataclass(frozen=True, kw_only=True)
class WorkflowSummary:
    """A workflow and tag in listings: its last generation and its agents."""

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
    agents: tuple[AgentSummary, ...]

    @property
    def target(self) -> Target:
        return Target(None, self.name, self.tag)

    def as_dict(self) -> dict[str, Any]:
        """Return the summary for `--json`."""
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
class SendResult:
    """The result of a message that the user sent to a workflow."""

    run: str  # of the workflow
    target: Target
    status: Phase
    posted: PostResult
    stopped: tuple[str, ...]  # recipients that are stopped

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
