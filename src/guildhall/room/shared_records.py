"""The SQL of resources, documents and the document log.

The document log has every recorded read, change and edit by hand, with the hashes before and after. A change has an
entry before it is made, so that an interrupted call can continue.
Does not check permissions (`documents.py`) and does not access files (`document_stores.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Connection, LargeBinary, cast, delete, func, insert, select, update

from guildhall.store.tables import document_log, documents, resources

if TYPE_CHECKING:
    from guildhall.room.model import Actor


@dataclass(frozen=True, kw_only=True)
class Intent:
    """A change of a document that was put on record before it was made."""

    id: int
    before: str | None
    digest: str
    content: str | None


EDIT = "edit"  # by hand, noticed afterwards
_NO_CHANGE = ("read", EDIT)  # what is no change by somebody in the room
_MOST_IDS = 1_000  # looked at for a name that is near


def add_resource(connection: Connection, room: str, id: str, content: str, type: str, actor: Actor, at: str) -> None:
    values = {"room": room, "id": id, "content": content, "type": type, "by": actor.name, "run": actor.run, "at": at}
    connection.execute(insert(resources).values(**values))


def resource(connection: Connection, room: str, id: str) -> tuple[str, str] | None:
    """Content and type."""
    mine = (resources.c.room == room) & (resources.c.id == id)
    row = connection.execute(select(resources.c.content, resources.c.type).where(mine)).first()
    return None if row is None else (row.content, row.type)


def resource_ids(connection: Connection, room: str) -> list[str]:
    """The newest ids."""
    mine = select(resources.c.id).where(resources.c.room == room).order_by(resources.c.at.desc()).limit(_MOST_IDS)
    return list(connection.execute(mine).scalars())


# Documents in the database


def document(connection: Connection, room: str, path: str) -> str | None:
    mine = (documents.c.room == room) & (documents.c.path == path)
    return connection.execute(select(documents.c.content).where(mine)).scalar()


def put_document(connection: Connection, room: str, path: str, content: str, at: str) -> None:
    mine = (documents.c.room == room) & (documents.c.path == path)
    if connection.execute(update(documents).where(mine).values(content=content, at=at)).rowcount == 0:
        connection.execute(insert(documents).values(room=room, path=path, content=content, at=at))


def drop_document(connection: Connection, room: str, path: str) -> None:
    connection.execute(delete(documents).where(documents.c.room == room, documents.c.path == path))


def document_sizes(connection: Connection, room: str) -> list[tuple[str, int]]:
    """Every document with its size in bytes, in order."""
    size = func.length(cast(documents.c.content, LargeBinary))
    statement = select(documents.c.path, size).where(documents.c.room == room).order_by(documents.c.path)
    return [(row[0], row[1]) for row in connection.execute(statement)]


# What was done to documents, wherever they lie


def note_document(
    connection: Connection, room: str, path: str, action: str, actor: Actor, at: str, **values: str | None
) -> int:
    """Notes a change that is about to be made, or a look."""
    common = {"room": room, "path": path, "action": action, "by": actor.name, "run": actor.run, "key": actor.key}
    statement = insert(document_log).values(**common, at=at, **values)
    return connection.execute(statement).inserted_primary_key[0]  # type: ignore[index]


def settle_document(connection: Connection, id: int, status: str) -> None:
    connection.execute(update(document_log).where(document_log.c.id == id).values(status=status))


def intended(connection: Connection, room: str, run: str, key: str) -> Intent | None:
    """The change that a call was about to make when it was cut off."""
    mine = (document_log.c.room == room) & (document_log.c.run == run) & (document_log.c.key == key)
    statement = select(document_log).where(mine, document_log.c.status == "intended")
    row = connection.execute(statement.order_by(document_log.c.id.desc()).limit(1)).first()
    return None if row is None else Intent(id=row.id, before=row.before, digest=row.digest, content=row.content)


def before_change(connection: Connection, room: str, path: str, actor: Actor, digest: str) -> str | None:
    """What a document was before a change that gave it this hash: its hash then; None: there was none."""
    mine = [document_log.c.room == room, document_log.c.path == path, document_log.c.digest == digest]
    mine += [document_log.c.action != "read", document_log.c.status == "done"]
    if actor.key is not None:
        mine += [document_log.c.run == actor.run, document_log.c.key == actor.key]
    return connection.execute(select(document_log.c.before).where(*mine).limit(1)).scalar()


def last_seen(connection: Connection, room: str, path: str, by: str | None) -> str | None:
    """The hash of a document as somebody last left or saw it; without a name, as it was last written here."""
    mine = [document_log.c.room == room, document_log.c.path == path, document_log.c.status == "done"]
    mine.append(document_log.c.action.not_in(_NO_CHANGE) if by is None else document_log.c.by == by)
    statement = select(document_log.c.digest).where(*mine).order_by(document_log.c.id.desc()).limit(1)
    return connection.execute(statement).scalar()


def written_here(connection: Connection, room: str, path: str, digest: str) -> bool:
    """Whether a document was given this hash by somebody in the room, and not by an edit from outside."""
    mine = [document_log.c.room == room, document_log.c.path == path, document_log.c.digest == digest]
    statement = select(document_log.c.id).where(*mine, document_log.c.action.not_in(_NO_CHANGE)).limit(1)
    return connection.execute(statement).first() is not None


def content_of(connection: Connection, room: str, path: str, digest: str) -> str | None:
    """What a document said when it had this hash, if that is on record."""
    mine = [document_log.c.room == room, document_log.c.path == path, document_log.c.digest == digest]
    statement = select(document_log.c.content).where(*mine, document_log.c.content.is_not(None)).limit(1)
    return connection.execute(statement).scalar()
