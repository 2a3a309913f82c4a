"""Commissions as data: the draft (the request), the commission (its row) and its details.

Does not have I/O: `records.py` stores commissions. Does not have the state machine (`states.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from guildhall.core.errors import UsageError
from guildhall.core.ids import COMMISSION, is_id
from guildhall.core.text_checks import check_line, check_text, did_you_mean, is_text
from guildhall.runs.model import check_limits
from guildhall.runs.purpose import CommissionPurpose, Contract

if TYPE_CHECKING:
    from guildhall.activities.contract import AskedQuestion, Decision
    from guildhall.projects.commissions.states import Hold, Status
    from guildhall.projects.model import Diffstat, TimelineEntry

FOLDER = ".lore/commissions"
TOOLS = ("report_progress", "log_question", "submit_result")
LISTS = ("dependencies", "artifacts", "linked", "checks")  # fields of a draft
MAX_TITLE_CHARS = 200
MAX_PROMPT_BYTES = 50_000
MAX_DRAFT_BYTES = 80_000  # as JSON, because the front matter of the artifact contains the draft
MAX_COMMAND_CHARS = 4_096
MAX_PATHS = 100
MAX_CHECKS = 20
MAX_REASON_CHARS = 2_000
_WIRE_FIELDS = ("by", "made_by", "attempt", "run", "branch", "summary", "result", "created_at", "changed_at")
_EMPTY_HINT = "Give a value, or omit the field."
By = Literal["person", "manager", "artifact"]  # "artifact" if rebuilt from the artifact, whose author is unknown


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
    """Return a reason without surrounding whitespace. Raise UsageError if it is empty or too long."""
    return check_text("reason", reason, MAX_REASON_CHARS, empty_hint=_EMPTY_HINT).strip()


def repository_path(field: str, path: object) -> str:
    """Return a path in the project's repository. Raise UsageError if it is invalid."""
    if not isinstance(path, str) or not is_text(path) or not path.strip():
        raise UsageError(f"{field}: expected a path such as .lore/notes.md")
    shown = repr(path[:100])
    parts = path.split("/")
    if len(path.encode()) > 500 or len(parts) > 32 or not path.isprintable():
        raise UsageError(f"{field}: invalid path {shown}: more than 500 bytes or 32 parts, or not printable")
    if any(part in ("", ".", "..") or "\\" in part or part.lower() == ".git" for part in parts):
        hint = "Use a path relative to the project, without '..' and '.git', such as src/app.py."
        raise UsageError(f"{field}: invalid path {shown}: not a normal path inside the project", hint=hint)
    if any(len(part.encode()) > 200 for part in parts):
        raise UsageError(f"{field}: invalid path {shown}: a part has more than 200 bytes")
    return path


@dataclass(frozen=True, kw_only=True)
class Draft:
    """The request of a commission: title, worker, prompt, paths, limits and checks."""

    title: str
    worker: str
    prompt: str  # all that the worker knows of the conversation in which the draft was written
    dependencies: tuple[str, ...] = ()  # paths that must exist before the commission starts
    artifacts: tuple[str, ...] = ()  # paths that must exist when the commission ends
    linked: tuple[str, ...] = ()  # paths that the worker should read
    max_turns: int | None = None
    max_budget_usd: float | None = None
    model: str | None = None
    checks: tuple[str, ...] = ()  # commands that must succeed at the end; only the user may set them
    reviewer: str | None = None  # name of the worker that must approve the work

    def check(self) -> None:
        """Raise UsageError if a field is invalid."""
        for field in ("title", "worker"):
            check_line(field, getattr(self, field), MAX_TITLE_CHARS, empty_hint=_EMPTY_HINT)
        hint = "Put a part of the text into a file of the project and link that file."
        check_text("prompt", self.prompt, max_bytes=MAX_PROMPT_BYTES, empty_hint=_EMPTY_HINT, long_hint=hint)
        for field in ("dependencies", "artifacts", "linked"):
            paths = [repository_path(field, path) for path in _items(field, getattr(self, field), MAX_PATHS)]
            if len(set(paths)) != len(paths):
                raise UsageError(f"{field}: duplicate path", hint="List each path once.")
        check_limits(max_turns=self.max_turns, max_budget_usd=self.max_budget_usd)
        for field in ("model", "reviewer"):
            if getattr(self, field) is not None:
                check_line(field, getattr(self, field), MAX_TITLE_CHARS, empty_hint=_EMPTY_HINT)
        for command in _items("checks", self.checks, MAX_CHECKS):
            check_text("checks", command, MAX_COMMAND_CHARS, empty_hint=_EMPTY_HINT)
        if len(json.dumps(self.as_dict())) > MAX_DRAFT_BYTES:
            raise UsageError(f"invalid commission: larger than {MAX_DRAFT_BYTES:,} bytes", hint=hint)

    def edit(self, changes: Mapping[str, Any]) -> Draft:
        """Return the draft with some fields changed. Raise UsageError if a field is unknown or invalid."""
        known = [field.name for field in fields(Draft)]
        for name in changes:
            if name not in known:
                hint = did_you_mean(name[:40], known)
                raise UsageError(f"unknown field {name[:40]!r} of a commission", hint=hint)
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
        """Return the fields, without limits and model if they are not set."""
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
    """The row of a commission."""

    id: str
    project: str
    draft: Draft
    status: Status
    reason: str | None = None  # for the last transition; only for people
    by: By = "person"
    made_by: str | None = None  # the run and the tool call of the manager, as `RUN#KEY`
    # Every transition clears these fields, unless it sets them.
    hold: Hold | None = None  # set while the status is in_progress and the run cannot continue
    conflict: tuple[str, ...] = ()  # the files of an unresolved merge conflict
    # Every new attempt sets or clears these fields.
    attempt: int = 0  # starts at 1, or 0 if never dispatched
    run: str | None = None  # id of the run of the current attempt
    branch: str | None = None
    summary: str | None = None  # the worker's last progress report
    result: Any = None
    submitted_at: str | None = None  # None until a result is accepted
    submitted_commit: str | None = None  # the commit that fulfilled the contract
    diffstat: Diffstat | None = None  # of the work, set before it is merged
    checkout_lost_at: str | None = None  # when the checkout was missing and was created again from the branch
    loss_reported_by: str | None = None  # key of the tool call whose result reports the lost checkout to the worker
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
        """Return the name of the checkout of the current attempt."""
        return f"{self.id}-{self.attempt}"

    @property
    def is_submitted(self) -> bool:
        """Return True if a result of this attempt was accepted."""
        return self.submitted_at is not None

    @property
    def explanation(self) -> str:
        """Return the reason for the current status, for people."""
        return self.hold.text(self.id) if self.hold is not None else self.reason or ""

    @property
    def next_command(self) -> str:
        """Return a hint with the next command."""
        id = self.id
        return {
            "pending": f"Start it: guild dispatch {id}",
            "blocked": f"Show its missing dependencies: guild show {id}",
            "dispatched": f"Wait for it: guild wait {id}. Cancel it: guild stop {id}",
            "in_progress": f"Cancel it: guild stop {id}",
            "failed": f"Try again: guild retry {id}",
            "cancelled": f"Try again: guild retry {id}",
        }.get(self.status, f"Show it: guild show {id}")

    def purpose(self, contract: Contract | None) -> CommissionPurpose:
        """Return the purpose of a run that works on this attempt, or of its review if `contract` is None."""
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
            "diffstat": asdict(self.diffstat) if self.diffstat is not None else None,
        }


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """The neighbours of a commission in the dependency graph."""

    missing: Sequence[str] = ()  # dependencies that do not exist yet
    after: Sequence[str] = ()  # ids of the commissions that produce its dependencies
    before: Sequence[str] = ()  # ids of the commissions that depend on its artifacts


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
