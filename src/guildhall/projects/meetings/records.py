"""The SQL of meetings, sessions and messages: stores rows and applies the events of the state machine.

Does not decide which events are allowed (`states.py`). The SQL of timelines is in `projects/shared_records.py`.

Invariant: an event is one transaction, which changes both the row and the timeline, or neither.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import Connection, Integer, RowMapping, delete, func, insert, literal_column, select, update

from guildhall.core.errors import NotFound
from guildhall.core.text import suggest_or
from guildhall.projects.meetings.model import Meeting, Session, UserMessage
from guildhall.projects.meetings.states import SESSION_NOTES, Closing, Creation, Event, MeetingStatus, Note, transit
from guildhall.projects.model import TimelineEntry
from guildhall.projects.shared_records import add_entry, delete_timeline, list_timeline
from guildhall.store.tables import meeting_words, meetings

_INSERTION_ORDER = literal_column("meetings.rowid", Integer)  # of meetings that were created at the same time


def add(connection: Connection, meeting: Meeting, kind: Creation, reason: str) -> None:
    """Insert a new meeting and the first entry of its timeline."""
    connection.execute(insert(meetings).values(**_to_row(meeting)))
    entry = TimelineEntry(kind=kind, at=meeting.created_at, reason=reason, after=meeting.status)
    add_entry(connection, meeting.id, entry)


def apply(connection: Connection, id: str, event: Event, reason: str, now: str, **changes: Any) -> Meeting:
    """Apply an event: update the row and append to the timeline. Raise Conflict if the event is not allowed."""
    before = get(connection, id)
    after = transit(before, event, reason=reason, now=now, **changes)
    _save(connection, after)
    entry = TimelineEntry(kind=event, at=now, reason=reason, before=before.status, after=after.status)
    add_entry(connection, id, entry)
    return after


def change(connection: Connection, id: str, now: str, **changes: Any) -> Meeting:
    """Change fields of a meeting without changing its status."""
    after = replace(get(connection, id), changed_at=now, **changes)
    _save(connection, after)
    return after


def add_note(connection: Connection, id: str, kind: Note, text: str, now: str, **data: Any) -> None:
    """Append a timeline entry that is not a transition."""
    add_entry(connection, id, TimelineEntry(kind=kind, at=now, reason=text, data=data))


def remove(connection: Connection, id: str, now: str) -> None:
    """Delete a meeting. Its runs stay, and a timeline entry, so that its artifact does not rebuild it."""
    connection.execute(delete(meeting_words).where(meeting_words.c.meeting == id))
    connection.execute(delete(meetings).where(meetings.c.id == id))
    delete_timeline(connection, id, now)


def find(connection: Connection, id: str) -> Meeting | None:
    row = connection.execute(select(meetings).where(meetings.c.id == id)).mappings().first()
    return _from_row(row) if row else None


def get(connection: Connection, id: str) -> Meeting:
    """Return a meeting. Raise NotFound for an unknown id."""
    if (found := find(connection, id)) is not None:
        return found
    known = connection.execute(select(meetings.c.id)).scalars().all()
    hint = suggest_or(id[:60], known, "`guild ls meetings` lists them.")
    raise NotFound(f"unknown meeting {id[:60]!r}", hint=hint)


def list_all(connection: Connection, project: str | None = None, status: MeetingStatus | None = None) -> list[Meeting]:
    """Return meetings, newest first."""
    query = select(meetings).order_by(meetings.c.created_at.desc(), _INSERTION_ORDER.desc())
    if project is not None:
        query = query.where(meetings.c.project == project)
    if status is not None:
        query = query.where(meetings.c.status == status)
    return [_from_row(row) for row in connection.execute(query).mappings()]


def find_by_ask(connection: Connection, ask: str) -> Meeting | None:
    """Return the meeting that was requested with this ask, or None."""
    row = connection.execute(select(meetings).where(meetings.c.ask == ask)).mappings().first()
    return _from_row(row) if row else None


# messages


def add_message(connection: Connection, id: str, run: str, text: str, now: str) -> int:
    """Append a message of the user, and return its number."""
    last = connection.execute(select(func.max(meeting_words.c.number)).where(meeting_words.c.meeting == id))
    number = (last.scalar_one() or 0) + 1
    row = {"meeting": id, "number": number, "run": run, "words": text, "at": now}
    connection.execute(insert(meeting_words), row)
    return number


def find_message(connection: Connection, id: str, number: int) -> UserMessage | None:
    query = select(meeting_words).where(meeting_words.c.meeting == id, meeting_words.c.number == number)
    row = connection.execute(query).mappings().first()
    return _to_message(row) if row else None


def messages(connection: Connection, id: str) -> list[UserMessage]:
    query = select(meeting_words).where(meeting_words.c.meeting == id).order_by(meeting_words.c.number)
    return [_to_message(row) for row in connection.execute(query).mappings()]


# sessions


def sessions(connection: Connection, id: str) -> list[Session]:
    """Return the sessions of a meeting, oldest first."""
    return [Session(**entry.data) for entry in list_timeline(connection, id) if entry.kind in SESSION_NOTES]


def add_session(connection: Connection, id: str, session: Session, reason: str, now: str) -> None:
    """Add a session, in the transaction that creates its run. It receives the messages that are not in its input."""
    count = get(connection, id).session_count
    change(connection, id, now, run=session.run, session_count=count + 1)
    later = (meeting_words.c.meeting == id) & (meeting_words.c.number > session.after)
    connection.execute(update(meeting_words).where(later).values(run=session.run))
    add_note(connection, id, "renew_session" if count else "start_session", reason, now, **vars(session))


def _save(connection: Connection, meeting: Meeting) -> None:
    connection.execute(update(meetings).where(meetings.c.id == meeting.id).values(**_to_row(meeting)))


def _to_row(meeting: Meeting) -> dict[str, Any]:
    closing = asdict(meeting.closing) if meeting.closing is not None else None
    return {**vars(meeting), "linked": list(meeting.linked), "closing": closing}


def _from_row(row: RowMapping) -> Meeting:
    columns: dict[str, Any] = dict(row)
    columns["linked"] = tuple(row["linked"])
    columns["closing"] = Closing(**row["closing"]) if row["closing"] is not None else None
    return Meeting(**columns)


def _to_message(row: RowMapping) -> UserMessage:
    return UserMessage(number=row["number"], run=row["run"], text=row["words"], at=row["at"])
