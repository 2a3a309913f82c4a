"""Asks: open questions to the user, record the answers, and apply each answer to the run that waits for it.

    open -> answered -> applied | expired | withdrawn

An answer is recorded whether or not its run is alive. An ask about an unchanged subject is reused after a resume.

Does not decide when to ask: `runs.execution.ledger` (approvals, limits) and `activities.questions` (questions) do.

Invariant: the run applies an answer exactly once, in a single transaction with its journal entry.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import Clock, moment, stamp
from guildhall.core.errors import Conflict, NotFound, RuntimeFailed, UsageError
from guildhall.core.events import AskClosedData, AskOpenedData, DataT, Event, EventBus
from guildhall.core.ids import ASK, fingerprint, new_id
from guildhall.core.text import is_text, nearest_or
from guildhall.runs.model import Answer, Ask, AskKind, Question, format_choices, parse_choice
from guildhall.runs.record import records
from guildhall.runs.record.entries import Answered, Payload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy import Connection

    from guildhall.runs.idle import IdleTracker
    from guildhall.runs.record.journal import Journal
    from guildhall.store.engine import Store


_LONGEST_NOTE = 10_000


class Asks:
    """The inbox of a hall."""

    def __init__(self, store: Store, clock: Clock, closed: Callable[[Ask], None] = lambda ask: None) -> None:
        """`closed` hears of each ask that is open no more, once that is on record."""
        self._closed = closed
        self._store = store
        self._clock = clock
        self._waiting: dict[str, asyncio.Future[Ask]] = {}

    def get(self, ask: str) -> Ask:
        found = self._store.read(lambda connection: records.find_ask(connection, ask))
        if found is None:
            known = [a.id for a in self.open()]
            raise NotFound(f"there is no ask {ask!r}", hint=nearest_or(ask, known, "`guild ls` shows what waits."))
        return found

    def open(self) -> list[Ask]:
        """Return the asks that the user can answer now: neither expired nor put off to a later date."""
        asks = self._store.read(lambda connection: records.list_asks(connection, status="open"))
        now = self._clock.now()
        return [
            ask
            for ask in asks
            if not self._is_due(ask) and (ask.question.after is None or moment(ask.question.after) <= now)
        ]

    def of_run(self, run: str) -> list[Ask]:
        """The asks of a run and of those that it has called, as a person is to see them."""
        return [self.seen(ask) for ask in self._store.read(lambda connection: records.list_asks(connection, run=run))]

    def seen(self, ask: Ask) -> Ask:
        """The ask as a person is to see it: one whose time is over is expired, though its run has yet to close it."""
        return replace(ask, status="expired") if ask.status == "open" and self._is_due(ask) else ask

    async def answer(self, ask_id: str, answer: Answer) -> Ask:
        """Records an answer to an open ask and wakes whoever waits for it."""
        ask = self.get(ask_id)
        answer = checked(ask, answer)
        await self.expire_if_due(ask)
        answered = await self._close(ask, "answered", answer)
        if answered is None:
            current = self.get(ask_id)
            raise Conflict(
                f"the ask {ask_id} is no longer open: {current.closed_reason}",
                hint=f"`guild show {ask_id}` shows what was said; `guild show {ask.run}` how the run stands.",
            )
        return answered

    async def expire(self, ask: Ask) -> None:
        """Closes an open ask as if its time were over."""
        await self._close(ask, "expired", None)

    async def expire_if_due(self, ask: Ask) -> bool:
        """Closes an open ask whose time is over; says whether it was."""
        if ask.status != "open" or not self._is_due(ask):
            return False
        return await self._close(ask, "expired", None) is not None

    def _is_due(self, ask: Ask) -> bool:
        return ask.expires_at is not None and self._clock.now() >= moment(ask.expires_at)

    async def wait(self, ask: Ask) -> Ask:
        """The ask once it is no longer open. Waits no longer than the ask may take."""
        if await self.expire_if_due(ask):
            return self.get(ask.id)
        future = self._waiting.setdefault(ask.id, asyncio.get_running_loop().create_future())
        current = self.get(ask.id)
        if current.status != "open":
            return current
        left = (moment(ask.expires_at) - self._clock.now()).total_seconds() if ask.expires_at else None
        try:
            async with asyncio.timeout(left):
                return await asyncio.shield(future)
        except TimeoutError:
            await self._close(ask, "expired", None)
            return self.get(ask.id)

    async def _close(self, ask: Ask, status: str, answer: Answer | None) -> Ask | None:
        said = asdict(answer) if answer else None
        columns = {"status": status, "answer": said, "closed_at": stamp(self._clock.now())}
        if not await self._store.write(lambda connection: records.change_ask(connection, ask.id, "open", **columns)):
            return None
        closed = self.get(ask.id)
        if (future := self._waiting.pop(ask.id, None)) is not None and not future.done():
            future.set_result(closed)
        self._closed(closed)
        return closed


def checked(ask: Ask, answer: Answer) -> Answer:
    """The answer, if it is one that this ask can take."""
    if answer.note and len(answer.note) > _LONGEST_NOTE:
        raise UsageError(f"the note is longer than {_LONGEST_NOTE:,} characters")
    if answer.note and not is_text(answer.note):
        raise UsageError("the note is not text: it holds a NUL, or bytes that are not UTF-8")
    if len(answer.choice) > _LONGEST_NOTE or not is_text(answer.choice):
        raise UsageError(f"the answer is not text, or longer than {_LONGEST_NOTE:,} characters")
    choice = parse_choice(ask.question.choices, answer.choice)
    if choice is None:
        named = format_choices(ask.question.choices)
        raise UsageError(f"{answer.choice!r} is no answer to {ask.id}", hint=f"Answer with one of: {named}.")
    return replace(answer, choice=choice)


class RunAsks:
    """Asks on behalf of one run, and tells what happens in it."""

    def __init__(
        self,
        journal: Journal,
        root: str,
        *,
        asks: Asks,
        store: Store,
        bus: EventBus,
        clock: Clock,
        idle_tracker: IdleTracker,
    ) -> None:
        self.journal = journal
        self.root = root
        self._asks = asks
        self._store = store
        self._bus = bus
        self.clock = clock
        self.idle_tracker = idle_tracker

    @property
    def run(self) -> str:
        return self.journal.run

    def publish(self, kind: type[DataT], data: DataT) -> None:
        """Publish an event of this run: `publish(TextDeltaData, {"text": "x"})`."""
        self._bus.publish(Event.of(kind, data, run=self.run, root=self.root, at=stamp(self.clock.now())))

    async def _ask(
        self,
        kind: AskKind,
        key: str,
        subject: Any,
        question: Question,
        entry: Callable[[str], Payload],
        seconds: float | None = None,
        idle_tracker: IdleTracker | None = None,
    ) -> Ask:
        """The ask about exactly this, once it is closed: an earlier one if there is one, else a new one."""
        ask = await self.opened(kind, key, subject, question, entry, seconds)
        return await self.closed(ask, idle_tracker)

    async def opened(
        self,
        kind: AskKind,
        key: str,
        subject: Any,
        question: Question,
        entry: Callable[[str], Payload],
        seconds: float | None = None,
    ) -> Ask:
        """Return an earlier ask about this subject, open or closed, or a new one. `entry` makes its journal payload."""
        mark = fingerprint(subject)
        ask = self._store.read(lambda connection: records.find_latest_ask(connection, self.run, key, mark))
        # Withdrawn: by a failure that the run was resumed from. A limit for which the answer was no: the same.
        if ask is None or ask.status == "withdrawn" or (kind == "limit" and ask.status == "applied"):
            now = self.clock.now()
            ask = Ask(
                id=new_id(ASK),
                run=self.run,
                root=self.root,
                kind=kind,
                key=key,
                subject=mark,
                question=question,
                created_at=stamp(now),
                expires_at=stamp(now + timedelta(seconds=seconds)) if seconds is not None else None,
            )
            await self.journal.append(entry(ask.id), key=key, also=partial(records.add_ask, ask=ask))
        if ask.status == "open":
            self.publish(AskOpenedData, {"ask": ask.as_dict()})
        return ask

    async def closed(self, ask: Ask, idle_tracker: IdleTracker | None = None) -> Ask:
        """The ask once it is closed; waits for it."""
        if ask.status == "open":
            with (idle_tracker or self.idle_tracker).waiting():
                ask = await self._asks.wait(ask)
            self.publish(AskClosedData, {"id": ask.id, "status": ask.status})
        return ask

    async def apply(
        self,
        ask: Ask,
        key: str,
        *,
        bounds: Mapping[str, Any] | None = None,
        then: Callable[[Connection], None] | None = None,
    ) -> None:
        """Puts an answer into the journal, exactly once, and makes what follows from it in the same transaction."""
        if ask.status != "answered" or ask.answer is None:
            return

        def also(connection: Connection) -> None:
            if not records.change_ask(connection, ask.id, "answered", status="applied"):
                raise RuntimeFailed("an answer was about to be applied twice")
            if then is not None:
                then(connection)

        await self.journal.append(Answered(ask=ask.id, **asdict(ask.answer), bounds=bounds), key=key, also=also)
