"""Live runs: launch, resume, park and cancel the runs of a hall, and run the workers that a run calls.

Called runs form a tree below the run at the top. A called run is parked and cancelled together with its caller.

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
from guildhall.runs.assembly.attachments import forward_attachments
from guildhall.runs.assembly.callees import CREATE
from guildhall.runs.execution import delegation
from guildhall.runs.execution.access import Lobby
from guildhall.runs.execution.grants import Grant, has_price
from guildhall.runs.execution.ledger import LiveLedger
from guildhall.runs.execution.prepare import Preparation, Prepared, belongs, refuse_over
from guildhall.runs.execution.segment import Execution
from guildhall.runs.execution.tokens import RunDoor, Tokens, servers_of
from guildhall.runs.idle import Patience
from guildhall.runs.model import ENDED, ParkCause, Run, RunRequest
from guildhall.runs.plan.planner import Planner, plan_of_run
from guildhall.runs.purpose import CallPurpose
from guildhall.runs.record import records
from guildhall.runtimes.catalog import ROWS
from guildhall.tools.executor import Executor
from guildhall.tools.gate import Gate
from guildhall.tools.model import Tool, ToolCall, ToolResult
from guildhall.workers.lifecycle import check_usable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sqlalchemy import Connection

    from guildhall.core.frame import Frame
    from guildhall.runs.asks import Asks
    from guildhall.runs.assembly.assembler import Assembler
    from guildhall.runs.execution.prepare import SourceOf
    from guildhall.runs.hooks import Seat
    from guildhall.runs.record.history import History
    from guildhall.runtimes.model import Runtime
    from guildhall.store.engine import Store
    from guildhall.workers.definition import RuntimeName
    from guildhall.workers.model import Worker

    RuntimeOf = Callable[[RuntimeName, Frame], Runtime]


def started_data(prepared: Prepared, parent: str | None) -> RunStartedData:
    """Return the data of the event that a run has started. `parent`: the run that called it."""
    assembled, source = prepared.assembled, prepared.source
    plan = prepared.seat.plan if prepared.seat else None
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
class Live:
    """A run that is alive, below the one that called it."""

    prepared: Prepared
    ledger: LiveLedger
    execution: Execution
    calling: asyncio.Lock  # of the whole tree: calls side by side get their places in the order of the answer
    created: dict[str, str]  # the workers that the tree has made, with the digests of what was approved
    token: str = field(repr=False)  # opens its tool door from outside
    started: RunStartedData
    above: Live | None = None

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
    tokens: Tokens

    def __post_init__(self) -> None:
        self._alive: dict[str, Live] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}  # of the runs that no other run has called
        preparation = Preparation(
            self.store, self.clock, self.boot, self.history, self.assembler, self.source_of, self.alive
        )
        self.prepare = preparation.prepare
        self.prepare_again = preparation.prepare_again

    def launch(self, prepared: Prepared, runtime: Runtime | None = None) -> None:
        """Begins to execute; what happens is told as events. `runtime` executes it, where it has one of its own."""
        live = self._enliven(prepared, None, runtime)
        self._tasks[prepared.run] = asyncio.create_task(self._live(live))

    def _enliven(self, prepared: Prepared, above: Live | None, runtime: Runtime | None = None) -> Live:
        """Puts together what a run is executed with."""
        assembled, seat = prepared.assembled, prepared.seat
        makes_wait = above.ledger.patience if above and seat is None else None
        people = above.ledger.patience.people if above else int(prepared.frame.interactive)
        if not ROWS[assembled.worker.definition.runtime].routed:
            people += 1  # it is not put away while it waits: it could not be walked through its record again
        patience = Patience(self.clock, hold=people, parent=makes_wait)
        ledger = LiveLedger(
            worker=assembled.worker.name,
            identity=assembled.worker.identity,
            root=prepared.root,
            journal=prepared.journal,
            asks=self.asks,
            store=self.store,
            bus=self.bus,
            clock=self.clock,
            patience=patience,
            interactive=prepared.frame.interactive,
            seated=seat is not None and above is not None,
            below=prepared.below,
            above=above and above.ledger,
        )

        of_seat = {tool.name: seat.execute(prepared.run) for tool in seat.tools} if seat else {}

        async def by_run(tool: Tool, call: ToolCall) -> ToolResult:
            if tool.name in of_seat:
                return await of_seat[tool.name](tool, call)
            return await (self._create_worker if tool.name == CREATE else self._call_worker)(live, call)

        executor = Executor(assembled.tools, assembled.surroundings, by_run)
        servers = servers_of(assembled, seat)
        lobby = Lobby(run=prepared.run, tokens=self.tokens, servers=servers, assignment=assembled.assignment)
        execution = Execution(
            ledger=ledger,
            runtime=runtime or self._runtime(prepared),
            gate=Gate(
                assembled.tools, assembled.rules, assembled.mode, ledger, executor, closed=seat.closed if seat else None
            ),
            model_door=ModelDoor(
                prepared.source, ledger, self.clock, worker=assembled.worker.name, ordinal=prepared.ordinal
            ),
            lobby=lobby,
            seconds_before=prepared.seconds_before,
            clean_up=lambda: asyncio.gather(executor.close(), assembled.servers.close(), lobby.line.close()),
            seat=seat,
        )
        live = Live(
            prepared=prepared,
            ledger=ledger,
            execution=execution,
            calling=above.calling if above else asyncio.Lock(),
            created=above.created if above else delegation.created([prepared.journal, *prepared.below]),
            token=self.tokens.issue(RunDoor(run=prepared.run, servers=servers, behind=execution)),
            started=started_data(prepared, above.prepared.run if above else None),
            above=above,
        )
        self._alive[prepared.run] = live
        ledger.publish(RunStartedData, live.started)
        return live

    def _runtime(self, prepared: Prepared) -> Runtime:
        if isinstance(prepared.purpose, CallPurpose):
            return delegation.OneCall(prepared.purpose.arguments())
        return self.runtime_of(prepared.assembled.worker.definition.runtime, prepared.frame)

    async def _live(self, live: Live) -> None:
        try:
            await live.execution.run()
        except Exception as error:  # noqa: BLE001 - the disk is full, the database gone: whoever follows must hear it
            live.ledger.publish(ErrorData, {"code": "error", "message": f"the record cannot be kept: {error}"})
            live.ledger.publish(RunEndedData, {"status": "lost", "reason": "the record cannot be kept"})
        finally:
            self._gone(live)
            del self._tasks[live.prepared.run]

    def _gone(self, live: Live) -> None:
        del self._alive[live.prepared.run]
        self.tokens.revoke(live.token)

    # delegation

    async def _call_worker(self, caller: Live, call: ToolCall) -> ToolResult:
        """A run of another worker, on behalf of a call. The same call leads to the same run, also after a crash."""
        async with caller.calling:
            made = self.store.read(lambda c: records.run_of_call(c, caller.prepared.run, call.key))
            if made is not None and made.status in ENDED and not delegation.limit_above(made):
                return delegation.result_of(made)
            try:
                name = delegation.permitted(
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

    async def _carry_out(self, caller: Live, live: Live) -> Run:
        """Executes a run below another one, until it ends or stops for now."""
        try:
            await caller.execution.carry_out(live.execution)
        finally:
            self._gone(live)
        return self.history.get(live.prepared.run)

    async def take_seat(
        self, above: str, key: str, request: RunRequest, *, worker: Worker, seat: Seat, place: Path | None = None
    ) -> Run:
        """Run a worker with hooks below a live run, until it ends or stops. `place`: its folder, if another."""
        caller = self._alive[above]
        frame = caller.prepared.frame
        if place is not None:
            frame = replace(frame, cwd=place, root=project_root(place))
        async with caller.calling:
            prepared = await self.prepare(
                request, frame, caller.prepared.given, worker=worker, caller=caller.prepared, call=key, seat=seat
            )
            live = self._enliven(prepared, caller)
        return await self._carry_out(caller, live)

    async def sit_down_again(self, above: str, run: str, seat: Seat, grant: Grant | None = None) -> Run:
        """The same for one that was there before and has stopped, with more to use up if more is granted."""
        caller = self._alive[above]
        async with caller.calling:
            live = self._enliven(await self._again(caller, self.history.get(run), seat, grant), caller)
        return await self._carry_out(caller, live)

    def attended(self, run: str) -> bool:
        """Whether somebody sits at a terminal for a live run."""
        return self._alive[run].ledger.patience.people > 0

    def prepared(self, run: str) -> Prepared:
        """What a live run was launched with."""
        return self._alive[run].prepared

    def ledger(self, run: str) -> LiveLedger:
        """Where what happens in a live run is put on record and told."""
        return self._alive[run].ledger

    async def _again(self, caller: Live, run: Run, seat: Seat | None = None, grant: Grant | None = None) -> Prepared:
        return await self.prepare_again(
            run.id, caller.prepared.frame, caller.prepared.given, grant, caller=caller.prepared, seat=seat
        )

    async def _called(self, caller: Live, call: ToolCall, name: str) -> Prepared:
        """The new run that a call asks for, if it may."""
        if caller.depth >= delegation.DEEPEST:
            raise Refused(f"worker_call: workers call one another at most {delegation.DEEPEST} deep. Do this yourself.")
        arguments = call.arguments or {}
        assembled = caller.prepared.assembled
        frame = assembled.worker.project_frame(caller.prepared.frame)
        callee = self.assembler.find(name, frame)
        if name in caller.created:
            delegation.not_changed(callee, caller.created)
        elif name not in assembled.allow_workers:
            check_usable(callee, "star")
        files = tuple(arguments.get("attachments") or ())
        attached = await asyncio.to_thread(
            forward_attachments, files, assembled.attachments, assembled.surroundings.view, callee
        )
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

    async def _create_worker(self, caller: Live, call: ToolCall) -> ToolResult:
        """A worker that another one writes."""
        prepared = caller.prepared
        settings = self.assembler.supply.settings(prepared.frame)
        near = prepared.assembled.worker.project_frame(prepared.frame)

        def planned(worker: Worker) -> str:
            asked = RunRequest(worker=worker.name, input="-", model=prepared.assembled.model)
            return self.planner.quick_plan(worker, near, asked).text()

        everyone = self.assembler.list_workers(near)
        result = await delegation.create(call, prepared, caller.ledger, settings, everyone, planned)
        caller.created.update(delegation.created([caller.ledger.journal]))
        return result

    def alive(self, run: str) -> bool:
        return run in self._alive

    def token(self, run: str) -> str:
        """What opens the tool door of a live run from outside."""
        return self._alive[run].token

    async def to_its_end(self, request: RunRequest, frame: Frame, began: Callable[[str], None]) -> Run:
        """A run that nobody follows, once it has stopped. Cut off, it is cancelled: nobody is to go on with it."""
        prepared = await self.prepare(request, frame)
        began(prepared.run)
        self.launch(prepared)
        try:
            await asyncio.wait({self._tasks[prepared.run]})
        except asyncio.CancelledError:
            await self.park(prepared.run)
            now = stamp(self.clock.now())
            await self.store.write(lambda connection: records.cancel(connection, prepared.run, now))
            raise
        return self.history.get(prepared.run)

    async def park(self, run: str, cause: ParkCause = "user") -> None:
        """Stops a live run, and all that it has called, for now; returns when it has stopped."""
        if (task := self._tasks.get(run)) is not None:
            self._alive[run].execution.park(cause)
            await asyncio.wait({task})

    async def gone(self, run: str) -> None:
        """Waits for a run that has stopped and is being put away, also where the record does not say so yet."""
        task = self._tasks.get(run)
        if task is not None and not (self._alive[run].execution.is_open and self.history.get(run).status == "running"):
            await asyncio.wait({task})

    async def park_all(self, cause: ParkCause = "user") -> None:
        await asyncio.gather(*(self.park(run, cause) for run in list(self._tasks)))

    @property
    def count(self) -> int:
        """How many live that no other one has called."""
        return len(self._tasks)

    def hold(self, run: str, more: int) -> None:
        """So many people more, or less, sit at a terminal for a live run and those below it."""
        for live in self._alive.values():
            if live.prepared.root == run:
                live.ledger.patience.hold(more)

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
            raise belongs(found, "stop")
        refuse_over(found)
        await self.park(run)
        now = stamp(self.clock.now())

        def write(connection: Connection) -> list[str]:
            if (stopped := records.find_run(connection, run)) is not None:
                refuse_over(stopped)  # it came to its end meanwhile: what is on record first counts
            if also is not None:
                also(connection)
            return records.cancel_tree(connection, run, now)

        return await self.store.write(write)
