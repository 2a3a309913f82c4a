"""The questions of one run in a seat: asks in the one inbox, answered into the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from guildhall.jobs.model import Asked
from guildhall.runs import records
from guildhall.runs.model import RELAYED, WORDS, Question

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Sequence

    from guildhall.runs.ledger import LiveLedger
    from guildhall.runs.model import Ask
    from guildhall.store.engine import Store


def said(ask: Ask) -> str:
    """The person's words, with their note; it is told where somebody else has passed them on."""
    if ask.answer is None:
        return ""
    words = f"{ask.answer.choice}\n{ask.answer.note}" if ask.answer.note else ask.answer.choice
    return f"{words}\n(passed on by another model)" if ask.answer.by == RELAYED else words


@dataclass(frozen=True, kw_only=True)
class Inquiry:
    """What such a run asks, and what it hears."""

    title: str  # of what it asks
    store: Store
    ledger: Callable[[], LiveLedger]
    writing: asyncio.Lock  # calls side by side hear one after another
    keep: Callable[[Asked], Awaitable[None]]  # what was asked is written down elsewhere too

    async def ask(self, key: str, question: str, wait: bool) -> str | None:
        """Puts a question, once for each call. The answer, if it is to be waited for; None: nobody will give one."""
        ledger = self.ledger()
        shown = Question(title=self.title, body=question, choices=(WORDS,))
        ask = await ledger.opened(
            "question", key, [question], shown, "question_asked", {"question": question, "wait": wait}
        )
        await self.keep(Asked(ask=ask.id, at=ask.created_at, question=question))
        if not wait:
            return None
        ask = await ledger.closed(ask)
        await ledger.apply(ask, key, {})
        return said(ask) if ask.answer is not None else None

    async def heard(self, key: str) -> Sequence[Asked]:
        """What was answered since the last call. Made again, the same call hears the same."""
        ledger = self.ledger()
        async with self.writing:
            asks = self.store.read(lambda connection: records.list_asks(connection, run=ledger.run))
            others = [ask for ask in asks if ask.kind == "question" and not _waits(ledger, ask)]
            before = {entry.data["ask"] for entry in ledger.journal.of(key) if entry.kind == "answered"}
            for ask in others:
                if ask.status == "answered":
                    await ledger.apply(ask, key, {})
                    before.add(ask.id)
        return [_asked(ask) for ask in others if ask.id in before]


def _waits(ledger: LiveLedger, ask: Ask) -> bool:
    """Whether the call that asks is waiting for the answer itself."""
    asked = ledger.journal.last(ask.key, "question_asked")
    return asked is not None and bool(asked.data["wait"])


def _asked(ask: Ask) -> Asked:
    return Asked(ask=ask.id, at=ask.created_at, question=ask.question.body, answer=said(ask))
