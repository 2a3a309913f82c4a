"""The commissions of a hall: its transitions, a file each, joined; and whoever gives their runs a seat."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import Conflict, GuildError
from guildhall.jobs.awaiting import Awaiting
from guildhall.jobs.inquiry import Inquiry
from guildhall.jobs.toolbox import submitted
from guildhall.projects.commissions import (
    abandon,
    cancel,
    create,
    dispatch,
    edit,
    finalise,
    records,
    redispatch,
    remove,
)
from guildhall.projects.commissions import recover as recovery
from guildhall.projects.commissions.account import asked_in, cost_of, decided_in
from guildhall.projects.commissions.answering import Answering, commission_told
from guildhall.projects.commissions.fulfil import submit
from guildhall.projects.commissions.graph import edges, neighbours
from guildhall.projects.commissions.model import RESTS, UNDER_WAY, CommissionShown
from guildhall.projects.commissions.pausing import hold, let_go
from guildhall.projects.commissions.projection import doubts, text_of
from guildhall.projects.commissions.queue import Queue
from guildhall.projects.commissions.review import CHANGES, review_tools, reviewing
from guildhall.projects.commissions.review import SERVER as REVIEW
from guildhall.projects.commissions.seating import contract_told, seated
from guildhall.projects.commissions.toolbox import SERVER, Desk, commission_tools
from guildhall.projects.commissions.vanished import missed
from guildhall.projects.commissions.waiting import lacks, settle, unlinked
from guildhall.projects.commissions.watch import Watch
from guildhall.runs.model import ENDED, SHUTDOWN, Stretch
from guildhall.runs.records import find_run
from guildhall.runs.seat import Seat, seat_on_record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from guildhall.core.frame import Frame
    from guildhall.jobs.model import Asked
    from guildhall.projects.commissions.ground import Ground
    from guildhall.projects.commissions.model import By, Commission, Draft, Status
    from guildhall.projects.model import Project
    from guildhall.runs.grants import Grant
    from guildhall.runs.model import Ask, Run
    from guildhall.runs.prepare import Prepared

_PAUSE = 0.02  # seconds between a change and the look at what is waited for: much of it comes together
_OF_OTHERS = 0.1  # seconds between two looks at a record that another process keeps
_log = logging.getLogger("guildhall.commissions")


class Commissions:
    """Knows the commissions of a home, and lets their runs live."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._queue = Queue(ground, partial(dispatch.begin, ground, seat_for=self._seat))
        self._watch = Watch(ground)
        self._answering = Answering(ground=ground, redispatch=self.redispatch, abandon=self.abandon)
        self._awaiting: Awaiting | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._hearing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by commission

    # looking

    def get(self, id: str) -> Commission:
        return self._ground.get(id)

    async def all(self, project: str | None = None, status: Status | None = None) -> list[Commission]:
        """In the order of their creation."""
        if not self._ground.readonly:
            await settle(self._ground, project)
        return self._ground.store.read(lambda c: records.listed(c, project=project, status=status and [status]))

    async def shown(self, id: str) -> CommissionShown:
        """All about one."""
        ground = self._ground
        if not ground.readonly:
            await settle(ground, ground.get(id).project)
        return await asyncio.to_thread(self._shown, id)

    def _shown(self, id: str) -> CommissionShown:
        ground, commission = self._ground, self._ground.get(id)
        timeline = ground.timeline(id)
        missing: Sequence[str] = ()
        worktree = None
        try:
            path = ground.workplace(commission).path
            if path.is_dir() and commission.status != "completed":  # there it is on its way out
                worktree = str(path)
            missing = lacks(ground, commission)
            wrong = doubts(ground, commission) if commission.status not in UNDER_WAY else []
            wrong += unlinked(ground, commission) if commission.status in ("pending", "blocked") else []
            wrong += self._queue.why_not_yet(commission) if commission.status == "dispatched" else []
        except GuildError as error:  # its project is registered no more, or gone
            wrong = [error.message]
        run = commission.run
        waiting = [ask.id for ask in ground.asks.of_run(run) if ask.status == "open"] if run else []
        return CommissionShown(
            commission=commission,
            timeline=timeline,
            asked=asked_in(ground, timeline),
            decisions=decided_in(ground, timeline),
            waiting=waiting,
            neighbours=neighbours(commission, ground.all(commission.project), missing),
            cost_usd=cost_of(ground, timeline),
            worktree=worktree,
            doubts=wrong,
        )

    def rests(self, id: str) -> bool:
        """Whether nothing will become of it before a person has done something, for it or for another one."""
        found = self.get(id)
        if found.status == "dispatched":
            return self._queue.is_stuck(found)
        if found.status == "in_progress":
            return found.run is not None and (found.held or self._needs_person(found.run))
        if found.status != "blocked":
            return True
        makers = [self.get(maker).status for _, maker in self.graph(found.project).get(id, ())]
        return not any(status in (*UNDER_WAY, "blocked") for status in makers)

    def _needs_person(self, run: str) -> bool:
        """Whether a run goes on only when a person has done something. A question alone holds up nobody."""
        held = (ask.status == "open" and ask.kind != "question" for ask in self._ground.asks.of_run(run))
        return self._ground.history.get(run).needs_person or any(held)

    def graph(self, project: str) -> Mapping[str, Sequence[tuple[str, str]]]:
        """From each commission to those that make what it depends on, with the path that says so."""
        return edges(self._ground.all(project))

    async def ended(self, ids: Sequence[str]) -> list[Commission]:
        """These commissions, once each of them has ended."""
        await self._until(lambda: all(self.get(id).status in RESTS for id in ids))
        return [self.get(id) for id in ids]

    async def at_rest(self, ids: Sequence[str], within: float) -> bool:
        """Waits until nothing becomes of any of these without a person; so many seconds at most. Whether it is so."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._until(lambda: all(map(self.rests, ids)))
        return all(map(self.rests, ids))

    async def _until(self, so: Callable[[], bool]) -> None:
        """Looks again only after something has been put on record; where others write that, every now and then."""
        ground = self._ground
        with ground.store.watched() as changed:
            while not so():
                if not ground.readonly:
                    await changed.wait()
                await ground.clock.sleep(_OF_OTHERS if ground.readonly else _PAUSE)
                changed.clear()

    # transitions

    async def create(
        self, project: Project, draft: Draft, frame: Frame, *, by: By = "person", made_by: str | None = None
    ) -> Commission:
        return await asyncio.shield(create.create(self._ground, project, draft, frame, by=by, made_by=made_by))

    async def edit(self, id: str, changes: Mapping[str, Any], frame: Frame, *, by: By = "person") -> Commission:
        return await asyncio.shield(self._then_turn(edit.edit(self._ground, id, changes, frame, by=by), id, frame))

    async def dispatch(self, id: str, frame: Frame) -> Commission:
        return await asyncio.shield(self._then_turn(self._dispatch(id, frame), id, frame))

    async def _dispatch(self, id: str, frame: Frame) -> Commission:
        async with self._ground.steering[id]:
            return await dispatch.dispatch(self._ground, id, frame)

    async def redispatch(self, id: str, frame: Frame) -> Commission:
        return await asyncio.shield(self._then_turn(redispatch.redispatch(self._ground, id, frame), id, frame))

    async def cancel(self, id: str, reason: str = "by the user") -> Commission:
        cancelled = await asyncio.shield(cancel.cancel(self._ground, id, reason))
        await self._moved()
        return cancelled

    async def abandon(self, id: str, reason: str = "by the user") -> Commission:
        return await asyncio.shield(abandon.abandon(self._ground, id, reason))

    async def delete(self, id: str) -> None:
        """Takes one that is over off the record; its artifact and its runs stay."""
        await asyncio.shield(remove.remove(self._ground, id))

    async def _then_turn(self, work: Coroutine[Any, Any, Commission], id: str, frame: Frame) -> Commission:
        """After a transition by which its turn may have come."""
        self._queue.add(id, frame)
        try:
            await work
            await self._queue.turn()
        finally:
            if self.get(id).status != "dispatched":
                self._queue.drop(id)
        return self.get(id)

    async def _moved(self) -> None:
        """What others wait for may be there: on record before this hall leaves. And there may be room for more."""
        try:
            await _logged(partial(settle, self._ground))
        finally:
            self._start(self._queue.turn)

    def _start(self, work: Callable[[], Awaitable[None]]) -> None:
        if self._closed:
            return
        task = asyncio.create_task(_logged(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # the seat

    def _seat(self, told: Mapping[str, Any]) -> Seat:
        ground, id = self._ground, str(told["id"])
        return Seat(
            tools=commission_tools(told["schema"]),
            execute=lambda run: self._desk(told, run).execute,
            began=partial(dispatch.began, ground, id),
            ended=partial(finalise.ended, ground, id),
            server=SERVER,
            seated=seated,
            judge=partial(finalise.judge, ground, id),
            settled=partial(self._settled, id),
        )

    def _desk(self, told: Mapping[str, Any], run: str) -> Desk:
        ground, commission = self._ground, self._ground.get(str(told["id"]))

        async def progress(summary: str) -> None:
            await ground.store.write(lambda c: records.change(c, commission.id, ground.now(), summary=summary))

        async def keep(asked: Asked) -> None:  # the inbox has it; the artifact has it without secrets
            ground.redact(asked.question)

        inquiry = Inquiry(
            title=f"{commission.worker} asks, in the commission {commission.id} ({commission.title})",
            writing=self._hearing[commission.id],
            store=ground.store,
            ledger=lambda: ground.runs().ledger(run),
            keep=keep,
        )
        taking = partial(submit, ground, commission.id, contract_told(told))
        return Desk(progress=progress, ask=inquiry.ask, heard=inquiry.heard, submit=taking)

    async def _settled(self, id: str, run: str, stretch: Stretch) -> None:
        """The end of a stretch is on record."""
        await asyncio.to_thread(text_of, self._ground, self.get(id))  # what it has said is known without its secrets
        if stretch.status == "waiting" and self._awaiting is not None:
            self._awaiting.expect(run)
        if stretch.status not in ENDED:
            if stretch.reason != SHUTDOWN:  # one that waits for a person leaves its place to another
                self._start(self._queue.turn)
            return
        try:
            await finalise.tidy(self._ground, id)
            await finalise.call_meeting(self._ground, id, stretch)
        except GuildError as error:  # the record has it, and the next start puts it right
            _log.warning("%s: %s", id, error)
        await self._moved()

    # going on

    async def again(self, run: str, frame: Frame, grant: Grant | None = None) -> Prepared:
        """The run of a commission that stopped, ready to go on in its checkout."""
        ground, told = self._ground, self._ground.history.get(run).request["commission"]
        commission = self._of(told)
        if commission.run != run or commission.status != "in_progress" or told.get("review"):
            said = f"the commission {commission.id} is {commission.status}: its run is over"
            raise Conflict(said, hint=commission.next_step)
        async with ground.steering[commission.id]:
            commission = await asyncio.to_thread(ground.came_back, commission.id)
            place = ground.workplace(commission)
            scope = ground.find(commission.worker, ground.place(place.project, frame)).definition.checkout
            if not place.path.is_dir():
                await asyncio.to_thread(missed, ground, commission.place)
            await asyncio.to_thread(place.check_out, scope)
            prepared = await ground.runs().preparation.prepare_again(run, frame, grant=grant, seat=self._seat(told))
            await let_go(ground, commission.id)
            return prepared

    def missed(self, place: str) -> None:
        """The checkout of this name is gone, and is about to be made again."""
        missed(self._ground, place)

    def _of(self, told: Mapping[str, Any]) -> Commission:
        return commission_told(self._ground, told)

    async def stop(self, run: str) -> list[str]:
        """Cancels the commission that a run carries out; the runs that were ended."""
        cancelled = await self.cancel(self._of(self._ground.history.get(run).request["commission"]).id)
        return [run] if cancelled.status == "cancelled" else []

    async def could_not_go_on(self, run: Run, error: GuildError) -> None:
        """Its run cannot go on now: it waits, and the next start tries again; or all that was needed is submitted."""
        commission = self._of(run.request["commission"])
        if self._ground.history.get(run.id).status in ENDED or commission.run != run.id:
            return
        if submitted(self._ground.history.entries(run.id)):
            stretch = Stretch(status="failed", reason=error.code, error=error.as_dict())
            await finalise.conclude(self._ground, commission, stretch)
        else:
            await hold(self._ground, commission.id, "it waits, and cannot go on", error)
        await self._moved()

    async def follow(self, run: str) -> None:
        """The record says how a run ended that nobody executed: so does the commission."""
        found = self._ground.history.get(run)
        commission = self._of(found.request["commission"])
        if found.status in ENDED and commission.run == run and commission.status == "in_progress":
            stretch = Stretch(status="failed", reason=found.reason, error=found.error)
            await finalise.conclude(self._ground, commission, stretch)
            await self._moved()

    async def answered(self, ask: Ask) -> None:
        await self._answering.hear(ask)

    def keep_going(self, go_on: Callable[[Run], Awaitable[None]]) -> None:
        """From now on what waits goes on by itself; and what an earlier hall has left is put right."""
        ground = self._ground
        self._awaiting = Awaiting(asks=ground.asks, history=ground.history, clock=ground.clock, go_on=go_on)
        for one in ground.store.read(records.under_way):
            found = ground.store.read(lambda c, run=one.run: find_run(c, run) if run else None)
            if found is not None and found.status == "waiting":
                self._awaiting.expect(found.id)

        async def put_right() -> None:
            await recovery.recover(ground)
            await self._answering.catch_up()
            await self._queue.turn()

        self._start(put_right)
        self._watch.begin()

    @property
    def expecting(self) -> bool:
        return bool(self._tasks) or (self._awaiting is not None and self._awaiting.busy)

    async def settled(self) -> None:
        """Waits for what goes on in the background."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def close(self) -> None:
        """Nothing begins from now on."""
        self._closed = True
        self._watch.close()
        if self._awaiting is not None:
            self._awaiting.close()
        for task in self._tasks:
            task.cancel()


async def _logged(work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except GuildError as error:  # such as config.yaml, which cannot be read for now
        _log.warning("%s", error)
    except Exception:  # noqa: BLE001 - nobody waits for it: it is told in the log
        _log.exception("commissions")


def seat_of(run: Run) -> Seat | None:
    """The seat of a run that carries out a commission, or reviews one, as a replay sees it."""
    told = run.request.get("commission")
    if not told:
        return None
    if told.get("review"):
        return seat_on_record(review_tools(), reviewing, server=REVIEW, withheld=CHANGES)
    return seat_on_record(commission_tools(told["schema"]), seated, server=SERVER)
