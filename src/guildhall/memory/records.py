"""SQL of memory: adds changes to the log and queries them.

Does not read or write entry files: `memory.folder` does.

Invariant: rows are only added. A content is in the log before its file is replaced or removed, so every earlier content
can be restored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, Row, insert, select

from guildhall.memory.model import HAND, Action, Author, Change, MemoryEntry, content_digest
from guildhall.store.tables import memory_log as table

if TYPE_CHECKING:
    from guildhall.memory.folder import MemoryFolder


def add_change(
    connection: Connection,
    folder: MemoryFolder,
    key: str,
    action: Action,
    author: Author,
    at: str,
    content: str | None = None,
) -> None:
    """Log a change. Pass no content if the change removes the entry."""
    connection.execute(
        insert(table).values(
            place=folder.name,
            scope=folder.scope,
            key=key,
            action=action,
            run=author.run,
            worker=author.worker,
            by=author.kind,
            at=at,
            digest=None if content is None else content_digest(content),
            content=content,
        )
    )


def add_manual_edit(connection: Connection, folder: MemoryFolder, entry: MemoryEntry, at: str) -> None:
    """Log the content of an entry before it is replaced or removed, unless the log has it from an earlier change."""
    logged = _where_entry(folder, entry.key) & (table.c.digest == content_digest(entry.content))
    if connection.execute(select(table.c.id).where(logged).limit(1)).first() is None:
        add_change(connection, folder, entry.key, "edit", HAND, at, entry.content)


def list_changes(connection: Connection, folder: MemoryFolder, key: str, limit: int | None = None) -> list[Change]:
    """Return the changes of an entry, newest first."""
    query = select(table).where(_where_entry(folder, key)).order_by(table.c.id.desc()).limit(limit)
    return [_to_change(row) for row in connection.execute(query)]


def _where_entry(folder: MemoryFolder, key: str) -> ColumnElement[bool]:
    return (table.c.place == folder.name) & (table.c.key == key)


def _to_change(row: Row[Any]) -> Change:
    return Change(
        id=row.id,
        scope=row.scope,
        key=row.key,
        action=row.action,
        author=Author(kind=row.by, worker=row.worker, run=row.run),
        at=row.at,
        digest=row.digest,
        content=row.content,
    )
