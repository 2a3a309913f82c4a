"""Editing: something else is asked for. One that is under way is cancelled and dispatched again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import Conflict, UsageError
from guildhall.projects.commissions import records
from guildhall.projects.commissions.cancel import cancel
from guildhall.projects.commissions.create import check_draft
from guildhall.projects.commissions.graph import refuse_cycle
from guildhall.projects.commissions.model import UNDER_WAY
from guildhall.projects.commissions.paper import written
from guildhall.projects.commissions.projection import project_row
from guildhall.projects.commissions.redispatch import redispatch
from guildhall.projects.commissions.waiting import settle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.core.frame import Frame
    from guildhall.projects.commissions.ground import Ground
    from guildhall.projects.commissions.model import By, Commission


async def edit(ground: Ground, id: str, changes: Mapping[str, Any], frame: Frame, *, by: By = "person") -> Commission:
    """The commission as it stands afterwards."""
    if not changes:
        raise UsageError("nothing is to be changed", hint="Name what: title, worker, prompt, ...")
    before = ground.get(id)
    if before.status in ("completed", "abandoned"):
        raise Conflict(f"the commission {id} is {before.status}: it is over", hint="Make a new one.")
    draft = before.draft.changed(changes)
    # What was there before was a person's to say; and a model is looked at again only where it is named again.
    theirs: dict[str, Any] = {} if "checks" in changes or by == "person" else {"checks": ()}
    if "model" not in changes:
        theirs["model"] = None
    check_draft(ground, ground.project(before), replace(draft, **theirs), frame, by)
    written(replace(before, draft=draft), (), redact=ground.redact)
    others = [one for one in ground.all(before.project) if one.id != id]
    refuse_cycle([*others, replace(before, draft=draft)], id)
    under_way = before.status in UNDER_WAY
    if under_way and (ended := await cancel(ground, id, f"edited by {by}: it begins anew")).status != "cancelled":
        raise Conflict(f"the commission {id} is {ended.status}: it was faster", hint="Make a new one.")
    said = f"edited by {by}: {', '.join(changes)}"
    await ground.store.write(lambda connection: records.redraft(connection, id, draft, ground.now(), said))
    if under_way:
        return await redispatch(ground, id, frame, "edited while it was under way")
    await settle(ground, before.project)
    await project_row(ground, id)
    return ground.get(id)
