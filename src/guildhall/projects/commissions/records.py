"""The SQL of commissions: stores rows and applies the events of the state machine.

Does not decide which events are allowed (`states.py`). The SQL of timelines is in `projects/shared_records.py`.

Invariant: an event is one transaction, which changes both the row and the timeline, or neither.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, RowMapping, delete, insert, select, update

from guildhall.core.errors import NotFound
from guildhall.core.text import did_you_mean
from guildhall.projects.commissions.model import Commission, Draft
from guildhall.projects.commissions.states import ACTIVE, Creation, Event, Hold, Note, Status, transit
from guildhall.projects.model import TimelineEntry
from guildhall.projects.shared_records import add_entry, delete_timeline
from guildhall.store.tables import commissions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


_LISTS = ("dependencies", "artifacts", "linked", "checks")
_DRAFT = ("title", "worker", "prompt", "reviewer", "limits", *_LISTS)


def add(connection: Connection, commission: Commission, reason: str, kind: Creation = "create") -> None:
    """Insert a new commission and the first entry of its timeline."""
    connection.execute(insert(commissions).values(**_to_row(commission)))
    entry = TimelineEntry(kind=kind, at=commission.created_at, reason=reason, after=commission.status)
    add_entry(connection, commission.id, entry)


def apply(
    connection: Connection,
    id: str,
    event: Event,
    reason: str,
    now: str,
    *,
    data: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Commission:
    """Apply an event: update the row and append to the timeline. Raise Conflict if the event is not allowed."""
    before = get(connection, id)
    after = transit(before, event, reason=reason, now=now, **changes)
    _save(connection, after)
    entry = TimelineEntry(kind=event, at=now, reason=reason, before=before.status, after=after.status, data=data or {})
    add_entry(connection, id, entry)
    return after


def change(connection: Connection, id: str, now: str, **changes: Any) -> Commission:
    """Change fields of a commission without changing its status."""
    after = replace(get(connection, id), changed_at=now, **changes)
    _save(connection, after)
    return after


def add_note(connection: Connection, id: str, kind: Note, text: str, now: str, **data: Any) -> None:
    """Append a timeline entry that is not a transition."""
    add_entry(connection, id, TimelineEntry(kind=kind, at=now, reason=text, data=data))


def remove(connection: Connection, id: str, now: str) -> None:
    """Delete a commission. Its runs stay, and a timeline entry, so that its artifact does not rebuild it."""
    connection.execute(delete(commissions).where(commissions.c.id == id))
    delete_timeline(connection, id, now)


def find(connection: Connection, id: str) -> Commission | None:
    row = connection.execute(select(commissions).where(commissions.c.id == id)).mappings().first()
    return _from_row(row) if row else None


def get(connection: Connection, id: str) -> Commission:
    """Return a commission. Raise NotFound for an unknown id."""
    if (found := find(connection, id)) is not None:
        return found
    known = connection.execute(select(commissions.c.id)).scalars().all()
    hint = did_you_mean(id[:40], known) or "`guild ls commissions` lists them."
    raise NotFound(f"unknown commission {id[:100]!r}", hint=hint)


def list_all(
    connection: Connection, *, project: str | None = None, status: Iterable[Status] | None = None
) -> list[Commission]:
    """Return commissions in the order of their creation."""
    query = select(commissions).order_by(commissions.c.created_at, commissions.c.id)
    if project is not None:
        query = query.where(commissions.c.project == project)
    if status is not None:
        query = query.where(commissions.c.status.in_(list(status)))
    return [_from_row(row) for row in connection.execute(query).mappings()]


def list_active(connection: Connection) -> list[Commission]:
    return list_all(connection, status=ACTIVE)


def projects_with_blocked(connection: Connection) -> list[str]:
    """Return the names of the projects that have a blocked commission."""
    query = select(commissions.c.project).where(commissions.c.status == "blocked").distinct()
    return list(connection.execute(query.order_by(commissions.c.project)).scalars())


def _save(connection: Connection, commission: Commission) -> None:
    connection.execute(update(commissions).where(commissions.c.id == commission.id).values(**_to_row(commission)))


def _to_row(commission: Commission) -> dict[str, Any]:
    row = {name: value for name, value in vars(commission).items() if name != "draft"}
    row["hold"] = asdict(commission.hold) if commission.hold is not None else None
    row["conflict"] = list(commission.conflict)
    draft = vars(commission.draft)
    row |= {name: draft[name] for name in ("title", "worker", "prompt", "reviewer")}
    return {**row, "limits": commission.draft.limits, **{name: list(draft[name]) for name in _LISTS}}


def _from_row(row: RowMapping) -> Commission:
    draft: dict[str, Any] = {name: row[name] for name in ("title", "worker", "prompt", "reviewer")}
    draft |= {name: tuple(row[name]) for name in _LISTS}
    own: dict[str, Any] = {name: value for name, value in row.items() if name not in _DRAFT}
    own["hold"] = Hold(**row["hold"]) if row["hold"] is not None else None
    own["conflict"] = tuple(row["conflict"])
    return Commission(draft=Draft(**draft, **row["limits"]), **own)
