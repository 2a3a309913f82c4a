"""Run services of a database: execute runs and workflows, with their rooms, recordings and forks.

The home's own database has these services, and so has each database that a workflow names in `context.config.db`
(ADR 018). The home's own database lists the others.
Does not contain jobs, commissions, meetings or projects: these exist once in a hall, in the home's own database.
"""

from __future__ import annotations

import asyncio
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.core.clock import local_zone, stamp
from guildhall.core.errors import Conflict, GuildError, NotFound
from guildhall.hall.composition.database import LOCK_PATIENCE, Database, lock_database
from guildhall.hall.composition.environment import peek
from guildhall.runs.purpose import CallPurpose, RunKind
from guildhall.workflow import records
from guildhall.workflow.target import OVER, Instance, Start, Target

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from sqlalchemy import Connection

    from guildhall.activities.owner import RunOwner
    from guildhall.core.events import Event, EventBus
    from guildhall.core.frame import Frame
    from guildhall.hall.composition.environment import Environment
    from guildhall.hall.composition.runtimes import RuntimeRegistry
    from guildhall.hall.composition.workers import WorkerServices
    from guildhall.room.service import Rooms
    from guildhall.runs.execution.grants import Grant
    from guildhall.runs.execution.prepare import Prepared
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


class RunServices:
    """The services of one database. Each is built on first use."""

    def __init__(
        self,
        environment: Environment,
        database: Database,
        *,
        bus: EventBus,
        workers: WorkerServices,
        runtimes: RuntimeRegistry,
        owner_of: OwnerOf,
    ) -> None:
        self.environment = environment
        self.bus = bus
        self.workers = workers
        self.owner_of = owner_of
        self.store = database.store
        self.history = database.history
        self.asks = database.asks
        self.close = database.close  # the runs must be paused
        self.runtimes = runtimes

    @cached_property
    def runs(self) -> Runs:
        """Prepares, executes, pauses and cancels runs."""
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
            source_of=self.workers.source,
            runtime_of=self.runtimes.for_run,
            tokens=self.runtimes.tokens,
        )

    @cached_property
    def recordings(self) -> Recordings:
        """Replays recorded runs, and serves their recorded model answers."""
        from guildhall.jobs import service as jobs
        from guildhall.projects.commissions.service import recorded_hooks
        from guildhall.projects.meetings.service import recorded_session_hooks
        from guildhall.runs.replay.replay import Recordings

        return Recordings(
            store=self.store,
            history=self.history,
            assembler=self.workers.assembler,
            recorded_hooks=lambda run: jobs.recorded_hooks(run) or recorded_hooks(run) or recorded_session_hooks(run),
            runtime_of=self.runtimes.for_replay,
            tokens=self.runtimes.tokens,
        )

    @cached_property
    def forks(self) -> Forks:
        """Starts new runs from a point of a recorded run."""
        from guildhall.runs.replay.fork import Forks

        return Forks(
            store=self.store,
            clock=self.environment.clock,
            history=self.history,
            source_of=self.workers.source,
            budget_of=lambda frame: self.environment.settings(frame).budget,
        )

    @cached_property
    def rooms(self) -> Rooms:
        """The rooms in which the agents of workflows work."""
        from guildhall.room.model import RoomListener
        from guildhall.room.service import Rooms

        listener = RoomListener(
            wake=lambda room, agents: self.workflows.wake(room, agents),
            on_event=lambda event: self.workflows.happened(event),
        )
        return Rooms(self.store, self.environment.clock, listener)

    @cached_property
    def workflows(self) -> Workflows:
        """Starts, resumes and stops workflows."""
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
        """Return the runs, or None if no run was started or asked for."""
        return peek(self, RunServices.runs)

    def is_alive(self, run: str) -> bool:
        """Return True if a run is being executed."""
        runs = self.peek_runs()
        return runs is not None and runs.is_alive(run)

    def ask_closed(self, ask: Ask) -> None:
        """Tell the workflows that an ask was answered or has expired."""
        if (workflows := peek(self, RunServices.workflows)) is not None:
            workflows.answered(ask)

    async def prepare(self, request: RunRequest, frame: Frame, given: Sequence[Toolbox] = ()) -> Prepared:
        """Create a run of a worker. Raise NotTrusted if a worker that it may call by name is not trusted."""
        if not isinstance(request.purpose, CallPurpose):
            worker = self.workers.find(request.worker, frame)
            self.workers.check_trust(worker, frame, [toolbox.name for toolbox in given])
        return await self.runs.prepare(request, frame, given)

    async def prepare_resume(
        self, run: str, frame: Frame, given: Sequence[Toolbox] = (), grant: Grant | None = None
    ) -> Prepared:
        """Prepare a stopped run for being resumed: a worker's, a workflow's, or one that a service owns.

        Raise NotTrusted if its worker, as its file is now, may call a worker that is not trusted.
        """
        self.workers.check_trust_again(self.history.get(run), frame, [toolbox.name for toolbox in given])
        await self.runs.wait_stopped(run)
        kind = self.history.get(run).kind
        if kind == "workflow":
            return await self.workflows.again(run, frame, grant)
        if (owner := self.owner_of(kind)) is not None:
            return await owner.prepare_resume(run, frame, grant)
        return await self.runs.prepare_resume(run, frame, given, grant)

    def launch(self, prepared: Prepared) -> None:
        """Start to execute a prepared run."""
        if prepared.purpose.kind == "workflow":
            self.workflows.launch(prepared)
        else:
            self.runs.launch(prepared)

    async def stream(self, prepared: Prepared, *, stays: bool) -> AsyncGenerator[Event]:
        """Launch a prepared run and yield its events. Closing the stream early pauses the run unless the hall stays."""
        with self.bus.listening(prepared.run, MAX_BUFFERED_EVENTS if stays else None) as events:
            self.launch(prepared)
            try:
                async for event in events:
                    yield event
                    if event.type == "run_ended" and event.run == prepared.run:
                        break
            finally:
                if not stays:
                    await self.runs.pause(prepared.run)
                elif prepared.frame.interactive:
                    self.runs.add_clients(prepared.run, -1)


class WorkflowDatabase(RunServices):
    """A database that a workflow names, with what runs on it. No job, commission, meeting or project is in it."""

    def __init__(self, main: RunServices, path: Path) -> None:
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
            main.environment,
            database,
            bus=main.bus,
            workers=main.workers,
            runtimes=main.runtimes,
            owner_of=lambda kind: None,
        )
        self._path = path
        self._identity = _identity(path)

    def is_usable(self) -> bool:
        """Return True if the file is still the one that was opened, or runs are executed on it."""
        runs = self.peek_runs()
        return _identity(self._path) == self._identity or (runs is not None and runs.count > 0)


class WorkflowDatabases:
    """The known databases of workflows. Each is opened when something is looked for that may be in it."""

    def __init__(self, main: RunServices) -> None:
        self._main = main
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
            self._open[path] = WorkflowDatabase(self._main, path)
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
                self._open[path] = await asyncio.to_thread(WorkflowDatabase, self._main, path)
            return self._open[path]

    # all that are open, and the home's own

    @property
    def live_runs(self) -> int:
        """The number of runs that are executed now, without the runs that they have called."""
        return sum(runs.count for runs in self._built_runs())

    async def pause_all(self, cause: PauseCause) -> None:
        """Pause the runs of all databases."""
        for runs in self._built_runs():
            await runs.pause_all(cause)

    def _built_runs(self) -> list[Runs]:
        built = (database.peek_runs() for database in (self._main, *self._open.values()))
        return [runs for runs in built if runs is not None]

    def close(self) -> None:
        """Close the databases that are open. The home's own stays open."""
        for database in self._open.values():
            database.close()

    # finding

    def where(self, found: Callable[[Connection], bool]) -> RunServices:
        """Return the services of the database that contains something, or the home's own if none does."""
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
