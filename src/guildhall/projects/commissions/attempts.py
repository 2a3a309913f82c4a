"""Attempts at a commission: queue, start, cancel, redispatch and abandon a commission, within its budget.

At most `max_commissions` run at a time in a project and `commissions.max` in total. A commission that waits for the
user does not take a slot. The budget of a commission that the manager created is reserved from the budget of the
manager's run when the commission starts, and the unspent part is released when it ends.
Does not complete a commission (`completion.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict, GuildError, ModelUnusable, NoModel, NotFound, RuntimeFailed
from guildhall.projects.commissions import records
from guildhall.projects.commissions.artifact import write_artifact
from guildhall.projects.commissions.assignee_tools import commission_message, commission_profile
from guildhall.projects.commissions.completion import clean_up, finish, remove_checkout, withdraw_asks
from guildhall.projects.commissions.contract import commit_if_possible
from guildhall.projects.commissions.dependencies import blocked_reason, find_missing, update_blocked
from guildhall.projects.commissions.model import Commission, check_reason
from guildhall.projects.commissions.states import check_event, new_attempt
from guildhall.projects.model import INTEGRATION
from guildhall.runs.limits import current_bounds
from guildhall.runs.model import ENDED as RUN_ENDED
from guildhall.runs.model import RunRequest, SegmentEnd
from guildhall.runs.purpose import CommissionPurpose, Contract
from guildhall.runs.record.records import cancel_with_child_runs, find_run
from guildhall.workers.registry import MODEL_OPTION

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.core.request_frame import Frame
    from guildhall.projects.commissions.context import CommissionContext
    from guildhall.projects.model import TimelineEntry
    from guildhall.runs.owner_hooks import RunHooks
    from guildhall.workers.model import Worker

_log = logging.getLogger("guildhall.commissions")


# dispatch and start


async def dispatch(context: CommissionContext, id: str, frame: Frame) -> Commission:
    """Queue a pending commission. Raise, and change nothing, if it could not start."""
    await update_blocked(context, context.get(id).project)
    commission = context.get(id)
    if commission.status == "blocked":
        missing = await asyncio.to_thread(find_missing, context, commission)
        hint = f"Dispatch it when these files exist on {INTEGRATION} or on the branch of the project."
        raise Conflict(f"cannot dispatch commission {id}: {blocked_reason(missing)}", hint=hint)
    check_event(commission, "dispatch")
    context.branches_of(commission).check_movable()  # before model calls cost money
    frame = context.project_frame(context.project(commission), frame)
    check_model(context, commission, frame)
    if commission.draft.reviewer is not None:
        context.find_worker(commission.draft.reviewer, frame)
    return await context.store.write(lambda connection: open_attempt(connection, id, context.now()))


def check_model(context: CommissionContext, commission: Commission, frame: Frame) -> None:
    """Raise if the worker may not work on commissions or has no model."""
    worker = context.find_worker(commission.worker, frame)
    option = f"`guild edit {commission.id} {MODEL_OPTION}`"
    context.checks.choose_model(worker, frame, commission.draft.model, model_option=option)


def open_attempt(connection: Connection, id: str, now: str) -> Commission:
    """Apply `dispatch`, which opens the next attempt."""
    changes = new_attempt(records.get(connection, id))
    data = {"attempt": changes["attempt"]}
    return records.record_event(connection, id, "dispatch", "dispatched", now, data=data, **changes)


async def start(
    context: CommissionContext, id: str, frame: Frame | None, *, hooks: Callable[[CommissionPurpose], RunHooks]
) -> None:
    """Start the run of a dispatched commission, or fail the commission if that is not possible.

    `frame`: of the user who dispatched the commission, or None after a restart. The commission stays queued while the
    budget that it needs is reserved for other commissions.
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
                _log.exception("cannot start %s", id)
            await _fail_to_start(context, id, error)


async def _start_run(
    context: CommissionContext, commission: Commission, frame: Frame, hooks: Callable[[CommissionPurpose], RunHooks]
) -> None:
    frame = context.project_frame(context.project(commission), frame)
    worker = context.find_worker(commission.worker, frame)
    budget = await asyncio.to_thread(attempt_budget, context, commission, worker)
    schema = await context.load_output_schema(worker, frame)

    def check_out() -> Frame:
        workspace = context.workspace(commission)
        workspace.branches.update()
        return replace(frame, worktree=workspace.check_out(worker.definition.checkout))

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
    runs.launch(await runs.prepare(request, frame, worker=profile, hooks=hooks(purpose)))


def record_start(context: CommissionContext, id: str, connection: Connection, run: str) -> None:
    """Apply `start`, in the transaction that creates the run. `run`: its id."""
    commission = records.get(connection, id)
    data = {"run": run, "branch": commission.branch, "attempt": commission.attempt}
    reason = f"{commission.worker} is working on it"
    records.record_event(connection, id, "start", reason, context.now(), data=data, run=run)


async def _fail_to_start(context: CommissionContext, id: str, error: Exception) -> None:
    cause = error if isinstance(error, GuildError) else RuntimeFailed(f"{type(error).__name__}: {error}")
    where = f"{cause.where}: " if cause.where else ""
    reason = f"cannot start: {where}{cause.message}" + (f". {cause.hint}" if cause.hint else "")
    if isinstance(cause, ModelUnusable) and not isinstance(cause, NoModel):  # the hint of NoModel contains the command
        reason = f"{reason.rstrip('.')}. Change the model or the limits: guild edit {id}"
    reason = context.redact(reason)

    def write(connection: Connection) -> None:
        if records.get(connection, id).status == "dispatched":
            records.record_event(connection, id, "fail", reason, context.now(), data={"error": cause.as_dict()})

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

    The commission is not cancelled yet: if the hall crashes now, the next hall resumes the run.
    """
    commission = context.get(id)
    check_event(commission, "cancel")
    if commission.status != "in_progress" or commission.run is None:
        return commission
    await context.runs().pause(commission.run, "shutdown")
    commission = context.get(id)
    if commission.is_submitted and commission.draft.reviewer is None and commission.status == "in_progress":
        await finish(context, commission, SegmentEnd(status="completed"))
        commission = context.get(id)
    if commission.status != "in_progress":
        return None
    await commit_if_possible(context, commission)
    return commission


def record_cancel(connection: Connection, commission: Commission, reason: str, now: str) -> None:
    """Apply `cancel` to the commission and to its run."""
    records.record_event(connection, commission.id, "cancel", reason, now)
    run = find_run(connection, commission.run) if commission.run is not None else None
    if run is not None and run.status not in RUN_ENDED:
        cancel_with_child_runs(connection, run.id, now)


# redispatch and abandon


async def redispatch(context: CommissionContext, id: str, frame: Frame) -> Commission:
    """Open a new attempt at a failed or cancelled commission, or block it if a dependency is missing."""
    async with context.locks[id]:
        commission = context.get(id)
        check_event(commission, "reopen")
        check_model(context, commission, context.project_frame(context.project(commission), frame))
        context.branches_of(commission).check_movable()

        def write(connection: Connection) -> None:
            now = context.now()
            data = {"result": commission.result} if commission.is_submitted else {}
            records.record_event(connection, id, "reopen", "retry requested", now, data=data)
            withdraw_asks(connection, commission, now)

        await context.store.write(write)
        await remove_checkout(context, commission)  # exists if the attempt had a merge conflict
        if commission.run is not None:
            await context.withdraw_meeting(commission.run)
        await update_blocked(context, commission.project)
        if context.get(id).status == "blocked":
            await write_artifact(context, id)
            return context.get(id)
        return await dispatch(context, id, frame)


async def abandon(context: CommissionContext, id: str, reason: str) -> Commission:
    """Abandon a commission. Its branches remain."""
    reason = context.redact(check_reason(reason))
    async with context.locks[id]:

        def write(connection: Connection) -> Commission:
            now = context.now()
            abandoned = records.record_event(connection, id, "abandon", reason, now)
            withdraw_asks(connection, abandoned, now)
            return abandoned

        commission = await context.store.write(write)
        if commission.run is not None:
            await context.withdraw_meeting(commission.run)
        await clean_up(context, id)
        return context.get(id)


# the queue


class Queue:
    """Starts dispatched commissions while there are free slots."""

    def __init__(self, context: CommissionContext, start: Callable[[str, Frame | None], Awaitable[None]]) -> None:
        self._context = context
        self._start = start
        self._lock = asyncio.Lock()
        self._frames: dict[str, Frame] = {}  # of the users who dispatched; not stored, because frames contain keys

    def add(self, id: str, frame: Frame) -> None:
        self._frames[id] = frame

    def discard(self, id: str) -> None:
        self._frames.pop(id, None)

    async def run(self) -> None:
        """Start commissions until no slot is free or nothing is queued."""
        async with self._lock:
            tried: set[str] = set()
            while (commission := self._next(tried)) is not None:
                tried.add(commission.id)
                await self._start(commission.id, self._frames.get(commission.id))
                if self._context.get(commission.id).status != "dispatched":  # else the commission waits for budget
                    self.discard(commission.id)

    def _next(self, tried: set[str]) -> Commission | None:
        active = self._context.store.read(records.list_active)
        working = self._select_working(active)
        if len(working) >= self._context.max_running():
            return None
        counts = Counter(commission.project for commission in working)
        for commission in active:
            is_queued = commission.status == "dispatched" and commission.id not in tried
            if is_queued and counts[commission.project] < self._limit(commission):
                return commission
        return None

    def waiting_reason(self, commission: Commission) -> str | None:
        """Return the reason why a dispatched commission has not started, or None if it can start."""
        working = self._select_working(self._context.store.read(records.list_active))
        in_project = [other.id for other in working if other.project == commission.project]
        if len(in_project) >= self._limit(commission):
            return f"queued: {commission.project} has no free slot (running: {', '.join(in_project)})"
        if len(working) >= self._context.max_running():
            return f"queued: no free slot (running: {', '.join(other.id for other in working)})"
        _, holders = remaining_budget(self._context, commission)
        return f"queued: the manager's budget is reserved for {', '.join(holders)}" if holders else None

    def needs_user(self, commission: Commission) -> bool:
        """Return True if a dispatched commission is queued behind commissions that all wait for the user."""
        _, holders = remaining_budget(self._context, commission)
        return bool(holders) and all(self._is_paused(self._context.get(id)) for id in holders)

    def _select_working(self, active: Iterable[Commission]) -> list[Commission]:
        return [other for other in active if other.status == "in_progress" and not self._is_paused(other)]

    def _is_paused(self, commission: Commission) -> bool:
        run = self._context.find_run(commission.run)
        return commission.hold is not None or (run is not None and run.needs_user)

    def _limit(self, commission: Commission) -> int:
        try:
            return self._context.project(commission).settings.max_commissions
        except NotFound:  # the project is not registered: the start fails with this reason
            return self._context.max_running()
        except GuildError as error:  # config.yaml is invalid: wait until it is corrected
            _log.warning("%s: %s", commission.id, error)
            return 0


# budget


class BudgetReserved(Exception):
    """The budget is reserved for running commissions, which may release a part of it."""


def total_cost(context: CommissionContext, timeline: Sequence[TimelineEntry]) -> float | None:
    """Return the cost of all attempts, or None if no run has a known cost."""
    costs = [run.cost_usd for run in context.runs_of_attempts(timeline) if run.cost_usd is not None]
    return round(sum(costs), 9) if costs else None


def attempt_budget(context: CommissionContext, commission: Commission, worker: Worker) -> float | None:
    """Return the budget of the next attempt, or None for the budget of the worker file.

    Raise BudgetReserved if running commissions have reserved the budget, and Conflict if it is used up.
    """
    draft_budget = commission.draft.max_budget_usd
    remaining, holders = remaining_budget(context, commission)
    if remaining is None:
        return draft_budget
    budget = draft_budget if draft_budget is not None else worker.definition.limits.max_budget_usd
    if budget is not None and budget <= remaining:
        return budget
    if holders:
        raise BudgetReserved
    if remaining <= 0:
        raise Conflict(
            "the budget of the manager run that created this commission is used up",
            hint=f"Raise it: guild resume {_manager_run_id(commission)} --budget USD. "
            f"Then try again: guild retry {commission.id}",
        )
    return remaining


def _manager_run_id(commission: Commission) -> str:
    return (commission.made_by or "").partition("#")[0]


def remaining_budget(context: CommissionContext, commission: Commission) -> tuple[float | None, Sequence[str]]:
    """Return the remaining budget of the manager run, and the running commissions that have reserved a part of it.

    The remaining budget is None if the run has no budget.
    """
    run = context.find_run(_manager_run_id(commission) or None)
    if run is None or run.request.budget is None:
        return None, ()
    budget = current_bounds(context.history.journal(run.id)).budget
    if budget is None:
        return None, ()
    spent, holders = run.cost_usd or 0.0, list[str]()
    for other in context.list_commissions():
        if _manager_run_id(other) == run.id:
            spent += total_cost(context, context.timeline(other.id)) or 0.0
            if other.status == "in_progress" and (reserved := _reservation(context, other)) > 0:
                spent += reserved
                holders.append(other.id)
    return round(budget - spent, 9), holders


def _reservation(context: CommissionContext, commission: Commission) -> float:
    """Return the unspent part of the budget of a running commission."""
    run = context.find_run(commission.run)
    budget = current_bounds(context.history.journal(run.id)).max_budget_usd if run is not None else None
    return 0.0 if run is None or budget is None else max(0.0, budget - (run.cost_usd or 0.0))
