"""What a new hall does with the commissions of an earlier one: each is found, and none stays with nobody behind it,
unless it waits and says for what."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError, RuntimeFailed
from guildhall.projects.artifact import Artifact
from guildhall.projects.commissions import records
from guildhall.projects.commissions.finalise import conclude, tidy
from guildhall.projects.commissions.model import RESTS, UNDER_WAY, attempt_of
from guildhall.projects.commissions.pausing import hold
from guildhall.projects.commissions.projection import is_older, project_row, rebuild
from guildhall.projects.commissions.waiting import settle
from guildhall.projects.records import known
from guildhall.runs.model import ENDED, Stretch
from guildhall.runs.records import find_run

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.projects.commissions.ground import Ground
    from guildhall.projects.commissions.model import Commission
    from guildhall.projects.model import Project

_log = logging.getLogger("guildhall.commissions")


async def recover(ground: Ground) -> None:
    """After the runs that were left behind go on, or could not. What is wrong with one keeps no other from it."""
    try:
        projects = ground.projects().sound()
    except GuildError as error:  # config.yaml cannot be read at all: what is on record goes on all the same
        _log.warning("%s", error)
        projects = []
    for project in projects:
        try:
            await asyncio.to_thread(rebuild, ground, project)
            await asyncio.to_thread(_sweep, ground, project)
        except GuildError as error:
            _log.warning("%s: %s", project.name, error)
    for commission in ground.all():
        try:
            await _recover(ground, commission)
        except GuildError as error:
            _log.warning("%s: %s", commission.id, error)
        except Exception:  # noqa: BLE001 - one that is broken keeps no other from it
            _log.exception("%s", commission.id)
    await settle(ground)


def _sweep(ground: Ground, project: Project) -> None:
    """Takes the checkouts away of earlier attempts, and of those off the record: all of it is on their branches."""
    now = {one.id: one.place for one in ground.all(project.name)}
    off_record = ground.store.read(known) - {one.id for one in ground.all()}
    for place in ground.worktrees.activities(project.name):
        id = attempt_of(place)
        if (id in now and place != now[id]) or id in off_record:
            try:
                ground.worktrees.remove(project, place)
            except (GuildError, OSError) as error:
                _log.warning("%s: its checkout stays: %s", place, error)


async def _recover(ground: Ground, commission: Commission) -> None:
    if commission.status == "in_progress":
        await _behind(ground, commission)
    elif commission.status in RESTS and await asyncio.to_thread(_is_untidy, ground, commission):
        await tidy(ground, commission.id)
    if commission.status not in UNDER_WAY:
        await _project_again(ground, ground.get(commission.id))


async def _behind(ground: Ground, commission: Commission) -> None:
    """Whether somebody is behind it; if nobody is and nobody will be, it ends, and its work is kept."""
    run = commission.run
    found = ground.store.read(lambda connection: find_run(connection, run)) if run else None
    if run is None or found is None:
        await _lost(ground, commission)
    elif ground.alive(run) or found.needs_person:
        return
    elif found.status not in ENDED:
        if not commission.held:  # nobody has said yet why it does not go on
            why = RuntimeFailed("its run could not go on", hint="What went wrong is in hall.log.")
            await hold(ground, commission.id, "it waits", why)
    elif found.status == "cancelled":
        told = "its run was cancelled"
        await ground.store.write(lambda c: records.move(c, commission.id, "cancelled", told, ground.now()))
        await tidy(ground, commission.id)
    else:
        status = "completed" if found.status == "completed" else "failed"
        stretch = Stretch(status=status, reason=found.reason, error=found.error if status == "failed" else None)
        await conclude(ground, commission, stretch)


async def _lost(ground: Ground, commission: Commission) -> None:
    def write(connection: Connection) -> None:
        told = "there is no run behind it any more: the record of the hall was lost"
        records.move(connection, commission.id, "failed", told, ground.now())

    await ground.store.write(write)
    await tidy(ground, commission.id)


def _is_untidy(ground: Ground, commission: Commission) -> bool:
    if commission.branch is None:
        return False
    place = ground.workplace(commission)
    return place.path.exists() or (commission.status == "completed" and place.tip() is not None)


async def _project_again(ground: Ground, commission: Commission) -> None:
    """Writes an artifact that is missing or older than its row; one that a hand has changed is left as it is."""

    def is_behind() -> bool:
        data = ground.git(commission).read(commission.path)
        if data is None:
            return True
        said = Artifact.of(data, commission.path)
        return said.status != commission.status and is_older(ground, commission, said)

    if await asyncio.to_thread(is_behind):
        await project_row(ground, commission.id)
