"""The state machine of a meeting: its states, the events that change them, and the next step after a crash.

    event    from       to         guard                                              checked in
    request  (new)      requested  fewer than 20 requests in the project              requests
    open     (new)      open       worker and model usable, fewer than max_meetings   service
    accept   requested  open       fewer than max_meetings                            requests
    decline  requested  declined   -                                                  requests
    defer    requested  requested  the date is in the future                          requests
    close    open       closed     work and notes are merged                          service

Effects inside the transaction: `request` opens an ask in the inbox, and `accept`, `decline` and `defer` change it.
`open` records the first message of the user. `close` ends the runs of all sessions.

`Closing` is not a state. It records that the user has asked to close an open meeting, and how. It is stored before the
first effect outside of the database. A merge conflict clears it, and so does the next message of the user. A closed
meeting keeps it, as the record of whether the work was merged.

Effects after `close`: the checkout, the branch and the transcript are removed, then `cleaned_up_at` is set. Each step
detects that it was done before, so a crash needs no separate log: `next_step` returns the step that is left to do.

Does not have I/O: `records.apply` stores the outcome of an event.

Invariant: the row and the timeline change in one transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from guildhall.core.errors import Conflict
from guildhall.projects.model import Transition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.projects.meetings.model import Meeting

MeetingStatus = Literal["requested", "open", "closed", "declined"]
STATUSES: tuple[MeetingStatus, ...] = get_args(MeetingStatus)
ENDED: frozenset[MeetingStatus] = frozenset({"closed", "declined"})  # no event leaves these

Event = Literal["accept", "decline", "defer", "close"]
Creation = Literal["request", "open", "rebuild"]  # by a run, by the user, or from the artifact when the row was lost
# Timeline entries that do not change the status.
Note = Literal["start_session", "renew_session", "link", "propose_followup", "begin_close", "conflict", "clean_up"]
SESSION_NOTES: tuple[Note, ...] = ("start_session", "renew_session")


TRANSITIONS: Mapping[Event, Transition[MeetingStatus]] = {
    "accept": Transition(("requested",), "open", "accepted"),
    "decline": Transition(("requested",), "declined", "declined"),
    "defer": Transition(("requested",), "requested", "deferred"),
    "close": Transition(("open",), "closed", "closed"),
}

_NEXT_COMMANDS: Mapping[MeetingStatus, str] = {
    "requested": "guild answer {id} yes (or no, or a date)",
    "open": "guild meet {id} continues it; guild meet {id} --close ends it",
    "closed": "guild show {id} prints the notes. To open another one: guild meet WORKER",
    "declined": "To open another one: guild meet WORKER",
}


@dataclass(frozen=True, kw_only=True)
class Closing:
    """How the user wants a meeting to be closed."""

    summarise: bool = True  # ask a model for a summary
    leave_work: bool = False  # write the notes only; the work stays on the branch of the meeting


def check_event(meeting: Meeting, event: Event) -> None:
    """Raise Conflict if an event is not allowed in the current state."""
    transition = TRANSITIONS[event]
    if meeting.status not in transition.sources:
        message = f"meeting {meeting.id} is {meeting.status}: it cannot be {transition.participle}"
        raise Conflict(message, hint=next_commands(meeting))


def check_open(meeting: Meeting) -> None:
    """Raise Conflict if the user cannot talk in this meeting."""
    if meeting.status != "open":
        message = f"meeting {meeting.id} is {meeting.status}: you cannot talk in it"
        raise Conflict(message, hint=next_commands(meeting))


def next_commands(meeting: Meeting) -> str:
    """Return the commands that are possible in the current state."""
    return _NEXT_COMMANDS[meeting.status].format(id=meeting.id)


def transit(meeting: Meeting, event: Event, *, reason: str, now: str, **changes: Any) -> Meeting:
    """Return the meeting after an event. Raise Conflict if the event is not allowed."""
    check_event(meeting, event)
    target = TRANSITIONS[event].target
    return replace(meeting, **{"deferred_to": None, **changes}, status=target, reason=reason, changed_at=now)


Step = Literal["none", "close", "restore_checkout", "clean_up"]


def next_step(meeting: Meeting) -> Step:
    """Return the step that is left to do for a meeting when a hall starts.

    The answer depends on the row alone, so it is the same no matter at which instant the previous hall was killed.
    Runs that were interrupted are resumed before, as every run is.
    """
    if meeting.status == "closed":
        return "clean_up" if meeting.cleaned_up_at is None else "none"
    if meeting.status != "open":
        return "none"
    if meeting.closing is not None:
        return "close"
    return "restore_checkout" if meeting.run is not None and meeting.branch is not None else "none"
