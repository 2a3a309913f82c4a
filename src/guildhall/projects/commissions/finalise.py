"""The end of a commission: in_progress -> completed or failed.

In an order in which a crash between any two steps is made good by doing them again: the work is committed on its
branch, what must be there is there, a reviewer approves, all of it is squashed into the integration branch together
with the artifact that says so; then the row says so, in the transaction in which the run ends; then the checkout goes.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError, MergeConflict, NotFound, NotFulfilled, RuntimeFailed
from guildhall.jobs.register import LATE
from guildhall.jobs.toolbox import not_taken, submitted
from guildhall.projects.commissions import records
from guildhall.projects.commissions.conflict import ask_about
from guildhall.projects.commissions.fulfil import demand_still, keep_work
from guildhall.projects.commissions.pausing import hold
from guildhall.projects.commissions.projection import project_row, text_when
from guildhall.projects.commissions.review import demand_approval
from guildhall.projects.commissions.seating import contract_told
from guildhall.runs.model import BY_USER, ENDED, Stretch
from guildhall.runs.records import conclude as conclude_run
from guildhall.runs.records import find_run, give_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from guildhall.projects.aside import Aside
    from guildhall.projects.commissions.ground import Ground
    from guildhall.projects.commissions.model import Commission

DONE = "its work is on the integration branch"
_log = logging.getLogger("guildhall.commissions")


async def judge(ground: Ground, id: str, run: str, stretch: Stretch) -> Stretch:
    """How its run ends: by the contract. What was submitted is kept, whatever went wrong afterwards; where something
    outside the work is in the way, it waits."""
    commission = ground.get(id)
    over = commission.run != run or commission.status != "in_progress"
    if over or stretch.status not in ("completed", "failed"):
        return stretch
    try:
        return await _judged(ground, commission, run, stretch)
    except (NotFulfilled, MergeConflict) as error:
        told: dict[str, Any] = error.as_dict()
        if isinstance(error, MergeConflict):
            told["files"] = list(error.files)
        return Stretch(status="failed", reason=error.code, error=told, output=stretch.output)
    except Exception as error:  # noqa: BLE001 - the disk is full, a branch is checked out, config.yaml is wrong
        if not isinstance(error, GuildError):
            _log.exception("%s", id)
        known = error if isinstance(error, GuildError) else RuntimeFailed(f"{type(error).__name__}: {error}")
        await hold(ground, id, "its work is done, and cannot be merged now", known)
        return Stretch(status="parked", reason=BY_USER)


async def _judged(ground: Ground, commission: Commission, run: str, stretch: Stretch) -> Stretch:
    entries = ground.history.entries(run)
    if not submitted(entries):
        await keep_if_possible(ground, commission)
        if stretch.status == "failed":
            return stretch
        why = not_taken(entries)
        raise NotFulfilled(
            f"the result that was submitted was not taken: {why}" if why else "it ended without submitting a result",
            hint=f"What it did is on the branch {commission.branch}. guild commission redispatch {commission.id}",
        )
    work = await keep_work(ground, commission)
    await demand_still(ground, commission, contract_told(ground.history.get(run).request["commission"]), work)
    if (pause := await demand_approval(ground, commission, run, work.tip)) is not None:
        return pause
    await asyncio.to_thread(_merge, ground, commission)
    late = f"{LATE}{stretch.error['message']}" if stretch.error else None
    return Stretch(status="completed", reason=late, output=commission.result)


async def keep_if_possible(ground: Ground, commission: Commission) -> None:
    """What cannot be committed now lies in its checkout, which is not taken away before it is."""
    try:
        await keep_work(ground, commission)
    except (GuildError, OSError) as error:
        _log.warning("%s: its work could not be committed: %s", commission.id, error)


def _merge(ground: Ground, commission: Commission) -> None:
    """One commit: what was done, and the artifact that says that it is."""
    title = ground.redact(commission.title)
    message = f"{title}\n\nCommission {commission.id}, attempt {commission.attempt}, {commission.worker}.\n"
    also = {commission.path: text_when(ground, commission, "completed", DONE)}
    ground.workplace(commission).land(message, also)


def ended(ground: Ground, id: str, connection: Connection, run: str, stretch: Stretch) -> None:
    """In the transaction in which a stretch of its run ends."""
    commission = records.find(connection, id)
    if commission is None or commission.run != run or commission.status != "in_progress":
        return
    now = ground.now()
    if stretch.status == "completed":
        records.move(connection, id, "completed", stretch.reason or DONE, now)
    elif stretch.status == "failed":
        error = stretch.error or {}
        why = str(error.get("message") or stretch.reason or "no reason given")
        failed = records.move(connection, id, "failed", why, now, data={"error": dict(error)})
        if files := error.get("files"):
            ask_about(connection, failed, run, files, now)


async def conclude(ground: Ground, commission: Commission, stretch: Stretch) -> None:
    """Ends a commission whose run nobody executes, as if that had ended like this."""
    run = str(commission.run)
    judged = await judge(ground, commission.id, run, stretch)
    if judged.status not in ENDED:  # its work is done, and waits
        return

    def write(connection: Connection) -> None:
        found = find_run(connection, run)
        if found is not None and found.status not in ENDED:
            if judged.status == "completed":
                conclude_run(connection, run, judged.output, ground.now())
            else:
                give_up(connection, run, judged.error or {}, ground.now())
        ended(ground, commission.id, connection, run, judged)

    await ground.store.write(write)
    await tidy(ground, commission.id)
    await call_meeting(ground, commission.id, judged)


async def call_meeting(ground: Ground, id: str, stretch: Stretch) -> None:
    """Asks for a meeting about what could not be merged. The ask about it is there already, whatever comes of this."""
    commission = ground.get(id)
    if (files := (stretch.error or {}).get("files")) and commission.status == "failed":  # it may be tried anew by now
        try:
            await ground.meet(commission, tuple(files))
        except GuildError as error:
            _log.warning("%s: no meeting could be asked for: %s", id, error)


async def concluded(ground: Ground, commission: Commission) -> bool:
    """Completes one that has submitted its result and was stopped before its end; says whether it did."""
    run = commission.run
    if run is None or commission.draft.reviewer is not None or not submitted(ground.history.entries(run)):
        return False
    await conclude(ground, commission, Stretch(status="completed"))
    return ground.get(commission.id).status != "in_progress"


async def tidy(ground: Ground, id: str) -> None:
    """What is left to do once the end is on record. What goes wrong here is made good at the next start."""
    commission = ground.get(id)
    if not _is_open_conflict(ground, commission):
        await clear(ground, commission)
    if commission.status != "completed":  # there it was part of the commit
        await project_row(ground, id)


async def clear(ground: Ground, commission: Commission) -> None:
    """Takes the checkout away; all that was in it is on its branch. A branch that is merged goes where it is kept."""
    if commission.branch is None:
        return

    def put_away() -> Aside | None:
        return ground.workplace(commission).put_away(landed=commission.status == "completed")

    try:
        with suppress(NotFound):  # its project is registered no more
            if (aside := await asyncio.to_thread(put_away)) is not None:
                await ground.note(commission.id, aside.told(), aside=asdict(aside))
    except (GuildError, OSError) as error:
        _log.warning("%s: its checkout stays: %s", commission.id, error)


def _is_open_conflict(ground: Ground, commission: Commission) -> bool:
    """Whether it waits for a person to look at what could not be merged: then all of it stays as it is."""
    if commission.status != "failed":
        return False
    timeline = ground.timeline(commission.id)
    last = next((one for one in reversed(timeline) if one.after == "failed"), None)
    error: Mapping[str, Any] = (last.data.get("error") or {}) if last is not None else {}
    return bool(error.get("files"))
