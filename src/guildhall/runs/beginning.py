"""How the beginning of a run is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.events import Event, RunStartedData
from guildhall.runs.grants import has_price
from guildhall.runs.planning import plan_of_run

if TYPE_CHECKING:
    from guildhall.runs.prepare import Prepared


def started(prepared: Prepared, parent: str | None, at: str) -> Event:
    """The event. `parent` is the run that has called it."""
    assembled, source = prepared.assembled, prepared.source
    plan = prepared.seat.plan if prepared.seat else None
    if plan is None:
        plan = plan_of_run(assembled, source.name, priced=has_price(source), called=parent is not None).line()
    data = RunStartedData(
        worker=assembled.worker.name,
        runtime=assembled.worker.definition.runtime,
        model=source.name,
        plan=plan,
        attachments=[file.as_described() for file in assembled.attachments],
        resumed=prepared.resumed,
        parent=parent,
    )
    return Event.of(RunStartedData, data, run=prepared.run, root=prepared.root, at=at)
