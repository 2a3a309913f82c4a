"""Meetings that somebody asks for: accepted, declined, or put off to a date. A request is an ask in the one inbox.

The meeting and its ask change in one transaction. A request that was put off is out of sight until its date; then it
is there again, without anybody doing anything.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from guildhall.core.clock import moment
from guildhall.core.errors import Conflict, Refused, UsageError
from guildhall.core.ids import ASK, MEETING, fingerprint, new_id
from guildhall.projects.meetings import records
from guildhall.projects.meetings.model import MOST_LINKED, Meeting, branch_of, check_transition, checked_topic
from guildhall.projects.records import note
from guildhall.runs import records as run_records
from guildhall.runs.model import DATE, Answer, Ask, Question, date_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from guildhall.projects.meetings.register import Register
    from guildhall.projects.model import Project

CHOICES = ("yes", "no", DATE)
_MOST_REQUESTED = 20  # of a project at once: a worker that asks again and again is told so


class Requests:
    """Takes requests, and what the person says to them."""

    def __init__(self, register: Register) -> None:
        self._register = register

    async def request(
        self, project: Project, worker: str, topic: str, *, by: str, made_by: str, linked: Sequence[str] = ()
    ) -> Meeting:
        """A meeting that the run `made_by` asks for. Asked for again in the same words, it is the same one."""
        register, about = self._register, checked_topic(topic)
        if len(linked) > MOST_LINKED:
            raise UsageError(f"linked: at most {MOST_LINKED} artifacts")
        now = register.now()
        meeting = Meeting(
            id=new_id(MEETING),
            project=project.name,
            worker=worker,
            topic=about,
            status="requested",
            by=by,
            made_by=made_by,
            ask=new_id(ASK),
            linked=tuple(linked),
            created_at=now,
            changed_at=now,
        )

        def write(connection: Connection) -> Meeting:
            open_ones = records.listed(connection, project.name, "requested")
            for other in open_ones:
                if (other.worker, other.topic, other.made_by) == (worker, about, made_by):
                    return other
            if len(open_ones) >= _MOST_REQUESTED:
                raise Refused(
                    f"{len(open_ones)} meetings are asked for in {project.name} already: no more can be",
                    hint="Go on without one, or put it to the person in another way.",
                )
            run_records.add_ask(connection, _ask_for(connection, meeting, topic))
            records.add(connection, meeting, f"asked for by the {by}")
            return meeting

        return await register.store.write(write)

    async def decline(self, id: str, reason: str | None = None) -> Meeting:
        """The person does not want it."""
        register = self._register
        said = reason.strip() if reason and reason.strip() else "declined by the person"

        def write(connection: Connection) -> Meeting:
            meeting = records.move(connection, id, "declined", said, register.now(), deferred_to=None)
            _close_ask(connection, meeting, Answer(choice="no", note=reason), register.now())
            return meeting

        register.get(id)
        return await register.store.write(write)

    async def call_off(self, made_by: str, reason: str) -> list[Meeting]:
        """What the hall has asked for in the name of a run is not needed any more, and nobody has to say so."""
        register = self._register

        def write(connection: Connection) -> list[Meeting]:
            now, over = register.now(), list[Meeting]()
            for one in records.listed(connection, status="requested"):
                if (one.made_by, one.by) == (made_by, "hall"):
                    over.append(records.move(connection, one.id, "declined", reason, now, deferred_to=None))
                    run_records.change_ask(connection, one.ask or "", "open", status="withdrawn", closed_at=now)
            return over

        return await register.store.write(write)

    async def defer(self, id: str, until: str) -> Meeting:
        """The person wants to be asked again then."""
        register = self._register
        when = date_of(until)
        if when is None:
            raise UsageError(f"{until[:60]!r} is no date", hint="Write 2027-01-31, or 2027-01-31T14:00.")
        if moment(when) <= register.clock.now():
            raise UsageError(f"{until[:60]!r} is over", hint="Name a date that is yet to come.")

        def write(connection: Connection) -> Meeting:
            meeting = _found(connection, id)
            if meeting.status != "requested":
                check_transition(meeting, "declined")  # says how it stands and what to do instead
            now = register.now()
            records.change(connection, id, now, deferred_to=when)
            note(connection, id, f"put off until {when}", now)
            ask = run_records.find_ask(connection, meeting.ask or "")
            if ask is not None:
                question = asdict(replace(ask.question, after=when))
                run_records.change_ask(connection, ask.id, "open", question=question)
            return _found(connection, id)

        register.get(id)
        return await register.store.write(write)

    def accepted(self, connection: Connection, id: str, most: int) -> Meeting:
        """The person comes: in the transaction in which it is opened."""
        meeting = _found(connection, id)
        check_transition(meeting, "open")
        refuse_too_many(connection, meeting.project, most)
        now = self._register.now()
        moved = records.move(connection, id, "open", "accepted", now, deferred_to=None, branch=branch_of(id))
        _close_ask(connection, moved, Answer(choice="yes"), now)
        return moved

    def of_ask(self, ask: str) -> Meeting:
        """The meeting that an ask is about."""
        found = self._register.store.read(lambda connection: records.by_ask(connection, ask))
        if found is None:
            raise Conflict(f"the meeting that {ask} is about is there no more", hint="guild meeting ls")
        return found


def refuse_too_many(connection: Connection, project: str, most: int) -> None:
    """Raises where a project has as many open meetings as it may."""
    open_ones = records.listed(connection, project, "open")
    if len(open_ones) < most:
        return
    named = ", ".join(f"{one.id} ({one.worker}: {one.topic[:40]})" for one in open_ones)
    raise Refused(
        f"{project} has {len(open_ones)} open meetings, and at most {most} may be: {named}",
        hint=f"Close one: guild meeting close {open_ones[-1].id}. Or raise max_meetings of the project in config.yaml.",
    )


def _found(connection: Connection, id: str) -> Meeting:
    meeting = records.find(connection, id)
    assert meeting is not None
    return meeting


def _ask_for(connection: Connection, meeting: Meeting, topic: str) -> Ask:
    """The ask by which a meeting is asked for. It belongs to the run that asks, and outlives it."""
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
            title=f"{meeting.worker} asks for a meeting in {meeting.project} ({meeting.id})",
            body=body,
            choices=CHOICES,
        ),
        created_at=meeting.created_at,
    )


def _close_ask(connection: Connection, meeting: Meeting, answer: Answer, now: str) -> None:
    if meeting.ask is not None:
        done = {"status": "applied", "answer": asdict(answer), "closed_at": now}
        run_records.change_ask(connection, meeting.ask, "open", **done)
