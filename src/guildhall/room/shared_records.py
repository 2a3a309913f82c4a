"""The SQL of what a team works on: resources and documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import insert, select

from guildhall.store.tables import resources

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.room.model import Actor

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
