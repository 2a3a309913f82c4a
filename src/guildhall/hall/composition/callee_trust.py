"""Before a run begins: whether the workers that it may call could run, as far as that is a matter of trust."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError, NotTrusted
from guildhall.runs.reach import reached
from guildhall.runs.supply import refuse
from guildhall.workers.trust import how_to_trust

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from guildhall.core.frame import Frame
    from guildhall.hall.composition.hall import Hall
    from guildhall.workers.model import Worker


def demand_trust(hall: Hall, worker: Worker, frame: Frame, given: Collection[str] = ()) -> None:
    """Raises NotTrusted where a worker that this one may call by its name names code that is not trusted as it is.

    What the worker itself names is told along with it. `given` are toolboxes of the caller's own process.
    """
    below = [error for one in _callees(hall, worker, frame) for error in _untrusted(hall, one, frame, given)]
    if below:
        refuse(
            [_called(error, worker, frame) for error in (*_untrusted(hall, worker, frame, given), *below)], worker.place
        )


def demand_trust_again(hall: Hall, run: str, frame: Frame, given: Collection[str] = ()) -> None:
    """The same before a run goes on, if it can: by its worker as it is today, where it is still there."""
    found = hall.history.get(run)
    if found.parent is not None or found.status in ("completed", "cancelled"):
        return
    frame = replace(frame, cwd=found.frame.cwd, root=found.frame.root)
    try:
        worker = hall.find_worker(found.request.worker, frame)
    except GuildError:
        return
    demand_trust(hall, worker, frame, given)


def untrusted_of_all(hall: Hall, worker: Worker, frame: Frame) -> list[str]:
    """The names of the workers that this one may call only by `*` and that name code which is not trusted."""
    named = {one.identity for one in _callees(hall, worker, frame)}
    everyone = _callees(hall, worker, frame, active=hall.active_workers(worker.frame(frame)))
    others = [one for one in everyone if one.identity not in named]
    return [one.name for one in others if any(_untrusted(hall, one, frame, ()))]


def _callees(hall: Hall, worker: Worker, frame: Frame, active: Iterable[Worker] = ()) -> list[Worker]:
    """All that the worker may call, directly or through others, and that can be called; `active` is what `*` is."""
    near, star = worker.frame(frame), list(active)
    found = reached(worker, lambda name: hall.find_worker(name, near), lambda: star)
    return [one.worker for one in found if one.worker and one.problem is None]


def _untrusted(hall: Hall, worker: Worker, frame: Frame, given: Collection[str]) -> list[NotTrusted]:
    trust, found = hall.supply.trust(), list[NotTrusted]()
    for code in hall.supply.code_of(worker, frame, given)[0]:
        try:
            trust.demand(code, worker, frame)
        except NotTrusted as error:
            found.append(error)
    return found


def _called(error: NotTrusted, caller: Worker, frame: Frame) -> NotTrusted:
    """The error with the file that it is about in its text, and the command that shows all of the caller's code."""
    about = "" if error.where == caller.place else f"{error.where}, which it may call: "
    hint = f"Look at it, then: {how_to_trust(caller, frame)}"
    return NotTrusted(f"{about}{error.message}", where=caller.place, hint=hint)
