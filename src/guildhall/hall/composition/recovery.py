"""Recovery: resumes the runs that an earlier hall interrupted or paused at its shutdown.

Runs that a user paused stay paused. A run that was interrupted `MOST_CRASHES` times without progress fails, unless it
is a quiet workflow. A user may still resume it.
Does not mark runs as interrupted: `database` does when it is opened.
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

    from guildhall.hall.composition.hall import Hall
    from guildhall.hall.composition.run_services import RunServices
    from guildhall.runs.model import Run

MOST_CRASHES = 3
_log = logging.getLogger("guildhall.hall")


class Recovery:
    """Resumes the runs of an earlier hall."""

    def __init__(self, hall: Hall) -> None:
        self._hall = hall
        parts = hall.databases()
        self._left = [
            (part, run, crashes) for part in parts for run, crashes in part.store.read(records.list_resumable)
        ]
        self.under_way = bool(self._left)

    async def go_on(self) -> None:
        """Return when each run is resumed, has failed for good, or waits for the user."""
        try:
            await asyncio.to_thread(self._hall.project_services.restore_worktrees)
            await asyncio.to_thread(lambda: self._hall.jobs)  # puts its directories right, which may be many
            for part, run, crashes in self._left:
                if crashes >= MOST_CRASHES and not _was_quiet(part, run):
                    await _give_up(part, run)
                else:
                    await go_on(part, run)
            for seating in self._hall.owners():
                seating.start_resuming(partial(go_on, self._hall.main))
            self._hall.keeps_alive.append(lambda: any(seating.has_pending_resume for seating in self._hall.owners()))
        finally:
            self.under_way = False


def _was_quiet(part: RunServices, run: Run) -> bool:
    """Return True for a workflow in which no agent worked: it did not cause the crash."""
    found = part.store.read(lambda connection: workflow_records.find(connection, run.id))
    return found is not None and found.status == "quiet"


async def go_on(part: RunServices, run: Run) -> None:
    """Resume a stopped run that nobody follows."""
    try:
        await asyncio.to_thread(import_module, "guildhall.runs.execution.runs")  # it takes a second, the first time
        # Where the run was, with the variables of the terminal that started this hall.
        frame = replace(part.environment.frame_at(run.frame.cwd, run.frame.root), caller=run.frame.caller)
        part.launch(await part.prepare_resume(run.id, frame))
        _log.info("%s goes on: it was %s (%s)", run.id, run.status, run.reason)
    except GuildError as error:
        _log.warning("%s stays %s: %s", run.id, run.status, error)
        if (owner := part.owner_of(run.kind)) is not None and not part.runs.is_alive(run.id):
            await owner.record_resume_failure(run, error)
    except Exception:  # noqa: BLE001 - whatever is wrong with one run keeps no other from going on
        _log.exception("%s stays %s", run.id, run.status)


async def _give_up(part: RunServices, run: Run) -> None:
    error = RuntimeFailed(
        f"the process that ran it has died {MOST_CRASHES} times, and it got no further in between",
        hint=f"Look at what it was doing: guild log {run.id}. To try once more: guild resume {run.id}",
    )
    now = stamp(part.environment.clock.now())

    def write(connection: Connection) -> None:
        records.fail_run(connection, run.id, error.as_dict(), now)
        if run.kind == "workflow":
            workflow_records.change(connection, run.id, status="failed", reason=error.code, ended_at=now)

    await part.store.write(write)
    if (owner := part.owner_of(run.kind)) is not None:
        await owner.apply_end(run.id)
    _log.warning("%s is given up: %s", run.id, error.message)
