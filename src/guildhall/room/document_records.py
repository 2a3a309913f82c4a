"""Queries for resources, documents and the document log.

The document log has every recorded read, change and edit by hand, with the hashes before and after. A change is
logged before it is made, so that an interrupted call can continue.
Does not check permissions (`documents.py`) or access files (`document_stores.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlalchemy import Connection, LargeBinary, cast, delete, func, insert, select, update

from guildhall.store.tables import document_log, documents, resources

if TYPE_CHECKING:
    from guildhall.room.model import Actor, Message


@dataclass(frozen=True, kw_only=True)
class Intent:
    """A change of a document that was recorded before it was made."""

    id: int
    before: str | None
    digest: str
    content: str | None


EDIT = "edit"  # by hand
_NOT_CHANGES = ("read", EDIT)
_MAX_IDS = 1_000  # searched for a similar id


def add_resource(connection: Connection, room: str, id: str, content: str, type: str, actor: Actor, at: str) -> None:
    values = {"room": room, "id": id, "content": content, "type": type, "by": actor.name, "run": actor.run, "at": at}
    connection.execute(insert(resources).values(**values))


def find_resource(connection: Connection, room: str, id: str) -> tuple[str, str] | None:
    """Return the content and the type of a resource, or None."""
    condition = (resources.c.room == room) & (resources.c.id == id)
    row = connection.execute(select(resources.c.content, resources.c.type).where(condition)).first()
    return None if row is None else (row.content, row.type)


def read_whole(connection: Connection, room: str, message: Message) -> Message:
    """Return a message with its whole text, if its content is shortened."""
    resource = find_resource(connection, room, message.resource) if message.resource else None
    return message if resource is None else replace(message, content=resource[0])


def resource_ids(connection: Connection, room: str) -> list[str]:
    """Return the ids of the newest resources, newest first."""
    newest = select(resources.c.id).where(resources.c.room == room).order_by(resources.c.at.desc()).limit(_MAX_IDS)
    return list(connection.execute(newest).scalars())


# Documents in the database


def read_document(connection: Connection, room: str, path: str) -> str | None:
    condition = (documents.c.room == room) & (documents.c.path == path)
    return connection.execute(select(documents.c.content).where(condition)).scalar()


def put_document(connection: Connection, room: str, path: str, content: str, at: str) -> None:
    condition = (documents.c.room == room) & (documents.c.path == path)
    if connection.execute(update(documents).where(condition).values(content=content, at=at)).rowcount == 0:
        connection.execute(insert(documents).values(room=room, path=path, content=content, at=at))


def drop_document(connection: Connection, room: str, path: str) -> None:
    connection.execute(delete(documents).where(documents.c.room == room, documents.c.path == path))


def document_sizes(connection: Connection, room: str) -> list[tuple[str, int]]:
    """Return every document with its size in bytes, ordered by path."""
    size = func.length(cast(documents.c.content, LargeBinary))
    statement = select(documents.c.path, size).where(documents.c.room == room).order_by(documents.c.path)
    return [(row[0], row[1]) for row in connection.execute(statement)]


# The document log


def add_entry(
    connection: Connection, room: str, path: str, action: str, actor: Actor, at: str, **values: str | None
) -> int:
    """Log a read or an intended change, and return the number of the entry."""
    common = {"room": room, "path": path, "action": action, "by": actor.name, "run": actor.run, "key": actor.key}
    statement = insert(document_log).values(**common, at=at, **values)
    return connection.execute(statement).inserted_primary_key[0]  # type: ignore[index]


def set_entry_status(connection: Connection, id: int, status: str) -> None:
    connection.execute(update(document_log).where(document_log.c.id == id).values(status=status))


def find_intent(connection: Connection, room: str, run: str, key: str) -> Intent | None:
    """Return the change that a call intended when it was interrupted, or None."""
    condition = (document_log.c.room == room) & (document_log.c.run == run) & (document_log.c.key == key)
    statement = select(document_log).where(condition, document_log.c.status == "intended")
    row = connection.execute(statement.order_by(document_log.c.id.desc()).limit(1)).first()
    return None if row is None else Intent(id=row.id, before=row.before, digest=row.digest, content=row.content)


def previous_hash(connection: Connection, room: str, path: str, actor: Actor, digest: str) -> str | None:
    """Return the document's previous hash, or None if the change created it."""
    conditions = [document_log.c.room == room, document_log.c.path == path, document_log.c.digest == digest]
    conditions += [document_log.c.action != "read", document_log.c.status == "done"]
    if actor.key is not None:
        conditions += [document_log.c.run == actor.run, document_log.c.key == actor.key]
    return connection.execute(select(document_log.c.before).where(*conditions).limit(1)).scalar()


def last_seen_hash(connection: Connection, room: str, path: str, by: str | None) -> str | None:
    """Return the hash that an agent last read or wrote. Without an agent, return the hash of the last change."""
    conditions = [document_log.c.room == room, document_log.c.path == path, document_log.c.status == "done"]
    conditions.append(document_log.c.action.not_in(_NOT_CHANGES) if by is None else document_log.c.by == by)
    statement = select(document_log.c.digest).where(*conditions).order_by(document_log.c.id.desc()).limit(1)
    return connection.execute(statement).scalar()


def is_room_version(connection: Connection, room: str, path: str, digest: str) -> bool:
    """Return True if a change in the room, not an edit by hand, gave a document this hash."""
    conditions = [document_log.c.room == room, document_log.c.path == path, document_log.c.digest == digest]
    statement = select(document_log.c.id).where(*conditions, document_log.c.action.not_in(_NOT_CHANGES)).limit(1)
    return connection.execute(statement).first() is not None


def find_content(connection: Connection, room: str, path: str, digest: str) -> str | None:
    """Return the logged content of a document with this hash, or None."""
    conditions = [document_log.c.room == room, document_log.c.path == path, document_log.c.digest == digest]
    statement = select(document_log.c.content).where(*conditions, document_log.c.content.is_not(None)).limit(1)
    return connection.execute(statement).scalar()
