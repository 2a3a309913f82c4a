"""What the database says about projects as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select, union_all, update
from sqlalchemy.dialects.sqlite import insert

from guildhall.store.guild_tables import commissions, meetings, redactions

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


def aside(name: str, id: str) -> str:
    """The name under which is kept what was of a repository that has the name no more. No project can be called so."""
    return f"{name}~{id}"


def put_aside(connection: Connection, name: str, id: str) -> None:
    """What is on record of a project is that of the repository with this id, and no more of the name."""
    for table in (commissions, meetings):
        connection.execute(update(table).where(table.c.project == name).values(project=aside(name, id)))


def take_back(connection: Connection, name: str, id: str) -> None:
    """The repository with this id is registered again."""
    for table in (commissions, meetings):
        kept = table.c.project.endswith(aside("", id), autoescape=True)
        connection.execute(update(table).where(kept).values(project=name))


def redacted(connection: Connection, digest: str) -> bytes | None:
    """A text without the secrets that were found in it; None: there were none."""
    return connection.execute(select(redactions.c.text).where(redactions.c.digest == digest)).scalar()


def remember_redacted(connection: Connection, digest: str, text: bytes) -> None:
    """Found in it later, further ones are taken out too."""
    row = insert(redactions).values(digest=digest, text=text)
    connection.execute(row.on_conflict_do_update(index_elements=["digest"], set_={"text": text}))
