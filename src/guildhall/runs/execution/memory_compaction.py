"""Memory compactor: compacts memory folders in the background, with a run of its own for the model call.

The outcome is reported in the run that caused the compaction, or kept for the hall if that run has ended. Does not
decide which entries are compacted or how: `memory.service` does.

Invariant: a compaction never blocks the run that caused it. If it fails, the hall and the worker continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pydantic_ai.usage import RequestUsage

from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import GuildError, ModelUnusable, RuntimeFailed
from guildhall.core.events import Event, EventBus, MemoryCondensedData
from guildhall.memory.model import COMPACTION_BUDGET_USD, COMPACTOR_WORKER, CompactionResult
from guildhall.runs.model import HALL, RunRequest
from guildhall.runs.record import records

if TYPE_CHECKING:
    from guildhall.memory.service import Memory
    from guildhall.models.model import Source
    from guildhall.runs.assembly.memory import CompactionRequest
    from guildhall.runs.execution.runs import Runs
    from guildhall.store.engine import Store

TIMEOUT_S = 60.0  # how long a closing hall waits for compactions
_RECORDING_PREFIX = "replay:"
# The estimates of the model door, on the safe side: 2 bytes per token, and an answer half as long as the prompt.
_BYTES_PER_TOKEN = 2
_INSTRUCTION_BYTES = 2_000  # of the prompt, without the notes
_SAMPLE_BYTES = 1_000_000  # large enough to derive the price of a byte


@dataclass(kw_only=True, eq=False)
class MemoryCompactor:
    """All background compactions of a hall, one at a time."""

    memory: Memory
    runs: Runs
    find_runs: Callable[[str], Runs]  # the part of the hall that owns a run: a workflow can have its own database
    store: Store
    bus: EventBus
    clock: Clock

    def __post_init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by folder
        self._futile: set[tuple[str, str]] = set()  # (folder, run) whose compaction changed nothing
        self._unreported: list[Event] = []

    @property
    def is_busy(self) -> bool:
        return bool(self._tasks)

    def start(self, request: CompactionRequest) -> None:
        """Start a compaction, unless the folder is being compacted or this run has caused a futile compaction."""
        name = request.folder.name
        if name not in self._tasks and (name, request.run_id) not in self._futile:
            self._tasks[name] = asyncio.create_task(self._compact(request))

    async def wait(self, timeout_s: float = TIMEOUT_S) -> list[Event]:
        """Wait for all compactions, cancel the rest, and return the events that no run has reported."""
        if tasks := set(self._tasks.values()):
            try:
                await asyncio.wait(tasks, timeout=timeout_s)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        return self.take_unreported()

    def take_unreported(self) -> list[Event]:
        """Return the events that no run has reported, once."""
        events, self._unreported = self._unreported, []
        return events

    async def _compact(self, request: CompactionRequest) -> None:
        try:
            await self._compact_and_report(request)
        finally:  # after the report: `wait` must not return before it
            del self._tasks[request.folder.name]

    async def _compact_and_report(self, request: CompactionRequest) -> None:
        compactor = _CompactorRun(self.runs, request)
        try:
            async with self._one_at_a_time:
                result = await self._try_compact(request, compactor)
        except asyncio.CancelledError:
            result = CompactionResult(scope=request.folder.scope, status="failed", reason="timed out")
        if result.status != "compacted":
            self._futile.add((request.folder.name, request.run_id))
        if run_id := compactor.run_id:
            await self.store.write(lambda connection: records.change_run(connection, run_id, reason=str(result)))
        if result.status != "not_needed":
            self._report(request, result, run_id)

    async def _try_compact(self, request: CompactionRequest, compactor: _CompactorRun) -> CompactionResult:
        try:
            return await self.memory.compact(
                request.folder,
                compactor.ask,
                limit_tokens=request.limit_tokens,
                max_note_bytes=compactor.max_note_bytes(),
            )
        except GuildError as error:
            reason = error.message
        except Exception as error:  # noqa: BLE001 - compaction is best effort: report every failure
            reason = f"{type(error).__name__}: {error}"
        return CompactionResult(scope=request.folder.scope, status="failed", reason=reason)

    def _report(self, request: CompactionRequest, result: CompactionResult, compactor_run_id: str | None) -> None:
        runs = self.find_runs(request.run_id)
        root = runs.history.get(request.run_id).root
        data = MemoryCondensedData(text=str(result), **result.as_dict(), by=compactor_run_id)
        at = stamp(self.clock.now())
        event = Event.of(MemoryCondensedData, data, run=request.run_id, root=root, at=at)
        if runs.is_alive(root):
            self.bus.publish(event)
        else:
            self._unreported.append(event)


class _CompactorRun:
    """The run that makes the model call of one compaction. `run_id` is set when the run has started."""

    def __init__(self, runs: Runs, request: CompactionRequest) -> None:
        self.run_id: str | None = None
        self._runs = runs
        self._request = request

    async def ask(self, notes: str) -> str:
        """Have the model condense the notes. Raise RuntimeFailed if the run does not complete."""
        request = RunRequest(
            worker=f"shipped/{COMPACTOR_WORKER}",
            input=notes,
            override_model=self._request.model,
            max_budget_usd=COMPACTION_BUDGET_USD,
            budget=2 * COMPACTION_BUDGET_USD,  # never reached: a run at its budget waits for the user
            mode="strict",
        )
        frame = replace(self._request.frame, caller=HALL, interactive=False)
        run = await self._runs.run_to_end(request, frame, self._set_run_id)
        if run.status != "completed":
            reason = (run.error["message"] if run.error else run.reason) or "no reason given"
            raise RuntimeFailed(f"the run {run.id} did not complete ({run.status}): {reason}")
        return str(run.output)

    def _set_run_id(self, run_id: str) -> None:
        self.run_id = run_id

    def max_note_bytes(self) -> int:
        """Return how many bytes of notes, and an answer half as long, the budget pays for."""
        if self._request.model.startswith(_RECORDING_PREFIX):
            raise ModelUnusable("the model of the run is a recording, which cannot answer new prompts")
        source = self._runs.source_of(self._request.model, self._request.frame, False)
        fixed = _price(source, prompt_bytes=_INSTRUCTION_BYTES, answer_bytes=0)
        sample = _price(source, prompt_bytes=_SAMPLE_BYTES, answer_bytes=_SAMPLE_BYTES // 2)
        if sample <= 0:
            return _SAMPLE_BYTES
        return max(int((COMPACTION_BUDGET_USD - fixed) / sample * _SAMPLE_BYTES), 0)


def _price(source: Source, *, prompt_bytes: int, answer_bytes: int) -> float:
    usage = RequestUsage(input_tokens=prompt_bytes // _BYTES_PER_TOKEN, output_tokens=answer_bytes // _BYTES_PER_TOKEN)
    cost = source.cost(usage)
    if cost is None:
        limit = f"the budget of {COMPACTION_BUDGET_USD:.2f} USD"
        raise ModelUnusable(f"the price of {source.name} is unknown, so {limit} cannot be enforced")
    return cost
