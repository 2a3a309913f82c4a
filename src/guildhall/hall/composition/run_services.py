"""Run services of a database: execute runs and workflows, with their rooms, recordings and forks.

The home's own database and each database of a workflow have these services.
Does not contain jobs, commissions, meetings or projects: these exist once in a hall, in the home's own database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.clock import local_zone
from guildhall.hall.composition.lazy import lazy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from guildhall.activities.owner import RunOwner
    from guildhall.core.events import EventBus
    from guildhall.core.frame import Frame
    from guildhall.hall.composition.database import Database
    from guildhall.hall.composition.environment import Environment
    from guildhall.hall.composition.runtimes import RuntimeRegistry
    from guildhall.hall.composition.workers import WorkerServices
    from guildhall.room.service import Rooms
    from guildhall.runs.execution.grants import Grant
    from guildhall.runs.execution.prepare import Prepared
    from guildhall.runs.execution.runs import Runs
    from guildhall.runs.model import Ask
    from guildhall.runs.purpose import RunKind
    from guildhall.runs.replay.fork import Forks
    from guildhall.runs.replay.replay import Recordings
    from guildhall.tools.model import Toolbox
    from guildhall.workflow.service import Workflows

    # Returns the service that owns the runs of a kind: jobs, commissions or meetings. None: no service does.
    OwnerOf = Callable[[RunKind], RunOwner | None]


def no_owner(kind: RunKind) -> None:
    """Return None: no run of this database belongs to a job, a commission or a meeting."""


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
        self._database = database
        self._runtimes = runtimes

    @lazy
    def runs(self) -> Runs:
        """Prepares, executes, parks and cancels runs."""
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
            runtime_of=self._runtimes.for_run,
            tokens=self._runtimes.tokens,
        )

    @lazy
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
            seat_of=lambda run: jobs.seat_of(run) or recorded_hooks(run) or recorded_session_hooks(run),
            runtime_of=self._runtimes.for_replay,
            tokens=self._runtimes.tokens,
        )

    @lazy
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

    @lazy
    def rooms(self) -> Rooms:
        """The rooms in which the agents of workflows work."""
        from guildhall.room.model import RoomListener
        from guildhall.room.service import Rooms

        listener = RoomListener(
            wake=lambda room, agents: self.workflows.wake(room, agents),
            on_event=lambda event: self.workflows.happened(event),
        )
        return Rooms(self.store, self.environment.clock, listener)

    @lazy
    def workflows(self) -> Workflows:
        """Starts, resumes and stops workflows."""
        from guildhall.workflow.service import Workflows

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
            policy=self.environment.policy.workflows,
        )

    def peek_runs(self) -> Runs | None:
        """Return the runs, or None if no run was started or asked for."""
        return RunServices.runs.of(self).peek()

    def is_alive(self, run: str) -> bool:
        """Return True if a run is being executed."""
        runs = self.peek_runs()
        return runs is not None and runs.alive(run)

    def ask_closed(self, ask: Ask) -> None:
        """Tell the workflows that an ask was answered or has expired."""
        if (workflows := RunServices.workflows.of(self).peek()) is not None:
            workflows.answered(ask)

    async def prepare_again(
        self, run: str, frame: Frame, given: Sequence[Toolbox] = (), grant: Grant | None = None
    ) -> Prepared:
        """Prepare a stopped run for being resumed: a worker's, a workflow's, or one that a service owns."""
        await self.runs.gone(run)
        kind = self.history.get(run).kind
        if kind == "workflow":
            return await self.workflows.again(run, frame, grant)
        if (owner := self.owner_of(kind)) is not None:
            return await owner.again(run, frame, grant)
        return await self.runs.prepare_again(run, frame, given, grant)

    def launch(self, prepared: Prepared) -> None:
        """Start to execute a prepared run."""
        if prepared.purpose.kind == "workflow":
            self.workflows.launch(prepared)
        else:
            self.runs.launch(prepared)

    def close(self) -> None:
        """Close the database. Park the runs first."""
        self._database.close()
