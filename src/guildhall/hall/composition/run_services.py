"""Run services of a database: execute runs and workflows, with their rooms, recordings and forks.

The home's own database and each database in `workflow_databases` have these services.
Does not contain jobs, commissions, meetings or projects: these exist once in a hall, in the home's own database.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from guildhall.core.clock import local_zone
from guildhall.hall.composition.environment import Environment, peek
from guildhall.runs.purpose import CallPurpose, RunKind

if TYPE_CHECKING:
    from guildhall.activities.run_owner import RunOwner
    from guildhall.core.events import Event, EventBus
    from guildhall.core.request_frame import Frame
    from guildhall.hall.composition.database import Database
    from guildhall.hall.composition.runtime_registry import RuntimeRegistry
    from guildhall.hall.composition.workers import WorkerServices
    from guildhall.room.service import Rooms
    from guildhall.runs.execution.preparation import Grant, Prepared
    from guildhall.runs.execution.runs import Runs
    from guildhall.runs.model import Ask, RunRequest
    from guildhall.runs.replay.fork import Forks
    from guildhall.runs.replay.replay import Recordings
    from guildhall.tools.model import Toolbox
    from guildhall.workflow.service import Workflows

    # Returns the service that owns the runs of a kind: jobs, commissions or meetings. Returns None for other kinds.
    OwnerOf = Callable[[RunKind], RunOwner | None]

MAX_BUFFERED_EVENTS = 1_000  # of a slow client of a persistent hall


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
        from guildhall.projects.commissions.service import commission_replay_hooks
        from guildhall.projects.meetings.service import meeting_replay_hooks
        from guildhall.runs.replay.replay import Recordings

        return Recordings(
            store=self.store,
            history=self.history,
            assembler=self.workers.assembler,
            find_replay_hooks=lambda run: (
                jobs.job_replay_hooks(run) or commission_replay_hooks(run) or meeting_replay_hooks(run)
            ),
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

    async def prepare(self, request: RunRequest, frame: Frame, toolboxes: Sequence[Toolbox] = ()) -> Prepared:
        """Create a run of a worker. Raise NotTrusted if a worker that it may call by name is not trusted."""
        if not isinstance(request.purpose, CallPurpose):
            worker = self.workers.find(request.worker, frame)
            self.workers.check_trust(worker, frame, [toolbox.name for toolbox in toolboxes])
        return await self.runs.prepare(request, frame, toolboxes)

    async def prepare_resume(
        self, run: str, frame: Frame, toolboxes: Sequence[Toolbox] = (), grant: Grant | None = None
    ) -> Prepared:
        """Prepare to resume a stopped run of any kind.

        Raise NotTrusted if its worker, according to its current file, may call a worker that is not trusted.
        """
        self.workers.check_trust_again(self.history.get(run), frame, [toolbox.name for toolbox in toolboxes])
        await self.runs.wait_stopped(run)
        kind = self.history.get(run).kind
        if kind == "workflow":
            return await self.workflows.prepare_resume(run, frame, grant)
        if (owner := self.owner_of(kind)) is not None:
            return await owner.prepare_resume(run, frame, grant)
        return await self.runs.prepare_resume(run, frame, toolboxes, grant)

    def launch(self, prepared: Prepared) -> None:
        if prepared.purpose.kind == "workflow":
            self.workflows.launch(prepared)
        else:
            self.runs.launch(prepared)

    async def stream(self, prepared: Prepared) -> AsyncGenerator[Event]:
        """Launch a run and yield its events. If the hall is not persistent, closing the stream pauses the run."""
        is_persistent = self.environment.is_persistent
        with self.bus.listening(prepared.run_id, MAX_BUFFERED_EVENTS if is_persistent else None) as events:
            self.launch(prepared)
            try:
                async for event in events:
                    yield event
                    if event.type == "run_ended" and event.run == prepared.run_id:
                        break
            finally:
                if not is_persistent:
                    await self.runs.pause(prepared.run_id)
                elif prepared.frame.interactive:
                    self.runs.adjust_client_count(prepared.run_id, -1)
