"""Creation: (nothing) -> pending or blocked."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.core.errors import NotFound, UsageError
from guildhall.core.ids import COMMISSION, is_name, new_id
from guildhall.projects.commissions import records
from guildhall.projects.commissions.graph import refuse_cycle
from guildhall.projects.commissions.model import Commission, commission_in
from guildhall.projects.commissions.paper import written
from guildhall.projects.commissions.projection import project_row
from guildhall.projects.commissions.waiting import follow, in_words, lacks
from guildhall.projects.model import is_of_the_hall
from guildhall.workers.registry import FILES

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from guildhall.core.frame import Frame
    from guildhall.projects.commissions.ground import Ground
    from guildhall.projects.commissions.model import By, Draft
    from guildhall.projects.model import Project

_ABOUT_MODEL = frozenset({"worker", "model", "max_budget_usd", "reviewer"})
_SCOPES = ("", "project", "home", "package", "shipped")  # that may stand before a name


async def create(
    ground: Ground, project: Project, draft: Draft, frame: Frame, *, by: By = "person", made_by: str | None = None
) -> Commission:
    """A new commission. It begins when it is dispatched."""
    check_draft(ground, project, draft, frame, by)
    if draft.dependencies:
        await asyncio.to_thread(follow, ground, project.name)
    await asyncio.to_thread(ground.branches(project).ensure)
    now = ground.now()
    commission = Commission(
        id=new_id(COMMISSION),
        project=project.name,
        draft=draft,
        status="pending",
        by=by,
        made_by=made_by,
        created_at=now,
        changed_at=now,
    )
    refuse_cycle([*ground.all(project.name), commission], commission.id)
    if missing := await asyncio.to_thread(lacks, ground, commission):
        commission = replace(commission, status="blocked", reason=in_words(missing))
    written(commission, (), redact=ground.redact)  # known without its secrets before anybody can come across it
    maker = f"{by}, in {made_by.partition('#')[0]}" if made_by else by
    await ground.store.write(lambda connection: records.add(connection, commission, f"created by {maker}"))
    await project_row(ground, commission.id)
    return ground.get(commission.id)


def check_draft(
    ground: Ground, project: Project, draft: Draft, frame: Frame, by: By, *, changed: Collection[str] | None = None
) -> None:
    """Raises where a draft cannot be carried out, whoever has made it.

    `changed` is what is new of it; None: all. What was there before was a person's to say, and is not looked at again.
    """
    draft.check()
    if ours := [path for path in draft.artifacts if is_of_the_hall(path)]:
        hint = "Have it elsewhere, such as in .lore/plans/."
        raise UsageError(f"artifacts: {ours[0]} lies where only the hall writes: it would not be merged", hint=hint)
    if by != "person":  # what is executed, and on which model, is for people to say
        for name in ("checks", "model"):
            if getattr(draft, name) and (changed is None or name in changed):
                raise UsageError(f"{name}: that is for a person to say", hint="Leave it out.")
        for name in filter(None, (draft.worker, draft.reviewer)):
            _refuse_file(name)
    if changed is None or "dependencies" in changed:
        _refuse_unknown(ground, draft.dependencies)
    place = ground.place(project, frame)
    worker = ground.find(draft.worker, place)
    reviewer = ground.find(draft.reviewer, place) if draft.reviewer is not None else None
    if changed is not None and not _ABOUT_MODEL & set(changed):
        return
    in_dollars = (draft.max_budget_usd or worker.definition.limits.max_budget_usd) is not None
    ground.models.later(worker, place, override=draft.model, in_dollars=in_dollars)
    if reviewer is not None:
        ground.models.later(reviewer, place)


def _refuse_unknown(ground: Ground, paths: Sequence[str]) -> None:
    """Raises for a commission to wait for that there is not: it would be waited for for ever."""
    for id in filter(None, map(commission_in, paths)):
        try:
            ground.get(id)
        except NotFound as error:
            raise NotFound(f"dependencies: {error.message}, which would never be there", hint=error.hint) from None


def _refuse_file(name: str) -> None:
    """Who is no person names workers by their names: a file could be one that a worker has written."""
    scope, _, bare = name.rpartition("/")
    if scope not in _SCOPES or not is_name(bare) or bare.lower().endswith(FILES):
        raise UsageError(f"{name[:60]!r} is no worker's name", hint="A file is for a person to name.")
