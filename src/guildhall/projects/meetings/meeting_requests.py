"""Requests for meetings: create a request as an ask in the inbox, and accept, decline, defer or withdraw it.

A deferred request is hidden until its date. A project has at most 20 requests.
Does not start the session of an accepted meeting (`sessions.py`).

Invariant: a meeting and its ask change in one transaction.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from guildhall.core.clock import parse_stamp
from guildhall.core.errors import Conflict, Refused, UsageError
from guildhall.core.ids import ASK, MEETING, fingerprint, new_id
from guildhall.projects.meetings import records
from guildhall.projects.meetings.model import MAX_LINKED, By, Meeting, branch_name, topic_line
from guildhall.projects.meetings.states import check_event
from guildhall.runs.model import DATE, Answer, Ask, Question, parse_date
from guildhall.runs.record import records as run_records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from guildhall.projects.meetings.context import MeetingContext
    from guildhall.projects.model import Project

CHOICES = ("yes", "no", DATE)
_MAX_REQUESTS = 20  # of a project at a time: a worker that keeps requesting gets an error


async def request(
    context: MeetingContext,
    project: Project,
    worker: str,
    topic: str,
    *,
    by: By,
    made_by: str,
    linked: Sequence[str] = (),
) -> Meeting:
    """Request a meeting for the run `made_by`. The same request again returns the same meeting."""
    line, now = topic_line(topic), context.now()
    if len(linked) > MAX_LINKED:
        raise UsageError(f"linked: at most {MAX_LINKED} artifacts")
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
    )

    def write(connection: Connection) -> Meeting:
        requested = records.list_all(connection, project.name, "requested")
        for other in requested:
            if (other.worker, other.topic, other.made_by) == (worker, line, made_by):
                return other
        if len(requested) >= _MAX_REQUESTS:
            raise Refused(
                f"too many open requests for meetings in {project.name}: {len(requested)} (the maximum)",
                hint="Continue without a meeting, or ask the user in another way.",
            )
        run_records.add_ask(connection, _ask(connection, meeting, topic))
        records.add(connection, meeting, "request", f"requested by the {by}")
        return meeting

    return await context.store.write(write)


async def accept(context: MeetingContext, id: str) -> Meeting:
    """Open a requested meeting. The worker speaks first, when the user comes."""
    max_meetings = context.project(context.get(id)).settings.max_meetings

    def write(connection: Connection) -> Meeting:
        meeting = records.get(connection, id)
        check_event(meeting, "accept")
        check_free_place(connection, meeting.project, max_meetings)
        now = context.now()
        accepted = records.apply(connection, id, "accept", "accepted", now, branch=branch_name(id))
        _close_ask(connection, accepted, Answer(choice="yes"), now)
        return accepted

    return await context.store.write(write)


async def decline(context: MeetingContext, id: str, reason: str | None = None) -> Meeting:
    """Decline a requested meeting, for the user."""
    text = reason.strip() if reason and reason.strip() else "declined by the user"

    def write(connection: Connection) -> Meeting:
        now = context.now()
        declined = records.apply(connection, id, "decline", text, now)
        _close_ask(connection, declined, Answer(choice="no", note=reason), now)
        return declined

    return await context.store.write(write)


async def withdraw(context: MeetingContext, made_by: str, reason: str) -> list[Meeting]:
    """Decline the meetings that the hall has requested for a run, and withdraw their asks."""

    def write(connection: Connection) -> list[Meeting]:
        now, withdrawn = context.now(), list[Meeting]()
        for meeting in records.list_all(connection, status="requested"):
            if (meeting.made_by, meeting.by) == (made_by, "hall"):
                withdrawn.append(records.apply(connection, meeting.id, "decline", reason, now))
                run_records.change_ask(connection, meeting.ask or "", "open", status="withdrawn", closed_at=now)
        return withdrawn

    return await context.store.write(write)


async def defer(context: MeetingContext, id: str, until: str) -> Meeting:
    """Hide a requested meeting until a date."""
    date = parse_date(until)
    if date is None:
        raise UsageError(f"{until[:60]!r} is not a date", hint="Use a format such as 2027-01-31 or 2027-01-31T14:00.")
    if parse_stamp(date) <= context.clock.now():
        raise UsageError(f"{until[:60]!r} is in the past", hint="Give a date in the future.")

    def write(connection: Connection) -> Meeting:
        now = context.now()
        deferred = records.apply(connection, id, "defer", f"deferred until {date}", now, deferred_to=date)
        ask = run_records.find_ask(connection, deferred.ask or "")
        if ask is not None:
            question = asdict(replace(ask.question, after=date))
            run_records.change_ask(connection, ask.id, "open", question=question)
        return deferred

    return await context.store.write(write)


def find_by_ask(context: MeetingContext, ask: str) -> Meeting:
    """Return the meeting that was requested with an ask. Raise Conflict if it was deleted."""
    found = context.store.read(lambda connection: records.find_by_ask(connection, ask))
    if found is None:
        raise Conflict(f"the meeting of {ask} was deleted", hint="guild ls meetings")
    return found


def check_free_place(connection: Connection, project: str, max_meetings: int) -> None:
    """Raise Refused if a project has as many open meetings as allowed."""
    found = records.list_all(connection, project, "open")
    if len(found) < max_meetings:
        return
    named = ", ".join(f"{meeting.id} ({meeting.worker}: {meeting.topic[:40]})" for meeting in found)
    raise Refused(
        f"too many open meetings in {project}: {len(found)} (maximum: {max_meetings}): {named}",
        hint=f"Close one: guild meet {found[-1].id} --close. Or raise `max_meetings:` of the project in config.yaml.",
    )


def _ask(connection: Connection, meeting: Meeting, topic: str) -> Ask:
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
