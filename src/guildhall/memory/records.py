"""The SQL of this floor: the record of what changed in memory. Rows are added and never changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import func, insert, select

from guildhall.memory.model import Record, Writer
from guildhall.store.tables import memory_log as table

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row

    from guildhall.memory.model import Action, Place


def add(
    connection: Connection,
    place: Place,
    key: str,
    action: Action,
    writer: Writer,
    at: str,
    *,
    digest: str | None = None,
    content: str | None = None,
) -> int:
    """Notes a change; its number."""
    statement = insert(table).values(
        place=place.name,
        scope=place.scope,
        key=key,
        action=action,
        run=writer.run,
        worker=writer.worker,
        by=writer.by,
        at=at,
        digest=digest,
        content=content,
    )
    return connection.execute(statement).inserted_primary_key[0]  # type: ignore[index]


def history(connection: Connection, place: Place, key: str) -> list[Record]:
    """Every change of an entry, newest first."""
    mine = (table.c.place == place.name) & (table.c.key == key)
    return [_record(row) for row in connection.execute(select(table).where(mine).order_by(table.c.id.desc()))]


def known(connection: Connection, place: Place, key: str, digest: str) -> bool:
    """Whether an entry's content is on record."""
    mine = (table.c.place == place.name) & (table.c.key == key) & (table.c.digest == digest)
    return connection.execute(select(table.c.id).where(mine).limit(1)).first() is not None


def last(connection: Connection, place: Place, key: str) -> Record | None:
    """The last change of an entry."""
    mine = (table.c.place == place.name) & (table.c.key == key)
    row = connection.execute(select(table).where(mine).order_by(table.c.id.desc()).limit(1)).first()
    return None if row is None else _record(row)


def latest(connection: Connection, place: Place) -> dict[str, Record]:
    """The last change of every entry of a scope that ever was on record."""
    newest = select(func.max(table.c.id)).where(table.c.place == place.name).group_by(table.c.key)
    found = (_record(row) for row in connection.execute(select(table).where(table.c.id.in_(newest))))
    return {record.key: record for record in found}


def _record(row: Row[Any]) -> Record:
    return Record(
        id=row.id,
        place=row.place,
        scope=row.scope,
        key=row.key,
        action=row.action,
        writer=Writer(by=row.by, worker=row.worker, run=row.run),
        at=row.at,
        digest=row.digest,
        content=row.content,
    )
