"""Queries for meetings, their sessions and the user's messages.

Events are recorded in `projects/activity_records.py`.
Does not decide which events are allowed (`states.py`).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Integer, RowMapping, delete, func, insert, literal_column, select, update

from guildhall.projects.activity_records import ActivityRecords, list_timeline
from guildhall.projects.meetings.model import Meeting, Session, UserMessage
from guildhall.projects.meetings.states import SESSION_NOTES, Closing, Creation, Event, MeetingStatus, Note, apply_event
from guildhall.store.tables import meeting_messages, meetings

_ROW_ID = literal_column("meetings.rowid", Integer)  # tie-breaker for meetings with equal creation times


def _to_row(meeting: Meeting) -> dict[str, Any]:
    closing = asdict(meeting.closing) if meeting.closing is not None else None
    return {**vars(meeting), "linked": list(meeting.linked), "closing": closing}


def _from_row(row: RowMapping) -> Meeting:
    columns: dict[str, Any] = dict(row)
    columns["linked"] = tuple(row["linked"])
    columns["closing"] = Closing(**row["closing"]) if row["closing"] is not None else None
    return Meeting(**columns)


_records = ActivityRecords[Meeting, Event, Creation | Note](
    noun="meeting", table=meetings, to_row=_to_row, from_row=_from_row, apply_event=apply_event
)
add, get, add_note = _records.add, _records.get, _records.add_note
record_event, update_fields = _records.record_event, _records.update_fields


def remove(connection: Connection, meeting_id: str, now: str) -> None:
    """Delete a meeting and its messages."""
    connection.execute(delete(meeting_messages).where(meeting_messages.c.meeting == meeting_id))
    _records.remove(connection, meeting_id, now)


def list_meetings(
    connection: Connection, project: str | None = None, status: MeetingStatus | None = None
) -> list[Meeting]:
    """Return meetings, newest first."""
    query = select(meetings).order_by(meetings.c.created_at.desc(), _ROW_ID.desc())
    if project is not None:
        query = query.where(meetings.c.project == project)
    if status is not None:
        query = query.where(meetings.c.status == status)
    return [_from_row(row) for row in connection.execute(query).mappings()]


def find_by_ask(connection: Connection, ask_id: str) -> Meeting | None:
    """Return the meeting that was requested with this ask, or None."""
    row = connection.execute(select(meetings).where(meetings.c.ask == ask_id)).mappings().first()
    return _from_row(row) if row else None


# messages


def add_message(connection: Connection, meeting_id: str, run_id: str, text: str, now: str) -> int:
    """Append a user message, and return its number. `run_id` is empty if the meeting has no run yet."""
    query = select(func.max(meeting_messages.c.number)).where(meeting_messages.c.meeting == meeting_id)
    number = (connection.execute(query).scalar_one() or 0) + 1
    row = {"meeting": meeting_id, "number": number, "run": run_id, "text": text, "at": now}
    connection.execute(insert(meeting_messages), row)
    return number


def list_messages(connection: Connection, meeting_id: str) -> list[UserMessage]:
    """Return the user messages of a meeting, oldest first."""
    query = select(meeting_messages).where(meeting_messages.c.meeting == meeting_id)
    rows = connection.execute(query.order_by(meeting_messages.c.number)).mappings()
    return [UserMessage(**{name: row[name] for name in ("number", "run", "text", "at")}) for row in rows]


# sessions


def list_sessions(connection: Connection, meeting_id: str) -> list[Session]:
    """Return the sessions of a meeting, oldest first."""
    return [Session(**entry.data) for entry in list_timeline(connection, meeting_id) if entry.kind in SESSION_NOTES]


def add_session(connection: Connection, meeting_id: str, session: Session, reason: str, now: str) -> None:
    """Add a session to a meeting, and assign the messages that are not in its input to its run."""
    count = get(connection, meeting_id).session_count
    update_fields(connection, meeting_id, now, run=session.run, session_count=count + 1)
    is_after_input = meeting_messages.c.number > session.last_message_number
    is_pending = (meeting_messages.c.meeting == meeting_id) & is_after_input
    connection.execute(update(meeting_messages).where(is_pending).values(run=session.run))
    add_note(connection, meeting_id, "renew_session" if count else "start_session", reason, now, **vars(session))
