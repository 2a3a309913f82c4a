"""The composition root: one constructor puts a hall together, for a command, a library call or a test."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from guildhall.core.clock import SystemClock, local_zone
from guildhall.core.errors import HallUnavailable
from guildhall.core.events import EventBus
from guildhall.hall.composition.environment import Environment
from guildhall.hall.composition.lazy import lazy
from guildhall.hall.composition.locks import LOCK_PATIENCE, lock_home
from guildhall.hall.composition.policy import RunPolicy
from guildhall.hall.composition.projects import Guild
from guildhall.hall.composition.runtimes import RuntimeRegistry
from guildhall.models.keys import joined
from guildhall.runs.records import find_run
from guildhall.workers import records
from guildhall.workers.lifecycle import usable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from guildhall.core.clock import Clock
    from guildhall.core.events import Event
    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.hall.composition.environment import MemberFolder
    from guildhall.hall.composition.workflow_databases import Annexes
    from guildhall.jobs.jobs import Jobs
    from guildhall.members.members import Members
    from guildhall.memory.service import Memory
    from guildhall.models.model import Source
    from guildhall.room.service import Rooms
    from guildhall.runs.assemble import Assembler
    from guildhall.runs.execution.memory_compaction import MemoryCompactor
    from guildhall.runs.fork import Forks
    from guildhall.runs.grants import Grant
    from guildhall.runs.lifecycle import Runs
    from guildhall.runs.model import Ask
    from guildhall.runs.planner import Planner
    from guildhall.runs.prepare import Prepared
    from guildhall.runs.purpose import RunKind
    from guildhall.runs.recordings import Recordings
    from guildhall.runs.seat import Seating
    from guildhall.runs.supply import Supply
    from guildhall.tools.builtin import Surroundings
    from guildhall.tools.mcp_client import Servers
    from guildhall.tools.model import Toolbox
    from guildhall.workers.model import Worker
    from guildhall.workflow.workflows import Workflows


_SETTLING = 2.0  # seconds that a hall which leaves waits for what goes on in the background


class Hall(Guild):
    """Owns the state of a home. Opened for writing it holds the home's lock; for reading any number may look."""

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
        self.environment = Environment(
            home=home,
            environ=environ,
            clock=clock or SystemClock(),
            readonly=readonly,
            member=member,
            policy=policy or RunPolicy(),
        )
        self.home = home
        self.environ = environ
        self.clock = self.environment.clock
        self.boot = self.environment.boot
        self.settings = self.environment.settings
        self.readonly = readonly
        self.runtimes = RuntimeRegistry(self.environment, children=children)
        self.lives: list[Callable[[], bool]] = []  # what else keeps the process of a hall from leaving
        self.bus = EventBus()
        told = {"boot": self.boot, "hall": process}
        self._open(home.database, partial(lock_home, home, self.clock, told=told), patience)

    @lazy
    def annexes(self) -> Annexes:
        from guildhall.hall.composition.workflow_databases import Annexes

        return Annexes(self)

    def where(self, run: str) -> Hall:
        """The part that has a run on record; the whole, where none has."""
        return self.annexes.where(lambda connection: find_run(connection, run) is not None)

    @lazy
    def memory(self) -> Memory:
        from guildhall.memory.service import Memory

        return Memory(self.home, self.store, self.clock)

    @lazy
    def memory_compactor(self) -> MemoryCompactor:
        from guildhall.runs.execution.memory_compaction import MemoryCompactor

        return MemoryCompactor(
            memory=self.memory,
            runs=self.runs,
            find_runs=lambda run: self.where(run).runs,
            store=self.store,
            bus=self.bus,
            clock=self.clock,
        )

    @lazy
    def supply(self) -> Supply:
        """What workers can be given here."""
        from guildhall.runs.supply import Supply

        return Supply(
            home=self.home,
            environ=self.environ,
            settings=self.settings,
            pins=self.pins,
            locked=lambda: self.store.read(records.all_locks),
            outsiders=lambda worker, frame: self.members.outsiders(worker, frame),
            own=self.environment.member.root if self.environment.member is not None else None,
            program=self.runtimes.check_program,
        )

    @lazy
    def members(self) -> Members:
        """The guild members that can be reached from here. None is started before it is needed."""
        from guildhall.members.members import Members

        return Members(home=self.home, clock=self.clock, trust=self.supply.trust)

    @lazy
    def planner(self) -> Planner:
        """What says beforehand what a worker could do. It starts nothing that could do anything."""
        from guildhall.models.catalog import has_price
        from guildhall.runs.assembly.memory import RunMemory
        from guildhall.runs.planner import Planner

        return Planner(
            supply=self.supply,
            find=self.find_worker,
            everyone=lambda frame: self.registry(frame).listed(),
            active=self.active_workers,
            describe=self.runtimes.boxes.describe,
            memory=RunMemory(memory=self.memory, request_compaction=lambda request: None),
            provided=self.provided,
            priced=lambda model, frame: has_price(model, cwd=frame.cwd, environ=joined(self.environ, frame.keys)),
        )

    @lazy
    def runs(self) -> Runs:
        """What makes runs and keeps them alive. Put together when it is first needed: looking needs none of it."""
        from guildhall.runs.lifecycle import Runs

        return Runs(
            store=self.store,
            clock=self.clock,
            bus=self.bus,
            asks=self.asks,
            boot=self.boot,
            history=self.history,
            assembler=self.assembler,
            planner=self.planner,
            source_of=self.source,
            runtime_of=self.runtimes.for_run,
            tokens=self.runtimes.tokens,
        )

    @lazy
    def recordings(self) -> Recordings:
        from guildhall.jobs import jobs
        from guildhall.projects.commissions.service import recorded_hooks
        from guildhall.projects.meetings.service import recorded_session_hooks
        from guildhall.runs.recordings import Recordings

        return Recordings(
            store=self.store,
            history=self.history,
            assembler=self.assembler,
            seat_of=lambda run: jobs.seat_of(run) or recorded_hooks(run) or recorded_session_hooks(run),
            runtime_of=self.runtimes.for_replay,
            tokens=self.runtimes.tokens,
        )

    @lazy
    def assembler(self) -> Assembler:
        from guildhall.runs.assemble import Assembler
        from guildhall.runs.assembly.memory import RunMemory

        return Assembler(
            self.environ,
            find=self.find_worker,
            everyone=lambda frame: self.registry(frame).listed(),
            active=self.active_workers,
            settings=self.settings,
            describe=self.runtimes.boxes.describe,
            memory=RunMemory(
                memory=self.memory, request_compaction=lambda request: self.memory_compactor.start(request)
            ),
            instead=self.environment.policy.replace_tool,
            supply=self.supply,
            serve=self.serve,
            provided=self.provided,
            project=lambda frame: found.name if (found := self.projects.at(frame.root)) else None,
        )

    @lazy
    def rooms(self) -> Rooms:
        from guildhall.room.model import RoomListener
        from guildhall.room.service import Rooms

        ears = RoomListener(
            wake=lambda room, agents: self.workflows.wake(room, agents),
            on_event=lambda event: self.workflows.happened(event),
        )
        return Rooms(self.store, self.clock, ears)

    @lazy
    def workflows(self) -> Workflows:
        from guildhall.workflow.workflows import Workflows

        return Workflows(
            home=self.home,
            store=self.store,
            clock=self.clock,
            bus=self.bus,
            runs=self.runs,
            history=self.history,
            rooms=self.rooms,
            settings=self.settings,
            zone=local_zone(self.environ),
            policy=self.environment.policy.workflows,
        )

    @lazy
    def jobs(self) -> Jobs:
        """The jobs that were dispatched here. Reading their directories takes a moment, the first time."""
        from guildhall.jobs.jobs import Jobs

        return Jobs(
            folder=self.home.jobs,
            store=self.store,
            clock=self.clock,
            history=self.history,
            asks=self.asks,
            runs=lambda: self.runs,
            alive=self.is_alive,
            find=self.for_new_work,
            output_schema=lambda worker, frame: self.supply.output_schema(worker, frame),
            readonly=self._lock is None,
        )

    def seating(self, kind: RunKind) -> Seating | None:
        """Return the owner of the runs of this kind, or None if they have no owner or a workflow owns them."""
        return self.jobs if kind == "job" else super().seating(kind)

    def seatings(self) -> tuple[Seating, ...]:
        """All who give runs a seat of their own."""
        return (self.jobs, *super().seatings())

    def for_new_work(self, name: str, frame: Frame) -> Worker:
        """A worker that may be given work, it and all that it may call."""
        from guildhall.hall.composition.callee_trust import demand_trust

        worker = self.find_worker(name, frame)
        usable(worker, "name")
        demand_trust(self, worker, frame)
        return worker

    def is_alive(self, run: str) -> bool:
        """Return True if a run is executed in this hall."""
        runs = Hall.runs.of(self).peek()
        return runs is not None and runs.alive(run)

    def _ask_closed(self, ask: Ask) -> None:
        if (workflows := Hall.workflows.of(self).peek()) is not None:
            workflows.answered(ask)

    async def prepare_again(
        self, run: str, frame: Frame, given: Sequence[Toolbox] = (), grant: Grant | None = None
    ) -> Prepared:
        """A run that stopped, be it a worker's or a workflow's, ready to go on."""
        await self.runs.gone(run)
        kind = self.history.get(run).kind
        if kind == "workflow":
            return await self.workflows.again(run, frame, grant)
        if (seating := self.seating(kind)) is not None:
            return await seating.again(run, frame, grant)
        return await self.runs.preparation.prepare_again(run, frame, given, grant)

    def launch(self, prepared: Prepared) -> None:
        """Lets a run live that was made ready."""
        if self.history.get(prepared.run).kind == "workflow":
            self.workflows.launch(prepared)
        else:
            self.runs.launch(prepared)

    @lazy
    def forks(self) -> Forks:
        from guildhall.runs.fork import Forks

        return Forks(
            store=self.store,
            clock=self.clock,
            history=self.history,
            source_of=self.source,
            budget_of=lambda frame: self.settings(frame).budget,
        )

    async def serve(self, worker: Worker, frame: Frame, surroundings: Surroundings) -> Servers:
        """Start or reach the tool servers and the members that a worker names."""
        from guildhall.runs.serving import serve

        if (check_servers := self.environment.policy.check_servers) is not None:
            check_servers(worker, self.supply.outsiders(worker, frame))
        more = await self.members.specs(worker, frame)
        return await serve(worker, frame, surroundings, self.supply, more)

    def source(self, model: str, frame: Frame, login: bool = False) -> Source:
        """Return the source that answers for a model. `login`: a login with Claude can replace an API key."""
        if (source_of := self.environment.policy.source_of) is not None:
            return source_of(model, frame, login)
        from guildhall.models.catalog import source_for
        from guildhall.models.login import login_of

        environ = joined(self.environ, frame.keys)
        found = login_of(environ) if login else None
        return source_for(model, cwd=frame.cwd, environ=environ, recording=self._recording, login=found)

    def _recording(self, run: str) -> Source:
        return self.where(run).recordings.source(run)

    def busy(self) -> bool:
        """Whether something lives here: a run, what goes on in the background, or what others have added."""
        members, compactor = Hall.members.of(self).peek(), Hall.memory_compactor.of(self).peek()
        in_background = (members is not None and members.busy) or (compactor is not None and compactor.is_busy)
        return self.annexes.living > 0 or in_background or any(lives() for lives in self.lives)

    async def settle(self, patience: float | None = None) -> list[Event]:
        """Waits for a while for what goes on in the background; what came of it that no stream has told."""
        compactor = Hall.memory_compactor.of(self).peek()
        if compactor is None:
            return []
        return await (compactor.wait() if patience is None else compactor.wait(patience))

    async def drain(self) -> None:
        """Stops what lives here; it goes on by itself when the next hall starts."""
        self._keep_still()
        await self.annexes.park_all("shutdown")
        await self.settle(_SETTLING)

    def _keep_still(self) -> None:
        """From now on nothing that waits goes on by itself."""
        for part in (Hall.jobs, Hall.commissions, Hall.meetings):
            if (built := part.of(self).peek()) is not None:
                built.close()

    async def close(self) -> None:
        """Waits for what goes on in the background, parks what runs, then lets go of the home."""
        self._keep_still()
        await self.settle()
        await self.annexes.park_all("user")
        if (members := Hall.members.of(self).peek()) is not None:
            await members.close()
        await self.runtimes.close()
        self.release()

    def release(self) -> None:
        if (annexes := Hall.annexes.of(self).peek()) is not None:
            annexes.release()
        super().release()
