"""The queue: decides which dispatched commission starts next, and which budget it gets.

At most `max_commissions` run at a time in a project and `commissions.max` in total. The others wait in the order of
creation. A commission that waits for the user does not take a slot.

A commission that the manager created in a run with `--budget` may spend the rest of that budget. Its limit is reserved
when it starts, and the unspent part is released when it ends.
Does not create the run (`attempts.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict, GuildError, NotFound
from guildhall.projects.commissions import records
from guildhall.runs.limits import current_bounds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from guildhall.core.frame import Frame
    from guildhall.projects.commissions.context import CommissionContext
    from guildhall.projects.commissions.model import Commission
    from guildhall.projects.model import Moment
    from guildhall.workers.model import Worker

_log = logging.getLogger("guildhall.commissions")


class Queue:
    """Starts dispatched commissions while there are free slots."""

    def __init__(self, context: CommissionContext, start: Callable[[str, Frame | None], Awaitable[None]]) -> None:
        self._context = context
        self._start = start
        self._running = asyncio.Lock()
        self._frames: dict[str, Frame] = {}  # of the users who dispatched; kept in memory only, they hold keys

    def add(self, id: str, frame: Frame) -> None:
        self._frames[id] = frame

    def discard(self, id: str) -> None:
        self._frames.pop(id, None)

    async def run(self) -> None:
        """Start commissions until no slot is free or nothing is queued."""
        async with self._running:
            tried: set[str] = set()
            while (commission := self._next(tried)) is not None:
                tried.add(commission.id)
                await self._start(commission.id, self._frames.get(commission.id))
                if self._context.get(commission.id).status != "dispatched":  # else it waits for budget
                    self.discard(commission.id)

    def _next(self, tried: set[str]) -> Commission | None:
        active = self._context.store.read(records.list_active)
        working = self._working(active)
        if len(working) >= self._context.max_running():
            return None
        by_project = Counter(one.project for one in working)
        for one in active:
            if one.status == "dispatched" and one.id not in tried and by_project[one.project] < self._limit(one):
                return one
        return None

    def waiting_reason(self, commission: Commission) -> str | None:
        """Return why a dispatched commission has not started, or None if it is about to."""
        working = self._working(self._context.store.read(records.list_active))
        here = [one for one in working if one.project == commission.project]
        if len(here) >= self._limit(commission):
            return f"queued: {commission.project} has no free slot (running: {_ids(here)})"
        if len(working) >= self._context.max_running():
            return f"queued: no free slot (running: {_ids(working)})"
        holders = budget_holders(self._context, commission)
        return f"queued: the manager's budget is reserved for {', '.join(holders)}" if holders else None

    def needs_user(self, commission: Commission) -> bool:
        """Return True if a dispatched commission is queued behind commissions that all wait for the user."""
        holders = budget_holders(self._context, commission)
        return bool(holders) and all(self._is_paused(self._context.get(id)) for id in holders)

    def _working(self, active: Iterable[Commission]) -> list[Commission]:
        return [one for one in active if one.status == "in_progress" and not self._is_paused(one)]

    def _is_paused(self, commission: Commission) -> bool:
        run = self._context.find_run(commission.run)
        return commission.hold is not None or (run is not None and run.needs_user)

    def _limit(self, commission: Commission) -> int:
        try:
            return self._context.project(commission).settings.max_commissions
        except NotFound:  # the project is not registered: let it start, fail and say so
            return self._context.max_running()
        except GuildError as error:  # config.yaml is invalid: wait until it is corrected
            _log.warning("%s: %s", commission.id, error)
            return 0


def _ids(commissions: Sequence[Commission]) -> str:
    return ", ".join(one.id for one in commissions)


# budget


class BudgetReserved(Exception):
    """The budget is reserved for running commissions, which may free some of it."""


@dataclass(frozen=True, kw_only=True)
class _Remaining:
    """What is left of a manager run's budget, and the commissions that have reserved a part of it."""

    dollars: float
    holders: tuple[str, ...]


def cost(context: CommissionContext, timeline: Sequence[Moment]) -> float | None:
    """Return the cost of all attempts, or None if no run has a price."""
    costs = [run.cost_usd for run in context.runs_of_attempts(timeline) if run.cost_usd is not None]
    return round(sum(costs), 9) if costs else None


def attempt_budget(context: CommissionContext, commission: Commission, worker: Worker) -> float | None:
    """Return the dollar limit of the next attempt, or None for the limit of the worker's file.

    Raise BudgetReserved if running commissions hold what it needs, and Conflict if the budget is used up.
    """
    own = commission.draft.max_budget_usd
    remaining = _remaining(context, commission)
    if remaining is None:
        return own
    wanted = own if own is not None else worker.definition.limits.max_budget_usd
    if wanted is not None and wanted <= remaining.dollars:
        return wanted
    if remaining.holders:
        raise BudgetReserved
    if remaining.dollars <= 0:
        raise Conflict(
            "the budget of the manager run that created this commission is used up",
            hint=f"Raise it: guild resume {_manager_run(commission)} --budget USD, then guild commission redispatch "
            f"{commission.id}. Or create a commission of your own: guild commission new",
        )
    return remaining.dollars


def budget_holders(context: CommissionContext, commission: Commission) -> tuple[str, ...]:
    """Return the running commissions that have reserved budget of the same manager run."""
    remaining = _remaining(context, commission)
    return remaining.holders if remaining is not None else ()


def _manager_run(commission: Commission) -> str:
    return (commission.made_by or "").partition("#")[0]


def _remaining(context: CommissionContext, commission: Commission) -> _Remaining | None:
    """Return the rest of the manager run's budget, or None if the run has no budget."""
    manager = _manager_run(commission)
    run = context.find_run(manager or None)
    if run is None or run.request.budget is None:
        return None
    budget = current_bounds(context.history.journal(manager)).budget
    if budget is None:
        return None
    spent, holders = run.cost_usd or 0.0, list[str]()
    for other in context.all():
        if _manager_run(other) == manager:
            spent += cost(context, context.timeline(other.id)) or 0.0
            if other.status == "in_progress" and (reserved := _reserved(context, other)) > 0:
                spent += reserved
                holders.append(other.id)
    return _Remaining(dollars=round(budget - spent, 9), holders=tuple(holders))


def _reserved(context: CommissionContext, commission: Commission) -> float:
    """Return the dollars that a running commission may still spend."""
    run = context.find_run(commission.run)
    limit = current_bounds(context.history.journal(run.id)).max_budget_usd if run is not None else None
    return 0.0 if run is None or limit is None else max(0.0, limit - (run.cost_usd or 0.0))
