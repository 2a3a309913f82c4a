"""Run model: defines the types of runs and asks, parses the answers of the user, and checks limits.

Does no I/O: `runs.record.records` reads and writes the rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from guildhall.core.clock import stamp
from guildhall.core.errors import ErrorInfo, LimitReached, UsageError
from guildhall.runs.purpose import PLAIN, CallPurpose, Purpose, PurposeT, RunKind, WorkflowPurpose, purpose_from_record

if TYPE_CHECKING:
    from guildhall.core.request_frame import RecordedFrame
    from guildhall.policy.rules import Mode

RunStatus = Literal["running", "waiting", "paused", "interrupted", "completed", "failed", "cancelled"]
ENDED: frozenset[RunStatus] = frozenset({"completed", "failed", "cancelled"})

# Why a run is paused: by the user, because the hall stopped, because its parent or its process stopped, or as a new
# fork. The next hall resumes the run only after `shutdown`.
PauseCause = Literal["user", "shutdown", "cut_off", "fork"]
WaitCause = Literal["ask", "message"]  # the run waits for an answer, or for the next user message
StopCause = Literal[PauseCause, WaitCause]
_PAUSE_REASONS: dict[StopCause, str] = {
    "user": "by the user",
    "shutdown": "shutdown",
    "cut_off": "cut off",
    "ask": "ask",
    "message": "person",
}

RELAYED = "relayed"  # `Answer.by` if another model relayed the user's answer
HALL = "hall"  # the caller in the frame of a run that the hall creates
NO_INPUT = "Begin. Your instructions describe the task."  # first message of a run without an input

AskKind = Literal["approval", "interrupted_call", "limit", "loop", "question", "conflict", "meeting"]
AskStatus = Literal["open", "answered", "applied", "expired", "withdrawn"]
# Asks of these kinds do not block their run and stay open when the run ends. The answer goes to the activity.
OUTLIVING_KINDS: frozenset[AskKind] = frozenset({"question", "conflict", "meeting"})

# Choices of an ask that stand for many answers.
AMOUNT = "amount"  # any positive number
FREE_TEXT = "words"  # any text; the only choice of its ask
DATE = "date"  # any date; the ask is hidden until then
_SYNONYMS = {"approve": "yes", "deny": "no"}


def parse_choice(choices: Collection[str], typed: str) -> str | None:
    """Return the choice, amount or date that the user typed, or None. The first letters of a choice are enough."""
    if FREE_TEXT in choices:
        return typed.strip() or None
    word = typed.strip().lower()
    word = _SYNONYMS.get(word, word)
    matches = [choice for choice in choices if choice not in (AMOUNT, DATE) and word and choice.startswith(word)]
    if len(matches) == 1:
        return matches[0]
    if DATE in choices and (date := parse_date(typed)) is not None:
        return date
    return word if AMOUNT in choices and parse_amount(word) is not None else None


def format_choices(choices: Collection[str]) -> str:
    descriptions = {AMOUNT: "an amount such as 2.50", FREE_TEXT: "any text", DATE: "a date such as 2027-01-31"}
    return ", ".join(descriptions.get(choice, choice) for choice in choices)


def parse_amount(text: str) -> float | None:
    """Return the amount in dollars, or None if the text is not a number above 0 and below a million."""
    try:
        amount = float(text.removeprefix("$"))
    except ValueError:
        return None
    return amount if 0 < amount < 1_000_000 else None


def parse_date(text: str) -> str | None:
    """Return the stamp of an ISO date or time, or None. The default time zone is the local zone."""
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
            raise UsageError(f"{names.get(name, name)}: expected a whole number above 0, got {value!r}")
    for name, value in (("max_budget_usd", max_budget_usd), ("budget", budget)):
        if value is None:
            continue
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            hint = "Omit it to use the limit of the worker file."
            if name == "budget":
                hint = "Omit it to use the budget of config.yaml. `budget: none` there means no limit."
            raise UsageError(f"{names.get(name, name)}: expected US dollars above 0, got {value!r}", hint=hint)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The limits of a run. None means no limit. At `budget` the run waits and asks, at another limit it fails."""

    max_turns: int | None = 150
    max_tokens: int | None = None  # input and output, with child runs
    max_budget_usd: float | None = None
    max_repeats: int | None = 10  # repeats of a tool call in a row with equal results
    timeout: float | None = None  # running time in seconds, without the time in which the run waits
    budget: float | None = None  # maximum cost of the whole command in dollars


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """The request to run a worker. The hall stores it with the run and assembles the run from it on resume."""

    worker: str  # a name, `project/name`, or the path of a file
    input: str
    attachments: tuple[str, ...] = ()  # paths that the user typed
    model: str | None = None  # used if the worker has none
    override_model: str | None = None  # used instead of the worker's model
    max_turns: int | None = None  # this limit and the next two replace limits of the worker
    max_tokens: int | None = None
    max_budget_usd: float | None = None
    budget: float | None = None  # replaces the budget in the settings
    mode: Mode = "ask"
    purpose: Purpose = PLAIN

    def __post_init__(self) -> None:
        check_limits(self.max_turns, self.max_tokens, self.max_budget_usd, self.budget)

    @property
    def calls_model(self) -> bool:
        """Return True if the run itself calls a model."""
        return not isinstance(self.purpose, CallPurpose | WorkflowPurpose)


def request_from_record(record: Mapping[str, Any]) -> RunRequest:
    """Return the request from its stored fields. Ignore other keys of the record."""
    values: dict[str, Any] = {item.name: record[item.name] for item in fields(RunRequest) if item.name in record}
    values["attachments"] = tuple(values["attachments"])
    values["purpose"] = purpose_from_record(values["purpose"])
    return RunRequest(**values)


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
    input_tokens: int = 0  # including the cached tokens
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float | None = None

    @staticmethod
    def total(usages: Iterable[Usage]) -> Usage:
        items = list(usages)
        costs = [usage.cost_usd for usage in items if usage.cost_usd is not None]
        names = [item.name for item in fields(Usage) if item.name != "cost_usd"]
        return Usage(
            **{name: sum(getattr(usage, name) for usage in items) for name in names},
            cost_usd=round(sum(costs), 9) if costs else None,  # sums of floats have rounding errors
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
    cost_usd: float | None = None  # with child runs if this is a root run

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
    """A message to or from the model, as the conversation of a run shows it."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Any  # text, except for JSON results of tools
    calls: NotRequired[list[ConversationCall]]  # only in messages of the assistant
    id: NotRequired[str]  # id of the call, only in tool messages
    tool: NotRequired[str]
    is_error: NotRequired[bool]


@dataclass(frozen=True, kw_only=True)
class Question:
    """The text of an ask."""

    title: str
    body: str  # the command line shows it in full, escaped
    choices: tuple[str, ...]  # words, or AMOUNT, DATE, FREE_TEXT
    after: str | None = None  # the ask is hidden until this time
    because: str | None = None  # why an approval is needed: the rules that require it, and their descriptions

    @property
    def details(self) -> str:
        """Return the text below the title."""
        return question_details(self.body, self.because)

    @property
    def text(self) -> str:
        return f"{self.title}\n{self.details}".rstrip()


def question_details(body: str, because: str | None) -> str:
    """Return the reason of an ask on one line, and its body. It comes first, so that no argument can look like it."""
    return f"because: {' '.join(because.split())}\n{body}" if because else body


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
    key: str  # key of the call that opened the ask
    subject: str  # fingerprint of the subject
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
        """Return a predicate for the subject "it": `was already answered with 'yes'`, or `is expired`."""
        return f"was already answered with {self.answer.choice!r}" if self.answer else f"is {self.status}"

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
            "because": self.question.because,
            "choices": list(self.question.choices),
            "after": self.question.after,
            "answer": asdict(self.answer) if self.answer else None,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "closed_at": self.closed_at,
        }
