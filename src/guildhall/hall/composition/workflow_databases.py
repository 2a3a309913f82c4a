"""Workflow databases: the databases that workflows name in `context.config.db`, each with its run services (ADR 018).

The home's own database lists their paths.
Does not execute runs: `run_services` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.core.clock import stamp
from guildhall.core.errors import Conflict, GuildError, NotFound
from guildhall.hall.composition.database import CHOOSE_ANOTHER_FILE, LOCK_TIMEOUT_S, Database, lock_database
from guildhall.hall.composition.run_services import RunServices
from guildhall.workflow import queries, records
from guildhall.workflow.instance import FINAL_PHASES, Start

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.core.errors import StorageFailed
    from guildhall.core.events import ErrorData
    from guildhall.core.request_frame import Frame
    from guildhall.runs.execution.runs import Runs
    from guildhall.runs.model import PauseCause
    from guildhall.workflow.model import Workflow
    from guildhall.workflow.target import Target


class WorkflowDatabase(RunServices):
    """A database that a workflow names, with its services. It has no jobs, commissions, meetings or projects."""

    def __init__(self, main: RunServices, path: Path) -> None:
        database = Database(
            path,
            main.environment,
            lock=partial(lock_database, path, main.environment.clock),
            lock_timeout_s=LOCK_TIMEOUT_S,
            choose_another=CHOOSE_ANOTHER_FILE,
            on_ask_closed=self.on_ask_closed,
        )
        super().__init__(
            environment=main.environment,
            database=database,
            bus=main.bus,
            workers=main.workers,
            runtimes=main.runtimes,
            owner_of=lambda kind: None,
        )

    def is_usable(self) -> bool:
        """Return True if the file was not replaced since it was opened, or if the database has live runs."""
        runs = self.peek_runs()
        return self.database.is_in_place() or (runs is not None and runs.count > 0)


class WorkflowDatabases:
    """The databases that workflows have named. Each is opened on first use."""

    def __init__(self, main: RunServices) -> None:
        self._main = main
        self._known = [Path(path) for path in main.store.read(records.list_databases)]
        self._open: dict[Path, WorkflowDatabase] = {}
        self._add_lock = asyncio.Lock()
        self.report_disk_error: Callable[[StorageFailed], object] | None = None  # for databases that are opened later

    def open_all(self) -> list[WorkflowDatabase]:
        """Open all databases. Skip invalid ones, which `guild doctor` reports."""
        return [found for path in self._known if isinstance(found := self._try_open(path), WorkflowDatabase)]

    def problems(self) -> list[GuildError]:
        """Return the errors of databases that cannot be opened."""
        return [found for path in self._known if isinstance(found := self._try_open(path), GuildError)]

    def _try_open(self, path: Path) -> WorkflowDatabase | GuildError:
        try:
            return self._get(path)
        except GuildError as error:
            return error

    def _get(self, path: Path) -> WorkflowDatabase:
        self._close_if_replaced(path)
        if path not in self._open:
            if not path.exists():
                hint = "Restore the file to make its runs available again."
                raise NotFound("workflow database not found", where=str(path), hint=hint)
            self._open[path] = self._create(path)
        return self._open[path]

    def _create(self, path: Path) -> WorkflowDatabase:
        database = WorkflowDatabase(self._main, path)
        if self.report_disk_error is not None:
            database.store.enable_disk_retries(self.report_disk_error)
        return database

    def _close_if_replaced(self, path: Path) -> None:
        """Close a database whose file was removed or replaced."""
        if path in self._open and not self._open[path].is_usable():
            self._open.pop(path).close()

    async def add(self, path: Path) -> WorkflowDatabase:
        """Open the database at a path. Create and register it if necessary."""
        async with self._add_lock:
            if path not in self._known:
                at = stamp(self._main.environment.clock.now())
                await self._main.store.write(lambda connection: records.add_database(connection, str(path), at))
                self._known.append(path)
            self._close_if_replaced(path)
            if path not in self._open:  # creating a database takes time
                self._open[path] = await asyncio.to_thread(self._create, path)
            return self._open[path]

    @property
    def live_run_count(self) -> int:
        """Return the number of live runs in all databases, without child runs."""
        return sum(runs.count for runs in self._built_runs())

    async def pause_all(self, cause: PauseCause) -> None:
        for runs in self._built_runs():
            await runs.pause_all(cause)

    def publish_error(self, error: ErrorData) -> None:
        """Report an error of the hall to the clients of all live runs."""
        for runs in self._built_runs():
            runs.publish_error(error)

    def open_services(self) -> list[RunServices]:
        """Return the services of the databases that are open, the home's own first."""
        return [self._main, *self._open.values()]

    def _built_runs(self) -> list[Runs]:
        built = (services.peek_runs() for services in self.open_services())
        return [runs for runs in built if runs is not None]

    def close(self) -> None:
        """Close all databases except for the home's own."""
        for database in self._open.values():
            database.close()

    def find_services(self, contains: Callable[[Connection], bool]) -> RunServices:
        """Return the services of the first database for which `contains` returns True, or of the home's own."""
        if not self._known or self._main.store.read(contains):
            return self._main
        return next((database for database in self.open_all() if database.store.read(contains)), self._main)

    def services_of_team(self, target: Target) -> RunServices:
        """Return the services of the database in which the target's workflow was started last."""
        if not self._known:
            return self._main
        candidates = {
            instance.id: (services, instance)
            for services in (self._main, *self.open_all())
            for instance in services.store.read(lambda connection: queries.list_candidates(connection, target))
        }
        chosen = queries.choose(target, (instance for _, instance in candidates.values()))
        return candidates[chosen.id][0] if chosen is not None else self._main

    async def services_for_start(self, workflow: Workflow, start: Start, frame: Frame) -> RunServices:
        """Return the services of the database that a workflow names, or of the home's own.

        Raise Conflict if the workflow is active under this tag in another database.
        """
        from guildhall.workflow.start_values import check_paths, start_values

        environment = self._main.environment
        frame = workflow.frame(frame)
        chosen: RunServices = self._main
        if workflow.definition.context.config.db is not None and environment.policy.may_use_workflow_databases:
            allowed = environment.settings(frame).env
            values = start_values(workflow, tag=start.tag, params=start.params, frame=frame, allowed=allowed)
            check_paths(workflow, values, environment.home, frame)
            if (path := workflow.database_path(values)) is not None:
                chosen = await self.add(path.resolve())
        key = (str(frame.root), workflow.name, start.tag)
        for other in (self._main, *self.open_all()) if self._known else ():
            instance = other.store.read(lambda connection: records.newest_instance(connection, *key))
            if other is not chosen and instance is not None and instance.status not in FINAL_PHASES:
                raise Conflict(
                    f"cannot start {instance.target}: {instance.status} in another database (run {instance.id})",
                    hint=f"Stop it with `guild stop {instance.id}`, or use another --tag.",
                )
        return chosen
