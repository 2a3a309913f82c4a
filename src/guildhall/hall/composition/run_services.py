"""Run services of a database: execute runs and workflows, with their rooms, recordings and forks.

The home's own database has these services, and so has each database that a workflow names in `context.config.db`
(ADR 018). The home's own database lists the others.
Does not contain jobs, commissions, meetings or projects: these exist once in a hall, in the home's own database.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.core.clock import local_zone, stamp
from guildhall.core.errors import Conflict, GuildError, NotFound
from guildhall.hall.composition.database import LOCK_TIMEOUT_S, Database, lock_database
from guildhall.hall.composition.environment import Environment, peek
from guildhall.runs.purpose import CallPurpose, RunKind
from guildhall.workflow import records
from guildhall.workflow.target import FINAL_PHASES, Instance, Start, Target

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from sqlalchemy import Connection

    from guildhall.activities.run_owner import RunOwner
    from guildhall.core.events import Event, EventBus
    from guildhall.core.request_frame import Frame
    from guildhall.hall.composition.runtime_registry import RuntimeRegistry
    from guildhall.hall.composition.workers import WorkerServices
    from guildhall.room.service import Rooms
    from guildhall.runs.execution.grants import Grant
    from guildhall.runs.execution.preparation import Prepared
    from guildhall.runs.execution.runs import Runs
    from guildhall.runs.model import Ask, PauseCause, RunRequest
    from guildhall.runs.replay.fork import Forks
    from guildhall.runs.replay.replay import Recordings
    from guildhall.tools.model import Toolbox
    from guildhall.workflow.model import Workflow
    from guildhall.workflow.service import Workflows

    # Returns the service that owns the runs of a kind: jobs, commissions or meetings. None: no service does.
    OwnerOf = Callable[[RunKind], RunOwner | None]

MAX_BUFFERED_EVENTS = 1_000  # for a client that reads slowly, if the hall stays
_CHOOSE_ANOTHER = "Name another file in `context.config.db`."


@dataclass(kw_only=True, eq=False, repr=False)
class RunServices:
    """The services of one database. Each is built on first use."""

    environment: Environment
    database: Database
    bus: EventBus
    workers: WorkerServices
    runtimes: RuntimeRegistry
    owner_of: OwnerOf

    def __post_init__(self) -> None:
        self.store = self.database.store
        self.history = self.database.history
        self.asks = self.database.asks
        self.close = self.database.close

    @cached_property
    def runs(self) -> Runs:
        from guildhall.runs.execution.runs import Runs

        return Runs(
            store=self.store,
            clock=self.environment.clock,
            bus=self.bus,
            asks=self.asks,
            boot=self.environment.boot,
            history=self.history,
            assembler=self.workers.assembler,
            planner=self.workers.planner,
            source_of=self.workers.model_source,
            runtime_of=self.runtimes.runtime_for_run,
            tokens=self.runtimes.tokens,
        )

    @cached_property
    def recordings(self) -> Recordings:
        from guildhall.jobs import service as jobs
        from guildhall.projects.commissions.service import recorded_hooks
        from guildhall.projects.meetings.service import recorded_session_hooks
        from guildhall.runs.replay.replay import Recordings

        return Recordings(
            store=self.store,
            history=self.history,
            assembler=self.workers.assembler,
            recorded_hooks=lambda run: jobs.recorded_hooks(run) or recorded_hooks(run) or recorded_session_hooks(run),
            runtime_of=self.runtimes.runtime_for_replay,
            tokens=self.runtimes.tokens,
        )

    @cached_property
    def forks(self) -> Forks:
        from guildhall.runs.replay.fork import Forks

        return Forks(
            store=self.store,
            clock=self.environment.clock,
            history=self.history,
            source_of=self.workers.model_source,
            budget_of=lambda frame: self.environment.settings(frame).budget,
        )

    @cached_property
    def rooms(self) -> Rooms:
        from guildhall.room.model import RoomListener
        from guildhall.room.service import Rooms

        listener = RoomListener(
            wake=lambda room, agents: self.workflows.wake(room, agents),
            on_event=lambda event: self.workflows.on_room_event(event),
        )
        return Rooms(self.store, self.environment.clock, listener)

    @cached_property
    def workflows(self) -> Workflows:
        from guildhall.workflow.service import WorkflowPolicy, Workflows

        return Workflows(
            home=self.environment.home,
            store=self.store,
            clock=self.environment.clock,
            bus=self.bus,
            runs=self.runs,
            history=self.history,
            rooms=self.rooms,
            settings=self.environment.settings,
            zone=local_zone(self.environment.environ),
            policy=self.environment.policy.workflows or WorkflowPolicy(),
        )

    def peek_runs(self) -> Runs | None:
        """Return `runs`, or None if it was not used yet."""
        return peek(self, RunServices.runs)

    def is_alive(self, run: str) -> bool:
        runs = self.peek_runs()
        return runs is not None and runs.is_alive(run)

    def on_ask_closed(self, ask: Ask) -> None:
        if (workflows := peek(self, RunServices.workflows)) is not None:
            workflows.on_answer(ask)

    async def prepare(self, request: RunRequest, frame: Frame, given: Sequence[Toolbox] = ()) -> Prepared:
        """Create a run of a worker. Raise NotTrusted if a worker that it may call by name is not trusted."""
        if not isinstance(request.purpose, CallPurpose):
            worker = self.workers.find(request.worker, frame)
            self.workers.check_trust(worker, frame, [toolbox.name for toolbox in given])
        return await self.runs.prepare(request, frame, given)

    async def prepare_resume(
        self, run: str, frame: Frame, given: Sequence[Toolbox] = (), grant: Grant | None = None
    ) -> Prepared:
        """Prepare a stopped run of any kind for being resumed.

        Raise NotTrusted if its worker, according to its current file, may call a worker that is not trusted.
        """
        self.workers.check_trust_again(self.history.get(run), frame, [toolbox.name for toolbox in given])
        await self.runs.wait_stopped(run)
        kind = self.history.get(run).kind
        if kind == "workflow":
            return await self.workflows.prepare_resume(run, frame, grant)
        if (owner := self.owner_of(kind)) is not None:
            return await owner.prepare_resume(run, frame, grant)
        return await self.runs.prepare_resume(run, frame, given, grant)

    def launch(self, prepared: Prepared) -> None:
        if prepared.purpose.kind == "workflow":
            self.workflows.launch(prepared)
        else:
            self.runs.launch(prepared)

    async def stream(self, prepared: Prepared) -> AsyncGenerator[Event]:
        """Launch a run and yield its events. If the hall is not persistent, closing the stream pauses the run."""
        is_persistent = self.environment.is_persistent
        with self.bus.listening(prepared.run, MAX_BUFFERED_EVENTS if is_persistent else None) as events:
            self.launch(prepared)
            try:
                async for event in events:
                    yield event
                    if event.type == "run_ended" and event.run == prepared.run:
                        break
            finally:
                if not is_persistent:
                    await self.runs.pause(prepared.run)
                elif prepared.frame.interactive:
                    self.runs.add_clients(prepared.run, -1)


class WorkflowDatabase(RunServices):
    """A database that a workflow names, with its services. It has no jobs, commissions, meetings or projects."""

    def __init__(self, main: RunServices, path: Path) -> None:
        database = Database(
            path,
            main.environment,
            lock=partial(lock_database, path, main.environment.clock),
            lock_timeout_s=LOCK_TIMEOUT_S,
            choose_another=_CHOOSE_ANOTHER,
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
        self._path = path
        self._identity = _identity(path)

    def is_usable(self) -> bool:
        """Return True if the file was not replaced since it was opened, or if the database has live runs."""
        runs = self.peek_runs()
        return _identity(self._path) == self._identity or (runs is not None and runs.count > 0)


class WorkflowDatabases:
    """The databases that workflows have named. Each is opened on first use."""

    def __init__(self, main: RunServices) -> None:
        self._main = main
        self._known = [Path(path) for path in main.store.read(records.list_databases)]
        self._open: dict[Path, WorkflowDatabase] = {}
        self._opening = asyncio.Lock()

    def open_all(self) -> list[WorkflowDatabase]:
        """Open all databases. Skip invalid ones, which `guild doctor` reports."""
        found = (self._try(path) for path in self._known)
        return [database for database in found if isinstance(database, WorkflowDatabase)]

    def problems(self) -> list[GuildError]:
        """Return the errors of databases that cannot be opened."""
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
                hint = "Restore the file to make its runs available again."
                raise NotFound("workflow database not found", where=str(path), hint=hint)
            self._open[path] = WorkflowDatabase(self._main, path)
        return self._open[path]

    def _close_if_replaced(self, path: Path) -> None:
        """Close a database whose file was removed or replaced."""
        if path in self._open and not self._open[path].is_usable():
            self._open.pop(path).close()

    async def add(self, path: Path) -> WorkflowDatabase:
        """Open the database at a path. Create and register it if necessary."""
        async with self._opening:
            if path not in self._known:
                at = stamp(self._main.environment.clock.now())
                await self._main.store.write(lambda connection: records.add_database(connection, str(path), at))
                self._known.append(path)
            self._close_if_replaced(path)
            if path not in self._open:  # creating a database takes time
                self._open[path] = await asyncio.to_thread(WorkflowDatabase, self._main, path)
            return self._open[path]

    @property
    def live_runs(self) -> int:
        """Return the number of live runs in all databases, without child runs."""
        return sum(runs.count for runs in self._built_runs())

    async def pause_all(self, cause: PauseCause) -> None:
        for runs in self._built_runs():
            await runs.pause_all(cause)

    def _built_runs(self) -> list[Runs]:
        built = (database.peek_runs() for database in (self._main, *self._open.values()))
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
        newest = {one: _newest(one, target.workflow, target.tag) for one in (self._main, *self.open_all())}
        created = {one: instance.created_at for one, instance in newest.items() if instance is not None}
        return max(created, key=lambda one: created[one], default=self._main)

    async def services_for_start(self, workflow: Workflow, start: Start, frame: Frame) -> RunServices:
        """Return the services of the database that a workflow names, or of the home's own. Raise if it is active."""
        from guildhall.workflow.start_values import check_paths, start_values

        environment = self._main.environment
        there = workflow.frame(frame)
        chosen: RunServices = self._main
        if workflow.definition.context.config.db is not None and environment.policy.may_use_workflow_databases:
            allowed = environment.settings(there).env
            values = start_values(workflow, tag=start.tag, params=start.params, frame=there, allowed=allowed)
            check_paths(workflow, values, environment.home, there)
            if (path := workflow.database_path(values)) is not None:
                chosen = await self.add(path.resolve())
        for other in (self._main, *self.open_all()) if self._known else ():
            instance = _newest(other, workflow.name, start.tag)
            if other is not chosen and instance is not None and instance.status not in FINAL_PHASES:
                raise Conflict(
                    f"{instance.target} is already {instance.status} in another database (run {instance.id})",
                    hint=f"Stop it with `guild stop {instance.target}`, or use another --tag.",
                )
        return chosen


def _newest(services: RunServices, name: str, tag: str) -> Instance | None:
    return services.store.read(lambda connection: records.newest_instance(connection, name, tag))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
