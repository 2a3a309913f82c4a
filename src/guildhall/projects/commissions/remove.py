"""Taking a commission that is over off the record. Its artifact, its work and its runs stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.errors import NotDeletable
from guildhall.projects.commissions import records
from guildhall.projects.commissions.model import OVER, UNDER_WAY

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.projects.commissions.ground import Ground


async def remove(ground: Ground, id: str) -> None:
    async with ground.steering[id]:
        await ground.store.write(lambda connection: _remove(connection, id, ground.now()))


def _remove(connection: Connection, id: str, now: str) -> None:
    commission = records.get(connection, id)
    if commission.status not in OVER:
        hint = f"guild commission {'cancel' if commission.status in UNDER_WAY else 'abandon'} {id} first."
        raise NotDeletable(f"the commission {id} is {commission.status}: it cannot be deleted", hint=hint)
    others = records.listed(connection, project=commission.project)
    waits = [one.id for one in others if one.status not in OVER and commission.path in one.draft.dependencies]
    if waits:
        hint = "They would wait for it for ever: end them first, or take the dependency out of them."
        raise NotDeletable(f"the commission {id} cannot be deleted: {', '.join(waits)} depend on it", hint=hint)
    records.remove(connection, id, now)
