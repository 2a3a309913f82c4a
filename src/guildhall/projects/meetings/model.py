"""Meetings as data: the meeting (its row), its messages, sessions and exchanges, and its details.

Does not have I/O: `records.py` stores meetings. Does not have the state machine (`states.py`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from guildhall.core.errors import UsageError
from guildhall.core.text import check_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guildhall.activities.contract import Decision
    from guildhall.projects.meetings.states import Closing, MeetingStatus
    from guildhall.projects.model import TimelineEntry

FOLDER = ".lore/meetings"
MAX_TOPIC = 1_000  # characters
MAX_MESSAGE = 100_000  # characters of one message of the user
MAX_LINKED = 100  # artifacts
By = Literal["person", "worker", "manager", "hall", "artifact"]  # artifact: rebuilt from its file


def artifact_path(id: str) -> str:
    """Return the path of a meeting's artifact, which has the notes once the meeting is closed."""
    return f"{FOLDER}/{id}.md"


def branch_name(id: str) -> str:
    return f"claude/meeting/{id}"


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """A meeting as it is recorded."""

    id: str
    project: str
    worker: str  # as the user named it
    topic: str
    status: MeetingStatus
    reason: str | None = None  # of the last event, for people; nothing depends on its wording
    by: By = "person"  # who wanted the meeting
    made_by: str | None = None  # the run that requested it
    ask: str | None = None  # the ask of the request
    deferred_to: str | None = None  # the request is hidden until then
    linked: tuple[str, ...] = ()  # paths of artifacts
    session_count: int = 0
    run: str | None = None  # of the last session
    branch: str | None = None
    summary: str | None = None
    notes: str | None = None  # path of the notes, once it is closed
    closing: Closing | None = None  # set when the user asks to close it
    cleaned_up_at: str | None = None  # when checkout, branch and transcript were removed
    created_at: str
    changed_at: str

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
    """A message of the user."""

    number: int  # in the meeting, starting at 1
    run: str  # the run that receives it; empty until there is one
    text: str
    at: str


@dataclass(frozen=True, kw_only=True)
class Session:
    """One run of a meeting. A renewed meeting has more than one."""

    run: str
    after: int  # number of the last user message that the first message of the run contains


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A message of the user, and the answer and tool calls of the worker until it listened again."""

    number: int  # of the user message; 0 if the worker spoke first
    words: str
    answer: str  # empty if it is missing
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
    answering: bool = False  # a message of the user is not answered yet
    cost_usd: float | None = None
    worktree: str | None = None
    warnings: Sequence[str] = ()  # such as a status that was edited in the artifact

    def as_dict(self) -> dict[str, Any]:
        return {**self.meeting.as_dict(), **{name: value for name, value in asdict(self).items() if name != "meeting"}}


def check_message(text: str) -> str:
    """Return a message of the user. Raise UsageError if it is empty, not text or too long."""
    empty = 'Give a message: guild meet WORKER "...", or --say "..."'
    long = "Put it into a file of the project, and ask the worker to read that file."
    return check_text("words", text, MAX_MESSAGE, empty=empty, long=long)


def topic_line(text: str) -> str:
    """Return the topic in a text: its first line that is not blank, cut to the maximum length."""
    check_text("topic", text, MAX_MESSAGE)
    first = next(line.strip() for line in text.splitlines() if line.strip())
    printable = "".join(char if char.isprintable() else " " for char in first).strip()
    if not printable:
        raise UsageError("topic: no printable character in the first line")
    return printable if len(printable) <= MAX_TOPIC else printable[: MAX_TOPIC - 3] + "..."
