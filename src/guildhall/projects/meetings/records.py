"""The SQL of meetings, sessions and messages: their columns and listings.

Does not decide which events are allowed (`states.py`). The SQL of events is in `projects/shared_records.py`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Integer, RowMapping, delete, func, insert, literal_column, select, update

from guildhall.core.text import suggest_or
from guildhall.projects.meetings.model import Meeting, Session, UserMessage
from guildhall.projects.meetings.states import SESSION_NOTES, Closing, Creation, Event, MeetingStatus, Note, transit
from guildhall.projects.shared_records import ActivityRecords, list_timeline
from guildhall.store.tables import meeting_words, meetings

if TYPE_CHECKING:
    from collections.abc import Sequence

_INSERTION_ORDER = literal_column("meetings.rowid", Integer)  # of meetings that were created at the same time


def _to_row(meeting: Meeting) -> dict[str, Any]:
    closing = asdict(meeting.closing) if meeting.closing is not None else None
    return {**vars(meeting), "linked": list(meeting.linked), "closing": closing}


def _from_row(row: RowMapping) -> Meeting:
    columns: dict[str, Any] = dict(row)
    columns["linked"] = tuple(row["linked"])
    columns["closing"] = Closing(**row["closing"]) if row["closing"] is not None else None
    return Meeting(**columns)


def _suggest(id: str, known: Sequence[str]) -> str:
    return suggest_or(id, known, "`guild ls meetings` lists them.")


_records = ActivityRecords[Meeting, Event, Creation | Note](
    noun="meeting", table=meetings, to_row=_to_row, from_row=_from_row, transit=transit, suggest=_suggest
)
add, find, get, change = _records.add, _records.find, _records.get, _records.change
apply, add_note = _records.apply, _records.add_note


def remove(connection: Connection, id: str, now: str) -> None:
    """Delete a meeting and its messages."""
    connection.execute(delete(meeting_words).where(meeting_words.c.meeting == id))
    _records.remove(connection, id, now)


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


def _to_message(row: RowMapping) -> UserMessage:
    return UserMessage(number=row["number"], run=row["run"], text=row["words"], at=row["at"])
