"""The SQL of meetings and of what is said in them. Nothing else knows these columns."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Integer, RowMapping, delete, func, insert, literal_column, select, update

from guildhall.projects.meetings.model import Meeting, Words, check_transition
from guildhall.projects.model import Moment
from guildhall.projects.records import add_moment, forget
from guildhall.store.guild_tables import meeting_words, meetings

if TYPE_CHECKING:
    from guildhall.projects.meetings.model import MeetingStatus


_PLACE = literal_column("meetings.rowid", Integer)  # two of one moment stay in their order


def add(connection: Connection, meeting: Meeting, reason: str) -> None:
    """A meeting comes into being, and its timeline begins."""
    connection.execute(insert(meetings), {**asdict(meeting), "linked": list(meeting.linked)})
    add_moment(
        connection, meeting.id, Moment(kind="create", at=meeting.created_at, reason=reason, after=meeting.status)
    )


def move(connection: Connection, id: str, after: MeetingStatus, reason: str, now: str, **columns: Any) -> Meeting:
    """A transition: the row and the timeline, or nothing at all where it may not be."""
    meeting = find(connection, id)
    assert meeting is not None
    check_transition(meeting, after)
    change(connection, id, now, status=after, reason=reason, **columns)
    add_moment(connection, id, Moment(kind=after, at=now, reason=reason, before=meeting.status, after=after))
    moved = find(connection, id)
    assert moved is not None
    return moved


def change(connection: Connection, id: str, now: str, **columns: Any) -> None:
    """Changes what is no state of it."""
    connection.execute(update(meetings).where(meetings.c.id == id).values(**columns, changed_at=now))


def remove(connection: Connection, id: str, now: str) -> None:
    """A meeting is gone from the record; its runs stay there, and one line that says so."""
    connection.execute(delete(meeting_words).where(meeting_words.c.meeting == id))
    connection.execute(delete(meetings).where(meetings.c.id == id))
    forget(connection, id, now)


def find(connection: Connection, id: str) -> Meeting | None:
    row = connection.execute(select(meetings).where(meetings.c.id == id)).mappings().first()
    return _meeting(row) if row else None


def listed(connection: Connection, project: str | None = None, status: MeetingStatus | None = None) -> list[Meeting]:
    """The meetings, newest first."""
    query = select(meetings).order_by(meetings.c.created_at.desc(), _PLACE.desc())
    if project is not None:
        query = query.where(meetings.c.project == project)
    if status is not None:
        query = query.where(meetings.c.status == status)
    return [_meeting(row) for row in connection.execute(query).mappings()]


def by_ask(connection: Connection, ask: str) -> Meeting | None:
    row = connection.execute(select(meetings).where(meetings.c.ask == ask)).mappings().first()
    return _meeting(row) if row else None


# what was said


def add_words(connection: Connection, id: str, run: str, words: str, now: str) -> int:
    """What the person says next; its number."""
    last = connection.execute(select(func.max(meeting_words.c.number)).where(meeting_words.c.meeting == id))
    number = (last.scalar_one() or 0) + 1
    said = {"meeting": id, "number": number, "run": run, "words": words, "at": now}
    connection.execute(insert(meeting_words), said)
    return number


def words(connection: Connection, id: str, number: int) -> Words | None:
    query = select(meeting_words).where(meeting_words.c.meeting == id, meeting_words.c.number == number)
    row = connection.execute(query).mappings().first()
    return _words(row) if row else None


def all_words(connection: Connection, id: str) -> list[Words]:
    query = select(meeting_words).where(meeting_words.c.meeting == id).order_by(meeting_words.c.number)
    return [_words(row) for row in connection.execute(query).mappings()]


def heard_by(connection: Connection, id: str, run: str, after: int) -> None:
    """Whatever was said after this number is for another run to hear."""
    later = (meeting_words.c.meeting == id) & (meeting_words.c.number > after)
    connection.execute(update(meeting_words).where(later).values(run=run))


def _meeting(row: RowMapping) -> Meeting:
    columns: dict[str, Any] = {**row}
    columns["linked"] = tuple(row["linked"])
    return Meeting(**columns)


def _words(row: RowMapping) -> Words:
    return Words(number=row["number"], run=row["run"], words=row["words"], at=row["at"])
