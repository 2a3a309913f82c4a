"""Meetings as data: the meeting (its row), its messages, sessions and exchanges, and its details.

Does not have I/O: `records.py` stores meetings. Does not have the state machine (`states.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from guildhall.core.errors import UsageError
from guildhall.core.text_checks import check_text
from guildhall.runs.model import check_limits

if TYPE_CHECKING:
    from guildhall.activities.contract import Decision
    from guildhall.projects.meetings.states import Closing, MeetingStatus
    from guildhall.projects.model import TimelineEntry

FOLDER = ".lore/meetings"
MAX_TOPIC_CHARS = 1_000
MAX_MESSAGE_CHARS = 100_000
MAX_LINKED = 100  # artifacts
LIMITS = ("max_turns", "max_tokens", "budget")
By = Literal["person", "worker", "manager", "hall", "artifact"]  # "artifact" if rebuilt from the artifact


def artifact_path(id: str) -> str:
    """Return the path of a meeting's artifact, which contains the notes after the meeting is closed."""
    return f"{FOLDER}/{id}.md"


def branch_name(id: str) -> str:
    return f"claude/meeting/{id}"


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """The row of a meeting."""

    id: str
    project: str
    worker: str  # as the user named it
    topic: str
    status: MeetingStatus
    reason: str | None = None  # for the last event; only for people
    by: By = "person"  # requester
    made_by: str | None = None  # the run that requested it
    ask: str | None = None  # the ask of the request
    deferred_to: str | None = None  # time until which the request is hidden
    linked: tuple[str, ...] = ()  # paths of artifacts
    max_turns: int | None = None  # this limit and the next two were given for the meeting
    max_tokens: int | None = None
    budget: float | None = None
    session_count: int = 0
    run: str | None = None  # id of the run of the last session
    branch: str | None = None
    summary: str | None = None
    notes: str | None = None  # path of the notes, or None until the meeting is closed
    closing: Closing | None = None  # set when the user asks to close the meeting
    cleaned_up_at: str | None = None  # when checkout, branch and transcript were removed
    created_at: str
    changed_at: str

    def __post_init__(self) -> None:
        check_limits(self.max_turns, self.max_tokens, budget=self.budget)

    @property
    def limits(self) -> dict[str, Any]:
        """Return the limits that were given for the meeting."""
        given = {name: getattr(self, name) for name in LIMITS}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def checkout(self) -> str:
        return self.id

    @property
    def path(self) -> str:
        return artifact_path(self.id)

    @property
    def is_work_left(self) -> bool:
        """Return True if the meeting is closed, or being closed, without merging its work."""
        return self.closing is not None and self.closing.leave_work

    def as_dict(self) -> dict[str, Any]:
        return {"meeting": self.id, **{name: value for name, value in asdict(self).items() if name != "id"}}


@dataclass(frozen=True, kw_only=True)
class UserMessage:
    """A user message of a meeting."""

    number: int  # in the meeting, starting at 1
    run: str  # id of the run that receives the message, or empty before the first run
    text: str
    at: str


@dataclass(frozen=True, kw_only=True)
class Session:
    """One run of a meeting. A renewed meeting has several sessions."""

    run: str
    last_message_number: int  # of the last user message that the input of the run contains; 0 if it contains none


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A user message, and the worker's answer and tool calls until the worker listened again."""

    number: int  # of the user message, or 0 if the worker spoke first
    user_message: str
    answer: str  # empty if the worker has not answered
    calls: tuple[str, ...] = ()  # names of the tools that the worker called
    at: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "calls": list(self.calls)}


@dataclass(frozen=True, kw_only=True)
class FollowUp:
    """Work that the worker proposes to commission after the meeting."""

    title: str
    prompt: str
    worker: str | None = None


@dataclass(frozen=True, kw_only=True)
class MeetingDetails:
    """Everything about a meeting."""

    meeting: Meeting
    exchanges: Sequence[Exchange] = ()
    followups: Sequence[FollowUp] = ()
    decisions: Sequence[Decision] = ()
    timeline: Sequence[TimelineEntry] = ()
    answering: bool = False  # True if an answer is due
    cost_usd: float | None = None
    worktree: str | None = None
    warnings: Sequence[str] = ()  # such as a status that was edited in the artifact

    def as_dict(self) -> dict[str, Any]:
        return {**self.meeting.as_dict(), **{name: value for name, value in asdict(self).items() if name != "meeting"}}


def check_message(text: str) -> str:
    """Return a user message. Raise UsageError if it is empty, not text or too long."""
    empty_hint = 'Give a message: guild meet WORKER "...", or guild meet MEETING --say "..."'
    long_hint = "Put the text into a file of the project, and ask the worker to read that file."
    return check_text("message", text, MAX_MESSAGE_CHARS, empty_hint=empty_hint, long_hint=long_hint)


def topic_line(text: str) -> str:
    """Return the first line of a text that is not blank, cut to the maximum length of a topic."""
    check_text("topic", text, MAX_MESSAGE_CHARS)
    first = next(line.strip() for line in text.splitlines() if line.strip())
    printable = "".join(char if char.isprintable() else " " for char in first).strip()
    if not printable:
        raise UsageError("topic: the first line has no printable character", hint="Start with a line of text.")
    return printable if len(printable) <= MAX_TOPIC_CHARS else printable[: MAX_TOPIC_CHARS - 3] + "..."
