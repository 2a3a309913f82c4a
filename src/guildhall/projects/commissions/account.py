"""What the runs of a commission have said along the way: decisions, questions, what they cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.errors import NotFound
from guildhall.jobs.inquiry import said
from guildhall.jobs.model import Asked
from guildhall.projects.decisions import decided

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from guildhall.jobs.model import Decided
    from guildhall.projects.commissions.ground import Ground
    from guildhall.projects.model import Moment
    from guildhall.runs.model import Run


def runs_in(ground: Ground, timeline: Sequence[Moment]) -> Iterator[Run]:
    """The runs of all attempts, in their order."""
    for moment in timeline:
        if moment.after == "in_progress":
            try:
                yield ground.history.get(str(moment.data.get("run")))
            except NotFound:
                continue


def decided_in(ground: Ground, timeline: Sequence[Moment]) -> list[Decided]:
    """The judgement calls that the worker has made, each once, however often it was tried."""
    runs = runs_in(ground, timeline)
    return list(dict.fromkeys(one for run in runs for one in decided(ground.history.entries(run.id))))


def asked_in(ground: Ground, timeline: Sequence[Moment]) -> list[Asked]:
    """The questions that it has put to people, with the answers."""
    return [
        Asked(ask=ask.id, at=ask.created_at, question=ask.question.body, answer=said(ask) if ask.answer else None)
        for run in runs_in(ground, timeline)
        for ask in ground.asks.of_run(run.id)
        if ask.kind == "question" and ask.status != "withdrawn"
    ]


def cost_of(ground: Ground, timeline: Sequence[Moment]) -> float | None:
    """What all attempts have cost together; None: nothing of it has a price."""
    costs = [run.cost_usd for run in runs_in(ground, timeline) if run.cost_usd is not None]
    return round(sum(costs), 9) if costs else None
