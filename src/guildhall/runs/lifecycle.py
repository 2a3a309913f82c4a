"""The runs of a hall: started, resumed, parked, recovered, replayed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_ai.usage import RequestUsage

from guildhall.core.clock import stamp
from guildhall.core.errors import Conflict, ModelUnusable, ToolUnavailable, UsageError
from guildhall.core.ids import RUN, new_id
from guildhall.models.catalog import AUTO
from guildhall.models.door import ModelDoor
from guildhall.runs import records, shown
from guildhall.runs.execute import Execution
from guildhall.runs.journal import Journal
from guildhall.runs.ledger import LiveLedger
from guildhall.runs.limits import cut_off, in_force, in_words, seconds_since_start, used
from guildhall.runs.model import Entry
from guildhall.runs.patience import Patience
from guildhall.runs.plan import plan_of_run
from guildhall.runs.replay import replay
from guildhall.runtimes.model import Assignment
from guildhall.tools.executor import Executor
from guildhall.tools.gate import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydantic_ai.messages import ModelResponse
    from sqlalchemy import Connection

    from guildhall.core.clock import Clock
    from guildhall.core.events import EventBus
    from guildhall.core.frame import Frame
    from guildhall.models.model import Source
    from guildhall.runs.asks import Asks
    from guildhall.runs.assemble import Assembled, Assembler
    from guildhall.runs.history import History
    from guildhall.runs.model import Bounds, Run, RunRequest
    from guildhall.runs.replay import Difference
    from guildhall.runtimes.model import Runtime
    from guildhall.store.engine import Store
    from guildhall.tools.model import Toolbox

    SourceOf = Callable[[str, Frame], Source]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A run that can be launched: all of it is known, nothing has begun."""

    run: str
    root: str
    assembled: Assembled
    source: Source
    frame: Frame
    journal: Journal
    ordinal: int
    seconds_before: float = 0.0
    resumed: bool = False


class Runs:
    """Makes runs, keeps those that are alive, and finds those that are not."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        bus: EventBus,
        asks: Asks,
        boot: str,
        history: History,
        assembler: Assembler,
        source_of: SourceOf,
        runtime: Runtime,
    ) -> None:
        self._store = store
        self._clock = clock
        self._bus = bus
        self._asks = asks
        self._boot = boot
        self._history = history
        self._assembler = assembler
        self._source_of = source_of
        self._runtime = runtime
        self._alive: dict[str, tuple[Execution, asyncio.Task[Any]]] = {}

    def answers(self, run: str) -> list[ModelResponse]:
        """The model answers of a recorded run, in order."""
        return [shown.load_response(e.data["response"]) for e in self._history.journal(run).kind("model_answered")]

    async def prepare(self, request: RunRequest, frame: Frame, given: Sequence[Toolbox] = ()) -> Prepared:
        """A new run, on record and ready to be launched. `given` are toolboxes of the caller's own process."""
        run = new_id(RUN)  # first, because what the run remembers is on record under its name
        assembled = await self._assembler.assemble(request, frame, given, run=run)
        source = self._source_of(assembled.model, frame)
        assembled = _priced(assembled, source, explicit=request.budget is not None)
        if assembled.model == AUTO:  # what it stood for is frozen: keys may come and go
            assembled = replace(assembled, model=source.name)
        _make_folders(assembled)
        now = stamp(self._clock.now())
        first = Entry(run=run, seq=0, kind="assembled", key=None, data=assembled.frozen(), at=now)

        def write(connection: Connection) -> None:
            records.add_run(
                connection,
                id=run,
                root=run,
                worker=assembled.worker.name,
                model=source.name,
                status="running",
                request={**request.as_dict(), "frame": frame.as_dict()},
                owner=self._boot,
                created_at=now,
                turns=0,
                input_tokens=0,
                output_tokens=0,
                cost_usd=0.0 if _has_price(source) else None,
                running_seconds=0.0,
            )
            records.add_entry(connection, first)

        await self._store.write(write)
        journal = Journal(run, self._store, self._clock, [first])
        return Prepared(run=run, root=run, assembled=assembled, source=source, frame=frame, journal=journal, ordinal=0)

    async def prepare_again(
        self,
        run_id: str,
        frame: Frame,
        given: Sequence[Toolbox] = (),
        *,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        budget: float | None = None,
    ) -> Prepared:
        """A run that stopped, ready to go on where its record ends, with more to use up if more is granted."""
        run = self._history.get(run_id)
        self._refuse_resuming(run)
        journal = self._history.journal(run_id)
        frame = _frame_then(run.request["frame"], frame)
        assembled = await self._assembler.revive(journal.entries[0].data, frame, given, run=run_id)
        source = self._source_of(assembled.model, frame)
        before = self._seconds_before(run, journal)

        def also(connection: Connection) -> None:
            columns = {"status": "running", "reason": None, "error": None, "running_seconds": before}
            records.change_run(connection, run_id, **columns, owner=self._boot, ended_at=None)

        _refuse_too_little(journal, max_turns, max_tokens, budget)
        granted = _granted(in_force(journal), source, max_turns, max_tokens, budget)
        _make_folders(assembled)
        await journal.append("resumed", {"from": run.status, "reason": run.reason, "bounds": granted}, also=also)
        ordinal = self._store.read(lambda c: records.earlier_runs(c, run.root, run.worker, run.id))
        return Prepared(
            run=run_id,
            root=run.root,
            assembled=replace(assembled, bounds=in_force(journal)),
            source=source,
            frame=frame,
            journal=journal,
            ordinal=ordinal,
            seconds_before=before,
            resumed=True,
        )

    def _seconds_before(self, run: Run, journal: Journal) -> float:
        """How long a run has been running so far. One whose time was over gets the same time again."""
        if (run.error or {}).get("limit") == "timeout":
            return 0.0
        recorded = self._store.read(lambda connection: records.running_seconds(connection, run.id))
        return recorded + (seconds_since_start(journal) if run.status == "lost" else 0.0)

    def launch(self, prepared: Prepared) -> None:
        """Begins to execute; what happens is told as events."""
        assembled = prepared.assembled
        patience = Patience(self._clock, hold=prepared.frame.interactive)
        ledger = LiveLedger(
            worker=assembled.worker.name,
            root=prepared.root,
            journal=prepared.journal,
            asks=self._asks,
            store=self._store,
            bus=self._bus,
            clock=self._clock,
            patience=patience,
            interactive=prepared.frame.interactive,
        )
        executor = Executor(assembled.tools, assembled.surroundings)
        execution = Execution(
            ledger=ledger,
            assignment=assignment_of(assembled),
            runtime=self._runtime,
            gate=Gate(assembled.tools, assembled.rules, assembled.mode, ledger, executor),
            model_door=ModelDoor(
                prepared.source, ledger, self._clock, worker=assembled.worker.name, ordinal=prepared.ordinal
            ),
            patience=patience,
            clock=self._clock,
            seconds_before=prepared.seconds_before,
            clean_up=executor.close,
        )
        task = asyncio.create_task(self._live(prepared, ledger, execution))
        self._alive[prepared.run] = (execution, task)

    async def _live(self, prepared: Prepared, ledger: LiveLedger, execution: Execution) -> None:
        try:
            ledger.publish(
                "run_started",
                worker=prepared.assembled.worker.name,
                model=prepared.source.name,
                plan=plan_of_run(prepared.assembled, prepared.source.name, priced=_has_price(prepared.source)).line(),
                resumed=prepared.resumed,
            )
            await execution.run()
        except Exception as error:  # noqa: BLE001 - the disk is full, the database gone: whoever follows must hear it
            ledger.publish("error", code="error", message=f"the record cannot be kept: {error}")
            ledger.publish("run_ended", status="lost", reason="the record cannot be kept")
        finally:
            del self._alive[prepared.run]

    def alive(self, run: str) -> bool:
        return run in self._alive

    def source(self, model: str, frame: Frame) -> Source:
        """Who answers under this name."""
        return self._source_of(model, frame)

    async def to_its_end(self, request: RunRequest, frame: Frame, began: Callable[[str], None]) -> Run:
        """A run that nobody follows, once it has stopped. Cut off, it is cancelled: nobody is to go on with it."""
        prepared = await self.prepare(request, frame)
        began(prepared.run)
        self.launch(prepared)
        _, task = self._alive[prepared.run]
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            await self.park(prepared.run)
            await self._store.write(
                lambda connection: records.cancel(connection, prepared.run, stamp(self._clock.now()))
            )
            raise
        return self._history.get(prepared.run)

    async def park(self, run: str) -> None:
        """Stops a live run for now; returns when it has stopped."""
        if (alive := self._alive.get(run)) is not None:
            execution, task = alive
            execution.park()
            await asyncio.wait({task})

    async def park_all(self) -> None:
        for run in list(self._alive):
            await self.park(run)

    async def replay(self, run_id: str, frame: Frame) -> tuple[int, Difference | None, bool]:
        """Plays a run again on its record: how many steps it has, the first difference, whether its worker is gone."""
        run = self._history.get(run_id)
        journal = self._history.journal(run_id)
        frozen = journal.entries[0].data
        frame = _frame_then(run.request["frame"], frame)
        assembled, gone = await self._assembler.again(run.request, frozen, frame, run=run_id)
        return len(journal.entries), await replay(journal, assembled, assignment_of(assembled), self._runtime), gone

    def _refuse_resuming(self, run: Run) -> None:
        if run.id in self._alive or run.status == "running":
            raise Conflict(f"the run {run.id} is running")
        if run.status in {"completed", "cancelled"}:
            raise Conflict(f"the run {run.id} is {run.status}: there is nothing to resume", hint=f"guild show {run.id}")


def _make_folders(assembled: Assembled) -> None:
    """Makes the sandboxes that the run may write to."""
    for folder in assembled.surroundings.view.folders:
        if not folder.writable:
            continue
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ToolUnavailable(
                f"sandboxes.{folder.name}.path: {folder.path} cannot be made: {error.strerror or error}",
                where=assembled.worker.place,
            ) from None


def assignment_of(assembled: Assembled) -> Assignment:
    return Assignment(
        system_prompt=assembled.system_prompt,
        first_message=assembled.first_message,
        tools=tuple(tool.as_shown() for tool in assembled.tools),
        output_schema=assembled.output_schema,
    )


def _granted(
    bounds: Bounds, source: Source, max_turns: int | None, max_tokens: int | None, budget: float | None
) -> dict[str, Any]:
    """What a person allows when a run goes on. Dollars count for the run's own limit and for the command's budget."""
    granted: dict[str, Any] = {}
    if max_turns is not None:
        granted["max_turns"] = max_turns
    if max_tokens is not None:
        granted["max_tokens"] = max_tokens
    if budget is not None:
        _refuse_unpriced(source)
        granted["budget"] = budget
        if bounds.max_budget_usd is not None:
            granted["max_budget_usd"] = budget
    return granted


def _refuse_too_little(journal: Journal, max_turns: int | None, max_tokens: int | None, budget: float | None) -> None:
    """Limits are for the run all told: one that is used up already would only end it again."""
    spent = used(journal)
    tokens = spent.input_tokens + spent.output_tokens
    dollars = (spent.cost_usd or 0.0) + cut_off(journal)
    already = None
    if max_turns is not None and max_turns <= spent.turns:
        already = f"max_turns {max_turns}: the run has already used {in_words('max_turns', spent.turns)}"
    elif max_tokens is not None and max_tokens <= tokens:
        already = f"max_tokens {max_tokens:,}: the run has already used {tokens:,} tokens"
    elif budget is not None and budget <= dollars:
        already = f"budget {budget:g}: the run has already used {dollars:.4f} USD"
    if already is not None:
        raise UsageError(already, hint="The limit is for the whole run: give more than it has used.")


def _refuse_unpriced(source: Source) -> None:
    if not _has_price(source):
        raise ModelUnusable(
            f"the model {source.name} has no known price, so a limit in dollars cannot be kept",
            hint="Use a model with a price, or limit the run by max_turns instead.",
        )


def _has_price(source: Source) -> bool:
    return source.cost(RequestUsage(input_tokens=1000, output_tokens=1000)) is not None


def _priced(assembled: Assembled, source: Source, *, explicit: bool) -> Assembled:
    """Refuses dollar limits that cannot be kept. The default budget does not apply to a model without a price."""
    if explicit or assembled.bounds.max_budget_usd is not None:
        _refuse_unpriced(source)
    if _has_price(source):
        return assembled
    return replace(assembled, bounds=replace(assembled.bounds, budget=None))


def _frame_then(recorded: Mapping[str, Any], now: Frame) -> Frame:
    """The frame that the run had; variables are those of today, by the names that it had then."""
    return replace(
        now,
        cwd=Path(recorded["cwd"]),
        root=Path(recorded["root"]),
        env={name: value for name, value in now.env.items() if name in recorded["env"]},
        model=recorded["model"],
    )
