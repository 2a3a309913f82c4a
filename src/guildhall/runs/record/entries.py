"""Journal entries: define a payload type for each kind of entry, and convert payloads to their stored form.

A field without a default is always stored, a field with a default only if it is set. No other module knows the stored
form. Does not append or query entries: `runs.record.journal` does.

Invariant: `docs/journal.md` has the kinds and the fields of this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NotRequired, TypedDict, TypeVar, dataclass_transform

from guildhall.core.errors import ErrorInfo, InvalidFile

if TYPE_CHECKING:
    from guildhall.policy.rules import Mode
    from guildhall.runs.model import RunStatus, SegmentEnd, StopCause


class TokenUsage(TypedDict):
    """The tokens of a model call."""

    input_tokens: int  # including the cached tokens
    output_tokens: int
    cache_read_tokens: NotRequired[int]
    cache_write_tokens: NotRequired[int]


PAYLOADS: dict[str, type[Payload]] = {}


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True, kw_only=True)
class Payload:
    """The data of a journal entry. A subclass is a dataclass for one kind of entry."""

    kind: ClassVar[str]

    def __init_subclass__(cls, *, kind: str | None = None) -> None:
        """Make the class a dataclass, and register it as the payload of this kind of entry."""
        dataclass(frozen=True, kw_only=True)(cls)
        if kind is not None:
            cls.kind = kind
            PAYLOADS[kind] = cls

    def to_record(self) -> dict[str, Any]:
        optional = _optional(type(self))
        return {name: value for name, value in vars(self).items() if value or name not in optional}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Payload:
        return cls(**record)


@cache
def _optional(payload: type[Payload]) -> frozenset[str]:
    optional = (item for item in fields(payload) if item.default is not MISSING or item.default_factory is not MISSING)
    return frozenset(item.name for item in optional)


class Assembly(Payload, kind="assembled"):
    """The run as it was assembled. Always entry 0."""

    system_prompt: str
    first_message: str
    attachments: Sequence[Mapping[str, Any]]  # name, type, size and digest of each file
    tools: Sequence[Mapping[str, Any]]  # as the model receives them
    output_schema: Mapping[str, Any] | None
    hash: str  # fingerprint of the five fields above
    memory: str  # the memory block at the end of the system prompt
    worker: Mapping[str, Any]  # enough to rebuild the worker when its file is gone
    model: str
    mode: Mode
    bounds: Mapping[str, Any]
    repeatable: Sequence[str]  # tools whose calls may be repeated after a crash
    above: Sequence[str]  # capabilities of the runs above and around this one
    called: bool = False  # another run called this run
    converses: bool = False  # the run is a conversation
    given: Mapping[str, Sequence[Mapping[str, Any]]]  # tools of the caller's own process, by toolbox
    servers: Mapping[str, Sequence[Mapping[str, Any]]]  # tools of MCP servers, by server
    member_tools: Mapping[str, Any] | None = None  # members that provide toolboxes or accept jobs
    activation: Mapping[str, Any] | None = None  # the result of the package's function
    files: Sequence[Mapping[str, Any]] = ()  # the attachments with their bytes, which no command shows


class ModelAsked(Payload, kind="model_asked"):
    """A model call, before it is made."""

    message: Sequence[Mapping[str, Any]]  # the last message of the conversation
    tools: str  # fingerprint of the tool list
    answers: str  # fingerprint of the model responses so far
    attempt: int
    reserved_usd: float | None
    reserved_tokens: int
    max_tokens: int | None
    prefix_break: str | None = None  # where the conversation does not continue the previous model call
    copied: bool = False  # a fork copied the entry, and another run paid for the call


class ModelCallFailed(Payload, kind="model_failed"):
    """A failed model call."""

    code: str
    message: str
    hint: str | None = None
    where: str | None = None
    status: int | None = None  # HTTP status
    transient: bool  # the model door calls again
    cost_usd: float | None  # None if the provider does not charge for the call
    copied: bool = False


class ModelAnswered(Payload, kind="model_answered"):
    """A model response, before the run receives it."""

    response: Mapping[str, Any]
    usage: TokenUsage
    cost_usd: float | None
    cut_off: bool = False  # the user interrupted the response; usage and cost are the reservation
    copied: bool = False


class ToolRefused(Payload, kind="tool_refused"):
    """A tool call that was not made."""

    tool: str
    arguments: Mapping[str, Any] | None
    reason: str | None
    rule: str | None
    result: Mapping[str, Any]  # for the model
    repeats: int = 0  # equal calls before this call; if set, the last block of the result is a note


class ToolAsked(Payload, kind="tool_asked"):
    """A tool call that waits for approval."""

    tool: str
    arguments: Mapping[str, Any] | None
    reason: str
    ask: str


class ToolStarted(Payload, kind="tool_started"):
    """A tool call, before it is made."""

    tool: str
    arguments: Mapping[str, Any] | None
    decision: str
    rule: str | None
    reason: str | None


class ToolDoubted(Payload, kind="tool_doubted"):
    """An interrupted tool call. The hall asks the user whether the call took effect."""

    tool: str
    arguments: Mapping[str, Any] | None
    ask: str


class ToolEnded(Payload, kind="tool_ended"):
    """The result of a tool call, before the run receives it."""

    result: Mapping[str, Any]
    repeats: int = 0  # as in `ToolRefused`


class WorkerCreated(Payload, kind="worker_created"):
    """A worker that the run has written and saved."""

    name: str
    digest: str
    files: Sequence[str]


class LimitAsked(Payload, kind="limit_asked"):
    """A reached limit. The hall asks the user for more."""

    limit: str
    value: float
    ask: str


class LoopAsked(Payload, kind="loop_asked"):
    """A loop of agents that only exchange messages. The hall asks the user whether they may continue."""

    title: str
    ask: str


class QuestionAsked(Payload, kind="question_asked"):
    """A question from the worker of a job or commission to the user."""

    question: str
    wait: bool
    ask: str


class Answered(Payload, kind="answered"):
    """The answer to an ask, as the run applied it."""

    ask: str
    choice: str
    note: str | None
    by: str
    bounds: Mapping[str, Any] | None = None  # the raised limits


class Listening(Payload, kind="listening"):
    """A conversation has finished its turn and waits for the user's next message."""


class Said(Payload, kind="said"):
    """A user message, before the run receives it."""

    words: str


class Crashed(Payload, kind="crashed"):
    """A crash of the runtime process. The run continues in another process."""

    code: str
    message: str
    hint: str | None = None
    where: str | None = None


class Resumed(Payload, kind="resumed"):
    """A resume of the run."""

    was: RunStatus  # status before the resume
    reason: str | None
    bounds: Mapping[str, Any] | None = None  # the raised limits


@dataclass(frozen=True, kw_only=True)
class Unjudged:
    """The segment end that the owner of the run replaced."""

    status: RunStatus
    reason: str | None = None
    error: ErrorInfo | None = None
    output: Any = None

    @staticmethod
    def of(end: SegmentEnd) -> Unjudged:
        return Unjudged(status=end.status, reason=end.reason, error=end.error, output=end.output)


class _Stop(Payload):
    """The end of a run segment."""

    status: RunStatus
    reason: str | None
    unjudged: Unjudged | None = None

    def to_record(self) -> dict[str, Any]:
        record = super().to_record()
        return record if self.unjudged is None else {**record, "unjudged": vars(self.unjudged)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Payload:
        fields: dict[str, Any] = dict(record)
        if (unjudged := fields.get("unjudged")) is not None:
            fields["unjudged"] = Unjudged(**unjudged)
        return cls(**fields)


class Paused(_Stop, kind="paused"):
    """The end of a segment after which the run can be resumed."""

    pause: StopCause | None


class Ended(_Stop, kind="ended"):
    """The end of the run."""

    error: ErrorInfo | None
    output: Any


PayloadT = TypeVar("PayloadT", bound=Payload)
PayloadT_co = TypeVar("PayloadT_co", bound=Payload, covariant=True)
ToolBegan = ToolStarted | ToolRefused | ToolAsked


@dataclass(frozen=True, kw_only=True)
class Entry(Generic[PayloadT_co]):
    """One entry of a run's journal."""

    run: str
    seq: int
    key: str | None
    data: PayloadT_co
    at: str

    @property
    def kind(self) -> str:
        return self.data.kind

    def as_dict(self) -> dict[str, Any]:
        """Return the entry as it is stored and as `--json` prints it."""
        return {
            "run": self.run,
            "seq": self.seq,
            "kind": self.kind,
            "key": self.key,
            "at": self.at,
            "data": self.data.to_record(),
        }

    @staticmethod
    def from_dict(record: Mapping[str, Any]) -> Entry[Payload]:
        """Return the entry that `as_dict` returned. Raise InvalidFile if it is damaged."""
        try:
            data = PAYLOADS[record["kind"]].from_record(record["data"])
            return Entry(run=record["run"], seq=record["seq"], key=record["key"], data=data, at=record["at"])
        except (KeyError, TypeError) as error:
            name = f"journal entry {record.get('seq')} ({record.get('kind')}) of {record.get('run')}"
            hint = "Another version of Guildhall may have written it. Update Guildhall, or start a new run."
            raise InvalidFile(f"invalid {name}: {type(error).__name__}: {error}", hint=hint) from None

    to_wire, from_wire = as_dict, from_dict  # between the hall and its clients
