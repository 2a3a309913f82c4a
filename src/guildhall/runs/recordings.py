"""What is on record of runs, used again: as answers for another run, and as what a replay is held against."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from guildhall.models.recording import RecordingSource
from guildhall.runs import delegate, records, shown
from guildhall.runs.prepare import frame_then
from guildhall.runs.replay import Replayed, replay

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse

    from guildhall.core.frame import Frame
    from guildhall.runs.assemble import Assembler
    from guildhall.runs.history import History
    from guildhall.store.engine import Store
    from guildhall.tools.model import ToolResult


class Recordings:
    """The recorded runs of a hall."""

    def __init__(self, *, store: Store, history: History, assembler: Assembler) -> None:
        self._store = store
        self._history = history
        self._assembler = assembler

    def source(self, run: str) -> RecordingSource:
        """The model answers of a recorded run, and of those that it has called, in order."""
        tree = self._history.tree(run)
        return RecordingSource(run, {(one.worker, one.ordinal): self._answers(one.id) for one in tree})

    def _answers(self, run: str) -> list[ModelResponse]:
        return [shown.load_response(e.data["response"]) for e in self._history.journal(run).kind("model_answered")]

    async def replay(self, run: str, frame: Frame) -> Replayed:
        """Plays a run and all that it has called again on their records, up to the first difference."""
        steps, gone = 0, False
        for one in self._history.tree(run):
            journal = self._history.journal(one.id)
            steps += len(journal.entries)
            then = frame_then(one.request["frame"], frame)
            assembled, left = await self._assembler.again(one.request, journal.entries[0].data, then, run=one.id)
            gone = gone or left
            call = one.request.get("call")
            gave = partial(self._gave, one.id)
            difference = await replay(journal, assembled, assembled.assignment, call, gave)
            if difference is not None:
                return Replayed(run=one.id, steps=steps, difference=difference, worker_gone=gone)
        return Replayed(run=run, steps=steps, worker_gone=gone)

    def _gave(self, caller: str, call: str) -> tuple[str, ToolResult] | None:
        """The run that a call has made, and what it gave by its own record, if it came to that."""
        made = self._store.read(lambda connection: records.run_of_call(connection, caller, call))
        end = self._history.entries(made.id)[-1] if made else None
        if made is None or end is None or end.kind != "ended":
            return None
        ended = replace(made, **{name: end.data[name] for name in ("status", "reason", "error", "output")})
        return None if delegate.limit_above(ended) else (made.id, delegate.result_of(ended))
