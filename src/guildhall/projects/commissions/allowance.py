"""What a commission may spend: one that the manager has made in a run with `--budget`, at most what is left of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict, NotFound
from guildhall.projects.commissions.account import cost_of
from guildhall.runs.limits import in_force

if TYPE_CHECKING:
    from guildhall.projects.commissions.ground import Ground
    from guildhall.projects.commissions.model import Commission
    from guildhall.workers.model import Worker


def allowance(ground: Ground, commission: Commission, worker: Worker) -> float | None:
    """The dollars of its next attempt; None: as its worker's file says."""
    own = commission.draft.max_budget_usd
    left = _left(ground, commission)
    if left is None:
        return own
    if left <= 0:
        raise Conflict(
            "the budget of the manager's run that has made it is used up",
            hint=f"Give it one of its own: guild commission new; or let the run go on with more: guild resume "
            f"{_maker(commission)} --budget USD, then guild commission redispatch {commission.id}",
        )
    most = own if own is not None else worker.definition.limits.max_budget_usd
    return left if most is None else min(left, most)


def _maker(commission: Commission) -> str:
    return (commission.made_by or "").partition("#")[0]


def _left(ground: Ground, commission: Commission) -> float | None:
    """Of the dollars that the run was given which has made it; None: nobody has said how many."""
    run = _maker(commission)
    try:
        made = ground.history.get(run) if run else None
    except NotFound:
        return None
    if made is None or made.request.get("budget") is None:
        return None
    budget = in_force(ground.history.journal(run)).budget
    if budget is None:
        return None
    spent = made.cost_usd or 0.0
    for other in ground.all():
        if _maker(other) == run:
            spent += cost_of(ground, ground.timeline(other.id)) or 0.0
    return round(budget - spent, 9)
