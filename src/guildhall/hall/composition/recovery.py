"""Recovery: resumes the runs that an earlier hall lost or parked at its shutdown.

Runs that a user parked stay parked. A run that was lost three times without progress fails (`MOST_CRASHES`). A user may
still resume it. A quiet workflow is exempt from this limit.
Trust is checked again before a run is resumed.
Does not mark runs as lost: `database` does when it is opened.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from guildhall.core.clock import stamp
from guildhall.core.errors import GuildError, RuntimeFailed
from guildhall.runs.record import records
from guildhall.workflow import records as workflow_records

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.core.frame import Frame
    from guildhall.hall.composition.hall import Hall
    from guildhall.hall.composition.run_services import RunServices
    from guildhall.runs.model import Run

MOST_CRASHES = 3
_log = logging.getLogger("guildhall.hall")


class Recovery:
    """Lets the runs of an earlier hall go on."""

    def __init__(self, hall: Hall) -> None:
        self._hall = hall
        parts = hall.databases()
        self._left = [(part, run, crashes) for part in parts for run, crashes in part.store.read(records.left_behind)]
        self.under_way = bool(self._left)

    async def go_on(self) -> None:
        """Returns when each of them goes on, has failed for good, or waits for a person."""
        try:
            await asyncio.to_thread(self._hall.project_services.restore_worktrees)
            await asyncio.to_thread(lambda: self._hall.jobs)  # puts its directories right, which may be many
            for part, run, crashes in self._left:
                if crashes >= MOST_CRASHES and not _was_quiet(part, run):
                    await _give_up(part, run)
                else:
                    await go_on(part, run)
            for seating in self._hall.owners():
                seating.keep_going(partial(go_on, self._hall.main))
            self._hall.keeps_alive.append(lambda: any(seating.expecting for seating in self._hall.owners()))
        finally:
            self.under_way = False


def _was_quiet(part: RunServices, run: Run) -> bool:
    """A workflow in which nobody was at anything has brought down nothing."""
    found = part.store.read(lambda connection: workflow_records.find(connection, run.id))
    return found is not None and found.status == "quiet"


async def go_on(part: RunServices, run: Run) -> None:
    """Lets a run that has stopped go on by itself; nobody follows it."""
    try:
        await asyncio.to_thread(import_module, "guildhall.runs.execution.runs")  # it takes a second, the first time
        frame = _frame(part, run)
        part.launch(await part.prepare_again(run.id, frame))
        _log.info("%s goes on: it was %s (%s)", run.id, run.status, run.reason)
    except GuildError as error:
        _log.warning("%s stays %s: %s", run.id, run.status, error)
        if (owner := part.owner_of(run.kind)) is not None and not part.runs.alive(run.id):
            await owner.could_not_go_on(run, error)
    except Exception:  # noqa: BLE001 - whatever is wrong with one run keeps no other from going on
        _log.exception("%s stays %s", run.id, run.status)


def _frame(part: RunServices, run: Run) -> Frame:
    """Where the run was; with the variables of the terminal that has started this hall. Nobody is there to ask."""
    then = run.frame
    return replace(part.environment.frame_at(then.cwd, then.root), caller=then.caller)


async def _give_up(part: RunServices, run: Run) -> None:
    error = RuntimeFailed(
        f"the process that ran it has died {MOST_CRASHES} times, and it got no further in between",
        hint=f"Look at what it was doing: guild log {run.id}. To try once more: guild resume {run.id}",
    )
    now = stamp(part.environment.clock.now())

    def write(connection: Connection) -> None:
        records.give_up(connection, run.id, error.as_dict(), now)
        if run.kind == "workflow":
            workflow_records.change(connection, run.id, status="failed", reason=error.code, ended_at=now)

    await part.store.write(write)
    if (owner := part.owner_of(run.kind)) is not None:
        await owner.follow(run.id)
    _log.warning("%s is given up: %s", run.id, error.message)
