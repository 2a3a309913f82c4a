"""The nouns of a meeting: how it stands, what was said, what came out; and which states may follow which."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from guildhall.core.errors import Conflict, UsageError
from guildhall.core.text import check_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from guildhall.activities.model import Decided
    from guildhall.projects.model import Moment

MeetingStatus = Literal["requested", "open", "closed", "declined"]
STATES: tuple[MeetingStatus, ...] = ("requested", "open", "closed", "declined")
# What may follow what; None: it comes into being. Deferring a request changes no state: it stays one, for later.
TRANSITIONS: Mapping[MeetingStatus | None, frozenset[MeetingStatus]] = {
    None: frozenset({"requested", "open"}),
    "requested": frozenset({"open", "declined"}),
    "open": frozenset({"closed"}),
    "closed": frozenset(),
    "declined": frozenset(),
}

FOLDER = ".lore/meetings"
LONGEST_TOPIC = 1_000  # characters
LONGEST_WORDS = 100_000  # characters that a person says at once
MOST_LINKED = 100  # artifacts
CLOSING = "closing"  # a line of the timeline that has this: the person has said that it is over, and how
_INSTEAD: Mapping[MeetingStatus, str] = {
    "requested": "guild meeting accept {id}, decline {id} or defer {id} DATE",
    "open": "guild meet {id} goes there; guild meeting close {id} ends it",
    "closed": "It is over: guild meeting show {id}. A new one: guild meet WORKER",
    "declined": "A new one: guild meet WORKER",
}


def notes_of(id: str) -> str:
    """The path of the artifact that a meeting is; when it closes, of its notes."""
    return f"{FOLDER}/{id}.md"


def branch_of(id: str) -> str:
    return f"claude/meeting/{id}"


def leaves_work(timeline: Sequence[Moment]) -> bool:
    """Whether it was closed with what was done left on its branch."""
    said = [moment.data[CLOSING] for moment in timeline if CLOSING in moment.data]
    return bool(said and said[-1].get("leave_work"))


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """A meeting as the record has it."""

    id: str
    project: str
    worker: str  # as it was named
    topic: str
    status: MeetingStatus
    reason: str | None = None  # why it stands as it does
    by: str = "person"  # who wanted it: person, worker, manager, hall; artifact: made again from one
    made_by: str | None = None  # the run that asked for it
    ask: str | None = None  # by which it was asked for
    deferred_to: str | None = None  # out of sight until then
    linked: tuple[str, ...] = ()  # paths of artifacts
    sittings: int = 0  # runs that it has had; one that was renewed has more than one
    run: str | None = None  # the last of them
    branch: str | None = None
    summary: str | None = None
    notes: str | None = None  # the path of what was written down when it closed
    created_at: str
    changed_at: str

    def as_dict(self) -> dict[str, Any]:
        """The meeting as `--json` prints it."""
        return {"meeting": self.id, **{name: value for name, value in asdict(self).items() if name != "id"}}


@dataclass(frozen=True, kw_only=True)
class Words:
    """One thing that the person has said."""

    number: int  # 1, 2, 3 ... in the meeting
    run: str  # that hears it; empty: the one that is made for it
    words: str
    at: str


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What the person said, and all that the worker said and did before it listened again."""

    number: int  # of the person's words; 0: the worker began
    words: str
    answer: str  # empty: there is none yet
    calls: tuple[str, ...] = ()  # the tools that it has called
    at: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "calls": list(self.calls)}


@dataclass(frozen=True, kw_only=True)
class FollowUp:
    """Work that the worker proposes to commission afterwards."""

    title: str
    prompt: str
    worker: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class MeetingShown:
    """All about a meeting."""

    meeting: Meeting
    exchanges: Sequence[Exchange] = ()
    followups: Sequence[FollowUp] = ()
    decisions: Sequence[Decided] = ()
    timeline: Sequence[Moment] = ()
    answering: bool = False  # words of the person wait for an answer, or it is under way
    cost_usd: float | None = None
    worktree: str | None = None
    doubts: Sequence[str] = ()  # what does not fit together, such as a status that was written by hand

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.meeting.as_dict(),
            "exchanges": [one.as_dict() for one in self.exchanges],
            "followups": [one.as_dict() for one in self.followups],
            "decisions": [one.as_wire() for one in self.decisions],
            "timeline": [one.as_dict() for one in self.timeline],
            "answering": self.answering,
            "cost_usd": self.cost_usd,
            "worktree": self.worktree,
            "doubts": list(self.doubts),
        }


def check_transition(meeting: Meeting, after: MeetingStatus) -> None:
    """Raises where a meeting cannot become what it is to become."""
    if after in TRANSITIONS[meeting.status]:
        return
    raise Conflict(
        f"the meeting {meeting.id} is {meeting.status}: it cannot become {after}",
        hint=_INSTEAD[meeting.status].format(id=meeting.id),
    )


def demand_open(meeting: Meeting) -> None:
    """Raises where nothing can be said in a meeting."""
    if meeting.status != "open":
        raise Conflict(
            f"the meeting {meeting.id} is {meeting.status}: nobody listens there",
            hint=_INSTEAD[meeting.status].format(id=meeting.id),
        )


def checked_words(words: str) -> str:
    """What a person says, if it can be said."""
    empty = 'Say something: guild meet WORKER "...", or --say "..."'
    long = "Put it into a file of the project, and say which one to read."
    return check_text("words", words, LONGEST_WORDS, empty=empty, long=long)


def checked_topic(topic: str) -> str:
    """What a meeting is about: the first line that says something, cut to its length."""
    check_text("topic", topic, LONGEST_WORDS)
    first = next(line.strip() for line in topic.splitlines() if line.strip())
    printable = "".join(char if char.isprintable() else " " for char in first).strip()
    if not printable:
        raise UsageError("topic: nothing in it can be read")
    return printable if len(printable) <= LONGEST_TOPIC else printable[: LONGEST_TOPIC - 3] + "..."
