"""Rooms as data: the types of actors, messages, mail, proposals, votes and events, and the checks of texts.

Does not have I/O: the SQL is in `records.py` and `shared_records.py`.

Invariant: an actor is derived from the connection, never from an argument. The run and the key of an actor identify a
call, and a repeated call has no second effect.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from guildhall.core import text as text_checks
from guildhall.core.errors import UsageError
from guildhall.core.ids import PROPOSAL, digest, is_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PERSON = "person"  # whoever types commands; reached by @person, woken by nothing
SYSTEM = "system"  # the room itself
ALL = "all"  # every seat but the sender's
RESERVED = frozenset({PERSON, SYSTEM, ALL})

MAX_HOPS = 20
MAX_REPEATS = 3
HOLDING = "holding"  # among the settings of a room
LONG = 4_000  # characters: a longer message becomes a resource
MAX_TEXT = 1_000_000  # bytes of a message, a document, a resource
MAX_LINE = 500  # characters of a title, an option, a reason, a state

MessageKind = Literal["message", "system", "proposal", "resolved", "expired", "assignment", "suggestion"]
DeliveryStatus = Literal["unread", "held", "done", "dead"]
LOW, NORMAL, HIGH = 0, 1, 2
PRIORITIES = ("low", "normal", "high")


@dataclass(frozen=True)
class Piece:
    """A part of what is said: the speaker's own words, or text from elsewhere, in which nobody is mentioned."""

    text: str
    quoted: bool = False


@dataclass(frozen=True)
class Said:
    """What is said, in pieces."""

    pieces: tuple[Piece, ...]

    @staticmethod
    def own(text: str) -> Said:
        return Said((Piece(text),))

    @staticmethod
    def quote(text: str) -> Said:
        return Said((Piece(text, quoted=True),))

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    def as_list(self) -> list[list[Any]]:
        return [[piece.text, piece.quoted] for piece in self.pieces]

    @staticmethod
    def from_list(data: list[list[Any]]) -> Said:
        return Said(tuple(Piece(text, quoted) for text, quoted in data))


@dataclass(frozen=True, kw_only=True)
class Actor:
    """Who performs an operation. With a run and a key, it is one call of that run."""

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
    """An operation in the log of a room: who performed it, with which arguments and which result."""

    place: int
    op: str
    actor: Actor
    arguments: Mapping[str, Any]
    result: Mapping[str, Any]
    at: str


@dataclass(frozen=True, kw_only=True)
class RoomRecord:
    """A room as the database knows it."""

    id: str
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
    def holding(self) -> bool:
        """Whether what agents say to one another is held back, because they have only talked for too long."""
        return bool(self.settings.get(HOLDING))

    @property
    def folder(self) -> Path | None:
        """Where the documents are files; None: they are in the database."""
        kind, _, folder = self.documents.partition(":")
        return Path(folder) if kind == "file" else None

    @property
    def projection(self) -> Path | None:
        """Where channel.md and _state/ are written after each change, for `provider: file`."""
        folder = self.settings.get("projection")
        return Path(folder) if folder else None


@dataclass(frozen=True, kw_only=True)
class Seat:
    """An agent's seat, and what it says of itself."""

    agent: str
    ordinal: int
    task: str | None = None
    state: str | None = None


@dataclass(frozen=True, kw_only=True)
class Message:
    """One entry of the channel. What kind it is is said here and nowhere in its text."""

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
class Seen:
    """What a run was shown of its inbox: up to which message, and how far these had come."""

    until: int = 0
    hops: int | None = None  # None: it was shown nothing


_NAMES = ("reached", "missed", "overlooked")


@dataclass(frozen=True, kw_only=True)
class Posted:
    """What became of a message: whom it reaches, which mentions miss, and whether it goes out at all."""

    id: int
    reached: tuple[str, ...]
    missed: tuple[str, ...] = ()
    overlooked: tuple[str, ...] = ()  # seats that stand in code or a quotation, and are not mentioned by that
    held: bool = False  # too many hops: a person decides whether it is delivered
    resource: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), **{name: list(getattr(self, name)) for name in _NAMES}}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Posted:
        names = {name: tuple(data[name]) for name in _NAMES}
        return Posted(id=data["id"], held=data["held"], resource=data["resource"], **names)


ProposalType = Literal["election", "decision", "approval", "assignment"]
Resolution = Literal["plurality", "majority", "unanimous"]
TieBreak = Literal["first", "random", "creator"]
ProposalStatus = Literal["open", "resolved", "rejected", "expired", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Something that is put to the vote. Who may vote is settled when it is made."""

    number: int
    type: ProposalType
    title: str
    options: tuple[str, ...]
    resolution: Resolution
    binding: bool
    quorum: int
    tie_break: TieBreak
    guards: tuple[str, ...]  # tools and documents that a binding approval keeps closed until it passes
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
    def passed(self) -> bool:
        """Whether an approval was given: its first option is the one that gives it."""
        return self.status == "resolved" and self.result == self.options[0]

    def as_dict(self) -> dict[str, Any]:
        shown = {name: getattr(self, name) for name in ("id", "type", "title", "resolution", "binding", "quorum")}
        listed = {name: list(getattr(self, name)) for name in ("options", "guards", "eligible")}
        rest = ("tie_break", "creator", "status", "result", "reason", "created_at", "expires_at", "ended_at")
        return {**shown, **listed, **{name: getattr(self, name) for name in rest}}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a proposal ended."""

    status: ProposalStatus
    result: str | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class Vote:
    """What an agent voted for, and why."""

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


def check_seat(name: str) -> None:
    """Raises unless an agent can be called so."""
    if not is_name(name) or name.lower() in RESERVED:
        taken = is_name(name)
        hint = f"{', '.join(sorted(RESERVED))} mean something else." if taken else "Use letters, digits, '_', '-', '.'."
        raise UsageError(f"{name[:80]!a} cannot name an agent", hint=hint)


def check_text(text: str, what: str, *, most: int = MAX_TEXT) -> bytes:
    """Return the text as bytes. Raise UsageError if it is not text or has more than `most` bytes."""
    return text_checks.check_text(what, text, max_bytes=most, allow_empty=True, long="Say it briefer.").encode()


def check_line(text: str, what: str) -> str:
    """Return a text of one line without surrounding blanks. Raise UsageError if it is not one."""
    return text_checks.check_line(what, text.strip(), MAX_LINE, empty="Say something in it.")


def pin(content: str) -> str:
    """The hash of a document's or a resource's content."""
    return digest(content.encode())
