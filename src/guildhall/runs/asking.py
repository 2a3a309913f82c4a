"""How a live run asks people: an ask is on record before anybody sees it, and its answer is applied exactly once."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import stamp
from guildhall.core.errors import RuntimeFailed
from guildhall.core.events import AskClosedData, AskOpenedData, DataT, Event
from guildhall.core.ids import ASK, fingerprint, new_id
from guildhall.runs import records
from guildhall.runs.model import Ask
from guildhall.runs.record.entries import Answered, Payload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy import Connection

    from guildhall.core.clock import Clock
    from guildhall.core.events import EventBus
    from guildhall.runs.asks import Asks
    from guildhall.runs.journal import Journal
    from guildhall.runs.model import AskKind, Question
    from guildhall.runs.patience import Patience
    from guildhall.store.engine import Store


class Asking:
    """Asks on behalf of one run, and tells what happens in it."""

    def __init__(
        self, journal: Journal, root: str, *, asks: Asks, store: Store, bus: EventBus, clock: Clock, patience: Patience
    ) -> None:
        self.journal = journal
        self.root = root
        self._asks = asks
        self._store = store
        self._bus = bus
        self._clock = clock
        self._patience = patience

    @property
    def run(self) -> str:
        return self.journal.run

    def publish(self, kind: type[DataT], data: DataT) -> None:
        """Publish an event of this run: `publish(TextDeltaData, {"text": "x"})`."""
        self._bus.publish(Event.of(kind, data, run=self.run, root=self.root, at=stamp(self._clock.now())))

    async def _ask(
        self,
        kind: AskKind,
        key: str,
        subject: Any,
        question: Question,
        entry: Callable[[str], Payload],
        seconds: float | None = None,
        patience: Patience | None = None,
    ) -> Ask:
        """The ask about exactly this, once it is closed: an earlier one if there is one, else a new one."""
        ask = await self.opened(kind, key, subject, question, entry, seconds)
        return await self.closed(ask, patience)

    async def opened(
        self,
        kind: AskKind,
        key: str,
        subject: Any,
        question: Question,
        entry: Callable[[str], Payload],
        seconds: float | None = None,
    ) -> Ask:
        """Return the ask about exactly this: an earlier one, open or closed, or else a new one.

        `entry` makes the payload of the journal entry from the id of a new ask.
        """
        mark = fingerprint(subject)
        ask = self._store.read(lambda connection: records.ask_of_call(connection, self.run, key, mark))
        # Withdrawn: by a failure that the run was resumed from. A limit for which the answer was no: the same.
        if ask is None or ask.status == "withdrawn" or (kind == "limit" and ask.status == "applied"):
            now = self._clock.now()
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
            made = ask

            def also(connection: Connection) -> None:
                records.add_ask(connection, made)

            await self.journal.append(entry(ask.id), key=key, also=also)
        if ask.status == "open":
            self.publish(AskOpenedData, {"ask": ask.as_dict()})
        return ask

    async def closed(self, ask: Ask, patience: Patience | None = None) -> Ask:
        """The ask once it is closed; waits for it."""
        if ask.status == "open":
            with (patience or self._patience).waiting():
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
            _expect(records.change_ask(connection, ask.id, "answered", status="applied"))
            if then is not None:
                then(connection)

        await self.journal.append(Answered(ask=ask.id, **asdict(ask.answer), bounds=bounds), key=key, also=also)


def _expect(applied: bool) -> None:
    if not applied:
        raise RuntimeFailed("an answer was about to be applied twice")
