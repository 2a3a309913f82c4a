"""Attempts at a commission: dispatch, start, cancel, redispatch and abandon a commission.

An attempt has a number, a branch, a checkout and a run. Redispatching opens the next attempt from the current
integration branch. The branches and the timeline of earlier attempts remain.
Does not choose the commission that starts next (`queue.py`) and does not end a run with a result (`completion.py`).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError, ModelUnusable, NoModel, RuntimeFailed
from guildhall.projects.commissions import records
from guildhall.projects.commissions.artifact import write_artifact
from guildhall.projects.commissions.completion import clean_up, finish, remove_checkout
from guildhall.projects.commissions.conflict import withdraw_asks
from guildhall.projects.commissions.contract import commit_if_possible
from guildhall.projects.commissions.dependencies import check_not_blocked, update_blocked
from guildhall.projects.commissions.model import Commission, check_reason
from guildhall.projects.commissions.queue import BudgetReserved, attempt_budget
from guildhall.projects.commissions.states import check_event, new_attempt
from guildhall.projects.commissions.tools import commission_message, commission_profile
from guildhall.runs.model import ENDED as RUN_ENDED
from guildhall.runs.model import RunRequest, Stretch
from guildhall.runs.purpose import CommissionPurpose, Contract
from guildhall.runs.record.records import cancel_tree, find_run
from guildhall.workers.registry import MODEL_OPTION

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from guildhall.core.frame import Frame
    from guildhall.projects.commissions.context import CommissionContext
    from guildhall.runs.hooks import Seat

_log = logging.getLogger("guildhall.commissions")


# dispatch and start


async def dispatch(context: CommissionContext, id: str, frame: Frame) -> Commission:
    """Queue a pending commission. Raise, and change nothing, if it could not start."""
    await update_blocked(context, context.get(id).project)
    commission = context.get(id)
    await asyncio.to_thread(check_not_blocked, context, commission)
    check_event(commission, "dispatch")
    context.git(commission).demand_movable()  # before anything is paid for
    frame = context.project_frame(context.project(commission), frame)
    check_model(context, commission, frame)
    if commission.draft.reviewer is not None:
        context.find_worker(commission.draft.reviewer, frame)
    return await context.store.write(lambda connection: open_attempt(connection, id, context.now()))


def check_model(context: CommissionContext, commission: Commission, frame: Frame) -> None:
    """Raise if the worker may not be given work or has no model."""
    worker = context.find_worker(commission.worker, frame)
    option = f"`guild commission edit {commission.id} {MODEL_OPTION}`"
    context.models.chosen(worker, frame, commission.draft.model, model_option=option)


def open_attempt(connection: Connection, id: str, now: str) -> Commission:
    """Apply `dispatch`: the commission gets the next attempt number and a new branch."""
    changes = new_attempt(records.get(connection, id))
    data = {"attempt": changes["attempt"]}
    return records.apply(connection, id, "dispatch", "dispatched", now, data=data, **changes)


async def start(
    context: CommissionContext, id: str, frame: Frame | None, *, hooks: Callable[[CommissionPurpose], Seat]
) -> None:
    """Start the run of a dispatched commission, or fail the commission with the reason.

    `frame` is that of the user who dispatched, or None after a restart. The commission stays queued while its budget
    is reserved for others.
    """
    async with context.locks[id]:
        commission = context.get(id)
        if commission.status != "dispatched":  # cancelled meanwhile
            return
        try:
            frame = frame or context.frame_at(context.project(commission).path)
            await _start_run(context, commission, frame, hooks)
        except BudgetReserved:
            return
        except Exception as error:  # noqa: BLE001 - a dispatched commission must not stay without a run
            if not isinstance(error, GuildError):
                _log.exception("%s", id)
            await _fail_to_start(context, id, error)


async def _start_run(
    context: CommissionContext, commission: Commission, frame: Frame, hooks: Callable[[CommissionPurpose], Seat]
) -> None:
    frame = context.project_frame(context.project(commission), frame)
    worker = context.find_worker(commission.worker, frame)
    budget = await asyncio.to_thread(attempt_budget, context, commission, worker)
    schema = await context.output_schema(worker, frame)

    def check_out() -> Frame:
        workplace = context.workplace(commission)
        workplace.branches.follow()
        return replace(frame, worktree=workplace.check_out(worker.definition.checkout))

    frame = await asyncio.to_thread(check_out)
    purpose = commission.purpose(Contract(artifacts=commission.draft.artifacts, schema=schema))
    request = RunRequest(
        worker=commission.worker,
        input=commission_message(commission),
        override_model=commission.draft.model,
        max_turns=commission.draft.max_turns,
        max_budget_usd=budget,
        purpose=purpose,
    )
    runs, profile = context.runs(), commission_profile(worker)
    runs.launch(await runs.prepare(request, frame, worker=profile, seat=hooks(purpose)))


def record_start(context: CommissionContext, id: str, connection: Connection, run: str) -> None:
    """Apply `start`, in the transaction that creates the run."""
    commission = records.get(connection, id)
    data = {"run": run, "branch": commission.branch, "attempt": commission.attempt}
    reason = f"{commission.worker} is working on it"
    records.apply(connection, id, "start", reason, context.now(), data=data, run=run)


async def _fail_to_start(context: CommissionContext, id: str, error: Exception) -> None:
    known = error if isinstance(error, GuildError) else RuntimeFailed(f"{type(error).__name__}: {error}")
    where = f"{known.where}: " if known.where else ""
    reason = f"cannot start: {where}{known.message}" + (f". {known.hint}" if known.hint else "")
    if isinstance(known, ModelUnusable) and not isinstance(known, NoModel):  # whose hint has the command
        reason = f"{reason.rstrip('.')}. To change the model or the limits: guild commission edit {id}"
    reason = context.redact(reason)

    def write(connection: Connection) -> None:
        if records.get(connection, id).status == "dispatched":
            records.apply(connection, id, "fail", reason, context.now(), data={"error": known.as_dict()})

    await context.store.write(write)
    await clean_up(context, id)


# cancel


async def cancel(context: CommissionContext, id: str, reason: str) -> Commission:
    """Cancel a commission. Complete it instead if its result is submitted and needs no review."""
    reason = context.redact(check_reason(reason))
    async with context.locks[id]:
        if (commission := await stop(context, id)) is not None:
            await context.store.write(lambda connection: record_cancel(connection, commission, reason, context.now()))
            await clean_up(context, id)
        return context.get(id)


async def stop(context: CommissionContext, id: str) -> Commission | None:
    """Stop the run of a commission and commit its work. Return None if the commission has ended meanwhile.

    Nothing is cancelled yet: if the hall dies now, the run resumes at the next start.
    """
    commission = context.get(id)
    check_event(commission, "cancel")
    if commission.status != "in_progress" or commission.run is None:
        return commission
    await context.runs().park(commission.run, "shutdown")
    commission = context.get(id)
    if commission.is_submitted and commission.draft.reviewer is None and commission.status == "in_progress":
        await finish(context, commission, Stretch(status="completed"))
        commission = context.get(id)
    if commission.status != "in_progress":
        return None
    await commit_if_possible(context, commission)
    return commission


def record_cancel(connection: Connection, commission: Commission, reason: str, now: str) -> None:
    """Apply `cancel` to the commission and to its run."""
    records.apply(connection, commission.id, "cancel", reason, now)
    run = find_run(connection, commission.run) if commission.run is not None else None
    if run is not None and run.status not in RUN_ENDED:
        cancel_tree(connection, run.id, now)


# redispatch and abandon


async def redispatch(context: CommissionContext, id: str, frame: Frame) -> Commission:
    """Open a new attempt at a failed or cancelled commission, or block it if a dependency is gone."""
    async with context.locks[id]:
        commission = context.get(id)
        check_event(commission, "reopen")
        check_model(context, commission, context.project_frame(context.project(commission), frame))
        context.git(commission).demand_movable()

        def write(connection: Connection) -> None:
            now = context.now()
            data = {"result": commission.result} if commission.is_submitted else {}
            records.apply(connection, id, "reopen", "to be tried again", now, data=data)
            withdraw_asks(connection, commission, now)

        await context.store.write(write)
        await remove_checkout(context, commission)  # kept until now if the attempt had a merge conflict
        if commission.run is not None:
            await context.decline_meeting(commission.run)
        await update_blocked(context, commission.project)
        if context.get(id).status == "blocked":
            await write_artifact(context, id)
            return context.get(id)
        return await dispatch(context, id, frame)


async def abandon(context: CommissionContext, id: str, reason: str) -> Commission:
    """End a commission for good. Its branches remain."""
    reason = context.redact(check_reason(reason))
    async with context.locks[id]:

        def write(connection: Connection) -> Commission:
            now = context.now()
            abandoned = records.apply(connection, id, "abandon", reason, now)
            withdraw_asks(connection, abandoned, now)
            return abandoned

        commission = await context.store.write(write)
        if commission.run is not None:
            await context.decline_meeting(commission.run)
        await clean_up(context, id)
        return context.get(id)
