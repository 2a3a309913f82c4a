"""Checks before a run starts that the workers it may call are trusted."""

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
    from guildhall.hall.composition.workers import WorkerServices
    from guildhall.runs.history import History
    from guildhall.workers.model import Worker


def check_trust(workers: WorkerServices, worker: Worker, frame: Frame, given: Collection[str] = ()) -> None:
    """Raise NotTrusted if a worker that this one may call by name uses code that is not trusted.

    The error then lists the untrusted code of the worker itself too. `given`: toolboxes of the caller's own process.
    """
    below = [error for one in _callees(workers, worker, frame) for error in _untrusted(workers, one, frame, given)]
    if below:
        refuse(
            [_called(error, worker, frame) for error in (*_untrusted(workers, worker, frame, given), *below)],
            worker.place,
        )


def check_trust_again(
    workers: WorkerServices, history: History, run: str, frame: Frame, given: Collection[str] = ()
) -> None:
    """Check trust before a run is resumed, using the worker file as it is now. Skip runs that cannot be resumed."""
    found = history.get(run)
    if found.parent is not None or found.status in ("completed", "cancelled"):
        return
    frame = replace(frame, cwd=found.frame.cwd, root=found.frame.root)
    try:
        worker = workers.find(found.request.worker, frame)
    except GuildError:
        return
    check_trust(workers, worker, frame, given)


def untrusted_callees(workers: WorkerServices, worker: Worker, frame: Frame) -> list[str]:
    """Return the names of workers that this one may call only by `*` and that use code which is not trusted."""
    named = {one.identity for one in _callees(workers, worker, frame)}
    everyone = _callees(workers, worker, frame, active=workers.active(worker.frame(frame)))
    others = [one for one in everyone if one.identity not in named]
    return [one.name for one in others if any(_untrusted(workers, one, frame, ()))]


def _callees(workers: WorkerServices, worker: Worker, frame: Frame, active: Iterable[Worker] = ()) -> list[Worker]:
    """Return the workers that a worker can call, directly or through others. `active`: what `*` stands for."""
    near, star = worker.frame(frame), list(active)
    found = reached(worker, lambda name: workers.find(name, near), lambda: star)
    return [one.worker for one in found if one.worker and one.problem is None]


def _untrusted(workers: WorkerServices, worker: Worker, frame: Frame, given: Collection[str]) -> list[NotTrusted]:
    trust, found = workers.supply.trust(), list[NotTrusted]()
    for code in workers.supply.code_of(worker, frame, given)[0]:
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
