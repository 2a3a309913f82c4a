"""Run model: defines the types of a run (request, bounds, usage, status, end of a segment) and of an ask.

Parses the choices, amounts and dates that a user can answer with, and checks the values of limits.

Does no I/O: `runs.record.records` reads and writes the rows. The purpose of a run is in `runs.purpose`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from guildhall.core.clock import stamp
from guildhall.core.errors import ErrorInfo, LimitReached, UsageError
from guildhall.runs.purpose import PLAIN, CallPurpose, Purpose, PurposeT, RunKind, WorkflowPurpose, purpose_from_record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from guildhall.core.request_frame import RecordedFrame
    from guildhall.policy.rules import Mode

RunStatus = Literal["running", "waiting", "paused", "interrupted", "completed", "failed", "cancelled"]
ENDED: frozenset[RunStatus] = frozenset({"completed", "failed", "cancelled"})

# Why a run is paused: by the user, because the hall stopped, because its parent or its process stopped, or as a new
# fork. The next hall resumes the run only after `shutdown`.
PauseCause = Literal["user", "shutdown", "cut_off", "fork"]
WaitCause = Literal["ask", "message"]  # for an answer, or for the user's next message
StopCause = Literal[PauseCause, WaitCause]
_PAUSE_REASONS: dict[StopCause, str] = {
    "user": "by the user",
    "shutdown": "shutdown",
    "cut_off": "cut off",
    "ask": "ask",
    "message": "person",
}

RELAYED = "relayed"  # `Answer.by`, if another model has passed on the user's answer
HALL = "hall"  # the caller in the frame of a run that the hall creates by itself

AskKind = Literal["approval", "interrupted_call", "limit", "loop", "question", "conflict", "meeting"]
AskStatus = Literal["open", "answered", "applied", "expired", "withdrawn"]
# Asks of these kinds stay open when their run ends, and do not block it: the answer is for the activity of the run.
OUTLIVING_KINDS: frozenset[AskKind] = frozenset({"question", "conflict", "meeting"})


AMOUNT = "amount"  # as a choice of an ask: any positive number
FREE_TEXT = "words"  # as the only choice of an ask: any text
DATE = "date"  # as a choice of an ask: the ask is hidden until this date
_SYNONYMS = {"approve": "yes", "deny": "no"}


def parse_choice(choices: Collection[str], typed: str) -> str | None:
    """Return the choice that the user typed, in full or by its first letters, an amount or a date. None if invalid."""
    if FREE_TEXT in choices:
        return typed.strip() or None
    word = typed.strip().lower()
    word = _SYNONYMS.get(word, word)
    found = [choice for choice in choices if choice not in (AMOUNT, DATE) and word and choice.startswith(word)]
    if len(found) == 1:
        return found[0]
    if DATE in choices and (date := parse_date(typed)) is not None:
        return date
    return word if AMOUNT in choices and parse_amount(word) is not None else None


def format_choices(choices: Collection[str]) -> str:
    others = {AMOUNT: "an amount such as 2.50", FREE_TEXT: "a text", DATE: "a date such as 2027-01-31"}
    return ", ".join(others.get(choice, choice) for choice in choices)


def parse_amount(text: str) -> float | None:
    """Return the positive number in a text, or None."""
    try:
        amount = float(text.removeprefix("$"))
    except ValueError:
        return None
    return amount if 0 < amount < 1_000_000 else None


def parse_date(text: str) -> str | None:
    """Return the stamp of an ISO date or time, or None. Without a zone it is local time."""
    try:
        return stamp(datetime.fromisoformat(text.strip()).astimezone())
    except (ValueError, OverflowError):
        return None


def check_limits(
    max_turns: object = None,
    max_tokens: object = None,
    max_budget_usd: object = None,
    budget: object = None,
    *,
    names: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raise UsageError if a limit is not positive and finite. `names`: other names of the limits for the message."""
    for name, value in (("max_turns", max_turns), ("max_tokens", max_tokens)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value <= 0):
            raise UsageError(f"{names.get(name, name)}: {value!r} is not a whole number above zero")
    for name, value in (("max_budget_usd", max_budget_usd), ("budget", budget)):
        if value is None:
            continue
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            hint = "Leave it out for the limit of the settings. `budget: none` in config.yaml removes that limit."
            raise UsageError(f"{names.get(name, name)}: {value!r} is not an amount of dollars above zero", hint=hint)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The limits of a run. None means no limit. At `budget` the run waits and asks, at another limit it fails."""

    max_turns: int | None = 150
    max_tokens: int | None = None  # sent and received
    max_budget_usd: float | None = None
    timeout: float | None = None  # seconds, not counting those in which the run waits
    budget: float | None = None  # dollars of the whole command


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """The request to run a worker. Stored with the run, which is assembled from it again."""

    worker: str  # a name, `project/name`, or the path of a file
    input: str
    attachments: tuple[str, ...] = ()  # paths that the user typed
    model: str | None = None  # used if the worker has none
    override_model: str | None = None  # used instead of the worker's model
    max_turns: int | None = None  # this and the next two replace the worker's own limits
    max_tokens: int | None = None
    max_budget_usd: float | None = None
    budget: float | None = None  # of the whole command, instead of the budget in the settings
    mode: Mode = "ask"
    purpose: Purpose = PLAIN

    def __post_init__(self) -> None:
        check_limits(self.max_turns, self.max_tokens, self.max_budget_usd, self.budget)

    @property
    def asks_model(self) -> bool:
        """Return True if the run may ask a model itself."""
        return not isinstance(self.purpose, CallPurpose | WorkflowPurpose)


def request_from_record(record: Mapping[str, Any]) -> RunRequest:
    """Return the request that was stored as a plain dict. Other keys of the record are ignored."""
    known: dict[str, Any] = {one.name: record[one.name] for one in fields(RunRequest) if one.name in record}
    known["attachments"] = tuple(known["attachments"])
    known["purpose"] = purpose_from_record(known["purpose"])
    return RunRequest(**known)


@dataclass(frozen=True, kw_only=True)
class ForkOrigin:
    """The run and the journal entry from which a run was forked."""

    run: str
    at: int


@dataclass(frozen=True, kw_only=True)
class SegmentEnd:
    """How a segment of a run ended: the run ended, waits or is paused."""

    status: RunStatus
    pause: StopCause | None = None  # why the run is paused or waits
    reason: str | None = None  # for people; no code reads it
    error: ErrorInfo | None = None
    output: Any = None

    @staticmethod
    def paused(cause: PauseCause) -> SegmentEnd:
        return SegmentEnd(status="paused", pause=cause, reason=_PAUSE_REASONS.get(cause))

    @staticmethod
    def waiting(cause: WaitCause) -> SegmentEnd:
        return SegmentEnd(status="waiting", pause=cause, reason=_PAUSE_REASONS.get(cause))

    @property
    def is_at_limit(self) -> bool:
        """Return True if the run failed because it reached a limit."""
        return self.error is not None and self.error["code"] == LimitReached.code


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The usage of a run so far. The cost is None if the model has no price."""

    turns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None

    @staticmethod
    def total(usages: Iterable[Usage]) -> Usage:
        every = list(usages)
        known = [usage.cost_usd for usage in every if usage.cost_usd is not None]
        return Usage(
            turns=sum(usage.turns for usage in every),
            input_tokens=sum(usage.input_tokens for usage in every),
            output_tokens=sum(usage.output_tokens for usage in every),
            cost_usd=round(sum(known), 9) if known else None,  # sums of floats leave a rest
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A recorded run."""

    id: str
    root: str
    parent: str | None
    ordinal: int = 0  # index among the runs of its worker below the root run
    worker: str
    model: str
    status: RunStatus
    pause: StopCause | None = None  # why the run is paused or waits
    reason: str | None  # for people; no code reads it
    request: RunRequest
    frame: RecordedFrame
    error: ErrorInfo | None
    output: Any
    created_at: str
    ended_at: str | None
    forked_from: ForkOrigin | None = None
    usage: Usage = field(default_factory=Usage)  # without child runs
    cost_usd: float | None = None  # of a root run: with child runs

    @property
    def purpose(self) -> Purpose:
        return self.request.purpose

    @property
    def kind(self) -> RunKind:
        return self.request.purpose.kind

    def purpose_as(self, purpose: type[PurposeT]) -> PurposeT | None:
        """Return the purpose of the run if it is of this type, or None."""
        return self.request.purpose if isinstance(self.request.purpose, purpose) else None

    @property
    def error_code(self) -> str | None:
        return self.error["code"] if self.error is not None else None

    @property
    def needs_user(self) -> bool:
        """Return True if only the user can resume the run."""
        return self.status == "waiting" or (self.status == "paused" and self.pause != "shutdown")

    def as_dict(self) -> dict[str, Any]:
        """Return the run as `--json` prints it."""
        return {
            "run": self.id,
            "kind": self.kind,
            "root": self.root,
            "parent": self.parent,
            "worker": self.worker,
            "model": self.model,
            "status": self.status,
            "pause": self.pause,
            "reason": self.reason,
            "input": self.request.input,
            "output": self.output,
            "error": self.error,
            "usage": self.usage.as_dict(),
            "cost_usd": self.cost_usd,
            "forked_from": asdict(self.forked_from) if self.forked_from else None,
            "created_at": self.created_at,
            "ended_at": self.ended_at,
        }


class ConversationCall(TypedDict):
    """A tool call of the model, as the conversation of a run shows it."""

    id: str
    tool: str
    arguments: Any


class ConversationMessage(TypedDict):
    """A message to the model or of the model, as the conversation of a run shows it."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Any  # text, except for results of tools that are JSON
    calls: NotRequired[list[ConversationCall]]  # of an assistant
    id: NotRequired[str]  # of a tool: the id of the call
    tool: NotRequired[str]
    is_error: NotRequired[bool]


@dataclass(frozen=True, kw_only=True)
class Question:
    """The text of an ask."""

    title: str
    body: str  # shown in full, escaped
    choices: tuple[str, ...]  # words, or AMOUNT, DATE, FREE_TEXT
    after: str | None = None  # the ask is hidden until this time


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The user's answer to an ask."""

    choice: str
    note: str | None = None
    by: str = "person"


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A request that waits for the user."""

    id: str
    run: str
    root: str
    kind: AskKind
    key: str  # of the call that asks
    subject: str  # fingerprint
    question: Question
    status: AskStatus = "open"
    answer: Answer | None = None
    created_at: str
    expires_at: str | None = None
    closed_at: str | None = None

    @property
    def outcome(self) -> str:
        """Return the user's choice, or the status if there is no answer."""
        return self.answer.choice if self.answer else self.status

    @property
    def closed_reason(self) -> str:
        return f"was answered: {self.answer.choice}" if self.answer else f"is {self.status}"

    def as_dict(self) -> dict[str, Any]:
        """Return the ask as `--json` prints it."""
        return {
            "ask": self.id,
            "run": self.run,
            "root": self.root,
            "kind": self.kind,
            "status": self.status,
            "title": self.question.title,
            "body": self.question.body,
            "choices": list(self.question.choices),
            "after": self.question.after,
            "answer": asdict(self.answer) if self.answer else None,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "closed_at": self.closed_at,
        }
