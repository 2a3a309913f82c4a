"""Queries that commissions and meetings share: rows, timelines, redacted texts, and records of reassigned names.

Does not map columns to fields (`commissions/records.py`, `meetings/records.py`).

Invariant: an event changes the row and the timeline in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sqlalchemy import Connection, delete, func, insert, select, union, union_all, update
from sqlalchemy.dialects.sqlite import insert as upsert

from guildhall.activities.contract import Decision
from guildhall.core.errors import NotFound
from guildhall.core.redaction import MIN_GUESSED_CHARS
from guildhall.core.text_checks import suggest_or
from guildhall.projects.model import Activity, TimelineEntry
from guildhall.runs.assembly.tools_and_folders import record_decision
from guildhall.runs.record.journal import successful_calls
from guildhall.store.tables import commissions, meetings, redactions, timeline

if TYPE_CHECKING:
    from sqlalchemy import RowMapping, Table

    from guildhall.runs.record.entries import Entry, Payload
    from guildhall.store.engine import Store

ActivityT = TypeVar("ActivityT", bound=Activity)
EventT = TypeVar("EventT", bound=str)
KindT = TypeVar("KindT", bound=str)


def list_unfinished(connection: Connection, project: str, final: Collection[str]) -> tuple[str, ...]:
    """Return the ids of the commissions and meetings of a project, oldest first, without those in a `final` status."""
    parts = [
        select(table.c.id, table.c.created_at).where(table.c.project == project, table.c.status.not_in(final))
        for table in (commissions, meetings)
    ]
    both = union_all(*parts).subquery()
    return tuple(connection.execute(select(both.c.id).order_by(both.c.created_at)).scalars())


def list_known_ids(connection: Connection) -> set[str]:
    """Return the ids of all commissions and meetings, including deleted activities."""
    ids = union(select(commissions.c.id), select(meetings.c.id), select(timeline.c.activity))
    return set(connection.execute(ids).scalars())


def archive_key(name: str, repository_id: str) -> str:
    """Return the key of archived records. It is not a valid project name."""
    return f"{name}~{repository_id}"


def archive_project(connection: Connection, name: str, repository_id: str) -> None:
    """Move the commissions and meetings of a project name to the archive key of its repository."""
    for table in (commissions, meetings):
        archived = update(table).where(table.c.project == name).values(project=archive_key(name, repository_id))
        connection.execute(archived)


def restore_project(connection: Connection, name: str, repository_id: str) -> None:
    """Move the archived commissions and meetings of a repository to its new project name."""
    for table in (commissions, meetings):
        is_archived = table.c.project.endswith(archive_key("", repository_id), autoescape=True)
        connection.execute(update(table).where(is_archived).values(project=name))


@dataclass(frozen=True, kw_only=True)
class ActivityRecords(Generic[ActivityT, EventT, KindT]):
    """The rows of all commissions, or of all meetings, and their timelines."""

    noun: str  # in errors
    table: Table
    to_row: Callable[[ActivityT], Mapping[str, Any]]
    from_row: Callable[[RowMapping], ActivityT]
    apply_event: Callable[..., ActivityT]  # returns the activity after an event, or raises Conflict

    def add(self, connection: Connection, activity: ActivityT, kind: KindT, reason: str) -> None:
        """Insert a new activity and the first entry of its timeline."""
        connection.execute(insert(self.table).values(**self.to_row(activity)))
        entry = TimelineEntry(kind=kind, at=activity.created_at, reason=reason, after=activity.status)
        add_entry(connection, activity.id, entry)

    def record_event(
        self,
        connection: Connection,
        id: str,
        event: EventT,
        reason: str,
        now: str,
        *,
        data: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> ActivityT:
        """Update the row and append to the timeline. Raise Conflict if the event is not allowed now."""
        before = self.get(connection, id)
        after = self.apply_event(before, event, reason=reason, now=now, **changes)
        self._save(connection, after)
        statuses = {"before": before.status, "after": after.status}
        add_entry(connection, id, TimelineEntry(kind=event, at=now, reason=reason, **statuses, data=data or {}))
        return after

    def update_fields(self, connection: Connection, id: str, now: str, **changes: Any) -> ActivityT:
        """Change fields of an activity other than its status, without a timeline entry."""
        after = replace(self.get(connection, id), changed_at=now, **changes)
        self._save(connection, after)
        return after

    def add_note(self, connection: Connection, id: str, kind: KindT, text: str, now: str, **data: Any) -> None:
        """Append a timeline entry that is not a transition."""
        add_entry(connection, id, TimelineEntry(kind=kind, at=now, reason=text, data=data))

    def remove(self, connection: Connection, id: str, now: str) -> None:
        """Delete an activity but not its runs. A timeline entry remains, so that the artifact does not rebuild it."""
        connection.execute(delete(self.table).where(self.table.c.id == id))
        connection.execute(delete(timeline).where(timeline.c.activity == id))
        add_entry(connection, id, TimelineEntry(at=now, reason="deleted"))

    def find(self, connection: Connection, id: str) -> ActivityT | None:
        row = connection.execute(select(self.table).where(self.table.c.id == id)).mappings().first()
        return self.from_row(row) if row else None

    def get(self, connection: Connection, id: str) -> ActivityT:
        """Return an activity. Raise NotFound for an unknown id."""
        if (activity := self.find(connection, id)) is not None:
            return activity
        known = connection.execute(select(self.table.c.id)).scalars().all()
        hint = suggest_or(id[:60], known, f"List the {self.noun}s: guild ls {self.noun}s")
        raise NotFound(f"unknown {self.noun} {id[:60]!r}", hint=hint)

    def _save(self, connection: Connection, activity: ActivityT) -> None:
        row = self.to_row(activity)
        connection.execute(update(self.table).where(self.table.c.id == activity.id).values(**row))


# timelines


def add_entry(connection: Connection, activity: str, entry: TimelineEntry) -> None:
    """Append a timeline entry."""
    connection.execute(insert(timeline).values(activity=activity, **{**vars(entry), "data": dict(entry.data)}))


def list_timeline(connection: Connection, activity: str) -> list[TimelineEntry]:
    """Return the timeline, oldest entry first."""
    query = select(timeline).where(timeline.c.activity == activity).order_by(timeline.c.id)
    names = ("at", "reason", "kind", "before", "after", "data")
    return [TimelineEntry(**{name: row[name] for name in names}) for row in connection.execute(query).mappings()]


def count_transitions(connection: Connection, activity: str) -> int:
    query = select(func.count()).where(timeline.c.activity == activity, timeline.c.after.is_not(None))
    return connection.execute(query).scalar_one()


def list_decisions(entries: Sequence[Entry[Payload]]) -> list[Decision]:
    """Return the decisions in the journal of a run, in order."""
    names = ("question", "decision", "reasoning")
    calls = successful_calls(entries, record_decision.name)
    return [Decision(**{name: str(call.get(name, "")) for name in names}) for call in calls]


class PersistentRedactor:
    """Removes secrets that are known now, or that were known when an equal text was redacted before.

    A redacted text is stored, so that a later hall that does not know the secret writes the same text.
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
