"""Live runs: launch, resume, pause and cancel the runs of a hall, and run the workers that a run calls.

Called runs form a tree below the run at the top. A called run is paused and cancelled together with its caller.

Does not create rows (`runs.execution.prepare`) and does not drive the runtime (`runs.execution.segment`).

Invariant: a repeated call leads to its existing run, also after a crash.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import GuildError, LimitReached, NotTrusted, Refused
from guildhall.core.events import ErrorData, Event, EventBus, RunEndedData, RunStartedData
from guildhall.core.paths import project_root
from guildhall.models.door import ModelDoor
from guildhall.runs.assembly.attachments import hand_on
from guildhall.runs.assembly.callees import CREATE
from guildhall.runs.execution import delegation
from guildhall.runs.execution.access import ProgramAccess
from guildhall.runs.execution.grants import Grant, has_price
from guildhall.runs.execution.ledger import LiveLedger
from guildhall.runs.execution.prepare import Preparation, Prepared, check_stoppable, child_run_error
from guildhall.runs.execution.segment import Segment
from guildhall.runs.execution.tokens import RunDoor, TokenRegistry, servers_of
from guildhall.runs.idle import IdleTracker
from guildhall.runs.model import ENDED, PauseCause, Run, RunRequest
from guildhall.runs.plan.planner import Planner, plan_of_run
from guildhall.runs.purpose import CallPurpose
from guildhall.runs.record import records
from guildhall.runtimes.catalog import ROWS
from guildhall.tools.executor import Executor
from guildhall.tools.gate import Gate
from guildhall.tools.model import Tool, ToolCall, ToolResult
from guildhall.workers.lifecycle import usable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sqlalchemy import Connection

    from guildhall.core.frame import Frame
    from guildhall.runs.asks import Asks
    from guildhall.runs.assembly.assembler import Assembler
    from guildhall.runs.execution.prepare import SourceOf
    from guildhall.runs.hooks import RunHooks
    from guildhall.runs.record.history import History
    from guildhall.runtimes.model import Runtime
    from guildhall.store.engine import Store
    from guildhall.workers.definition import RuntimeName
    from guildhall.workers.model import Worker

    RuntimeOf = Callable[[RuntimeName, Frame], Runtime]


def started_data(prepared: Prepared, parent: str | None) -> RunStartedData:
    """Return the data of the event that a run has started. `parent`: the run that called it."""
    assembled, source = prepared.assembled, prepared.source
    plan = prepared.hooks.plan_line if prepared.hooks else None
    if plan is None:
        plan = plan_of_run(assembled, source.name, priced=has_price(source), called=parent is not None).line()
    return RunStartedData(
        worker=assembled.worker.name,
        runtime=assembled.worker.definition.runtime,
        model=source.name,
        plan=plan,
        attachments=[file.as_described() for file in assembled.attachments],
        resumed=prepared.resumed,
        parent=parent,
    )


@dataclass(frozen=True, kw_only=True)
class LiveRun:
    """A run that is alive, below the one that called it."""

    prepared: Prepared
    ledger: LiveLedger
    execution: Segment
    calling: asyncio.Lock  # of the whole tree: calls side by side get their places in the order of the answer
    created: dict[str, str]  # the workers that the tree has made, with the digests of what was approved
    token: str = field(repr=False)  # opens its tool door from outside
    started: RunStartedData
    above: LiveRun | None = None

    @property
    def depth(self) -> int:
        return 1 if self.above is None else self.above.depth + 1


@dataclass(kw_only=True, eq=False)
class Runs:
    """The live runs of a hall, each at the top of a tree or below its caller."""

    store: Store
    clock: Clock
    bus: EventBus
    asks: Asks
    boot: str
    history: History
    assembler: Assembler
    planner: Planner
    source_of: SourceOf
    runtime_of: RuntimeOf  # executes the runs of workers that name this runtime, with the keys of this frame
    tokens: TokenRegistry

    def __post_init__(self) -> None:
        self._alive: dict[str, LiveRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}  # of the runs that no other run has called
        preparation = Preparation(
            self.store, self.clock, self.boot, self.history, self.assembler, self.source_of, self.alive
        )
        self.prepare = preparation.prepare
        self.prepare_resume = preparation.prepare_resume

    def launch(self, prepared: Prepared, runtime: Runtime | None = None) -> None:
        """Begins to execute; what happens is told as events. `runtime` executes it, where it has one of its own."""
        live = self._enliven(prepared, None, runtime)
        self._tasks[prepared.run] = asyncio.create_task(self._live(live))

    def _enliven(self, prepared: Prepared, above: LiveRun | None, runtime: Runtime | None = None) -> LiveRun:
        """Puts together what a run is executed with."""
        assembled, hooks = prepared.assembled, prepared.hooks
        makes_wait = above.ledger.idle_tracker if above and hooks is None else None
        clients = above.ledger.idle_tracker.clients if above else int(prepared.frame.interactive)
        if not ROWS[assembled.worker.definition.runtime].routed:
            clients += 1  # it is not put away while it waits: it could not be walked through its record again
        idle_tracker = IdleTracker(self.clock, clients=clients, parent=makes_wait)
        ledger = LiveLedger(
            worker=assembled.worker.name,
            identity=assembled.worker.identity,
            root=prepared.root,
            journal=prepared.journal,
            asks=self.asks,
            store=self.store,
            bus=self.bus,
            clock=self.clock,
            idle_tracker=idle_tracker,
            interactive=prepared.frame.interactive,
            is_hooked=hooks is not None and above is not None,
            below=prepared.below,
            above=above and above.ledger,
        )

        of_seat = {tool.name: hooks.executor(prepared.run) for tool in hooks.tools} if hooks else {}

        async def by_run(tool: Tool, call: ToolCall) -> ToolResult:
            if tool.name in of_seat:
                return await of_seat[tool.name](tool, call)
            return await (self._create_worker if tool.name == CREATE else self._call_worker)(live, call)

        executor = Executor(assembled.tools, assembled.surroundings, by_run)
        servers = servers_of(assembled, hooks)
        program_access = ProgramAccess(
            run=prepared.run, tokens=self.tokens, servers=servers, assignment=assembled.assignment
        )
        execution = Segment(
            ledger=ledger,
            runtime=runtime or self._runtime(prepared),
            gate=Gate(
                assembled.tools,
                assembled.rules,
                assembled.mode,
                ledger,
                executor,
                closed=hooks.block_reason if hooks else None,
            ),
            model_door=ModelDoor(
                prepared.source, ledger, self.clock, worker=assembled.worker.name, ordinal=prepared.ordinal
            ),
            program_access=program_access,
            seconds_before=prepared.seconds_before,
            clean_up=lambda: asyncio.gather(executor.close(), assembled.servers.close(), program_access.line.close()),
            hooks=hooks,
        )
        live = LiveRun(
            prepared=prepared,
            ledger=ledger,
            execution=execution,
            calling=above.calling if above else asyncio.Lock(),
            created=above.created if above else delegation.created([prepared.journal, *prepared.below]),
            token=self.tokens.issue(RunDoor(run=prepared.run, servers=servers, handle=execution)),
            started=started_data(prepared, above.prepared.run if above else None),
            above=above,
        )
        self._alive[prepared.run] = live
        ledger.publish(RunStartedData, live.started)
        return live

    def _runtime(self, prepared: Prepared) -> Runtime:
        if isinstance(prepared.purpose, CallPurpose):
            return delegation.SingleCallRuntime(prepared.purpose.arguments())
        return self.runtime_of(prepared.assembled.worker.definition.runtime, prepared.frame)

    async def _live(self, live: LiveRun) -> None:
        try:
            await live.execution.run()
        except Exception as error:  # noqa: BLE001 - the disk is full, the database gone: whoever follows must hear it
            live.ledger.publish(ErrorData, {"code": "error", "message": f"the record cannot be kept: {error}"})
            live.ledger.publish(RunEndedData, {"status": "interrupted", "reason": "the record cannot be kept"})
        finally:
            self._gone(live)
            del self._tasks[live.prepared.run]

    def _gone(self, live: LiveRun) -> None:
        del self._alive[live.prepared.run]
        self.tokens.revoke(live.token)

    # delegation

    async def _call_worker(self, caller: LiveRun, call: ToolCall) -> ToolResult:
        """A run of another worker, on behalf of a call. The same call leads to the same run, also after a crash."""
        async with caller.calling:
            made = self.store.read(lambda c: records.find_call_run(c, caller.prepared.run, call.key))
            if made is not None and made.status in ENDED and not delegation.is_at_parent_limit(made):
                return delegation.result_of(made)
            try:
                name = delegation.resolve_callee(
                    (call.arguments or {})["worker_name"], caller.prepared.assembled.allow_workers, caller.created
                )
                prepared = await (self._again(caller, made) if made else self._called(caller, call, name))
            except GuildError as error:
                is_refused = isinstance(error, Refused) and not isinstance(error, NotTrusted)
                if not is_refused and (made is not None or isinstance(error, LimitReached | NotTrusted)):
                    raise
                return ToolResult.error(str(error))
            live = self._enliven(prepared, caller)
        run = await self._carry_out(caller, live)
        if run.status not in ENDED:
            raise delegation.ChildStopped
        return delegation.result_of(run)

    async def _carry_out(self, caller: LiveRun, live: LiveRun) -> Run:
        """Executes a run below another one, until it ends or stops for now."""
        try:
            await caller.execution.carry_out(live.execution)
        finally:
            self._gone(live)
        return self.history.get(live.prepared.run)

    async def run_child(
        self, above: str, key: str, request: RunRequest, *, worker: Worker, hooks: RunHooks, place: Path | None = None
    ) -> Run:
        """Run a worker with hooks below a live run, until it ends or stops. `place`: its folder, if another."""
        caller = self._alive[above]
        frame = caller.prepared.frame
        if place is not None:
            frame = replace(frame, cwd=place, root=project_root(place))
        async with caller.calling:
            prepared = await self.prepare(
                request, frame, caller.prepared.given, worker=worker, caller=caller.prepared, call=key, hooks=hooks
            )
            live = self._enliven(prepared, caller)
        return await self._carry_out(caller, live)

    async def resume_child(self, above: str, run: str, hooks: RunHooks, grant: Grant | None = None) -> Run:
        """The same for one that was there before and has stopped, with more to use up if more is granted."""
        caller = self._alive[above]
        async with caller.calling:
            live = self._enliven(await self._again(caller, self.history.get(run), hooks, grant), caller)
        return await self._carry_out(caller, live)

    def is_attended(self, run: str) -> bool:
        """Whether somebody sits at a terminal for a live run."""
        return self._alive[run].ledger.idle_tracker.clients > 0

    def prepared(self, run: str) -> Prepared:
        """What a live run was launched with."""
        return self._alive[run].prepared

    def ledger(self, run: str) -> LiveLedger:
        """Where what happens in a live run is put on record and told."""
        return self._alive[run].ledger

    async def _again(
        self, caller: LiveRun, run: Run, hooks: RunHooks | None = None, grant: Grant | None = None
    ) -> Prepared:
        return await self.prepare_resume(
            run.id, caller.prepared.frame, caller.prepared.given, grant, caller=caller.prepared, hooks=hooks
        )

    async def _called(self, caller: LiveRun, call: ToolCall, name: str) -> Prepared:
        """The new run that a call asks for, if it may."""
        if caller.depth >= delegation.MAX_DEPTH:
            raise Refused(
                f"worker_call: workers call one another at most {delegation.MAX_DEPTH} deep. Do this yourself."
            )
        arguments = call.arguments or {}
        assembled = caller.prepared.assembled
        frame = assembled.worker.frame(caller.prepared.frame)
        callee = self.assembler.find(name, frame)
        if name in caller.created:
            delegation.check_unchanged(callee, caller.created)
        elif name not in assembled.allow_workers:
            usable(callee, "star")
        files = tuple(arguments.get("attachments") or ())
        attached = await asyncio.to_thread(hand_on, files, assembled.attachments, assembled.surroundings.view, callee)
        request = RunRequest(
            worker=name,
            input=delegation.as_input(arguments["input_data"]),
            model=assembled.model or None,
            override_model=caller.prepared.override_model,
            mode=assembled.mode,
        )
        given = caller.prepared.given
        return await self.prepare(
            request, frame, given, worker=callee, caller=caller.prepared, call=call.key, attached=attached
        )

    async def _create_worker(self, caller: LiveRun, call: ToolCall) -> ToolResult:
        """A worker that another one writes."""
        prepared = caller.prepared
        settings = self.assembler.preflight.settings(prepared.frame)
        near = prepared.assembled.worker.frame(prepared.frame)

        def planned(worker: Worker) -> str:
            asked = RunRequest(worker=worker.name, input="-", model=prepared.assembled.model)
            return self.planner.at_once(worker, near, asked).text()

        everyone = self.assembler.everyone(near)
        result = await delegation.create(call, prepared, caller.ledger, settings, everyone, planned)
        caller.created.update(delegation.created([caller.ledger.journal]))
        return result

    def alive(self, run: str) -> bool:
        return run in self._alive

    def token(self, run: str) -> str:
        """What opens the tool door of a live run from outside."""
        return self._alive[run].token

    async def run_to_end(self, request: RunRequest, frame: Frame, began: Callable[[str], None]) -> Run:
        """A run that nobody follows, once it has stopped. Cut off, it is cancelled: nobody is to go on with it."""
        prepared = await self.prepare(request, frame)
        began(prepared.run)
        self.launch(prepared)
        try:
            await asyncio.wait({self._tasks[prepared.run]})
        except asyncio.CancelledError:
            await self.pause(prepared.run)
            now = stamp(self.clock.now())
            await self.store.write(lambda connection: records.cancel(connection, prepared.run, now))
            raise
        return self.history.get(prepared.run)

    async def pause(self, run: str, cause: PauseCause = "user") -> None:
        """Stops a live run, and all that it has called, for now; returns when it has stopped."""
        if (task := self._tasks.get(run)) is not None:
            self._alive[run].execution.pause(cause)
            await asyncio.wait({task})

    async def gone(self, run: str) -> None:
        """Waits for a run that has stopped and is being put away, also where the record does not say so yet."""
        task = self._tasks.get(run)
        if task is not None and not (self._alive[run].execution.is_open and self.history.get(run).status == "running"):
            await asyncio.wait({task})

    async def pause_all(self, cause: PauseCause = "user") -> None:
        await asyncio.gather(*(self.pause(run, cause) for run in list(self._tasks)))

    @property
    def count(self) -> int:
        """How many live that no other one has called."""
        return len(self._tasks)

    def add_clients(self, run: str, count: int) -> None:
        """So many people more, or less, sit at a terminal for a live run and those below it."""
        for live in self._alive.values():
            if live.prepared.root == run:
                live.ledger.idle_tracker.add_clients(count)

    def began(self, run: str) -> Event | None:
        """Return the event that the run has started, for a client that follows it later, or None if it is not alive."""
        if (live := self._alive.get(run)) is None:
            return None
        at = stamp(self.clock.now())
        return Event.of(RunStartedData, live.started, run=run, root=live.prepared.root, at=at)

    async def cancel(self, run: str, also: Callable[[Connection], None] | None = None) -> list[str]:
        """End a run and all runs below it, and return those that ended. `also` writes in the same transaction."""
        found = self.history.get(run)
        if found.parent is not None:
            raise child_run_error(found, "stop")
        check_stoppable(found)
        await self.pause(run)
        now = stamp(self.clock.now())

        def write(connection: Connection) -> list[str]:
            if (stopped := records.find_run(connection, run)) is not None:
                check_stoppable(stopped)  # it came to its end meanwhile: what is on record first counts
            if also is not None:
                also(connection)
            return records.cancel_tree(connection, run, now)

        return await self.store.write(write)
