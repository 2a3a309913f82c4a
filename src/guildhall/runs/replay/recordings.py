"""Recordings: supply the model answers of recorded runs to other runs, and replay a run with its called runs.

A replay assembles each run from the current worker, and stops at the first run with a difference.

Does not compare calls: `runs.replay.replay` does.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from guildhall.models.catalog import RecordingSource
from guildhall.runs.assembly.preflight import refuse_unrecorded
from guildhall.runs.execution import delegation
from guildhall.runs.execution.access import Lobby
from guildhall.runs.execution.prepare import frame_then
from guildhall.runs.execution.tokens import Tokens, servers_of
from guildhall.runs.purpose import CallPurpose
from guildhall.runs.record import messages, records
from guildhall.runs.record.entries import Ended, ModelAnswered
from guildhall.runs.replay.replay import Replayed, replay

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic_ai.messages import ModelResponse

    from guildhall.core.frame import Frame
    from guildhall.runs.assembly.assembler import Assembler
    from guildhall.runs.execution.runs import RuntimeOf
    from guildhall.runs.hooks import Seat
    from guildhall.runs.model import Run
    from guildhall.runs.record.history import History
    from guildhall.runtimes.model import Runtime
    from guildhall.store.engine import Store
    from guildhall.tools.model import ToolResult
    from guildhall.workers.model import Worker


class Recordings:
    """The recorded runs of a hall."""

    def __init__(
        self,
        *,
        store: Store,
        history: History,
        assembler: Assembler,
        seat_of: Callable[[Run], Seat | None],
        runtime_of: RuntimeOf,
        tokens: Tokens,
    ) -> None:
        """`seat_of` gives the seat, as a replay sees it, of a run that is at the top of its tree."""
        self._runtime_of = runtime_of
        self._tokens = tokens
        self._seat_of = seat_of
        self._store = store
        self._history = history
        self._assembler = assembler

    def source(self, run: str) -> RecordingSource:
        """The model answers of a recorded run, and of those that it has called, in order."""
        tree = self._history.tree(run)
        return RecordingSource(run, {(one.worker, one.ordinal): self._answers(one.id) for one in tree})

    def _answers(self, run: str) -> list[ModelResponse]:
        return [messages.load_response(e.data.response) for e in self._history.journal(run).all(ModelAnswered)]

    async def replay(self, run: str, frame: Frame) -> Replayed:
        """Plays a run and all that it has called again on their records, up to the first difference."""
        steps, gone = 0, False
        for one in self._history.tree(run):
            played = await self.play(one, frame)
            steps += played.steps
            gone = gone or played.worker_gone
            if not played.same:
                return replace(played, steps=steps, worker_gone=gone)
        return Replayed(run=run, steps=steps, worker_gone=gone)

    async def play(
        self,
        run: Run,
        frame: Frame,
        *,
        worker: Worker | None = None,
        seat: Seat | None = None,
        runtime: Runtime | None = None,
    ) -> Replayed:
        """Plays one run again, without those that it has called.

        `worker` is the worker as it is today, where it was found already; `seat` its place in a team; `runtime`
        executes it, where it has one of its own.
        """
        journal = self._history.journal(run.id)
        then = frame_then(run.frame, frame)
        seat = seat or self._seat_of(run)
        assembled, gone = await self._assembler.again(
            run.request, journal.assembly, then, run=run.id, worker=worker, seat=seat
        )
        call = run.purpose_as(CallPurpose)
        if runtime is None:
            refuse_unrecorded(assembled.worker, run.id)
            own = assembled.worker.definition.runtime
            runtime = delegation.OneCall(call.arguments()) if call else self._runtime_of(own, then)
        lobby = Lobby(
            run=run.id, tokens=self._tokens, servers=servers_of(assembled, seat), assignment=assembled.assignment
        )
        difference = await replay(journal, assembled, runtime, partial(self._gave, run.id), lobby)
        return Replayed(run=run.id, steps=len(journal.entries), difference=difference, worker_gone=gone)

    def _gave(self, caller: str, call: str) -> tuple[str, ToolResult] | None:
        """The run that a call has made, and what it gave by its own record, if it came to that."""
        made = self._store.read(lambda connection: records.run_of_call(connection, caller, call))
        end = self._history.entries(made.id)[-1].data if made else None
        if made is None or not isinstance(end, Ended):
            return None
        ended = replace(made, status=end.status, reason=end.reason, error=end.error, output=end.output)
        return None if delegation.limit_above(ended) else (made.id, delegation.result_of(ended))
