"""Asks: open requests to the user, record the answers, and apply each answer to the run that waits for it.

    open -> answered -> applied
    open -> expired | withdrawn

An answer is recorded whether or not its run is alive. A resumed run reuses its ask about an unchanged subject.

Does not decide when to ask: `runs.execution.call_ledger` (approvals, limits) and `activities.questions` (questions) do.

Invariant: a run applies an answer exactly once, in a single transaction with its journal entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import Clock, parse_stamp, stamp
from guildhall.core.errors import Conflict, NotFound, RuntimeFailed, UsageError
from guildhall.core.events import AskClosedData, AskOpenedData, DataT, Event, EventBus
from guildhall.core.ids import ASK, fingerprint, new_id
from guildhall.core.text_checks import is_text, suggest_or
from guildhall.runs.model import Answer, Ask, AskKind, Question, format_choices, parse_choice
from guildhall.runs.record import records
from guildhall.runs.record.entries import Answered, Payload

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.runs.idle_tracker import IdleTracker
    from guildhall.runs.record.journal import Journal
    from guildhall.store.engine import Store


_MAX_NOTE_CHARS = 10_000


class Asks:
    """The asks of a hall. Calls `on_closed` after an ask is answered or expires."""

    def __init__(self, store: Store, clock: Clock, on_closed: Callable[[Ask], None] = lambda ask: None) -> None:
        self._on_closed = on_closed
        self._store = store
        self._clock = clock
        self._futures: dict[str, asyncio.Future[Ask]] = {}

    def get(self, ask_id: str) -> Ask:
        ask = self._store.read(lambda connection: records.find_ask(connection, ask_id))
        if ask is None:
            known = [ask.id for ask in self.list_open()]
            raise NotFound(f"unknown ask {ask_id!r}", hint=suggest_or(ask_id, known, "List the open asks: guild ls"))
        return ask

    def list_open(self) -> list[Ask]:
        """Return the asks that the user can answer now. Skip expired asks and asks that are hidden until later."""
        asks = self._store.read(lambda connection: records.list_asks(connection, status="open"))
        now = self._clock.now()
        return [
            ask
            for ask in asks
            if not self._is_overdue(ask) and (ask.question.after is None or parse_stamp(ask.question.after) <= now)
        ]

    def list_of_run(self, run_id: str) -> list[Ask]:
        """Return the asks of a run and of its child runs, with the status that the user sees."""
        asks = self._store.read(lambda connection: records.list_asks(connection, run_id=run_id))
        return [self.with_expiry(ask) for ask in asks]

    def with_expiry(self, ask: Ask) -> Ask:
        """Return the ask as expired if its time is over, even if its run has not closed it yet."""
        return replace(ask, status="expired") if ask.status == "open" and self._is_overdue(ask) else ask

    async def answer(self, ask_id: str, answer: Answer) -> Ask:
        """Record an answer to an open ask, and wake the run that waits for it."""
        ask = self.get(ask_id)
        answer = check_answer(ask, answer)
        await self.expire_if_due(ask)
        answered = await self._close(ask, "answered", answer)
        if answered is None:
            current = self.get(ask_id)
            message = f"cannot answer {ask_id}: it {current.closed_reason}"
            raise Conflict(message, hint=f"Show the run: guild show {ask.run}")
        return answered

    async def expire(self, ask: Ask) -> None:
        """Close an open ask as expired before its time is over."""
        await self._close(ask, "expired", None)

    async def expire_if_due(self, ask: Ask) -> bool:
        """Close an open ask whose time is over. Return True if this call closed it."""
        if ask.status != "open" or not self._is_overdue(ask):
            return False
        return await self._close(ask, "expired", None) is not None

    def _is_overdue(self, ask: Ask) -> bool:
        return ask.expires_at is not None and self._clock.now() >= parse_stamp(ask.expires_at)

    async def wait(self, ask: Ask) -> Ask:
        """Wait until the ask is answered or expires, and return it."""
        if await self.expire_if_due(ask):
            return self.get(ask.id)
        future = self._futures.setdefault(ask.id, asyncio.get_running_loop().create_future())
        current = self.get(ask.id)
        if current.status != "open":
            return current
        timeout_s = (parse_stamp(ask.expires_at) - self._clock.now()).total_seconds() if ask.expires_at else None
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(future)
        except TimeoutError:
            await self._close(ask, "expired", None)
            return self.get(ask.id)

    async def _close(self, ask: Ask, status: str, answer: Answer | None) -> Ask | None:
        answer_data = asdict(answer) if answer else None
        columns = {"status": status, "answer": answer_data, "closed_at": stamp(self._clock.now())}
        if not await self._store.write(lambda connection: records.change_ask(connection, ask.id, "open", **columns)):
            return None
        closed = self.get(ask.id)
        if (future := self._futures.pop(ask.id, None)) is not None and not future.done():
            future.set_result(closed)
        self._on_closed(closed)
        return closed


def check_answer(ask: Ask, answer: Answer) -> Answer:
    """Return the answer with the full name of its choice. Raise UsageError if it is not valid for this ask."""
    for name, text in (("note", answer.note or ""), ("answer", answer.choice)):
        if len(text) > _MAX_NOTE_CHARS or not is_text(text):
            message = f"invalid {name}: longer than {_MAX_NOTE_CHARS:,} characters, or not text"
            raise UsageError(message, hint="Shorten it. Remove NUL characters and lone surrogates.")
    choice = parse_choice(ask.question.choices, answer.choice)
    if choice is None:
        choices = format_choices(ask.question.choices)
        raise UsageError(f"invalid answer to {ask.id}: {answer.choice!r}", hint=f"Answer with one of: {choices}.")
    return replace(answer, choice=choice)


@dataclass(kw_only=True, eq=False)
class RunAsks:
    """The asks of one run. Also publishes the events of the run."""

    journal: Journal
    root: str
    asks: Asks
    store: Store
    bus: EventBus
    clock: Clock
    idle_tracker: IdleTracker

    @property
    def run_id(self) -> str:
        return self.journal.run_id

    def publish(self, kind: type[DataT], data: DataT) -> None:
        """Publish an event of this run: `publish(TextDeltaData, {"text": "x"})`."""
        self.bus.publish(Event.of(kind, data, run=self.run_id, root=self.root, at=stamp(self.clock.now())))

    async def open(
        self,
        kind: AskKind,
        key: str,
        subject: Any,
        question: Question,
        make_payload: Callable[[str], Payload],
        timeout_s: float | None = None,
    ) -> Ask:
        """Return the earlier ask of this call about this subject, open or closed, or open and record a new ask."""
        digest = fingerprint(subject)
        ask = self.store.read(lambda connection: records.find_latest_ask(connection, self.run_id, key, digest))
        # An earlier ask does not count if its run failed and withdrew the ask, or if the answer to a limit was "no".
        if ask is None or ask.status == "withdrawn" or (kind == "limit" and ask.status == "applied"):
            now = self.clock.now()
            ask = Ask(
                id=new_id(ASK),
                run=self.run_id,
                root=self.root,
                kind=kind,
                key=key,
                subject=digest,
                question=question,
                created_at=stamp(now),
                expires_at=stamp(now + timedelta(seconds=timeout_s)) if timeout_s is not None else None,
            )
            await self.journal.append(make_payload(ask.id), key=key, also=partial(records.add_ask, ask=ask))
        if ask.status == "open":
            self.publish(AskOpenedData, {"ask": ask.as_dict()})
        return ask

    async def wait_closed(self, ask: Ask, idle_tracker: IdleTracker | None = None) -> Ask:
        if ask.status == "open":
            with (idle_tracker or self.idle_tracker).waiting_call():
                ask = await self.asks.wait(ask)
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
        """Record the answer of an answered ask in the journal. `then` writes in the same transaction."""
        if ask.status != "answered" or ask.answer is None:
            return

        def also(connection: Connection) -> None:
            if not records.change_ask(connection, ask.id, "answered", status="applied"):
                raise RuntimeFailed(f"cannot apply the answer to {ask.id}: it was already applied or withdrawn")
            if then is not None:
                then(connection)

        await self.journal.append(Answered(ask=ask.id, **asdict(ask.answer), bounds=bounds), key=key, also=also)
