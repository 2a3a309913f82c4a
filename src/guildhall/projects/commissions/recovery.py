"""Recovery: does the next step of every commission when a hall starts.

There is no recovery log. For every commission, the hall reads the row and its run, and does the step that is left.
Interrupted runs have been resumed before, as every run is, so most commissions need nothing more.
Does not decide the step (`states.py`, `next_step`) and does not start dispatched commissions (`queue.py`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError, RuntimeFailed
from guildhall.projects.commissions import records
from guildhall.projects.commissions.artifact import rebuild_rows, refresh_artifact
from guildhall.projects.commissions.completion import clean_up, finish
from guildhall.projects.commissions.dependencies import update_blocked
from guildhall.projects.commissions.model import Commission, parse_checkout_name
from guildhall.projects.commissions.states import ACTIVE, Event, next_step
from guildhall.projects.records import known
from guildhall.runs.model import Stretch

if TYPE_CHECKING:
    from guildhall.projects.commissions.context import CommissionContext
    from guildhall.projects.model import Project

_log = logging.getLogger("guildhall.commissions")


async def recover(context: CommissionContext) -> None:
    """Do the next step of every commission. Errors are logged and do not stop the rest."""
    try:
        projects = context.projects().sound()
    except GuildError as error:  # config.yaml is unreadable: recover what is on record
        _log.warning("%s", error)
        projects = []
    for project in projects:
        try:
            await asyncio.to_thread(rebuild_rows, context, project)
            await asyncio.to_thread(_remove_stale_checkouts, context, project)
        except GuildError as error:
            _log.warning("%s: %s", project.name, error)
    for commission in context.all():
        try:
            await do_next_step(context, commission)
        except GuildError as error:
            _log.warning("%s: %s", commission.id, error)
        except Exception:  # noqa: BLE001 - a broken commission must not stop the others
            _log.exception("%s", commission.id)
    await update_blocked(context)


async def do_next_step(context: CommissionContext, commission: Commission) -> None:
    """Look at a commission and its run, and do the step that is left. The queue starts dispatched commissions."""
    id, run = commission.id, context.find_run(commission.run)
    match next_step(commission, run, alive=run is not None and context.is_alive(run.id)):
        case "finish":
            assert run is not None
            failed = run.status != "completed"
            ending = Stretch(status="failed" if failed else "completed", reason=run.reason, error=run.error)
            await finish(context, commission, ending)
        case "cancel":
            await _end(context, id, "cancel", "its run was cancelled")
        case "fail":
            await _end(context, id, "fail", "its run is not on record: the hall's database was lost")
        case "hold":
            error = RuntimeFailed("unexpected error", hint="hall.log has the details.")
            await context.hold(id, "cannot_resume", error)
        case "clean_up" if await asyncio.to_thread(_has_leftovers, context, commission):
            await clean_up(context, id)
        case _:
            pass
    if commission.status not in ACTIVE:
        await refresh_artifact(context, id)


async def _end(context: CommissionContext, id: str, event: Event, reason: str) -> None:
    await context.store.write(lambda connection: records.apply(connection, id, event, reason, context.now()))
    await clean_up(context, id)


def _has_leftovers(context: CommissionContext, commission: Commission) -> bool:
    """Return True if an ended commission still has a checkout, or a merged branch that is not archived."""
    if commission.branch is None:
        return False
    workplace = context.workplace(commission)
    return workplace.path.exists() or (commission.status == "completed" and workplace.tip() is not None)


def _remove_stale_checkouts(context: CommissionContext, project: Project) -> None:
    """Remove the checkouts of earlier attempts and of deleted commissions, after committing their content."""
    current = {commission.id: commission.checkout for commission in context.all(project.name)}
    deleted = context.store.read(known) - {commission.id for commission in context.all()}
    for checkout in context.worktrees.activities(project.name):
        id = parse_checkout_name(checkout)
        if (id in current and checkout != current[id]) or id in deleted:
            try:
                context.worktrees.remove(project, checkout)
            except (GuildError, OSError) as error:
                _log.warning("%s: the checkout could not be removed: %s", checkout, error)
