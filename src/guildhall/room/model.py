"""Types of a room: actors, messages, mail, proposals, votes and events, and the checks of texts.

Does not have I/O. Queries are in `records.py` and `document_records.py`.

Invariant: an actor is derived from the connection, never from an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from guildhall.core import text_checks
from guildhall.core.errors import UsageError
from guildhall.core.ids import PROPOSAL, digest, is_name

PERSON = "person"  # the user; @person notifies no agent
SYSTEM = "system"  # the room itself
ALL = "all"  # every agent except the sender
RESERVED = frozenset({PERSON, SYSTEM, ALL})

MAX_HOPS = 20
MAX_REPEATS = 3
HOLDING = "holding"  # key in `RoomRecord.settings`
MAX_QUOTE_CHARS = 4_000  # a longer quoted part of a message becomes a resource
MAX_OWN_CHARS = 16_000  # a longer text by the sender becomes a resource
MAX_TEXT_BYTES = 1_000_000  # limit for a message, a document or a resource
MAX_LINE_CHARS = 500  # limit for a title, an option, a reason or a state

MessageKind = Literal["message", "system", "proposal", "resolved", "expired", "assignment", "suggestion", "answer"]
DeliveryStatus = Literal["unread", "held", "done", "dead"]
LOW, NORMAL, HIGH = 0, 1, 2
PRIORITIES = ("low", "normal", "high")


@dataclass(frozen=True)
class TextPart:
    """A part of a message: text by the sender, or quoted text. Quoted text contains no mentions."""

    text: str
    is_quoted: bool = False


@dataclass(frozen=True)
class MessageText:
    """The text of a message, in parts."""

    parts: tuple[TextPart, ...]

    @staticmethod
    def own(text: str) -> MessageText:
        return MessageText((TextPart(text),))

    @staticmethod
    def quote(text: str) -> MessageText:
        return MessageText((TextPart(text, is_quoted=True),))

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)

    def as_list(self) -> list[list[Any]]:
        return [[part.text, part.is_quoted] for part in self.parts]

    @staticmethod
    def from_list(data: list[list[Any]]) -> MessageText:
        return MessageText(tuple(TextPart(text, is_quoted) for text, is_quoted in data))


@dataclass(frozen=True, kw_only=True)
class Actor:
    """The agent, user or system that performs an operation. A run and a key identify one call of that run."""

    name: str
    run: str | None = None
    key: str | None = None

    @staticmethod
    def person() -> Actor:
        return Actor(name=PERSON)

    @staticmethod
    def system(run: str | None = None, key: str | None = None) -> Actor:
        return Actor(name=SYSTEM, run=run, key=key)


@dataclass(frozen=True, kw_only=True)
class LogEntry:
    """An operation in the log of a room, with its actor, arguments and result."""

    place: int
    op: str
    actor: Actor
    arguments: Mapping[str, Any]
    result: Mapping[str, Any]
    at: str


@dataclass(frozen=True, kw_only=True)
class RoomRecord:
    """The row of a room."""

    id: str
    project: str
    workflow: str
    tag: str
    created_at: str
    closed_at: str | None
    documents: str  # "file:/folder" or "sqlite"
    owner: str | None
    roles: Mapping[str, str]
    settings: Mapping[str, Any]

    @property
    def max_hops(self) -> int:
        return self.settings.get("max_hops", MAX_HOPS)

    @property
    def max_repeats(self) -> int:
        return self.settings.get("max_repeats", MAX_REPEATS)

    @property
    def is_holding(self) -> bool:
        """Return True if the room holds messages between agents, because they have talked for too long."""
        return bool(self.settings.get(HOLDING))

    @property
    def documents_folder(self) -> Path | None:
        """Return the folder of the documents, or None if the database has them."""
        kind, _, folder = self.documents.partition(":")
        return Path(folder) if kind == "file" else None

    @property
    def export_folder(self) -> Path | None:
        """Return the folder of channel.md and _state/ (`provider: file`), or None."""
        folder = self.settings.get("projection")
        return Path(folder) if folder else None


@dataclass(frozen=True, kw_only=True)
class RoomAgent:
    """An agent of a room, with the status that it has set for itself."""

    agent: str
    task: str | None = None
    state: str | None = None


@dataclass(frozen=True, kw_only=True)
class Message:
    """An entry of the channel. Programs read its kind from `kind`, never from its content."""

    id: int
    kind: MessageKind
    sender: str
    content: str
    mentions: tuple[str, ...]
    resource: str | None
    hops: int
    run: str | None
    at: str

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "mentions": list(self.mentions)}


@dataclass(frozen=True, kw_only=True)
class Mail:
    """A message in an agent's inbox."""

    message: Message
    priority: int

    @property
    def urgency(self) -> str:
        return PRIORITIES[self.priority]


@dataclass(frozen=True, kw_only=True)
class ShownInbox:
    """The part of an inbox that a run has read."""

    last_message_number: int = 0
    hops: int | None = None  # the largest number of hops; None if the run has read no message


_NAME_FIELDS = ("reached", "missed", "overlooked")


@dataclass(frozen=True, kw_only=True)
class PostResult:
    """The result of posting a message: its recipients, its invalid mentions, and the state of its delivery."""

    id: int
    reached: tuple[str, ...]
    missed: tuple[str, ...] = ()
    overlooked: tuple[str, ...] = ()  # agents that are named only inside code or quotes
    held: bool = False  # True if the user decides about the delivery
    resource: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), **{name: list(getattr(self, name)) for name in _NAME_FIELDS}}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> PostResult:
        names = {name: tuple(data[name]) for name in _NAME_FIELDS}
        return PostResult(id=data["id"], held=data["held"], resource=data["resource"], **names)


ProposalType = Literal["election", "decision", "approval", "assignment"]
Resolution = Literal["plurality", "majority", "unanimous"]
TieBreak = Literal["first", "random", "creator"]
ProposalStatus = Literal["open", "resolved", "rejected", "expired", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A vote of the agents. `eligible` is fixed when the proposal is created."""

    number: int
    type: ProposalType
    title: str
    options: tuple[str, ...]
    resolution: Resolution
    binding: bool
    quorum: int
    tie_break: TieBreak
    guards: tuple[str, ...]  # tools and documents that stay closed until a binding approval passes
    eligible: tuple[str, ...]
    creator: str
    status: ProposalStatus = "open"
    result: str | None = None
    reason: str | None = None
    hops: int = 0
    created_at: str
    expires_at: str | None = None
    ended_at: str | None = None
    archived: bool = False

    @property
    def id(self) -> str:
        return f"{PROPOSAL}-{self.number}"

    @property
    def form(self) -> str:
        return f"{self.type}, {self.resolution}, {'binding' if self.binding else 'advisory'}"

    @property
    def has_passed(self) -> bool:
        """Return True if an approval was granted, which is its first option."""
        return self.status == "resolved" and self.result == self.options[0]

    def as_dict(self) -> dict[str, Any]:
        shown = {name: getattr(self, name) for name in ("id", "type", "title", "resolution", "binding", "quorum")}
        listed = {name: list(getattr(self, name)) for name in ("options", "guards", "eligible")}
        rest = ("tie_break", "creator", "status", "result", "reason", "created_at", "expires_at", "ended_at")
        return {**shown, **listed, **{name: getattr(self, name) for name in rest}}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The final status of a proposal, with its result and the reason."""

    status: ProposalStatus
    result: str | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class Vote:
    """The vote of one agent."""

    agent: str
    choice: str
    reason: str | None = None


RoomEventType = Literal["message", "held", "proposal", "vote", "document", "status", "no_action", "trouble"]


@dataclass(frozen=True, kw_only=True)
class RoomEvent:
    """A change in a room, published after its commit."""

    type: RoomEventType
    room: str
    actor: str
    at: str
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class RoomListener:
    """Callbacks after a commit.

    `wake` receives a room and its agents with new mail. It is only a hint: the mail is unread in the database.
    """

    wake: Callable[[str, frozenset[str]], None] = lambda room, agents: None
    on_event: Callable[[RoomEvent], None] = lambda event: None


def check_agent_name(name: str) -> None:
    """Raise UsageError if a name is not valid for an agent."""
    if not is_name(name) or name.lower() in RESERVED:
        reason = "the name is reserved" if is_name(name) else "use letters, digits, '_', '-' and '.'"
        raise UsageError(f"invalid agent name {name[:80]!a}: {reason}", hint="Rename the agent.")


def check_text(text: str, what: str, *, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Return the text as bytes. Raise UsageError if it is not text or has more than `max_bytes` bytes."""
    return text_checks.check_text(what, text, max_bytes=max_bytes, allow_empty=True, long_hint="Shorten it.").encode()


def check_line(text: str, what: str) -> str:
    """Return a single line without surrounding blanks. Raise UsageError for an empty, long or multi-line text."""
    return text_checks.check_line(what, text.strip(), MAX_LINE_CHARS, empty_hint="Write at least one character.")


def content_hash(content: str) -> str:
    """Return the hash of the content of a document or resource."""
    return digest(content.encode())
