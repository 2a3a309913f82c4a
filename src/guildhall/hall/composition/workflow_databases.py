"""Workflow databases: open and list the databases that workflows name in `context.config.db` (ADR 018).

Such a database is outside of the home. It contains the runs, journals, asks, rooms and schedules of workflows. The
home's own database lists the known databases.
Does not contain settings, workers, trust, memory, keys or processes: these belong to the hall.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.core.clock import stamp
from guildhall.core.errors import Conflict, GuildError, NotFound
from guildhall.hall.composition.database import LOCK_PATIENCE, Database, lock_database
from guildhall.hall.composition.run_services import RunServices, no_owner
from guildhall.workflow import records
from guildhall.workflow.target import OVER, Instance, Start, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from guildhall.core.frame import Frame
    from guildhall.hall.composition.runtimes import RuntimeRegistry
    from guildhall.runs.execution.runs import Runs
    from guildhall.runs.model import ParkCause
    from guildhall.workflow.model import Workflow

_CHOOSE_ANOTHER = "Name another file in `context.config.db`."


class WorkflowDatabase(RunServices):
    """A database that a workflow names, with what runs on it. No job, commission, meeting or project is in it."""

    def __init__(self, main: RunServices, runtimes: RuntimeRegistry, path: Path) -> None:
        """Open the database at a path, and create it if it does not exist."""
        database = Database(
            path,
            main.environment,
            lock=partial(lock_database, path, main.environment.clock),
            patience=LOCK_PATIENCE,
            choose_another=_CHOOSE_ANOTHER,
            ask_closed=self.ask_closed,
        )
        super().__init__(
            main.environment, database, bus=main.bus, workers=main.workers, runtimes=runtimes, owner_of=no_owner
        )
        self._path = path
        self._identity = _identity(path)

    def is_usable(self) -> bool:
        """Return True if the file is still the one that was opened, or runs are executed on it."""
        runs = self.peek_runs()
        return _identity(self._path) == self._identity or (runs is not None and runs.count > 0)


class WorkflowDatabases:
    """The known databases of workflows. Each is opened when something is looked for that may be in it."""

    def __init__(self, main: RunServices, runtimes: RuntimeRegistry) -> None:
        self._main = main
        self._runtimes = runtimes
        self._known = [Path(path) for path in main.store.read(records.databases_known)]
        self._open: dict[Path, WorkflowDatabase] = {}
        self._opening = asyncio.Lock()

    def every(self) -> list[WorkflowDatabase]:
        """Return all databases that can be opened. `guild doctor` reports the others."""
        found = (self._try(path) for path in self._known)
        return [database for database in found if isinstance(database, WorkflowDatabase)]

    def problems(self) -> list[GuildError]:
        """Return why databases cannot be opened."""
        found = (self._try(path) for path in self._known)
        return [error for error in found if isinstance(error, GuildError)]

    def _try(self, path: Path) -> WorkflowDatabase | GuildError:
        try:
            return self._at(path)
        except GuildError as error:
            return error

    def _at(self, path: Path) -> WorkflowDatabase:
        self._close_if_replaced(path)
        if path not in self._open:
            if not path.exists():
                hint = "Put it back, and what is on record there is known again."
                raise NotFound("the database of a workflow is gone", where=str(path), hint=hint)
            self._open[path] = WorkflowDatabase(self._main, self._runtimes, path)
        return self._open[path]

    def _close_if_replaced(self, path: Path) -> None:
        """Close a database whose file was removed or replaced."""
        if path in self._open and not self._open[path].is_usable():
            self._open.pop(path).close()

    async def add(self, path: Path) -> WorkflowDatabase:
        """Return the database at a path. Create it and add it to the known ones if necessary."""
        async with self._opening:
            if path not in self._known:
                at = stamp(self._main.environment.clock.now())
                await self._main.store.write(lambda connection: records.add_database(connection, str(path), at))
                self._known.append(path)
            self._close_if_replaced(path)
            if path not in self._open:  # creating a database takes time
                self._open[path] = await asyncio.to_thread(WorkflowDatabase, self._main, self._runtimes, path)
            return self._open[path]

    # all that are open, and the home's own

    @property
    def live_runs(self) -> int:
        """The number of runs that are executed now, without the runs that they have called."""
        return sum(runs.count for runs in self._built_runs())

    async def park_all(self, cause: ParkCause) -> None:
        """Park the runs of all databases."""
        for runs in self._built_runs():
            await runs.park_all(cause)

    def _built_runs(self) -> list[Runs]:
        built = (database.peek_runs() for database in (self._main, *self._open.values()))
        return [runs for runs in built if runs is not None]

    def close(self) -> None:
        """Close the databases that are open. The home's own stays open."""
        for database in self._open.values():
            database.close()

    # finding

    def where(self, found: Callable[[Connection], bool]) -> RunServices:
        """Return the services of the database in which something is found. Return the home's own if it is in none."""
        if not self._known or self._main.store.read(found):
            return self._main
        return next((database for database in self.every() if database.store.read(found)), self._main)

    def of_team(self, target: Target) -> RunServices:
        """Return the services of the database in which a workflow was last started under a tag."""
        if not self._known:
            return self._main
        began = {one: _newest(one, target.workflow, target.tag) for one in (self._main, *self.every())}
        known = {one: instance.created_at for one, instance in began.items() if instance is not None}
        return max(known, key=lambda one: known[one], default=self._main)

    async def for_workflow(self, workflow: Workflow, start: Start, frame: Frame) -> RunServices:
        """Return the services of the database in which to start a workflow: the one it names, or the home's own."""
        from guildhall.workflow.start import check_places, values_of

        environment = self._main.environment
        there = workflow.frame(frame)
        chosen: RunServices = self._main
        if workflow.definition.context.config.db is not None and environment.policy.may_use_workflow_databases:
            allowed = environment.settings(there).env
            values = values_of(workflow, tag=start.tag, params=start.params, frame=there, allowed=allowed)
            check_places(workflow, values, environment.home, there)
            if (path := workflow.database(values)) is not None:
                chosen = await self.add(path.resolve())
        for other in (self._main, *self.every()) if self._known else ():
            instance = _newest(other, workflow.name, start.tag)
            if other is not chosen and instance is not None and instance.status not in OVER:
                raise Conflict(
                    f"{instance.target} is {instance.status} (run {instance.id}), with its record in another database",
                    hint=f"Stop it with `guild stop {instance.target}`, or use --tag.",
                )
        return chosen


def _newest(services: RunServices, name: str, tag: str) -> Instance | None:
    return services.store.read(lambda connection: records.newest(connection, name, tag))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
