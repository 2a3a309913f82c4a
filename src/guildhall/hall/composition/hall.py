"""Composition root: `Hall` creates the parts of a hall and passes each part the objects that it needs.

A part that needs imports or files is built on first use (`cached_property`), so that creating a `Hall` is cheap.
Does not implement the interface: `hall.services` does. Does not serve HTTP: `hall.server` does.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

from guildhall.core.clock import Clock, SystemClock
from guildhall.core.errors import HallUnavailable
from guildhall.core.events import Event, EventBus
from guildhall.hall.composition.database import LOCK_PATIENCE, Database, lock_home
from guildhall.hall.composition.environment import Environment, MemberFolder, RunPolicy, peek
from guildhall.hall.composition.projects import ProjectServices
from guildhall.hall.composition.run_services import RunServices, WorkflowDatabases
from guildhall.hall.composition.runtimes import RuntimeRegistry
from guildhall.hall.composition.workers import WorkerServices
from guildhall.runs.record.records import find_run
from guildhall.store.schema import SET_HOME

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from guildhall.activities.owner import RunOwner
    from guildhall.core.frame import Frame
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
    from guildhall.tools.model import Tool
    from guildhall.workers.model import Worker


_SETTLE_TIMEOUT_S = 2.0  # for background work when the process of a hall exits


class Hall:
    """Owns the state of a home. Opened for writing it holds the home's lock; any number of halls may read."""

    def __init__(
        self,
        home: Home,
        *,
        environ: Mapping[str, str],
        clock: Clock | None = None,
        readonly: bool = False,
        process: bool = False,
        children: bool = False,
        patience: float = LOCK_PATIENCE,
        member: MemberFolder | None = None,
        policy: RunPolicy | None = None,
    ) -> None:
        """Open the hall of a home.

        `process`: other processes reach this hall. `children`: execute each run in a process of its own.
        `patience`: seconds to wait for the lock. `member`: the member whose own hall this is.
        """
        if home.keeps is not None and member is None and not readonly:
            raise HallUnavailable(
                f"{home.path} belongs to the member {home.keeps.name}, which does not run",
                hint="Only its own program changes anything there: start it, by handing it work, then try again.",
            )
        self.environment = environment = Environment(
            home=home,
            environ=environ,
            clock=clock or SystemClock(),
            readonly=readonly,
            member=member,
            policy=policy or RunPolicy(),
        )
        self.home = home
        self.environ = environ
        self.clock = environment.clock
        self.boot = environment.boot
        self.settings = environment.settings
        self.bus = EventBus()
        self.keeps_alive: list[Callable[[], bool]] = []  # each returns True if the process must not exit when idle
        self.database = Database(
            home.database,
            environment,
            lock=partial(lock_home, home, environment.clock, told={"boot": environment.boot, "hall": process}),
            patience=patience,
            choose_another=SET_HOME,
            ask_closed=lambda ask: self.main.ask_closed(ask),
        )
        self.store = self.database.store
        self.history = self.database.history
        self.asks = self.database.asks
        self.runtimes = RuntimeRegistry(environment, children=children)
        self.workers = WorkerServices(
            environment,
            self.database,
            self.runtimes,
            members=lambda: self.members,
            memory=lambda: self.memory,
            compactor=lambda: self.memory_compactor,
            project_tools=self._project_tools,
            recorded_source=lambda run: self.where(run).recordings.source(run),
        )
        self.main = RunServices(
            environment,
            self.database,
            bus=self.bus,
            workers=self.workers,
            runtimes=self.runtimes,
            owner_of=self.owner_of,
        )
        self.project_services = ProjectServices(self.main)

    # databases

    def _project_tools(self, worker: Worker, frame: Frame, run: str, context: str) -> tuple[Tool, ...]:
        return self.project_services.tools(worker, frame, run, context)

    @cached_property
    def workflow_databases(self) -> WorkflowDatabases:
        """The databases that workflows name."""
        return WorkflowDatabases(self.main)

    def where(self, run: str) -> RunServices:
        """Return the services of the database that has a run. Return `main` if no database has it."""
        return self.workflow_databases.where(lambda connection: find_run(connection, run) is not None)

    def databases(self) -> Sequence[RunServices]:
        """Return the services of all databases, `main` first."""
        return (self.main, *self.workflow_databases.every())

    # services

    @property
    def runs(self) -> Runs:
        """The runs of the home's own database."""
        return self.main.runs

    @property
    def projects(self) -> Projects:
        """The projects that config.yaml registers."""
        return self.environment.projects

    @property
    def commissions(self) -> Commissions:
        """The commissions of all projects."""
        return self.project_services.commissions

    @property
    def meetings(self) -> Meetings:
        """The meetings of all projects."""
        return self.project_services.meetings

    @cached_property
    def jobs(self) -> Jobs:
        """The jobs that were dispatched here. The first access reads their directories."""
        from guildhall.jobs.service import Jobs

        return Jobs(
            folder=self.home.jobs,
            store=self.store,
            clock=self.clock,
            history=self.history,
            asks=self.asks,
            runs=lambda: self.main.runs,
            alive=self.main.is_alive,
            find=self.workers.find_for_work,
            output_schema=self.workers.output_schema,
            readonly=self.environment.readonly,
        )

    @cached_property
    def members(self) -> Members:
        """The guild members that can be reached from here. A member is started when it is needed."""
        from guildhall.members.service import Members

        return Members(home=self.home, clock=self.clock, trust=self.workers.preflight.trust)

    @cached_property
    def memory(self) -> Memory:
        """The memory of workers, projects and the user."""
        from guildhall.memory.service import Memory

        return Memory(self.home, self.store, self.clock)

    @cached_property
    def memory_compactor(self) -> MemoryCompactor:
        """Compacts memory that is over its limit, in the background."""
        from guildhall.runs.execution.memory_compaction import MemoryCompactor

        return MemoryCompactor(
            memory=self.memory,
            runs=self.runs,
            find_runs=lambda run: self.where(run).runs,
            store=self.store,
            bus=self.bus,
            clock=self.clock,
        )

    # owners of runs

    def owner_of(self, kind: RunKind) -> RunOwner | None:
        """Return the service that owns the runs of this kind, or None if none does."""
        if kind == "job":
            return self.jobs
        if kind == "meeting":
            return self.meetings
        return self.commissions if kind == "commission" else None

    def owners(self) -> tuple[RunOwner, ...]:
        """Return all services that own runs."""
        return (self.jobs, self.commissions, self.meetings)

    # shutdown

    def is_busy(self) -> bool:
        """Return True if runs are executed, background work is going on, or something else needs this process."""
        members, compactor = peek(self, Hall.members), peek(self, Hall.memory_compactor)
        in_background = (members is not None and members.is_busy) or (compactor is not None and compactor.is_busy)
        return self.workflow_databases.live_runs > 0 or in_background or any(need() for need in self.keeps_alive)

    async def settle(self, timeout_s: float | None = None) -> list[Event]:
        """Wait for background work. Return its events that no stream has delivered."""
        compactor = peek(self, Hall.memory_compactor)
        if compactor is None:
            return []
        return await (compactor.wait() if timeout_s is None else compactor.wait(timeout_s))

    async def drain(self) -> None:
        """Pause all runs. The next hall resumes them."""
        self._stop_wakeups()
        await self.workflow_databases.pause_all("shutdown")
        await self.settle(_SETTLE_TIMEOUT_S)

    def _stop_wakeups(self) -> None:
        if (jobs := peek(self, Hall.jobs)) is not None:
            jobs.close()
        self.project_services.close()

    async def close(self) -> None:
        """Wait for background work, pause all runs, close all parts, and release the home."""
        self._stop_wakeups()
        await self.settle()
        await self.workflow_databases.pause_all("user")
        if (members := peek(self, Hall.members)) is not None:
            await members.close()
        await self.runtimes.close()
        self.release()

    def release(self) -> None:
        """Close the databases and release their locks. Nothing may run."""
        if (databases := peek(self, Hall.workflow_databases)) is not None:
            databases.close()
        self.database.close()
