"""Redispatch: failed or cancelled -> pending -> dispatched, as a new attempt.

It begins anew: another branch, another run, nothing of the old conversation. The old branch and the timeline remain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict
from guildhall.projects.commissions import records
from guildhall.projects.commissions.conflict import no_more
from guildhall.projects.commissions.dispatch import demand_model, dispatch
from guildhall.projects.commissions.finalise import clear
from guildhall.projects.commissions.projection import project_row
from guildhall.projects.commissions.waiting import settle

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.core.frame import Frame
    from guildhall.projects.commissions.ground import Ground
    from guildhall.projects.commissions.model import Commission


async def redispatch(ground: Ground, id: str, frame: Frame) -> Commission:
    """A new attempt; one whose dependencies are gone meanwhile is blocked instead."""
    async with ground.steering[id]:
        before = ground.get(id)
        if before.status == "blocked":  # from there to pending is a way, but not this one
            told = f"the commission {id} is blocked: only one that failed or was cancelled is tried anew"
            raise Conflict(told, hint=before.next_step)
        place = ground.place(ground.project(before), frame)
        demand_model(ground, before, place)  # raises before anything has changed
        ground.git(before).demand_movable()

        def write(connection: Connection) -> Commission:
            now = ground.now()
            data = {"result": before.result} if before.result is not None else {}
            moved = records.move(connection, id, "pending", "to be tried anew", now, data=data)
            no_more(connection, moved, now)
            return moved

        await ground.store.write(write)
        await clear(ground, before)  # of an attempt that could not be merged, the checkout is still there
        if before.run is not None:
            await ground.call_off(before.run)
        await settle(ground, before.project)
        if ground.get(id).status == "blocked":
            await project_row(ground, id)
            return ground.get(id)
        return await dispatch(ground, id, frame)
