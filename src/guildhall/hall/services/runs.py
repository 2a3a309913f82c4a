"""The service of runs."""

from __future__ import annotations

from contextlib import aclosing
from heapq import merge
from typing import TYPE_CHECKING

from guildhall.core.redaction import Redactor
from guildhall.hall.client.interface import Runs, Shown
from guildhall.hall.composition.hall import Hall
from guildhall.runs.purpose import CallPurpose
from guildhall.runs.transcript import conversation

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

    from guildhall.core.events import Event
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import Tested
    from guildhall.runs.fork import Forked
    from guildhall.runs.model import Run, RunRequest
    from guildhall.runs.plan import Plan
    from guildhall.runs.prepare import Prepared
    from guildhall.runs.record.entries import Entry, Payload
    from guildhall.runs.replay import Replayed
    from guildhall.tools.model import Toolbox

_RECENT = 50
_MAX_BUFFERED_EVENTS = 1_000  # for a client that reads slowly, if the hall stays


class RunService(Runs):
    def __init__(self, hall: Hall, *, stays: bool) -> None:
        self._hall = hall
        self._stays = stays
        self._max_events = _MAX_BUFFERED_EVENTS if stays else None

    async def run(self, request: RunRequest, frame: Frame, toolboxes: Sequence[Toolbox] = ()) -> AsyncGenerator[Event]:
        """`toolboxes`: Python objects of this process, for the toolboxes that the worker names."""
        from guildhall.hall.composition.callee_trust import demand_trust

        if not isinstance(request.purpose, CallPurpose):
            worker = self._hall.find_worker(request.worker, frame)
            demand_trust(self._hall, worker, frame, [toolbox.name for toolbox in toolboxes])
        prepared = await self._hall.runs.preparation.prepare(request, frame, toolboxes)
        async with aclosing(self.launch(prepared)) as events:
            async for event in events:
                yield event

    async def resume(
        self,
        run: str,
        frame: Frame,
        toolboxes: Sequence[Toolbox] = (),
        *,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        budget: float | None = None,
    ) -> AsyncGenerator[Event]:
        from guildhall.hall.composition.callee_trust import demand_trust_again
        from guildhall.runs.grants import Grant

        grant, part = Grant(max_turns=max_turns, max_tokens=max_tokens, budget=budget), self._hall.where(run)
        if self._stays and part.history.get(run).status == "parked":
            await part.runs.gone(run)  # it may still be stopping
        if self._stays and grant == Grant() and part.runs.alive(run):  # the hall has resumed it already
            async with aclosing(self.follow(run, frame)) as events:
                async for event in events:
                    yield event
            return
        demand_trust_again(part, run, frame, [toolbox.name for toolbox in toolboxes])
        prepared = await part.prepare_again(run, frame, toolboxes, grant)
        async with aclosing(self.launch(prepared)) as events:
            async for event in events:
                yield event

    async def launch(self, prepared: Prepared) -> AsyncGenerator[Event]:
        """Start a prepared run and stream its events. Closing the stream early parks the run unless the hall stays."""
        part = self._hall.where(prepared.run)
        with part.bus.listening(prepared.run, self._max_events) as events:
            part.launch(prepared)
            try:
                async for event in events:
                    yield event
                    if event.type == "run_ended" and event.run == prepared.run:
                        break
            finally:
                if not self._stays:
                    await part.runs.park(prepared.run)
                elif prepared.frame.interactive:
                    part.runs.hold(prepared.run, -1)

    async def follow(self, run: str, frame: Frame) -> AsyncGenerator[Event]:
        part = self._hall.where(run)
        part.history.get(run)
        runs = Hall.runs.of(part).peek()
        began = runs.began(run) if runs is not None else None
        if runs is None or began is None:
            return
        with part.bus.listening(began.root, self._max_events) as events:
            people = int(frame.interactive)
            runs.hold(began.root, people)
            try:
                yield began
                async for event in events:
                    yield event
                    if event.type == "run_ended" and event.run == run:
                        break
            finally:
                runs.hold(began.root, -people)

    async def park(self, run: str) -> None:
        part = self._hall.where(run)
        part.history.get(run)
        if (runs := Hall.runs.of(part).peek()) is not None:
            await runs.park(run)

    async def stop(self, run: str) -> Sequence[str]:
        part = self._hall.where(run)
        kind = part.history.get(run).kind
        if kind == "workflow":
            return await part.workflows.steering.stop(run)
        if (seating := self._hall.seating(kind)) is not None:
            return await seating.stop(run)
        return await part.runs.cancel(run)

    async def replay(self, run: str, frame: Frame) -> Replayed:
        from guildhall.hall.workflows import replay

        return await replay(self._hall.where(run), run, frame)

    async def fork(self, run: str, at: int, frame: Frame, *, model: str | None = None) -> Forked:
        return await self._hall.where(run).forks.fork(run, at, frame, model)

    async def script(self, run: str) -> str:
        from guildhall.runs.script import script_of
        from guildhall.workflow.script import team_part

        part = self._hall.where(run)
        tree = [(one, part.history.journal(one.id)) for one in part.history.tree(run)]
        team = team_part(tree, part.store)
        return script_of(tree, self._hall.home.path, Redactor(self._hall.environ), team)

    async def test(self, files: Sequence[Path], *, update: bool = False) -> AsyncGenerator[Tested]:
        from guildhall.hall.testrun.runner import tested

        for file in files:
            yield await tested(file, self._hall, update=update)

    async def get(self, run: str) -> Shown:
        part = self._hall.where(run)
        found = part.history.get(run)
        journal = part.history.journal(run)
        first = journal.assembly
        return Shown(
            run=found,
            below=part.history.below(run),
            asks=part.asks.of_run(run),
            messages=conversation(journal),
            attachments=first.attachments,
            runtime=first.worker["definition"].get("runtime", "pydantic"),
        )

    async def list(self, *, everything: bool = False, called: bool = False) -> Sequence[Run]:
        limit = None if everything else _RECENT
        found = (part.history.recent(limit, called=called) for part in (self._hall, *self._hall.annexes.every()))
        return [*merge(*found, key=lambda run: run.created_at, reverse=True)][:limit]

    async def journal(self, run: str, after: int = -1) -> Sequence[Entry[Payload]]:
        return self._hall.where(run).history.shown(run, after)

    async def plan(self, request: RunRequest, frame: Frame) -> Plan:
        return await self._hall.planner.plan(self._hall.find_worker(request.worker, frame), frame, request)
