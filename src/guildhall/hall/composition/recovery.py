"""Recovery: resumes the runs that an earlier hall interrupted or paused at its shutdown.

Runs that a user paused stay paused. A crash of the hall is not the fault of a run. Only a run during which the hall
died `MAX_CRASHES` times without progress is left to the user, unless it is an idle workflow. Its owner is notified.
Does not count crashes of the process of a run: `runs.execution.segment` does.
Does not mark runs as interrupted: `database` does when it is opened.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError, RuntimeFailed
from guildhall.runs.record import records
from guildhall.workflow import records as workflow_records

if TYPE_CHECKING:
    from guildhall.hall.composition.hall import Hall
    from guildhall.hall.composition.run_services import RunServices
    from guildhall.runs.model import Run

MAX_CRASHES = 10  # of the hall during a run without progress; the run may be the cause
_log = logging.getLogger("guildhall.hall")


class Recovery:
    def __init__(self, hall: Hall) -> None:
        self._hall = hall
        self._resumable = [
            (services, run, crashes)
            for services in hall.all_services()
            for run, crashes in services.store.read(records.list_resumable)
        ]
        self.is_active = bool(self._resumable)

    async def resume_runs(self) -> None:
        """Resume or fail each run, and start the timers of all owners. Return when all runs are launched."""
        try:
            await asyncio.to_thread(self._hall.project_services.restore_worktrees)
            await asyncio.to_thread(lambda: self._hall.jobs)  # the first access repairs all job directories
            for services, run, crashes in self._resumable:
                if run.status == "interrupted" and crashes >= MAX_CRASHES and not _was_idle(services, run):
                    await _leave_to_user(services, run)
                else:
                    await resume_run(services, run)
            for owner in self._hall.owners():
                owner.start_resuming(partial(resume_run, self._hall.main))
            self._hall.keep_alive_checks.append(lambda: any(owner.has_pending_resume for owner in self._hall.owners()))
        finally:
            self.is_active = False


def _was_idle(services: RunServices, run: Run) -> bool:
    """Return True for an idle workflow. It cannot have caused the crash, because none of its agents worked."""
    instance = services.store.read(lambda connection: workflow_records.find_instance(connection, run.id))
    return instance is not None and instance.status == "idle"


async def resume_run(services: RunServices, run: Run) -> None:
    """Resume a stopped run in the background. Log an error and notify the owner if that fails."""
    try:
        await asyncio.to_thread(import_module, "guildhall.runs.execution.runs")  # the first import takes a second
        frame = replace(services.environment.frame_at(run.frame.cwd, run.frame.root), caller=run.frame.caller)
        services.launch(await services.prepare_resume(run.id, frame))
        _log.info("resumed %s (was %s: %s)", run.id, run.status, run.reason)
    except GuildError as error:
        await _report_failure(services, run, error)
    except Exception:  # noqa: BLE001 - an error of one run must not prevent the recovery of others
        _log.exception("cannot resume %s (%s)", run.id, run.status)


async def _leave_to_user(services: RunServices, run: Run) -> None:
    message = f"the hall died {MAX_CRASHES} times during this run without progress"
    hint = f"See its journal: guild log {run.id}. Try again: guild resume {run.id}"
    await services.store.write(lambda connection: records.change_run(connection, run.id, reason=message))
    await _report_failure(services, run, RuntimeFailed(message, hint=hint))


async def _report_failure(services: RunServices, run: Run, error: GuildError) -> None:
    """Log that a run is not resumed, and notify its owner."""
    _log.warning("cannot resume %s (%s): %s", run.id, run.status, error)
    if (owner := services.owner_of(run.kind)) is not None and not services.runs.is_alive(run.id):
        await owner.record_resume_failure(run, error)
