"""The SQL that commissions and meetings share: timelines, redacted texts, and records of reassigned names.

Does not have the rows of commissions and meetings (`commissions/records.py`, `meetings/records.py`).
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from sqlalchemy import Connection, delete, func, insert, select, union, union_all, update
from sqlalchemy.dialects.sqlite import insert as upsert

from guildhall.activities.contract import Decision
from guildhall.core.redaction import MIN_GUESSED_CHARS
from guildhall.projects.model import TimelineEntry
from guildhall.runs.assembly.tool_set import record_decision
from guildhall.runs.record.journal import successful_calls
from guildhall.store.tables import commissions, meetings, redactions, timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from guildhall.runs.record.entries import Entry, Payload
    from guildhall.store.engine import Store


_FINAL = ("completed", "abandoned", "closed", "declined")


def list_unfinished(connection: Connection, project: str) -> tuple[str, ...]:
    """Return the commissions and meetings of a project that have not ended or can be dispatched again."""
    parts = [
        select(table.c.id, table.c.created_at).where(table.c.project == project, table.c.status.not_in(_FINAL))
        for table in (commissions, meetings)
    ]
    both = union_all(*parts).subquery()
    return tuple(connection.execute(select(both.c.id).order_by(both.c.created_at)).scalars())


def list_known_ids(connection: Connection) -> set[str]:
    """Return the ids of all commissions and meetings, including deleted activities."""
    ids = union(select(commissions.c.id), select(meetings.c.id), select(timeline.c.activity))
    return set(connection.execute(ids).scalars())


def archive_key(name: str, id: str) -> str:
    """Return the archive key of a repository whose name was reassigned. It is not a valid project name."""
    return f"{name}~{id}"


def archive(connection: Connection, name: str, id: str) -> None:
    """Archive the records of a project name under the id of its repository."""
    for table in (commissions, meetings):
        connection.execute(update(table).where(table.c.project == name).values(project=archive_key(name, id)))


def restore(connection: Connection, name: str, id: str) -> None:
    """Restore the archived records of a repository under its new name."""
    for table in (commissions, meetings):
        is_archived = table.c.project.endswith(archive_key("", id), autoescape=True)
        connection.execute(update(table).where(is_archived).values(project=name))


# timelines


def add_entry(connection: Connection, activity: str, entry: TimelineEntry) -> None:
    """Append a timeline entry, in the transaction of the change that it reports."""
    connection.execute(insert(timeline).values(activity=activity, **{**vars(entry), "data": dict(entry.data)}))


def list_timeline(connection: Connection, activity: str) -> list[TimelineEntry]:
    """Return the timeline, oldest entry first."""
    query = select(timeline).where(timeline.c.activity == activity).order_by(timeline.c.id)
    names = ("at", "reason", "kind", "before", "after", "data")
    return [TimelineEntry(**{name: row[name] for name in names}) for row in connection.execute(query).mappings()]


def count_transitions(connection: Connection, activity: str) -> int:
    query = select(func.count()).where(timeline.c.activity == activity, timeline.c.after.is_not(None))
    return connection.execute(query).scalar_one()


def delete_timeline(connection: Connection, activity: str, now: str) -> None:
    """Delete a timeline, except for an entry that records the deletion."""
    connection.execute(delete(timeline).where(timeline.c.activity == activity))
    add_entry(connection, activity, TimelineEntry(at=now, reason="deleted"))


def list_decisions(entries: Sequence[Entry[Payload]]) -> list[Decision]:
    """Return the decisions that a run has recorded, in order."""
    names = ("question", "decision", "reasoning")
    calls = successful_calls(entries, record_decision.name)
    return [Decision(**{name: str(call.get(name, "")) for name in names}) for call in calls]


class PersistentRedactor:
    """Removes from a text all secrets that are known now or were known when the text was first redacted.

    The redacted text is stored, so that a later hall without the secret writes the same text.
    """

    def __init__(self, store: Store, secrets: Callable[[str], str], *, readonly: bool = False) -> None:
        self._store = store
        self._secrets = secrets
        self._readonly = readonly

    def __call__(self, text: str) -> str:
        if len(text) < MIN_GUESSED_CHARS:
            return text
        digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        query = select(redactions.c.text).where(redactions.c.digest == digest)
        stored: bytes | None = self._store.read(lambda connection: connection.execute(query).scalar())
        before = text if stored is None else stored.decode("utf-8", "surrogatepass")
        redacted = self._secrets(before)
        if redacted != before and not self._readonly:
            data = redacted.encode("utf-8", "surrogatepass")  # on disk no later than the row that has the text
            row = upsert(redactions).values(digest=digest, text=data)
            row = row.on_conflict_do_update(index_elements=["digest"], set_={"text": data})
            self._store.submit(lambda connection: connection.execute(row))
        return redacted
