"""A commission that is under way and cannot go on for now. Nothing is wrong with it: it waits, and says for what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.projects.commissions import records
from guildhall.projects.commissions.model import working
from guildhall.projects.records import note

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.core.errors import GuildError
    from guildhall.projects.commissions.ground import Ground


async def hold(ground: Ground, id: str, why: str, error: GuildError) -> None:
    """Its row says why it waits, and its timeline, once."""
    where = f" ({error.where})" if error.where else ""
    hint = f" {error.hint.rstrip('.')}." if error.hint else ""
    told = f"{why}: {error.message.rstrip('.')}{where}.{hint} Afterwards: guild resume {id}"
    now = ground.now()

    def write(connection: Connection) -> None:
        found = records.find(connection, id)
        if found is None or found.status != "in_progress" or found.reason == told:
            return
        records.change(connection, id, now, reason=told)
        note(connection, id, told, now, error=error.as_dict())

    await ground.store.write(write)


async def let_go(ground: Ground, id: str) -> None:
    """It goes on."""
    found = ground.get(id)
    if found.held:
        said = working(found.worker)
        await ground.store.write(lambda connection: records.change(connection, id, ground.now(), reason=said))
