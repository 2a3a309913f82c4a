"""Live runs: launch, resume, pause and cancel the runs of a hall, and run the workers that a run calls.

A child run is paused and cancelled together with its parent.

Does not create rows (`runs.execution.preparation`) and does not drive the runtime (`runs.execution.segment`).

Invariant: a repeated call continues its existing run, even after a crash.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import GuildError, LimitReached, NotTrusted, Refused, internal_error
from guildhall.core.events import ErrorData, Event, EventBus, RunEndedData, RunStartedData
from guildhall.core.paths import project_root
from guildhall.models.door import ModelDoor
from guildhall.runs.assembly.attachments import forward_attachments
from guildhall.runs.assembly.callees import CREATE
from guildhall.runs.assembly.preflight import has_price
from guildhall.runs.execution import delegation
from guildhall.runs.execution.call_ledger import CallLedger
from guildhall.runs.execution.preparation import (
    Grant,
    Preparation,
    Prepared,
    check_stoppable,
    child_run_error,
)
from guildhall.runs.execution.program_access import ProgramAccess
from guildhall.runs.execution.segment import Segment
from guildhall.runs.execution.tokens import RunDoor, TokenRegistry, servers_of
from guildhall.runs.idle_tracker import IdleTracker
from guildhall.runs.model import ENDED, NO_INPUT, PauseCause, Run, RunRequest, SegmentEnd
from guildhall.runs.plan.planner import Planner, plan_of_run
from guildhall.runs.purpose import CallPurpose
from guildhall.runs.record import records
from guildhall.runtimes.catalog import RUNTIMES
from guildhall.store.engine import MAY_WAIT_FOR_DISK
from guildhall.tools.call_router import CallRouter
from guildhall.tools.gate import Gate
from guildhall.tools.model import Tool, ToolCall, ToolResult
from guildhall.workers.lifecycle import check_usable

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

    from guildhall.core.request_frame import Frame
    from guildhall.runs.asks import Asks
    from guildhall.runs.assembly.assembler import Assembler
    from guildhall.runs.assembly.preflight import SourceOf
    from guildhall.runs.owner_hooks import RunHooks
    from guildhall.runs.record.queries import History
    from guildhall.runtimes.model import Runtime
    from guildhall.store.engine import Store
    from guildhall.workers.definition import RuntimeName
    from guildhall.workers.model import Worker

    RuntimeOf = Callable[[RuntimeName, Frame], Runtime]


_log = logging.getLogger("guildhall.runs")


def started_data(prepared: Prepared, parent: str | None, assembler: Assembler) -> RunStartedData:
    """Return the data of the start event of a run. A run that cannot cost anything has no printed budget."""
    assembled, source = prepared.assembled, prepared.source
    plan = prepared.hooks.plan_line if prepared.hooks else None
    if plan is None:
        bounds, priced = prepared.printed_bounds or assembled.bounds, has_price(source)
        callee_options = (assembled.worker, prepared.frame, assembled.model, prepared.override_model)
        if not priced and not assembler.can_callee_cost(*callee_options):
            bounds = replace(bounds, budget=None)
        printed = replace(assembled, bounds=bounds)
        plan = plan_of_run(printed, source.name, priced=priced, called=parent is not None).line()
    return RunStartedData(
        worker=assembled.worker.name,
        runtime=assembled.worker.definition.runtime,
        model=source.name,
        plan=plan,
        attachments=[file.describe() for file in assembled.attachments],
        resumed=prepared.is_resumed,
        parent=parent,
    )


@dataclass(frozen=True, kw_only=True)
class LiveRun:
    """A run that is being executed."""

    prepared: Prepared
    ledger: CallLedger
    segment: Segment
    call_lock: asyncio.Lock  # shared by all runs of a root run, which create child runs one after another
    created: dict[str, str]  # workers that the runs of the root run have created, with their approved digests
    token: str = field(repr=False)  # opens the tool door for programs
    started: RunStartedData
    parent: LiveRun | None = None

    @property
    def depth(self) -> int:
        return 1 if self.parent is None else self.parent.depth + 1


@dataclass(kw_only=True, eq=False)
class Runs:
    """The live runs of a hall."""

    store: Store
    clock: Clock
    bus: EventBus
    asks: Asks
    boot: str
    history: History
    assembler: Assembler
    planner: Planner
    source_of: SourceOf
    runtime_of: RuntimeOf
    tokens: TokenRegistry

    def __post_init__(self) -> None:
        self._live: dict[str, LiveRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}  # tasks of root runs, by run
        preparation = Preparation(self.store, self.clock, self.boot, self.history, self.assembler, self.is_alive)
        self.prepare = preparation.prepare
        self.prepare_resume = preparation.prepare_resume

    def launch(self, prepared: Prepared, runtime: Runtime | None = None) -> None:
        """Start to execute a root run. `runtime` replaces the runtime of the worker."""
        live = self._add_live_run(prepared, None, runtime)
        self._tasks[prepared.run_id] = asyncio.create_task(self._execute(live))

    def _add_live_run(self, prepared: Prepared, parent: LiveRun | None, runtime: Runtime | None = None) -> LiveRun:
        """Build the parts that execute a run, and publish that it has started."""
        assembled, hooks = prepared.assembled, prepared.hooks
        client_count = parent.ledger.idle_tracker.client_count if parent else int(prepared.frame.interactive)
        if not RUNTIMES[assembled.worker.definition.runtime].uses_model_door:
            client_count += 1  # never idle, because the runtime cannot continue from the journal
        waiting_parent = parent.ledger.idle_tracker if parent and hooks is None else None
        ledger = CallLedger(
            worker=assembled.worker.name,
            identity=assembled.worker.identity,
            root=prepared.root,
            journal=prepared.journal,
            asks=self.asks,
            store=self.store,
            bus=self.bus,
            clock=self.clock,
            idle_tracker=IdleTracker(self.clock, client_count=client_count, parent=waiting_parent),
            interactive=prepared.frame.interactive,
            is_agent=hooks is not None and parent is not None,
            child_journals=prepared.child_journals,
            parent=parent and parent.ledger,
        )

        executors = {tool.name: hooks.executor(prepared.run_id) for tool in hooks.tools} if hooks else {}

        async def execute_in_run(tool: Tool, call: ToolCall) -> ToolResult:
            if tool.name in executors:
                return await executors[tool.name](tool, call)
            return await (self._create_worker if tool.name == CREATE else self._call_worker)(live, call)

        router = CallRouter(assembled.tools, assembled.environment, execute_in_run)
        servers = servers_of(assembled, hooks)
        access = ProgramAccess(
            run=prepared.run_id, tokens=self.tokens, servers=servers, assignment=assembled.assignment
        )
        segment = Segment(
            ledger=ledger,
            runtime=runtime or self._runtime(prepared),
            gate=Gate(
                assembled.tools,
                assembled.rules,
                assembled.mode,
                ledger,
                router,
                block_reason=hooks.block_reason if hooks else None,
            ),
            model_door=ModelDoor(
                prepared.source,
                ledger,
                self.clock,
                worker=assembled.worker.name,
                ordinal=prepared.ordinal,
                settings=assembled.request_settings,
            ),
            program_access=access,
            seconds_before=prepared.seconds_before,
            clean_up=lambda: asyncio.gather(router.close(), assembled.servers.close(), access.pool.close()),
            hooks=hooks,
        )
        journals = [prepared.journal, *prepared.child_journals]
        live = LiveRun(
            prepared=prepared,
            ledger=ledger,
            segment=segment,
            call_lock=parent.call_lock if parent else asyncio.Lock(),
            created=parent.created if parent else delegation.created_workers(journals),
            token=self.tokens.issue(RunDoor(run=prepared.run_id, servers=servers, handle=segment)),
            started=started_data(prepared, parent.prepared.run_id if parent else None, self.assembler),
            parent=parent,
        )
        self._live[prepared.run_id] = live
        ledger.publish(RunStartedData, live.started)
        return live

    def _runtime(self, prepared: Prepared) -> Runtime:
        if isinstance(prepared.purpose, CallPurpose):
            return delegation.SingleCallRuntime(prepared.purpose.arguments())
        return self.runtime_of(prepared.assembled.worker.definition.runtime, prepared.frame)

    async def _execute(self, live: LiveRun) -> None:
        MAY_WAIT_FOR_DISK.set(True)  # the task inherits the context of a request, whose writes do not wait
        try:
            await live.segment.run()
        except Exception as error:  # noqa: BLE001 - the end is not recorded, or a hook of the owner failed
            await self._interrupt(live, error)
        finally:
            self._remove(live)
            del self._tasks[live.prepared.run_id]

    async def _interrupt(self, live: LiveRun, error: Exception) -> None:
        """Report an error that the segment of a run could not record, and record the run as interrupted if possible."""
        run_id = live.prepared.run_id
        hint = f"Please report it. Continue the run: guild resume {run_id}"
        failure = error if isinstance(error, GuildError) else internal_error(error, hint)
        trace = None if failure is error else error
        _log.error("the run %s was interrupted: %s", run_id, failure.message, exc_info=trace)
        end = SegmentEnd(status="interrupted", reason=failure.message)

        def write(connection: Connection) -> SegmentEnd:
            found = records.find_run(connection, run_id)
            if found is None or found.status != "running":  # the end is recorded, and a hook failed after it
                return end if found is None else SegmentEnd(status=found.status, reason=found.reason)
            records.change_run(connection, run_id, status=end.status, reason=end.reason, owner=None)
            records.pause_descendants(connection, run_id)
            return end

        with suppress(GuildError, RuntimeError):  # the disk is full, or the store is closed
            end = await self.store.write(write)
        live.ledger.publish(ErrorData, {**failure.as_dict()})
        live.ledger.publish(RunEndedData, {"status": end.status, "reason": end.reason})

    def _remove(self, live: LiveRun) -> None:
        del self._live[live.prepared.run_id]
        self.tokens.revoke(live.token)

    # child runs

    async def _call_worker(self, caller: LiveRun, call: ToolCall) -> ToolResult:
        """Run another worker for a call. A repeated call continues its existing run, even after a crash."""
        async with caller.call_lock:
            existing = self.store.read(lambda c: records.find_call_run(c, caller.prepared.run_id, call.key))
            if existing is not None and existing.status in ENDED and not delegation.is_at_parent_limit(existing):
                return delegation.call_result(existing)
            try:
                name = delegation.resolve_callee(
                    (call.arguments or {})["worker"], caller.prepared.assembled.allow_workers, caller.created
                )
                if existing is None:
                    prepared = await self._prepare_call(caller, call, name)
                else:
                    prepared = await self._prepare_child_resume(caller, existing.id)
            except GuildError as error:
                is_refused = isinstance(error, Refused) and not isinstance(error, NotTrusted)
                if not is_refused and (existing is not None or isinstance(error, LimitReached | NotTrusted)):
                    raise
                return ToolResult.error(str(error))
            live = self._add_live_run(prepared, caller)
        run = await self._execute_child(caller, live)
        if run.status not in ENDED:
            raise delegation.ChildStopped
        return delegation.call_result(run)

    async def _execute_child(self, parent: LiveRun, child: LiveRun) -> Run:
        try:
            await parent.segment.run_child(child.segment)
        finally:
            self._remove(child)
        return self.history.get(child.prepared.run_id)

    async def run_child(
        self, parent_id: str, key: str, request: RunRequest, *, worker: Worker, hooks: RunHooks, cwd: Path | None = None
    ) -> Run:
        """Run a worker with hooks as a child of a live run, until it ends or stops."""
        caller = self._live[parent_id]
        frame = caller.prepared.frame
        if cwd is not None:
            frame = replace(frame, cwd=cwd, root=project_root(cwd))
        async with caller.call_lock:
            prepared = await self.prepare(
                request, frame, caller.prepared.given, worker=worker, caller=caller.prepared, call=key, hooks=hooks
            )
            live = self._add_live_run(prepared, caller)
        return await self._execute_child(caller, live)

    async def resume_child(self, parent_id: str, run_id: str, hooks: RunHooks, grant: Grant | None = None) -> Run:
        """Resume a stopped child of a live run, optionally with raised limits."""
        caller = self._live[parent_id]
        async with caller.call_lock:
            live = self._add_live_run(await self._prepare_child_resume(caller, run_id, hooks, grant), caller)
        return await self._execute_child(caller, live)

    async def _prepare_child_resume(
        self, caller: LiveRun, run_id: str, hooks: RunHooks | None = None, grant: Grant | None = None
    ) -> Prepared:
        prepared = caller.prepared
        return await self.prepare_resume(run_id, prepared.frame, prepared.given, grant, caller=prepared, hooks=hooks)

    async def _prepare_call(self, caller: LiveRun, call: ToolCall, name: str) -> Prepared:
        """Prepare the run of a worker for a call. Raise Refused if the call is not allowed."""
        if caller.depth >= delegation.MAX_DEPTH:
            depth = delegation.MAX_DEPTH
            raise Refused(f"worker_call: cannot nest more than {depth} runs", hint="Do the task yourself.")
        arguments = call.arguments or {}
        assembled = caller.prepared.assembled
        frame = assembled.worker.project_frame(caller.prepared.frame)
        callee = self.assembler.find_worker(name, frame)
        if name in caller.created:
            delegation.check_unchanged(callee, caller.created)
        elif name not in assembled.allow_workers:
            check_usable(callee, "star")
        files = tuple(arguments.get("attachments") or ())
        attached = await asyncio.to_thread(
            forward_attachments, files, assembled.attachments, assembled.environment.view, callee
        )
        request = RunRequest(
            worker=name,
            input=delegation.input_text(arguments.get("input_data") or NO_INPUT),
            model=assembled.model or None,
            override_model=caller.prepared.override_model,
            mode=assembled.mode,
        )
        given = caller.prepared.given
        return await self.prepare(
            request, frame, given, worker=callee, caller=caller.prepared, call=call.key, attached=attached
        )

    async def _create_worker(self, caller: LiveRun, call: ToolCall) -> ToolResult:
        prepared = caller.prepared
        settings = self.assembler.preflight.load_settings(prepared.frame)
        frame = prepared.assembled.worker.project_frame(prepared.frame)

        async def plan_text(worker: Worker) -> str:
            request = RunRequest(worker=worker.name, input="-", model=prepared.assembled.model)
            return (await self.planner.quick_plan(worker, frame, request)).text()

        everyone = self.assembler.list_workers(frame)
        result = await delegation.create_worker(call, prepared, caller.ledger, settings, everyone, plan_text)
        caller.created.update(delegation.created_workers([caller.ledger.journal]))
        return result

    # access to live runs

    def is_alive(self, run_id: str) -> bool:
        return run_id in self._live

    def is_attended(self, run_id: str) -> bool:
        """Return True if a client is attached to a live run."""
        return self._live[run_id].ledger.idle_tracker.client_count > 0

    def prepared_run(self, run_id: str) -> Prepared:
        return self._live[run_id].prepared

    def ledger(self, run_id: str) -> CallLedger:
        return self._live[run_id].ledger

    def token(self, run_id: str) -> str:
        """Return the token that opens the tool door of a live run for programs."""
        return self._live[run_id].token

    @property
    def count(self) -> int:
        """Return the number of live root runs."""
        return len(self._tasks)

    def publish_error(self, error: ErrorData) -> None:
        """Publish an error of the hall to the clients of all live root runs."""
        for run_id in self._tasks:
            self._live[run_id].ledger.publish(ErrorData, error)

    def adjust_client_count(self, run_id: str, delta: int) -> None:
        """Adjust the number of clients that are attached to a live root run and its child runs."""
        for live in self._live.values():
            if live.prepared.root == run_id:
                live.ledger.idle_tracker.adjust_client_count(delta)

    def start_event(self, run_id: str) -> Event | None:
        """Return the start event of a run for a client that follows it later, or None if the run is not alive."""
        if (live := self._live.get(run_id)) is None:
            return None
        at = stamp(self.clock.now())
        return Event.of(RunStartedData, live.started, run=run_id, root=live.prepared.root, at=at)

    # stopping

    async def run_to_end(self, request: RunRequest, frame: Frame, on_start: Callable[[str], None]) -> Run:
        """Run a worker without a client, and return the run when it has stopped. If cancelled, cancel the run."""
        prepared = await self.prepare(request, frame)
        on_start(prepared.run_id)
        self.launch(prepared)
        try:
            await asyncio.wait({self._tasks[prepared.run_id]})
        except asyncio.CancelledError:
            await self.pause(prepared.run_id)
            now = stamp(self.clock.now())
            columns = {"status": "cancelled", "pause": None, "reason": "cut off", "ended_at": now}
            await self.store.write(lambda connection: records.change_run(connection, prepared.run_id, **columns))
            raise
        return self.history.get(prepared.run_id)

    async def pause(self, run_id: str, cause: PauseCause = "user") -> None:
        """Pause a live run and its child runs, and wait until they have stopped."""
        if (task := self._tasks.get(run_id)) is not None:
            self._live[run_id].segment.pause(cause)
            await asyncio.wait({task})

    async def pause_all(self, cause: PauseCause = "user") -> None:
        await asyncio.gather(*(self.pause(run_id, cause) for run_id in list(self._tasks)))

    async def wait_stopped(self, run_id: str) -> None:
        """Wait until a stopping run has stopped. Return at once if the run is running or not alive."""
        task = self._tasks.get(run_id)
        if task is not None and not (
            self._live[run_id].segment.is_open and self.history.get(run_id).status == "running"
        ):
            await asyncio.wait({task})

    async def cancel(self, run_id: str, also: Callable[[Connection], None] | None = None) -> list[str]:
        """Cancel a root run with its child runs, and return their ids. `also` writes in the transaction."""
        run = self.history.get(run_id)
        if run.parent is not None:
            raise child_run_error(run, "stop")
        check_stoppable(run)
        await self.pause(run_id)
        now = stamp(self.clock.now())

        def write(connection: Connection) -> list[str]:
            if (stopped := records.find_run(connection, run_id)) is not None:
                check_stoppable(stopped)  # it may have ended in the meantime
            if also is not None:
                also(connection)
            return records.cancel_with_child_runs(connection, run_id, now)

        return await self.store.write(write)
