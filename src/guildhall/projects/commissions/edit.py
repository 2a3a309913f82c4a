"""Editing: something else is asked for. One that is under way is cancelled and dispatched again.

Two who edit the same one do so one after another, the second what the first has made of it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import Conflict, UsageError
from guildhall.projects.commissions import records
from guildhall.projects.commissions.cancel import end, halted
from guildhall.projects.commissions.create import check_draft
from guildhall.projects.commissions.dispatch import queue_up
from guildhall.projects.commissions.finalise import clear
from guildhall.projects.commissions.graph import refuse_cycle
from guildhall.projects.commissions.model import UNDER_WAY
from guildhall.projects.commissions.paper import written
from guildhall.projects.commissions.projection import project_row
from guildhall.projects.commissions.waiting import follow, in_words, lacks, settle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from guildhall.core.frame import Frame
    from guildhall.projects.commissions.ground import Ground
    from guildhall.projects.commissions.model import By, Commission, Draft


async def edit(ground: Ground, id: str, changes: Mapping[str, Any], frame: Frame, *, by: By = "person") -> Commission:
    """The commission as it stands afterwards."""
    if not changes:
        raise UsageError("nothing is to be changed", hint="Name what: title, worker, prompt, ...")
    async with ground.steering[id]:
        before = ground.get(id)
        draft = _draft(ground, before, changes, frame, by)
        said = f"edited by {by}: {', '.join(changes)}"
        if before.status in UNDER_WAY:
            await _begin_anew(ground, id, draft, said)
        else:
            await ground.store.write(lambda connection: records.redraft(connection, id, draft, ground.now(), said))
            await settle(ground, before.project)
        if ground.get(id).status not in UNDER_WAY:
            await project_row(ground, id)
        return ground.get(id)


def _draft(ground: Ground, before: Commission, changes: Mapping[str, Any], frame: Frame, by: By) -> Draft:
    """What is asked for from now on, if that can be carried out."""
    if before.status in ("completed", "abandoned"):
        raise Conflict(f"the commission {before.id} is {before.status}: it is over", hint="Make a new one.")
    draft = before.draft.changed(changes)
    check_draft(ground, ground.project(before), draft, frame, by, changed=tuple(changes))
    written(replace(before, draft=draft), (), redact=ground.redact)
    others = [one for one in ground.all(before.project) if one.id != before.id]
    refuse_cycle([*others, replace(before, draft=draft)], before.id)
    return draft


async def _begin_anew(ground: Ground, id: str, draft: Draft, said: str) -> None:
    """In one transaction: whoever dies on the way leaves it as it was, or as one whose turn will come."""
    before = ground.get(id)
    ground.git(before).demand_movable()
    if draft.dependencies:
        await asyncio.to_thread(follow, ground, before.project)
    missing = await asyncio.to_thread(lacks, ground, replace(before, draft=draft))
    halt = await halted(ground, id)
    if halt is None:
        ended = ground.get(id)
        raise Conflict(f"the commission {id} is {ended.status}: it was faster", hint=ended.next_step)

    def write(connection: Connection) -> None:
        now = ground.now()
        data = {"result": halt.result} if halt.result is not None else {}
        end(connection, halt, f"{said}: it begins anew", now)
        records.redraft(connection, id, draft, now, said)
        records.move(connection, id, "pending", "edited while it was under way", now, data=data)
        if missing:
            records.move(connection, id, "blocked", in_words(missing), now, data={"missing": missing})
        else:
            queue_up(connection, id, now)

    await ground.store.write(write)
    await clear(ground, halt)
