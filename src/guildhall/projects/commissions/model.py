"""Commissions as data: the draft (the request), the commission (its row) and its details.

Does not have I/O: `records.py` stores commissions. Does not have the state machine (`states.py`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from guildhall.core.errors import UsageError
from guildhall.core.ids import COMMISSION, is_id
from guildhall.core.text import check_line, check_text, did_you_mean, is_text
from guildhall.runs.model import check_limits
from guildhall.runs.purpose import CommissionPurpose, Contract

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from guildhall.activities.contract import AskedQuestion, Decision
    from guildhall.projects.commissions.states import Hold, Status
    from guildhall.projects.model import TimelineEntry

FOLDER = ".lore/commissions"
TOOLS = ("report_progress", "log_question", "submit_result")
LISTS = ("dependencies", "artifacts", "linked", "checks")  # fields of a draft
MAX_TITLE = 200  # characters
MAX_PROMPT = 50_000  # bytes
MAX_DRAFT = 80_000  # bytes of the whole draft as JSON: it is in the front matter of the artifact
MAX_COMMAND = 4_096  # characters of a check
MAX_PATHS = 100
MAX_CHECKS = 20
MAX_REASON = 2_000  # characters
_WIRE_FIELDS = ("by", "made_by", "attempt", "run", "branch", "summary", "result", "created_at", "changed_at")
_EMPTY = "Give a value, or leave it out."
By = Literal["person", "manager", "artifact"]  # artifact: rebuilt from its file, the author is unknown


def artifact_path(id: str) -> str:
    return f"{FOLDER}/{id}.md"


def parse_artifact_path(path: str) -> str | None:
    """Return the id of the commission whose artifact has this path, or None."""
    name = path.removeprefix(f"{FOLDER}/").removesuffix(".md")
    return name if is_id(name, COMMISSION) and path == artifact_path(name) else None


def parse_checkout_name(name: str) -> str | None:
    """Return the id of the commission that a checkout of this name belongs to, or None."""
    id, _, number = name.rpartition("-")
    return id if is_id(id, COMMISSION) and number.isdecimal() else None


def check_reason(reason: str) -> str:
    """Return the reason of a user without surrounding blanks. Raise UsageError if it is empty or too long."""
    return check_text("reason", reason, MAX_REASON, empty=_EMPTY).strip()


def repository_path(field: str, path: object) -> str:
    """Return a path in the project's repository. Raise UsageError if it is invalid."""
    if not isinstance(path, str) or not is_text(path) or not path.strip():
        raise UsageError(f"{field}: expected a path such as .lore/notes.md")
    shown = repr(path[:100])
    parts = path.split("/")
    if len(path.encode()) > 500 or len(parts) > 32 or not path.isprintable():
        raise UsageError(f"{field}: {shown} is not a valid file path")
    if any(part in ("", ".", "..") or "\\" in part or part.lower() == ".git" for part in parts):
        hint = "Give a path like .lore/notes.md or src/app.py: relative to the project, without '..'."
        raise UsageError(f"{field}: {shown} is outside of the project", hint=hint)
    if any(len(part.encode()) > 200 for part in parts):
        raise UsageError(f"{field}: {shown} contains a name of more than 200 bytes")
    return path


@dataclass(frozen=True, kw_only=True)
class Draft:
    """The request of a commission: title, worker, prompt, paths, limits and checks."""

    title: str
    worker: str
    prompt: str  # the worker sees this and nothing of the conversation in which it was written
    dependencies: tuple[str, ...] = ()  # paths that must exist before the commission starts
    artifacts: tuple[str, ...] = ()  # paths that must exist when it ends
    linked: tuple[str, ...] = ()  # paths that the worker should read
    max_turns: int | None = None
    max_budget_usd: float | None = None
    model: str | None = None
    checks: tuple[str, ...] = ()  # commands that must succeed at the end; only the user sets them
    reviewer: str | None = None  # a worker that must approve

    def check(self) -> None:
        """Raise UsageError if a field is invalid."""
        for field in ("title", "worker"):
            check_line(field, getattr(self, field), MAX_TITLE, empty=_EMPTY)
        long = "Put the text into a file of the project and link it (`--link`)."
        check_text("prompt", self.prompt, max_bytes=MAX_PROMPT, empty=_EMPTY, long=long)
        for field in ("dependencies", "artifacts", "linked"):
            paths = [repository_path(field, path) for path in _items(field, getattr(self, field), MAX_PATHS)]
            if len(set(paths)) != len(paths):
                raise UsageError(f"{field}: duplicate path")
        check_limits(max_turns=self.max_turns, max_budget_usd=self.max_budget_usd)
        for field in ("model", "reviewer"):
            if getattr(self, field) is not None:
                check_line(field, getattr(self, field), MAX_TITLE, empty=_EMPTY)
        for command in _items("checks", self.checks, MAX_CHECKS):
            check_text("checks", command, MAX_COMMAND, empty=_EMPTY)
        if len(json.dumps(self.as_dict())) > MAX_DRAFT:
            hint = "Put part of it into a file of the project and link it (`--link`)."
            raise UsageError(f"the draft is larger than {MAX_DRAFT:,} bytes", hint=hint)

    def edit(self, changes: Mapping[str, Any]) -> Draft:
        """Return the draft with some fields changed. Raise UsageError if a field is unknown or invalid."""
        known = [field.name for field in fields(Draft)]
        for name in changes:
            if name not in known:
                hint = did_you_mean(name[:40], known)
                raise UsageError(f"a commission has no field {name[:40]!r} that can be edited", hint=hint)
        lists = {name: tuple(cast("list[Any]", value)) for name, value in changes.items() if isinstance(value, list)}
        edited = replace(self, **{**changes, **lists})
        edited.check()
        return edited

    @property
    def limits(self) -> dict[str, Any]:
        """Return the limits and the model that the draft sets."""
        given = {"max_turns": self.max_turns, "max_budget_usd": self.max_budget_usd, "model": self.model}
        return {name: value for name, value in given.items() if value is not None}

    def as_dict(self) -> dict[str, Any]:
        """Return the fields. A limit or model that is not set is left out."""
        values = {name: value for name, value in vars(self).items() if value is not None or name == "reviewer"}
        return {**values, **{name: list(getattr(self, name)) for name in LISTS}}


def _items(field: str, value: object, maximum: int) -> Sequence[object]:
    if not isinstance(value, list | tuple):
        raise UsageError(f"{field}: expected a list")
    items = cast("Sequence[object]", value)
    if len(items) > maximum:
        raise UsageError(f"{field}: more than {maximum} items")
    return items


@dataclass(frozen=True, kw_only=True)
class Commission:
    """A commission as it is stored."""

    id: str
    project: str
    draft: Draft
    status: Status
    reason: str | None = None  # of the last transition, for people
    by: By = "person"
    made_by: str | None = None  # the run and the tool call that created it
    # reset by every transition
    hold: Hold | None = None  # set while the status is in_progress and the run cannot continue
    conflict: tuple[str, ...] = ()  # the files of an unresolved merge conflict
    # reset by every new attempt
    attempt: int = 0  # counted from 1; 0 if never dispatched
    run: str | None = None
    branch: str | None = None
    summary: str | None = None  # progress, in the worker's words
    result: Any = None
    submitted_at: str | None = None  # None until a result was accepted
    submitted_commit: str | None = None  # the commit that fulfilled the contract then
    checkout_lost_at: str | None = None  # when the checkout was found missing and made again from the branch
    loss_reported_by: str | None = None  # the tool call whose result tells the worker so
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
        return artifact_path(self.id)

    @property
    def checkout(self) -> str:
        """Return the name of the checkout; every attempt has its own."""
        return f"{self.id}-{self.attempt}"

    @property
    def is_submitted(self) -> bool:
        """Return True if a result of this attempt was accepted."""
        return self.submitted_at is not None

    @property
    def explanation(self) -> str:
        """Return why the commission is in its state, for people."""
        return self.hold.text(self.id) if self.hold is not None else self.reason or ""

    @property
    def next_command(self) -> str:
        """Return a hint with the command that a user needs next."""
        id = self.id
        return {
            "pending": f"Start it: guild dispatch {id}",
            "blocked": f"It is blocked until its dependencies exist: guild show {id}",
            "dispatched": f"It is queued: guild wait {id}. To cancel: guild stop {id}",
            "in_progress": f"To cancel: guild stop {id}",
            "failed": f"Try again: guild retry {id}",
            "cancelled": f"Try again: guild retry {id}",
        }.get(self.status, f"It has ended: guild show {id}")

    def purpose(self, contract: Contract | None) -> CommissionPurpose:
        """Return the purpose of a run that works on this attempt, or reviews it if there is no contract."""
        return CommissionPurpose(id=self.id, attempt=self.attempt, title=self.title, contract=contract)

    def as_dict(self) -> dict[str, Any]:
        return {
            "commission": self.id,
            "project": self.project,
            "status": self.status,
            "reason": self.explanation or None,
            "hold": self.hold.kind if self.hold is not None else None,
            "conflict": list(self.conflict),
            **self.draft.as_dict(),
            **{name: getattr(self, name) for name in _WIRE_FIELDS},
        }


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """The commissions before and after one in the dependency graph."""

    missing: Sequence[str] = ()  # dependencies that do not exist yet
    after: Sequence[str] = ()  # commissions that make its dependencies
    before: Sequence[str] = ()  # commissions that depend on its artifacts


@dataclass(frozen=True, kw_only=True)
class CommissionDetails:
    """Everything that `guild show` prints about a commission."""

    commission: Commission
    timeline: Sequence[TimelineEntry] = ()
    asked: Sequence[AskedQuestion] = ()
    decisions: Sequence[Decision] = ()
    waiting: Sequence[str] = ()  # ids of open asks
    neighbours: Neighbours = Neighbours()
    cost_usd: float | None = None
    worktree: str | None = None
    warnings: Sequence[str] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.commission.as_dict(),
            "timeline": [entry.as_dict() for entry in self.timeline],
            "asked": [question.as_dict() for question in self.asked],
            "decisions": [decision.as_wire() for decision in self.decisions],
            "waiting": list(self.waiting),
            **asdict(self.neighbours),
            "cost_usd": self.cost_usd,
            "worktree": self.worktree,
            "warnings": list(self.warnings),
        }
