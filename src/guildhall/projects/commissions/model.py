"""The nouns of a commission: what is asked for, how it stands, what has become of it, and what may follow on what."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from guildhall.core.errors import Conflict, UsageError
from guildhall.core.ids import COMMISSION, is_id
from guildhall.core.nearest import did_you_mean
from guildhall.runs.model import check_limits, is_text
from guildhall.runs.texts import check_line, check_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from guildhall.jobs.model import Asked, Decided
    from guildhall.projects.model import Moment

Status = Literal["pending", "blocked", "dispatched", "in_progress", "completed", "failed", "cancelled", "abandoned"]
STATUS: tuple[Status, ...] = get_args(Status)
TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    "pending": frozenset({"dispatched", "blocked", "cancelled", "abandoned"}),
    "blocked": frozenset({"pending", "cancelled", "abandoned"}),
    "dispatched": frozenset({"in_progress", "failed", "cancelled"}),
    "in_progress": frozenset({"completed", "failed", "cancelled"}),
    "failed": frozenset({"pending", "abandoned"}),
    "cancelled": frozenset({"pending", "abandoned"}),
    "completed": frozenset(),
    "abandoned": frozenset(),
}
UNDER_WAY: frozenset[Status] = frozenset({"dispatched", "in_progress"})
RESTS: frozenset[Status] = frozenset({"completed", "failed", "cancelled", "abandoned"})
OVER: frozenset[Status] = frozenset({"completed", "abandoned"})  # for good

FOLDER = ".lore/commissions"
LONGEST_TITLE = 200  # characters
LONGEST_PROMPT = 50_000  # bytes
_NO_END = 1_000_000_000  # characters: what counts is the bytes
LONGEST = 80_000  # bytes of all of it, as JSON: it is in the front matter of an artifact
LONGEST_CHECK = 4_096  # characters of a command
MOST_PATHS = 100  # that it may depend on, must give, or is told of
MOST_CHECKS = 20
_EMPTY = "Say something, or leave it out."
By = Literal["person", "manager", "artifact"]  # the last: made again from one, and nobody knows by whom


def checked_status(word: str) -> Status:
    """The status that a word names. UsageError where it is none."""
    for status in STATUS:
        if word == status:
            return status
    raise UsageError(f"{word[:40]!r} is no status of a commission", hint=did_you_mean(word[:40], STATUS))


def working(worker: str) -> str:
    """Why it is in progress, as long as nothing keeps it from going on."""
    return f"{worker} works on it"


def artifact_of(id: str) -> str:
    """The path of the artifact that a commission is."""
    return f"{FOLDER}/{id}.md"


def commission_in(path: str) -> str | None:
    """The commission whose artifact lies at a path."""
    name = path.removeprefix(f"{FOLDER}/").removesuffix(".md")
    return name if is_id(name, COMMISSION) and path == artifact_of(name) else None


def attempt_of(place: str) -> str | None:
    """The commission one of whose attempts has a checkout of this name."""
    id, _, number = place.rpartition("-")
    return id if is_id(id, COMMISSION) and number.isdecimal() else None


@dataclass(frozen=True, kw_only=True)
class Draft:
    """What is asked for."""

    title: str
    worker: str
    prompt: str  # all that the worker is told
    dependencies: tuple[str, ...] = ()  # paths that must be there before it begins
    artifacts: tuple[str, ...] = ()  # paths that must be there in the end
    linked: tuple[str, ...] = ()  # paths that it is told of
    max_turns: int | None = None
    max_budget_usd: float | None = None
    model: str | None = None
    checks: tuple[str, ...] = ()  # commands that must succeed in the end; a person's only
    reviewer: str | None = None  # the worker that must approve

    def check(self) -> None:
        """Raises where something is not what it should be."""
        for name in ("title", "worker"):
            check_line(name, getattr(self, name), LONGEST_TITLE, empty=_EMPTY)
        in_a_file = "Put it into a file of the project, and name that."
        check_text("prompt", self.prompt, _NO_END, empty=_EMPTY)
        if len(self.prompt.encode()) > LONGEST_PROMPT:
            raise UsageError(f"prompt: it is longer than {LONGEST_PROMPT:,} bytes", hint=in_a_file)
        for name in ("dependencies", "artifacts", "linked"):
            _paths(name, getattr(self, name))
        check_limits(max_turns=self.max_turns, max_budget_usd=self.max_budget_usd)
        for name in ("model", "reviewer"):
            if getattr(self, name) is not None:
                check_line(name, getattr(self, name), LONGEST_TITLE, empty=_EMPTY)
        self._check_checks()
        if len(json.dumps(self.as_dict())) > LONGEST:
            raise UsageError("there is too much of it", hint="Put it into a file that it reads (`--link`).")

    def _check_checks(self) -> None:
        commands = _several("checks", self.checks, MOST_CHECKS)
        for command in commands:
            check_text("checks", command, LONGEST_CHECK, empty=_EMPTY)

    def changed(self, changes: Mapping[str, Any]) -> Draft:
        """The same with some of it changed. Raises where it cannot be."""
        known = [one.name for one in fields(Draft)]
        for name in changes:
            if name not in known:
                hint = did_you_mean(name[:40], known)
                raise UsageError(f"a commission has no {name[:40]!r} that could be changed", hint=hint)
        lists = {name: tuple(cast("list[Any]", value)) for name, value in changes.items() if isinstance(value, list)}
        new = replace(self, **{**changes, **lists})
        new.check()
        return new

    @property
    def limits(self) -> dict[str, Any]:
        """What it may use up, and the model, where somebody has said so."""
        given = {"max_turns": self.max_turns, "max_budget_usd": self.max_budget_usd, "model": self.model}
        return {name: value for name, value in given.items() if value is not None}

    def as_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "worker": self.worker,
            "prompt": self.prompt,
            "dependencies": list(self.dependencies),
            "artifacts": list(self.artifacts),
            "linked": list(self.linked),
            **self.limits,
            "checks": list(self.checks),
            "reviewer": self.reviewer,
        }


def _several(name: str, given: object, most: int) -> Sequence[object]:
    if not isinstance(given, list | tuple):
        raise UsageError(f"{name}: expected a list")
    several = cast("Sequence[object]", given)
    if len(several) > most:
        raise UsageError(f"{name}: there are more than {most}")
    return several


def _paths(name: str, given: object) -> None:
    paths = [repository_path(name, path) for path in _several(name, given, MOST_PATHS)]
    if len(set(paths)) != len(paths):
        raise UsageError(f"{name}: a path is named twice")


def repository_path(name: str, path: object) -> str:
    """A path in the project's repository in its one form. Raises where it cannot be one."""
    if not isinstance(path, str) or not is_text(path) or not path.strip():
        raise UsageError(f"{name}: expected a path such as .lore/notes.md")
    shown = repr(path[:100])
    parts = path.split("/")
    if len(path.encode()) > 500 or len(parts) > 32 or not path.isprintable():
        raise UsageError(f"{name}: {shown} cannot be the path of a file")
    if any(part in ("", ".", "..") or "\\" in part or part.lower() == ".git" for part in parts):
        hint = "Give a path like .lore/notes.md or src/app.py: relative to the project, without '..'."
        raise UsageError(f"{name}: {shown} does not lie in the project", hint=hint)
    if any(len(part.encode()) > 200 for part in parts):
        raise UsageError(f"{name}: {shown} has a name in it that is too long")
    return path


@dataclass(frozen=True, kw_only=True)
class Commission:
    """A commission as its row has it."""

    id: str
    project: str
    draft: Draft
    status: Status
    reason: str | None = None  # why it stands as it does
    by: By = "person"
    made_by: str | None = None  # the run that has made it
    attempt: int = 0  # the how-manieth, from 1; 0: it was never dispatched
    run: str | None = None  # of the last attempt
    branch: str | None = None  # of the last attempt
    summary: str | None = None  # how far it is, in the worker's words
    result: Any = None  # what was submitted
    created_at: str
    changed_at: str

    @property
    def title(self) -> str:
        return self.draft.title

    @property
    def worker(self) -> str:
        return self.draft.worker

    @property
    def path(self) -> str:
        """Of its artifact."""
        return artifact_of(self.id)

    @property
    def place(self) -> str:
        """The name of its checkout: each attempt has one of its own."""
        return f"{self.id}-{self.attempt}"

    @property
    def held(self) -> bool:
        """Whether it is under way and cannot go on for now; its reason says why."""
        return self.status == "in_progress" and self.reason != working(self.worker)

    def may_become(self, status: Status) -> None:
        """Raises where that transition is none."""
        if status not in TRANSITIONS[self.status]:
            raise Conflict(f"the commission {self.id} is {self.status}: it cannot become {status}", hint=self.next_step)

    @property
    def next_step(self) -> str:
        """What to do with it as it stands."""
        id = self.id
        return {
            "pending": f"guild commission dispatch {id} lets it begin.",
            "blocked": f"It waits for what it depends on: guild commission show {id}",
            "dispatched": f"It waits for its turn (guild wait {id}); guild commission cancel {id} ends it.",
            "in_progress": f"guild commission cancel {id} ends it.",
            "failed": f"guild commission redispatch {id} tries it anew.",
            "cancelled": f"guild commission redispatch {id} tries it anew.",
        }.get(self.status, f"It is over: guild commission show {id}")

    def as_dict(self) -> dict[str, Any]:
        """The commission as `--json` prints it."""
        return {
            "commission": self.id,
            "project": self.project,
            "status": self.status,
            "reason": self.reason,
            **self.draft.as_dict(),
            "by": self.by,
            "made_by": self.made_by,
            "attempt": self.attempt,
            "run": self.run,
            "branch": self.branch,
            "summary": self.summary,
            "result": self.result,
            "created_at": self.created_at,
            "changed_at": self.changed_at,
        }


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """What a commission waits for and what waits for it, by the references between them."""

    missing: Sequence[str] = ()  # paths that are not there yet
    after: Sequence[str] = ()  # the commissions that make what it depends on
    before: Sequence[str] = ()  # those that depend on what it makes

    def as_dict(self) -> dict[str, Any]:
        return {"missing": list(self.missing), "after": list(self.after), "before": list(self.before)}


@dataclass(frozen=True, kw_only=True)
class CommissionShown:
    """All about a commission."""

    commission: Commission
    timeline: Sequence[Moment] = ()
    asked: Sequence[Asked] = ()
    decisions: Sequence[Decided] = ()
    waiting: Sequence[str] = ()  # the ids of the asks that wait for a person
    neighbours: Neighbours = Neighbours()
    cost_usd: float | None = None
    worktree: str | None = None
    doubts: Sequence[str] = ()  # what does not fit together, such as a status that was written by hand

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.commission.as_dict(),
            "timeline": [one.as_dict() for one in self.timeline],
            "asked": [one.as_dict() for one in self.asked],
            "decisions": [one.as_wire() for one in self.decisions],
            "waiting": list(self.waiting),
            **self.neighbours.as_dict(),
            "cost_usd": self.cost_usd,
            "worktree": self.worktree,
            "doubts": list(self.doubts),
        }
