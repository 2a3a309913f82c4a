"""Composition root: `Hall` creates the parts of a hall and passes each part the objects that it needs.

A part that needs imports or files is built on first use (`cached_property`), so that creating a `Hall` is cheap.
Does not implement the interface: `hall.services` does. Does not serve HTTP: `hall.server` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

from guildhall.core.clock import Clock, SystemClock
from guildhall.core.errors import HallUnavailable
from guildhall.core.events import Event, EventBus
from guildhall.hall.composition.database import LOCK_TIMEOUT_S, Database, lock_home
from guildhall.hall.composition.environment import Environment, MemberFolder, RunPolicy, peek
from guildhall.hall.composition.projects import ProjectServices
from guildhall.hall.composition.run_services import RunServices
from guildhall.hall.composition.runtime_registry import RuntimeRegistry
from guildhall.hall.composition.workers import WorkerServices
from guildhall.hall.composition.workflow_databases import WorkflowDatabases
from guildhall.runs.record.records import find_run
from guildhall.store.schema import SET_HOME

if TYPE_CHECKING:
    from guildhall.activities.run_owner import RunOwner
    from guildhall.core.errors import StorageFailed
    from guildhall.core.paths import Home
    from guildhall.jobs.service import Jobs
    from guildhall.members.service import Members
    from guildhall.memory.service import Memory
    from guildhall.projects.commissions.service import Commissions
    from guildhall.projects.meetings.service import Meetings
    from guildhall.projects.registry import Projects
    from guildhall.runs.execution.memory_compaction import MemoryCompactor
    from guildhall.runs.execution.runs import Runs
    from guildhall.runs.purpose import RunKind


_BACKGROUND_TIMEOUT_S = 2.0  # for background work when the process exits


class Hall:
    """Owner of the state of a home. A hall that may write holds the home's lock. Any number of halls may read."""

    def __init__(
        self,
        home: Home,
        *,
        environ: Mapping[str, str],
        clock: Clock | None = None,
        readonly: bool = False,
        is_persistent: bool = False,
        forks_runs: bool = False,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        member: MemberFolder | None = None,
        policy: RunPolicy | None = None,
    ) -> None:
        """Open the hall of a home.

        `is_persistent`: a process serves the hall, and runs continue when their streams are closed.
        `forks_runs`: execute each run in a process of its own. `member`: the member whose own hall this is.
        """
        if home.data_dir is not None and member is None and not readonly:
            raise HallUnavailable(
                f"cannot change {home.path}: it belongs to the member {home.data_dir.name}, which is not running",
                hint="Start the member by dispatching a job to it, then try again.",
            )
        self.environment = environment = Environment(
            home=home,
            environ=environ,
            clock=clock or SystemClock(),
            readonly=readonly,
            is_persistent=is_persistent,
            member=member,
            policy=policy or RunPolicy(),
        )
        self.home = home
        self.environ = environ
        self.clock = environment.clock
        self.boot = environment.boot
        self.is_persistent = is_persistent
        self.settings = environment.settings
        self.bus = EventBus()
        self.keep_alive_checks: list[Callable[[], bool]] = []  # the process does not exit while one returns True
        self.database = Database(
            home.database,
            environment,
            lock=partial(lock_home, home, environment.clock, details={"boot": environment.boot, "hall": is_persistent}),
            lock_timeout_s=lock_timeout_s,
            choose_another=SET_HOME,
            on_ask_closed=lambda ask: self.main.on_ask_closed(ask),
        )
        self.store = self.database.store
        self.history = self.database.history
        self.asks = self.database.asks
        self.runtimes = RuntimeRegistry(environment, forks_runs=forks_runs)
        self.workers = WorkerServices(
            environment=environment,
            store=self.store,
            runtimes=self.runtimes,
            get_members=lambda: self.members,
            get_memory=lambda: self.memory,
            get_compactor=lambda: self.memory_compactor,
            project_tools=lambda worker, frame, run, context: self.project_services.tools(worker, frame, run, context),
            recorded_source=lambda run: self.services_of(run).recordings.source(run),
        )
        self.main = RunServices(
            environment=environment,
            database=self.database,
            bus=self.bus,
            workers=self.workers,
            runtimes=self.runtimes,
            owner_of=self.owner_of,
        )
        self.project_services = ProjectServices(self.main)

    @cached_property
    def workflow_databases(self) -> WorkflowDatabases:
        return WorkflowDatabases(self.main)

    def services_of(self, run: str) -> RunServices:
        """Return the services of the database that has a run. Return `main` if no database has it."""
        return self.workflow_databases.find_services(lambda connection: find_run(connection, run) is not None)

    def all_services(self) -> Sequence[RunServices]:
        """Return the run services of all databases, `main` first."""
        return (self.main, *self.workflow_databases.open_all())

    @property
    def runs(self) -> Runs:
        return self.main.runs

    @property
    def projects(self) -> Projects:
        return self.environment.projects

    @property
    def commissions(self) -> Commissions:
        return self.project_services.commissions

    @property
    def meetings(self) -> Meetings:
        return self.project_services.meetings

    @cached_property
    def jobs(self) -> Jobs:
        """Return the jobs of this home. The first access reads their directories."""
        from guildhall.jobs.service import Jobs

        return Jobs(
            folder=self.home.jobs,
            store=self.store,
            clock=self.clock,
            history=self.history,
            asks=self.asks,
            runs=lambda: self.main.runs,
            is_alive=self.main.is_alive,
            find_worker=partial(self.workers.find_for_work, use="dispatch"),
            load_output_schema=self.workers.preflight.load_output_schema,
            readonly=self.environment.readonly,
        )

    @cached_property
    def members(self) -> Members:
        from guildhall.members.service import Members

        return Members(home=self.home, clock=self.clock, trust=self.workers.preflight.load_trust)

    @cached_property
    def memory(self) -> Memory:
        from guildhall.memory.service import Memory

        return Memory(self.home, self.store, self.clock)

    @cached_property
    def memory_compactor(self) -> MemoryCompactor:
        from guildhall.runs.execution.memory_compaction import MemoryCompactor

        return MemoryCompactor(
            memory=self.memory,
            runs=self.runs,
            find_runs=lambda run: self.services_of(run).runs,
            store=self.store,
            bus=self.bus,
            clock=self.clock,
        )

    def owner_of(self, kind: RunKind) -> RunOwner | None:
        """Return the service that owns runs of this kind, or None."""
        if kind == "job":
            return self.jobs
        if kind == "meeting":
            return self.meetings
        return self.commissions if kind == "commission" else None

    def owners(self) -> tuple[RunOwner, ...]:
        return (self.jobs, self.commissions, self.meetings)

    def is_busy(self) -> bool:
        """Return True if runs are live, background work is pending, or a keep-alive check returns True."""
        members, compactor = peek(self, Hall.members), peek(self, Hall.memory_compactor)
        in_background = (members is not None and members.is_busy) or (compactor is not None and compactor.is_busy)
        return (
            self.workflow_databases.live_run_count > 0
            or in_background
            or any(check() for check in self.keep_alive_checks)
        )

    def enable_disk_retries(self, report: Callable[[StorageFailed], object]) -> None:
        """Retry writes while a disk is full or fails. `report` is called in another thread at the first failure."""
        for services in self.all_services():
            services.store.enable_disk_retries(report)
        self.workflow_databases.report_disk_error = report

    @property
    def disk_error(self) -> StorageFailed | None:
        """Return the error of a database whose writes wait for the disk, or of a disk that is full."""
        waiting = (services.store.disk_error for services in self.workflow_databases.open_services())
        return next((error for error in waiting if error is not None), None) or self.database.full_disk_error()

    async def wait_background_work(self, timeout_s: float | None = None) -> list[Event]:
        """Wait for background work. Return its events that no stream has delivered."""
        compactor = peek(self, Hall.memory_compactor)
        if compactor is None:
            return []
        return await (compactor.wait() if timeout_s is None else compactor.wait(timeout_s))

    async def drain(self) -> None:
        """Pause all runs. The next hall resumes them."""
        self._stop_timers()
        for services in self.workflow_databases.open_services():
            services.store.disable_disk_retries()
        await self.workflow_databases.pause_all("shutdown")
        await self.wait_background_work(_BACKGROUND_TIMEOUT_S)

    def _stop_timers(self) -> None:
        if (jobs := peek(self, Hall.jobs)) is not None:
            jobs.close()
        self.project_services.close()

    async def close(self) -> None:
        """Wait for background work, pause all runs, close all parts, and release the home."""
        self._stop_timers()
        await self.wait_background_work()
        await self.workflow_databases.pause_all("user")
        if (members := peek(self, Hall.members)) is not None:
            await members.close()
        await self.runtimes.close()
        self.release()

    def release(self) -> None:
        """Close the databases and release their locks. No run may be live."""
        if (databases := peek(self, Hall.workflow_databases)) is not None:
            databases.close()
        self.database.close()


class HallService:
    """Base class of the services that implement the interface with the parts of a hall."""

    def __init__(self, hall: Hall) -> None:
        self._hall = hall
