"""Requests for meetings: create a request as an ask in the inbox, and accept, decline, defer or withdraw it.

A deferred request is hidden until its date. A project has at most 20 open requests.
Does not start the session of an accepted meeting (`sessions.py`).

Invariant: a meeting and its ask change in one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import parse_stamp
from guildhall.core.errors import Conflict, Refused, UsageError
from guildhall.core.ids import ASK, MEETING, fingerprint, new_id
from guildhall.projects.meetings import records
from guildhall.projects.meetings.model import MAX_LINKED, By, Meeting, branch_name, topic_line
from guildhall.projects.meetings.states import check_event
from guildhall.runs.model import DATE, Answer, Ask, Question, parse_date
from guildhall.runs.record import records as run_records

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.projects.meetings.context import MeetingContext
    from guildhall.projects.model import Project

CHOICES = ("yes", "no", DATE)
_MAX_REQUESTS = 20  # open requests of a project, so that a worker cannot fill the inbox


async def request(
    context: MeetingContext,
    project: Project,
    worker: str,
    topic: str,
    *,
    by: By,
    made_by: str,
    linked: Sequence[str] = (),
    **limits: Any,
) -> Meeting:
    """Request a meeting for the run `made_by`. Return the open request of that run with an equal worker and topic."""
    line, now = topic_line(topic), context.now()
    if len(linked) > MAX_LINKED:
        raise UsageError(f"linked: more than {MAX_LINKED} artifacts", hint="Link only the most important artifacts.")
    meeting = Meeting(
        id=new_id(MEETING),
        project=project.name,
        worker=worker,
        topic=line,
        status="requested",
        by=by,
        made_by=made_by,
        ask=new_id(ASK),
        linked=tuple(linked),
        created_at=now,
        changed_at=now,
        **limits,
    )

    def write(connection: Connection) -> Meeting:
        requested = records.list_meetings(connection, project.name, "requested")
        for other in requested:
            if (other.worker, other.topic, other.made_by) == (worker, line, made_by):
                return other
        if len(requested) >= _MAX_REQUESTS:
            raise Refused(
                f"cannot request a meeting: {project.name} has {_MAX_REQUESTS} open requests (the maximum)",
                hint="Continue without a meeting, or ask the user in another way.",
            )
        run_records.add_ask(connection, _request_ask(connection, meeting, topic))
        records.add(connection, meeting, "request", f"requested by the {by}")
        return meeting

    return await context.store.write(write)


async def accept(context: MeetingContext, id: str) -> Meeting:
    """Open a requested meeting. The worker speaks first, when the user joins."""
    max_meetings = context.project(context.get(id)).settings.max_meetings

    def write(connection: Connection) -> Meeting:
        meeting = records.get(connection, id)
        check_event(meeting, "accept")
        check_open_count(connection, meeting.project, max_meetings)
        now = context.now()
        accepted = records.record_event(connection, id, "accept", "accepted", now, branch=branch_name(id))
        _close_ask(connection, accepted, Answer(choice="yes"), now)
        return accepted

    return await context.store.write(write)


async def decline(context: MeetingContext, id: str, reason: str | None = None) -> Meeting:
    """Decline a requested meeting in the name of the user."""
    text = (reason or "").strip() or "declined by the user"

    def write(connection: Connection) -> Meeting:
        now = context.now()
        declined = records.record_event(connection, id, "decline", text, now)
        _close_ask(connection, declined, Answer(choice="no", note=reason), now)
        return declined

    return await context.store.write(write)


async def withdraw(context: MeetingContext, made_by: str, reason: str) -> list[Meeting]:
    """Decline the meetings that the hall has requested for a run, and withdraw their asks."""

    def write(connection: Connection) -> list[Meeting]:
        now, withdrawn = context.now(), list[Meeting]()
        for meeting in records.list_meetings(connection, status="requested"):
            if (meeting.made_by, meeting.by) == (made_by, "hall"):
                withdrawn.append(records.record_event(connection, meeting.id, "decline", reason, now))
                run_records.change_ask(connection, meeting.ask or "", "open", status="withdrawn", closed_at=now)
        return withdrawn

    return await context.store.write(write)


async def defer(context: MeetingContext, id: str, until: str) -> Meeting:
    """Hide a requested meeting until a date."""
    date = parse_date(until)
    if date is None:
        raise UsageError(f"invalid date: {until[:60]!r}", hint="Use a format such as 2027-01-31 or 2027-01-31T14:00.")
    if parse_stamp(date) <= context.clock.now():
        raise UsageError(f"invalid date: {until[:60]!r} is in the past", hint="Give a date in the future.")

    def write(connection: Connection) -> Meeting:
        now = context.now()
        deferred = records.record_event(connection, id, "defer", f"deferred until {date}", now, deferred_to=date)
        ask = run_records.find_ask(connection, deferred.ask or "")
        if ask is not None:
            question = asdict(replace(ask.question, after=date))
            run_records.change_ask(connection, ask.id, "open", question=question)
        return deferred

    return await context.store.write(write)


def find_by_ask(context: MeetingContext, ask_id: str) -> Meeting:
    """Return the meeting that was requested with an ask. Raise Conflict if it was deleted."""
    meeting = context.store.read(lambda connection: records.find_by_ask(connection, ask_id))
    if meeting is None:
        raise Conflict(f"the meeting of {ask_id} was deleted", hint="List the meetings: guild ls meetings")
    return meeting


def check_open_count(connection: Connection, project: str, max_meetings: int) -> None:
    """Raise Refused if a project has `max_meetings` open meetings."""
    meetings = records.list_meetings(connection, project, "open")
    if len(meetings) < max_meetings:
        return
    names = ", ".join(f"{meeting.id} ({meeting.worker}: {meeting.topic[:40]})" for meeting in meetings)
    raise Refused(
        f"cannot open a meeting: {project} has {len(meetings)} open meetings (maximum: {max_meetings}): {names}",
        hint=f"Close a meeting: guild meet {meetings[-1].id} --close. Or raise `max_meetings` in config.yaml.",
    )


def _request_ask(connection: Connection, meeting: Meeting, topic: str) -> Ask:
    """Return the ask of a request. It belongs to the requesting run, and stays open after that run has ended."""
    assert meeting.ask is not None
    assert meeting.made_by is not None
    run = run_records.find_run(connection, meeting.made_by)
    assert run is not None
    linked = "".join(f"\n- {path}" for path in meeting.linked)
    body = f"{topic.strip()}\n\nLinked:{linked}" if linked else topic.strip()
    return Ask(
        id=meeting.ask,
        run=run.id,
        root=run.root,
        kind="meeting",
        key=meeting.id,
        subject=fingerprint([meeting.id]),
        question=Question(
            title=f"{meeting.worker} asks for a meeting in {meeting.project} ({meeting.id})", body=body, choices=CHOICES
        ),
        created_at=meeting.created_at,
    )


def _close_ask(connection: Connection, meeting: Meeting, answer: Answer, now: str) -> None:
    if meeting.ask is not None:
        changes = {"status": "applied", "answer": asdict(answer), "closed_at": now}
        run_records.change_ask(connection, meeting.ask, "open", **changes)
