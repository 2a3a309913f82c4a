"""A hall inside this process, behind the same interface as one in a process of its own."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from heapq import merge
from typing import TYPE_CHECKING

from guildhall.core.clock import stamp
from guildhall.core.errors import UsageError
from guildhall.core.frame import Redactor
from guildhall.hall.client import Check, Checked, Shown, Trusting
from guildhall.hall.commission_verbs import CommissionVerbs
from guildhall.hall.composition.hall import Hall
from guildhall.hall.job_verbs import JobVerbs
from guildhall.hall.meeting_verbs import MeetingVerbs
from guildhall.hall.package_verbs import PackageVerbs
from guildhall.hall.project_verbs import ProjectVerbs
from guildhall.hall.roster_verbs import RosterVerbs
from guildhall.hall.team_verbs import TeamVerbs
from guildhall.memory.model import PERSON
from guildhall.runs.purpose import CallPurpose
from guildhall.runs.records import find_ask
from guildhall.runs.transcript import conversation
from guildhall.workers import lifecycle, records
from guildhall.workers.model import WORKERS
from guildhall.workers.trust import Pin

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from pathlib import Path

    from sqlalchemy import Connection

    from guildhall.core.events import Event
    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.hall.client import Tested
    from guildhall.memory.folder import MemoryFolder
    from guildhall.memory.model import EntryHistory, Listing, MemoryEntry, Scope
    from guildhall.runs.asks import Asks
    from guildhall.runs.fork import Forked
    from guildhall.runs.model import Answer, Ask, Run, RunRequest
    from guildhall.runs.plan import Plan
    from guildhall.runs.prepare import Prepared
    from guildhall.runs.record.entries import Entry, Payload
    from guildhall.runs.replay import Replayed
    from guildhall.tools.model import Toolbox
    from guildhall.workers.model import Listed, Lock, Worker
    from guildhall.workers.trust import Seen
    from guildhall.workflow.plan import WorkflowPlan

_RECENT = 50
_MOST_EVENTS = 1_000  # that a hall keeps for one who reads slowly


async def open_hall(
    home: Home, environ: Mapping[str, str], *, readonly: bool = False, children: bool = False
) -> EmbeddedHall:
    """A hall for this process. Reading takes no lock; for anything else this process becomes the home's only hall.

    `children`: runs are executed in processes of their own all the same.
    """
    make = partial(Hall, home, environ=environ, readonly=readonly, children=children)
    hall = await asyncio.to_thread(make)  # it may have to wait for the lock
    hall.runtimes.warm()
    return EmbeddedHall(hall)


class EmbeddedHall(TeamVerbs, JobVerbs, RosterVerbs, ProjectVerbs, PackageVerbs, CommissionVerbs, MeetingVerbs):
    """The verbs of a hall, carried out here.

    A hall that `stays` lets runs go on when whoever follows them is gone, and keeps only so many events for them.
    """

    def __init__(self, hall: Hall, *, stays: bool = False) -> None:
        self._hall = hall
        self._stays = stays
        self._most = _MOST_EVENTS if stays else None

    # runs

    async def run(self, request: RunRequest, frame: Frame, toolboxes: Sequence[Toolbox] = ()) -> AsyncGenerator[Event]:
        """`toolboxes` are Python objects of this process, for the toolboxes that the worker names."""
        from guildhall.hall.composition.callee_trust import demand_trust

        if not isinstance(request.purpose, CallPurpose):  # else it calls one worker only, and that is held to it then
            worker = self._hall.find_worker(request.worker, frame)
            demand_trust(self._hall, worker, frame, [toolbox.name for toolbox in toolboxes])
        prepared = await self._hall.runs.preparation.prepare(request, frame, toolboxes)
        async with aclosing(self._follow(prepared)) as events:
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
            await part.runs.gone(run)  # it may be on its way out still
        if self._stays and grant == Grant() and part.runs.alive(run):  # it goes on already: by itself
            async with aclosing(self.follow(run, frame)) as events:
                async for event in events:
                    yield event
            return
        demand_trust_again(part, run, frame, [toolbox.name for toolbox in toolboxes])
        prepared = await part.prepare_again(run, frame, toolboxes, grant)
        async with aclosing(self._follow(prepared)) as events:
            async for event in events:
                yield event

    async def _follow(self, prepared: Prepared) -> AsyncGenerator[Event]:
        part = self._hall.where(prepared.run)
        with part.bus.listening(prepared.run, self._most) as events:
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
        with part.bus.listening(began.root, self._most) as events:
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

    async def stop(self, run: str) -> list[str]:
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

    async def show(self, run: str) -> Shown:
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

    async def runs(self, *, everything: bool = False, called: bool = False) -> list[Run]:
        most = None if everything else _RECENT
        found = [part.history.recent(most, called=called) for part in self._everywhere()]
        return list(merge(*found, key=lambda run: run.created_at, reverse=True))[:most]

    async def journal(self, run: str, after: int = -1) -> list[Entry[Payload]]:
        return self._hall.where(run).history.shown(run, after)

    # asks

    async def asks(self) -> list[Ask]:
        return list(merge(*(part.asks.open() for part in self._everywhere()), key=lambda ask: ask.created_at))

    async def ask(self, ask: str) -> Ask:
        asks = self._asks_with(ask)
        return asks.seen(asks.get(ask))

    async def answer(self, ask: str, answer: Answer) -> Ask:
        asks = self._asks_with(ask)
        if (found := asks.get(ask)).kind == "meeting":  # the meeting and its ask change together
            await self._hall.meetings.answer(found, answer)
            return asks.get(ask)
        answered = await asks.answer(ask, answer)
        await self._answered(answered)
        return answered

    async def _answered(self, ask: Ask) -> None:
        """Whoever has given the run its seat hears of it, and it goes on if that is what it waits for."""
        from guildhall.hall.composition.recovery import go_on

        part = self._hall.where(ask.root)
        if (runs := Hall.runs.of(part).peek()) is not None:
            await runs.gone(ask.root)  # one that is just being put away to wait goes on by itself no more
        root = part.history.get(ask.root)
        if (seating := self._hall.seating(root.kind)) is None:
            return
        await seating.answered(ask)
        if self._stays and root.status == "waiting":
            await go_on(self._hall, root)

    def _asks_with(self, ask: str) -> Asks:
        return self._hall.annexes.where(lambda connection: find_ask(connection, ask) is not None).asks

    # workers

    async def workers(self, frame: Frame) -> list[Listed]:
        return self._hall.registry(frame).listed()

    async def worker(self, name: str, frame: Frame) -> Worker:
        return self._hall.find_worker(name, frame)

    async def worker_check(self, name: str, frame: Frame) -> Checked:
        from guildhall.hall.doctor import checked_whole

        return await checked_whole(self._hall, self._hall.find_worker(name, frame), frame)

    async def worker_new(self, name: str, frame: Frame, *, force: bool = False) -> Path:
        locks = self._hall.store.read(records.all_locks)
        path = lifecycle.new(frame.root / WORKERS, name, locks=locks, force=force)
        await self._hall.store.write(lambda connection: records.drop_lock(connection, path))
        return path

    async def worker_lock(self, name: str, frame: Frame) -> Worker:
        worker = self._hall.registry(frame).find(name, frame.cwd)
        await self._pin(lifecycle.lock(worker, stamp(self._hall.clock.now())))
        return self._hall.find_worker(name, frame)

    async def worker_unlock(self, name: str, frame: Frame) -> Worker:
        worker = lifecycle.unlock(self._hall.find_worker(name, frame))
        await self._hall.store.write(lambda c: records.drop_lock(c, worker.path) if worker.path else False)
        return worker

    async def worker_promote(self, name: str, frame: Frame) -> Worker:
        return lifecycle.promote(self._hall.find_worker(name, frame))

    async def worker_retire(self, name: str, frame: Frame) -> Worker:
        return lifecycle.retire(self._hall.find_worker(name, frame))

    async def _pin(self, pin: Lock) -> None:
        await self._hall.store.write(lambda connection: records.put_lock(connection, pin))

    # plan and trust

    async def plan(self, request: RunRequest, frame: Frame) -> Plan:
        return await self._hall.planner.plan(self._hall.find_worker(request.worker, frame), frame, request)

    async def plan_workflow(
        self, request: RunRequest, frame: Frame, *, tag: str, params: Mapping[str, str]
    ) -> WorkflowPlan:
        from guildhall.hall.workflows import plan_workflow

        return await plan_workflow(self._hall, request, frame, tag=tag, params=params)

    async def trust_look(self, frame: Frame, *, at: Path | None = None, worker: str | None = None) -> Trusting:
        from guildhall.hall.trusting import of_folder, of_worker

        if worker is not None:
            return await of_worker(self._hall, self._hall.find_worker(worker, frame), frame)
        return await of_folder(self._hall, at, frame)

    async def untrusted_of_all(self, worker: str, frame: Frame) -> list[str]:
        from guildhall.hall.composition.callee_trust import untrusted_of_all

        return untrusted_of_all(self._hall, self._hall.find_worker(worker, frame), frame)

    async def trust(self, files: Sequence[Seen]) -> None:
        """As the person has seen them: a file that has changed meanwhile is not what was trusted."""
        now = stamp(self._hall.clock.now())
        pins = [Pin(path=seen.path, digest=seen.digest, trusted_at=now) for seen in files if seen.standing != "gone"]
        gone = [seen.path for seen in files if seen.standing == "gone"]

        def write(connection: Connection) -> None:
            records.put_pins(connection, pins)
            records.drop_pins(connection, gone)

        await self._hall.store.write(write)

    async def trust_forget(self, folder: Path) -> list[Pin]:
        below = self._hall.pins_below(folder)
        await self._hall.store.write(lambda connection: records.drop_pins(connection, [pin.path for pin in below]))
        return below

    # Memory

    async def memory_ls(self, frame: Frame, *, scope: Scope | None = None, worker: str | None = None) -> Listing:
        folders = [self._folder(frame, scope, worker)] if scope else self._folders(frame, worker).values()
        return await asyncio.to_thread(self._hall.memory.list_entries, folders)

    async def memory_show(self, key: str, frame: Frame, *, scope: Scope, worker: str | None = None) -> MemoryEntry:
        return await asyncio.to_thread(self._hall.memory.read, self._folder(frame, scope, worker), key)

    async def memory_write(
        self, key: str, content: str, frame: Frame, *, scope: Scope, worker: str | None = None
    ) -> MemoryEntry:
        folder = self._folder(frame, scope, worker)
        return await asyncio.to_thread(self._hall.memory.write, folder, key, content, PERSON)

    async def memory_rm(self, key: str, frame: Frame, *, scope: Scope, worker: str | None = None) -> MemoryEntry:
        return await asyncio.to_thread(self._hall.memory.remove, self._folder(frame, scope, worker), key, PERSON)

    async def memory_blame(self, key: str, frame: Frame, *, scope: Scope, worker: str | None = None) -> EntryHistory:
        return await asyncio.to_thread(self._hall.memory.history, self._folder(frame, scope, worker), key)

    async def memory_revert(
        self, key: str, frame: Frame, *, scope: Scope, worker: str | None = None, to: int | None = None
    ) -> MemoryEntry:
        folder = self._folder(frame, scope, worker)
        return await asyncio.to_thread(self._hall.memory.revert, folder, key, PERSON, change_id=to)

    def _folders(self, frame: Frame, worker: str | None) -> Mapping[Scope, MemoryFolder]:
        found = self._hall.find_worker(worker, frame) if worker is not None else None
        return self._hall.memory.folders(found, frame)

    def _folder(self, frame: Frame, scope: Scope, worker: str | None) -> MemoryFolder:
        folder = self._folders(frame, worker).get(scope)
        if folder is None:
            raise UsageError("the scope 'worker' needs the name of a worker", hint="Add --worker NAME.")
        return folder

    # the place itself

    async def doctor(self, frame: Frame) -> list[Check]:
        from guildhall.hall.doctor import checks

        return await checks(self._hall, frame)

    async def settle(self) -> list[Event]:
        return await self._hall.settle()

    async def close(self) -> None:
        await self._hall.close()
