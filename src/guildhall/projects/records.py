"""What the database says about projects as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select, union_all

from guildhall.store.tables import commissions, meetings

if TYPE_CHECKING:
    from sqlalchemy import Connection

_ENDED = ("completed", "abandoned", "closed", "declined")


def living(connection: Connection, project: str) -> tuple[str, ...]:
    """The commissions and meetings of a project that have not ended: also those that may be dispatched again."""
    parts = [
        select(table.c.id, table.c.created_at).where(table.c.project == project, table.c.status.not_in(_ENDED))
        for table in (commissions, meetings)
    ]
    every = union_all(*parts).subquery()
    return tuple(connection.execute(select(every.c.id).order_by(every.c.created_at)).scalars())
