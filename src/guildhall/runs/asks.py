"""Asks: what waits for a person. One table, one inbox, one verb.

    open -> answered -> applied | expired | withdrawn

An answer is recorded whether or not the run that waits for it is alive; it is applied exactly once, by that run.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from guildhall.core.clock import moment, stamp
from guildhall.core.errors import Conflict, NotFound, UsageError
from guildhall.core.nearest import nearest_or
from guildhall.core.text import is_text
from guildhall.runs import records
from guildhall.runs.model import choice_of, choices_in_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from guildhall.core.clock import Clock
    from guildhall.runs.model import Answer, Ask
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
        """What can still be answered. One whose time is over is closed by its run when that goes on.

        One that was put off comes back by itself: until its date it is not among them.
        """
        asks = self._store.read(lambda connection: records.list_asks(connection, status="open"))
        return [ask for ask in asks if not self._is_due(ask) and not self._is_put_off(ask)]

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
                f"the ask {ask_id} is no longer open: {current.closed_words}",
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

    def _is_put_off(self, ask: Ask) -> bool:
        return ask.question.after is not None and self._clock.now() < moment(ask.question.after)

    async def wait(self, ask: Ask) -> Ask:
        """The ask once it is no longer open. Waits no longer than the ask may take."""
        if await self.expire_if_due(ask):
            return self.get(ask.id)
        future = self._waiting.setdefault(ask.id, asyncio.get_running_loop().create_future())
        current = self.get(ask.id)
        if current.status != "open":
            return current
        left = None
        if ask.expires_at is not None:
            left = (moment(ask.expires_at) - self._clock.now()).total_seconds()
        try:
            async with asyncio.timeout(left):
                return await asyncio.shield(future)
        except TimeoutError:
            await self._close(ask, "expired", None)
            return self.get(ask.id)

    async def _close(self, ask: Ask, status: str, answer: Answer | None) -> Ask | None:
        now = stamp(self._clock.now())

        def write(connection: Connection) -> bool:
            return records.change_ask(
                connection,
                ask.id,
                "open",
                status=status,
                answer=asdict(answer) if answer else None,
                closed_at=now,
            )

        if not await self._store.write(write):
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
    choice = choice_of(ask.question.choices, answer.choice)
    if choice is None:
        named = choices_in_words(ask.question.choices)
        raise UsageError(f"{answer.choice!r} is no answer to {ask.id}", hint=f"Answer with one of: {named}.")
    return replace(answer, choice=choice)
