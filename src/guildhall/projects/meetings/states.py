"""The state machine of a meeting: its states, its events, and the next step after a crash.

    event    from       to         guard                                              checked in
    request  (new)      requested  fewer than 20 requests in the project              meeting_requests
    open     (new)      open       worker and model usable, fewer than max_meetings   service
    accept   requested  open       fewer than max_meetings                            meeting_requests
    decline  requested  declined   -                                                  meeting_requests
    defer    requested  requested  the date is in the future                          meeting_requests
    close    open       closed     work and notes are merged                          service

Effects inside the transaction: `request` opens an ask. `accept` and `decline` close that ask, and `defer` hides it.
`open` records the first user message. `close` completes the runs of all sessions.

`Closing` is not a state. It records how the user wants an open meeting to be closed, and is stored before the first
effect outside of the database. A merge conflict or the next user message clears it. A closed meeting keeps it, as the
record of whether the work was merged.

Effects after `close`: the checkout, the branch and the transcript are removed, then `cleaned_up_at` is set. Each step
is idempotent, so that `next_step` can derive the remaining step from the row after a crash.

Does not have I/O: `records.record_event` stores the outcome of an event.

Invariant: the row and the timeline change in one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from guildhall.core.errors import Conflict
from guildhall.projects.model import Transition

if TYPE_CHECKING:
    from guildhall.projects.meetings.model import Meeting

MeetingStatus = Literal["requested", "open", "closed", "declined"]
STATUSES: tuple[MeetingStatus, ...] = get_args(MeetingStatus)
ENDED: frozenset[MeetingStatus] = frozenset({"closed", "declined"})  # no event leaves these

Event = Literal["accept", "decline", "defer", "close"]
Creation = Literal["request", "open", "rebuild"]  # by a run, by the user, or from an artifact without a row
# Timeline entries that do not change the status.
Note = Literal["start_session", "renew_session", "link", "propose_followup", "begin_close", "conflict", "clean_up"]
SESSION_NOTES: tuple[Note, ...] = ("start_session", "renew_session")


TRANSITIONS: Mapping[Event, Transition[MeetingStatus]] = {
    "accept": Transition(("requested",), "open"),
    "decline": Transition(("requested",), "declined"),
    "defer": Transition(("requested",), "requested"),
    "close": Transition(("open",), "closed"),
}

_NEXT_COMMANDS: Mapping[MeetingStatus, str] = {
    "requested": "Answer the request: guild answer {id} yes (or no, or a date)",
    "open": "Continue the meeting: guild meet {id}. Close it: guild meet {id} --close",
    "closed": "Show the notes: guild show {id}. Open another meeting: guild meet WORKER",
    "declined": "Open another meeting: guild meet WORKER",
}


@dataclass(frozen=True, kw_only=True)
class Closing:
    """The options of a user's request to close a meeting."""

    summarise: bool = True  # ask a model for a summary
    leave_work: bool = False  # write only the notes, and leave the work on the branch of the meeting


def check_event(meeting: Meeting, event: Event) -> None:
    """Raise Conflict if an event is not allowed in the current state."""
    if meeting.status not in TRANSITIONS[event].sources:
        raise _status_error(meeting, f"cannot {event} meeting {meeting.id}")


def check_open(meeting: Meeting) -> None:
    """Raise Conflict if the meeting is not open."""
    if meeting.status != "open":
        raise _status_error(meeting, f"cannot send a message to meeting {meeting.id}")


def _status_error(meeting: Meeting, refusal: str) -> Conflict:
    hint = _NEXT_COMMANDS[meeting.status].format(id=meeting.id)
    return Conflict(f"{refusal}: it is {meeting.status}", hint=hint)


def apply_event(meeting: Meeting, event: Event, *, reason: str, now: str, **changes: Any) -> Meeting:
    """Return the meeting after an event. Raise Conflict if the event is not allowed."""
    check_event(meeting, event)
    target = TRANSITIONS[event].target
    return replace(meeting, **{"deferred_to": None, **changes}, status=target, reason=reason, changed_at=now)


Step = Literal["none", "close", "restore_checkout", "clean_up"]


def next_step(meeting: Meeting) -> Step:
    """Return the remaining step of a meeting when a hall starts.

    It depends only on the row, not on the instant at which the previous hall was killed.
    """
    if meeting.status == "closed":
        return "clean_up" if meeting.cleaned_up_at is None else "none"
    if meeting.status != "open":
        return "none"
    if meeting.closing is not None:
        return "close"
    return "restore_checkout" if meeting.run is not None and meeting.branch is not None else "none"
