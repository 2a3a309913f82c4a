"""Services of runs and asks: start, resume, follow, stop, replay and test runs, and answer asks.

An answer notifies the job, commission, meeting or workflow of the run, and resumes the run if it waits for the answer.
Does not execute runs: `runs.execution` does. Does not compare tests: `hall.testrun` does.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from heapq import merge
from typing import TYPE_CHECKING

from guildhall.core.redaction import Redactor
from guildhall.hall.client.interface import Asks, Runs
from guildhall.hall.client.model import RunDetails, TestResult
from guildhall.hall.composition.hall import HallService
from guildhall.hall.composition.recovery import resume_run
from guildhall.hall.composition.run_services import MAX_BUFFERED_EVENTS
from guildhall.runs.limits import Spent
from guildhall.runs.record.queries import conversation
from guildhall.runs.record.records import find_ask

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.events import Event
    from guildhall.core.request_frame import Frame
    from guildhall.runs import asks
    from guildhall.runs.model import Answer, Ask, Run, RunRequest
    from guildhall.runs.plan.model import Plan
    from guildhall.runs.record.entries import Entry, Payload
    from guildhall.runs.replay.fork import ForkResult
    from guildhall.runs.replay.replay import ReplayResult
    from guildhall.tools.model import Toolbox


_MAX_RECENT_RUNS = 50


class RunService(HallService, Runs):
    async def run(self, request: RunRequest, frame: Frame, toolboxes: Sequence[Toolbox] = ()) -> AsyncGenerator[Event]:
        """`toolboxes`: Python objects of this process, for the toolboxes that the worker names."""
        main = self._hall.main
        prepared = await main.prepare(request, frame, toolboxes)
        async with aclosing(main.stream(prepared)) as events:
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
        from guildhall.runs.execution.preparation import Grant

        grant = Grant(max_turns=max_turns, max_tokens=max_tokens, budget=budget)
        services = self._hall.services_of(run)
        if self._hall.is_persistent and services.history.get(run).status == "paused":
            await services.runs.wait_stopped(run)  # it may still be stopping
        # The hall may have resumed it already.
        if self._hall.is_persistent and grant == Grant() and services.runs.is_alive(run):
            async with aclosing(self.follow(run, frame)) as events:
                async for event in events:
                    yield event
            return
        prepared = await services.prepare_resume(run, frame, toolboxes, grant)
        async with aclosing(services.stream(prepared)) as events:
            async for event in events:
                yield event

    async def follow(self, run: str, frame: Frame) -> AsyncGenerator[Event]:
        services = self._hall.services_of(run)
        services.history.get(run)
        runs = services.peek_runs()
        started = runs.start_event(run) if runs is not None else None
        if runs is None or started is None:
            return
        with services.bus.listening(started.root, MAX_BUFFERED_EVENTS if self._hall.is_persistent else None) as events:
            attached = int(frame.interactive)
            runs.adjust_client_count(started.root, attached)
            try:
                yield started
                async for event in events:
                    yield event
                    if event.type == "run_ended" and event.run == run:
                        break
            finally:
                runs.adjust_client_count(started.root, -attached)

    async def pause(self, run: str) -> None:
        services = self._hall.services_of(run)
        services.history.get(run)
        if (runs := services.peek_runs()) is not None:
            await runs.pause(run)

    async def stop(self, run: str) -> Sequence[str]:
        services = self._hall.services_of(run)
        kind = services.history.get(run).kind
        if kind == "workflow":
            return await services.workflows.stop(run)
        if (owner := self._hall.owner_of(kind)) is not None:
            return await owner.stop(run)
        return await services.runs.cancel(run)

    async def replay(self, run: str, frame: Frame) -> ReplayResult:
        from guildhall.hall.composition.workflow_preparation import replay

        return await replay(self._hall.services_of(run), run, frame)

    async def fork(self, run: str, at: int, frame: Frame, *, model: str | None = None) -> ForkResult:
        return await self._hall.services_of(run).forks.fork(run, at, frame, model)

    async def script(self, run: str) -> str:
        from guildhall.runs.replay.script_export import export_script
        from guildhall.workflow.replay import team_part

        services = self._hall.services_of(run)
        tree = [(recorded, services.history.journal(recorded.id)) for recorded in services.history.tree(run)]
        team = team_part(tree, services.store)
        return export_script(tree, self._hall.home.path, Redactor(self._hall.environ), team)

    async def test(self, files: Sequence[Path], *, update: bool = False) -> AsyncGenerator[TestResult]:
        from guildhall.hall.testrun.runner import run_test

        for file in files:
            yield await run_test(file, self._hall, update=update)

    async def get(self, run: str) -> RunDetails:
        services = self._hall.services_of(run)
        found = services.history.get(run)
        journal = services.history.journal(run)
        first = journal.assembly
        is_live = services.history.get(found.root).status == "running"  # its open calls are not cut off
        reserved = Spent.in_cut_off_calls(() if is_live else services.history.journals_with_cut_off_calls(run))
        return RunDetails(
            reserved_usd=reserved.dollars,
            reserved_tokens=reserved.tokens,
            run=found,
            below=services.history.descendants(run),
            asks=services.asks.list_of_run(run),
            messages=conversation(journal),
            attachments=first.attachments,
            runtime=first.worker["definition"].get("runtime", "pydantic"),
        )

    async def list(self, *, everything: bool = False, called: bool = False) -> Sequence[Run]:
        limit = None if everything else _MAX_RECENT_RUNS
        found = (services.history.recent(limit, children=called) for services in self._hall.all_services())
        return [*merge(*found, key=lambda run: run.created_at, reverse=True)][:limit]

    async def journal(self, run: str, after: int = -1) -> Sequence[Entry[Payload]]:
        return self._hall.services_of(run).history.entries_without_files(run, after)

    async def plan(self, request: RunRequest, frame: Frame) -> Plan:
        return await self._hall.workers.planner.plan(self._hall.workers.find(request.worker, frame), frame, request)


class AskService(HallService, Asks):
    async def list(self) -> Sequence[Ask]:
        found = (services.asks.list_open() for services in self._hall.all_services())
        return [*merge(*found, key=lambda ask: ask.created_at)]

    async def get(self, ask: str) -> Ask:
        asks = self._asks_with(ask)
        return asks.with_expiry(asks.get(ask))

    async def answer(self, ask: str, answer: Answer) -> Ask:
        asks = self._asks_with(ask)
        if (found := asks.get(ask)).kind == "meeting":  # the meeting and its ask change together
            await self._hall.meetings.answer(found, answer)
            return asks.get(ask)
        answered = await asks.answer(ask, answer)
        await self._notify_owner(answered)
        return answered

    async def _notify_owner(self, ask: Ask) -> None:
        """Notify the job, commission, meeting or workflow of the run, and resume the run if it waits for the answer."""
        services = self._hall.services_of(ask.root)
        if (runs := services.peek_runs()) is not None:
            await runs.wait_stopped(ask.root)  # a run that is being paused does not resume by itself
        root = services.history.get(ask.root)
        if (owner := self._hall.owner_of(root.kind)) is None:
            return
        await owner.apply_answer(ask)
        if self._hall.is_persistent and root.status == "waiting":
            await resume_run(self._hall.main, root)

    def _asks_with(self, ask: str) -> asks.Asks:
        return self._hall.workflow_databases.find_services(
            lambda connection: find_ask(connection, ask) is not None
        ).asks
