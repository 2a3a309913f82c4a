"""Abandoning: what nobody will do any more -> abandoned, for good. Its branches stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.projects.commissions import records
from guildhall.projects.commissions.cancel import checked_reason
from guildhall.projects.commissions.conflict import no_more
from guildhall.projects.commissions.finalise import tidy

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.projects.commissions.ground import Ground
    from guildhall.projects.commissions.model import Commission


async def abandon(ground: Ground, id: str, reason: str = "by the user") -> Commission:
    reason = ground.redact(checked_reason(reason))
    async with ground.steering[id]:

        def write(connection: Connection) -> None:
            now = ground.now()
            no_more(connection, records.move(connection, id, "abandoned", reason, now), now)

        await ground.store.write(write)
        if (run := ground.get(id).run) is not None:
            await ground.call_off(run)
        await tidy(ground, id)
        return ground.get(id)
