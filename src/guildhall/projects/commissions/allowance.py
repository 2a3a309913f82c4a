"""What a commission may spend: one that the manager has made in a run with `--budget`, at most what is left of it.

All that it may spend is set aside for it when it begins. One for which there is not enough then waits for those that
are under way: what they do not need is there again when they have ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict, NotFound
from guildhall.projects.commissions.account import cost_of
from guildhall.runs.limits import in_force

if TYPE_CHECKING:
    from guildhall.projects.commissions.ground import Ground
    from guildhall.projects.commissions.model import Commission
    from guildhall.runs.model import Run
    from guildhall.workers.model import Worker


class NotYet(Exception):
    """Others have what it needs, and may give it back."""


@dataclass(frozen=True, kw_only=True)
class _Rest:
    """What is left of the dollars of a run, and who has some of them set aside."""

    dollars: float
    holders: tuple[str, ...] = field(default=())


def allowance(ground: Ground, commission: Commission, worker: Worker) -> float | None:
    """The dollars of its next attempt; None: as its worker's file says. NotYet: it has to wait for them."""
    own = commission.draft.max_budget_usd
    rest = _rest(ground, commission)
    if rest is None:
        return own
    most = own if own is not None else worker.definition.limits.max_budget_usd
    if most is not None and most <= rest.dollars:
        return most
    if rest.holders:
        raise NotYet
    if rest.dollars <= 0:
        raise Conflict(
            "the budget of the manager's run that has made it is used up",
            hint=f"Give it one of its own: guild commission new; or let the run go on with more: guild resume "
            f"{_maker(commission)} --budget USD, then guild commission redispatch {commission.id}",
        )
    return rest.dollars


def waits_for(ground: Ground, commission: Commission) -> tuple[str, ...]:
    """The commissions that have the dollars for which one may be waiting that has not begun."""
    rest = _rest(ground, commission)
    return rest.holders if rest is not None else ()


def _maker(commission: Commission) -> str:
    return (commission.made_by or "").partition("#")[0]


def _rest(ground: Ground, commission: Commission) -> _Rest | None:
    """Of the dollars that the run was given which has made it; None: nobody has said how many."""
    run = _maker(commission)
    made = _found(ground, run) if run else None
    if made is None or made.request.get("budget") is None:
        return None
    budget = in_force(ground.history.journal(run)).budget
    if budget is None:
        return None
    taken, holders = made.cost_usd or 0.0, list[str]()
    for other in ground.all():
        if _maker(other) == run:
            taken += cost_of(ground, ground.timeline(other.id)) or 0.0
            if other.status == "in_progress" and (aside := _set_aside(ground, other)) > 0:
                taken += aside
                holders.append(other.id)
    return _Rest(dollars=round(budget - taken, 9), holders=tuple(holders))


def _set_aside(ground: Ground, commission: Commission) -> float:
    """What one that is under way may still spend."""
    run = _found(ground, str(commission.run))
    most = in_force(ground.history.journal(run.id)).max_budget_usd if run is not None else None
    return 0.0 if run is None or most is None else max(0.0, most - (run.cost_usd or 0.0))


def _found(ground: Ground, run: str) -> Run | None:
    try:
        return ground.history.get(run)
    except NotFound:
        return None
