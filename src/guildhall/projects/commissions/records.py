"""Queries for commissions.

Events are recorded in `projects/activity_records.py`.
Does not decide which events are allowed (`states.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, RowMapping, select

from guildhall.projects.activity_records import ActivityRecords
from guildhall.projects.commissions.model import LISTS, Commission, Draft
from guildhall.projects.commissions.states import ACTIVE, Creation, Event, Hold, Note, Status, apply_event
from guildhall.projects.model import Diffstat
from guildhall.store.tables import commissions

_DRAFT_TEXTS = ("title", "worker", "prompt", "reviewer")
_DRAFT_COLUMNS = (*_DRAFT_TEXTS, "limits", *LISTS)


def list_commissions(
    connection: Connection, *, project: str | None = None, statuses: Iterable[Status] | None = None
) -> list[Commission]:
    """Return commissions in the order of their creation."""
    query = select(commissions).order_by(commissions.c.created_at, commissions.c.id)
    if project is not None:
        query = query.where(commissions.c.project == project)
    if statuses is not None:
        query = query.where(commissions.c.status.in_(list(statuses)))
    return [_from_row(row) for row in connection.execute(query).mappings()]


def list_active(connection: Connection) -> list[Commission]:
    return list_commissions(connection, statuses=ACTIVE)


def list_projects_with_blocked(connection: Connection) -> list[str]:
    """Return the names of the projects that have a blocked commission."""
    query = select(commissions.c.project).where(commissions.c.status == "blocked").distinct()
    return list(connection.execute(query.order_by(commissions.c.project)).scalars())


def _to_row(commission: Commission) -> dict[str, Any]:
    row = {name: value for name, value in vars(commission).items() if name != "draft"}
    row["hold"] = asdict(commission.hold) if commission.hold is not None else None
    row["conflict"] = list(commission.conflict)
    row["diffstat"] = asdict(commission.diffstat) if commission.diffstat is not None else None
    draft = vars(commission.draft)
    row |= {name: draft[name] for name in _DRAFT_TEXTS}
    return {**row, "limits": commission.draft.limits, **{name: list(draft[name]) for name in LISTS}}


def _from_row(row: RowMapping) -> Commission:
    draft: dict[str, Any] = {name: row[name] for name in _DRAFT_TEXTS}
    draft |= {name: tuple(row[name]) for name in LISTS}
    own: dict[str, Any] = {name: value for name, value in row.items() if name not in _DRAFT_COLUMNS}
    own["hold"] = Hold(**row["hold"]) if row["hold"] is not None else None
    own["conflict"] = tuple(row["conflict"])
    own["diffstat"] = Diffstat(**row["diffstat"]) if row["diffstat"] is not None else None
    return Commission(draft=Draft(**draft, **row["limits"]), **own)


_records = ActivityRecords[Commission, Event, Creation | Note](
    noun="commission", table=commissions, to_row=_to_row, from_row=_from_row, apply_event=apply_event
)
add, find, get, remove = _records.add, _records.find, _records.get, _records.remove
record_event, update_fields, add_note = _records.record_event, _records.update_fields, _records.add_note
