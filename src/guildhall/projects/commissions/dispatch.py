"""Dispatch: pending -> dispatched -> in_progress: first it has an attempt and a branch, then a checkout and a run."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError, ModelUnusable, RuntimeFailed
from guildhall.projects.commissions import records
from guildhall.projects.commissions.allowance import NotYet, allowance
from guildhall.projects.commissions.finalise import tidy
from guildhall.projects.commissions.model import working
from guildhall.projects.commissions.seating import contract_of, first_message, seated
from guildhall.projects.commissions.waiting import demand_ready, settle
from guildhall.runs.model import RunRequest
from guildhall.workers.choose import BY_OPTION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from sqlalchemy import Connection

    from guildhall.core.frame import Frame
    from guildhall.projects.commissions.ground import Ground
    from guildhall.projects.commissions.model import Commission
    from guildhall.runs.seat import Seat

BRANCHES = "claude/commission"
_log = logging.getLogger("guildhall.commissions")


async def dispatch(ground: Ground, id: str, frame: Frame) -> Commission:
    """It waits for its turn from now on. Raises where it could not begin, and then nothing has changed."""
    await settle(ground, ground.get(id).project)
    commission = ground.get(id)
    if commission.status != "blocked":  # of that it is said below what is missing
        commission.may_become("dispatched")
    await asyncio.to_thread(demand_ready, ground, commission)
    ground.git(commission).demand_movable()  # before anything is paid for
    place = ground.place(ground.project(commission), frame)
    demand_model(ground, commission, place)
    if commission.draft.reviewer is not None:
        ground.find(commission.draft.reviewer, place)
    return await ground.store.write(lambda connection: queue_up(connection, id, ground.now()))


def demand_model(ground: Ground, commission: Commission, place: Frame) -> None:
    """Raises where its worker may not be given work, or has no model to do it with."""
    worker, draft = ground.find(commission.worker, place), commission.draft
    given_by = f"`guild commission edit {commission.id} {BY_OPTION}`"
    ground.models.chosen(worker, place, draft.model, given_by=given_by)


def queue_up(connection: Connection, id: str, now: str) -> Commission:
    """It has an attempt and a branch from now on, and nothing of the attempt before."""
    attempt = records.get(connection, id).attempt + 1
    fresh = {"attempt": attempt, "branch": f"{BRANCHES}/{id}-{attempt}", "run": None, "summary": None, "result": None}
    return records.move(connection, id, "dispatched", "dispatched", now, data={"attempt": attempt}, **fresh)


async def begin(ground: Ground, id: str, frame: Frame | None, *, seat_for: Callable[[Mapping[str, Any]], Seat]) -> None:
    """Its turn has come: it gets a checkout and a run, or has failed and says why. Or it has to wait for dollars."""
    async with ground.steering[id]:
        commission = ground.get(id)
        if commission.status != "dispatched":  # somebody has cancelled it
            return
        try:
            came = frame or ground.frame_at(ground.project(commission).path)
            await _begin(ground, commission, came, seat_for)
        except NotYet:
            return
        except Exception as error:  # noqa: BLE001 - nothing stays dispatched with nobody behind it
            if not isinstance(error, GuildError):
                _log.exception("%s", id)
            await _could_not(ground, id, error)


async def _begin(
    ground: Ground, commission: Commission, frame: Frame, seat_for: Callable[[Mapping[str, Any]], Seat]
) -> None:
    project = ground.project(commission)
    frame = ground.place(project, frame)
    worker = ground.find(commission.worker, frame)
    most = await asyncio.to_thread(allowance, ground, commission, worker)
    schema = await ground.output_schema(worker, frame)

    def set_up() -> Frame:
        place = ground.workplace(commission)
        place.branches.follow()
        return replace(frame, worktree=place.check_out(worker.definition.checkout))

    frame = await asyncio.to_thread(set_up)
    contract = contract_of(commission, schema)
    told = {"id": commission.id, "attempt": commission.attempt, "title": commission.title, **contract.as_dict()}
    request = RunRequest(
        worker=commission.worker,
        input=first_message(commission),
        override_model=commission.draft.model,
        max_turns=commission.draft.max_turns,
        max_budget_usd=most,
        commission=told,
    )
    seat = seat_for(told)
    prepared = await ground.runs().preparation.prepare(request, frame, worker=seated(worker), seat=seat)
    ground.runs().launch(prepared)


def began(ground: Ground, id: str, connection: Connection, run: str) -> None:
    """In the transaction in which the run is made."""
    before = records.get(connection, id)
    data = {"run": run, "branch": before.branch, "attempt": before.attempt}
    records.move(connection, id, "in_progress", working(before.worker), ground.now(), data=data, run=run)


async def _could_not(ground: Ground, id: str, error: Exception) -> None:
    known = error if isinstance(error, GuildError) else RuntimeFailed(f"{type(error).__name__}: {error}")
    where = f"{known.where}: " if known.where else ""
    told = f"it could not begin: {where}{known.message}" + (f". {known.hint}" if known.hint else "")
    if isinstance(known, ModelUnusable) and "guild commission edit" not in told:
        told += f" guild commission edit {id} changes its model or its limits."
    told = ground.redact(told)

    def write(connection: Connection) -> None:
        if records.get(connection, id).status == "dispatched":
            records.move(connection, id, "failed", told, ground.now(), data={"error": known.as_dict()})

    await ground.store.write(write)
    await tidy(ground, id)
