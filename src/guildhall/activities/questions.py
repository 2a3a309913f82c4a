"""The questions of one run to the user: asks in the inbox, whose answers the run receives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from guildhall.activities.model import Asked
from guildhall.runs import records
from guildhall.runs.journal import entries_with
from guildhall.runs.model import RELAYED, WORDS, Question
from guildhall.runs.record.entries import Answered, QuestionAsked

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Sequence

    from guildhall.runs.ledger import LiveLedger
    from guildhall.runs.model import Ask
    from guildhall.store.engine import Store


def answer_text(ask: Ask) -> str:
    """Return the user's answer with its note. An answer that a model passed on is marked as such."""
    if ask.answer is None:
        return ""
    words = f"{ask.answer.choice}\n{ask.answer.note}" if ask.answer.note else ask.answer.choice
    return f"{words}\n(passed on by another model)" if ask.answer.by == RELAYED else words


@dataclass(frozen=True, kw_only=True)
class QuestionChannel:
    """Asks the questions of one run and collects the answers."""

    title: str  # of the asks
    store: Store
    ledger: Callable[[], LiveLedger]
    lock: asyncio.Lock  # concurrent calls collect answers one after another
    keep: Callable[[Asked], Awaitable[None]]  # records the question with the activity, too

    async def ask(self, key: str, question: str, wait: bool) -> str | None:
        """Ask a question, once for each call. With `wait`, return the answer, or None if nobody will give one."""
        ledger = self.ledger()
        shown = Question(title=self.title, body=question, choices=(WORDS,))
        ask = await ledger.opened(
            "question", key, [question], shown, lambda ask: QuestionAsked(question=question, wait=wait, ask=ask)
        )
        await self.keep(Asked(ask=ask.id, at=ask.created_at, question=question))
        if not wait:
            return None
        ask = await ledger.closed(ask)
        await ledger.apply(ask, key)
        return answer_text(ask) if ask.answer is not None else None

    async def new_answers(self, key: str) -> Sequence[Asked]:
        """Return the answers since the last call. A repeated call, by its key, receives the same answers again."""
        ledger = self.ledger()
        async with self.lock:
            asks = self.store.read(lambda connection: records.list_asks(connection, run=ledger.run))
            others = [ask for ask in asks if ask.kind == "question" and not _is_awaited(ledger, ask)]
            received = {entry.data.ask for entry in entries_with(ledger.journal.of(key), Answered)}
            for ask in others:
                if ask.status == "answered":
                    await ledger.apply(ask, key)
                    received.add(ask.id)
        return [_asked(ask) for ask in others if ask.id in received]


def _is_awaited(ledger: LiveLedger, ask: Ask) -> bool:
    """Return True if the call that asked waits for the answer itself."""
    asked = ledger.journal.last(ask.key, QuestionAsked)
    return asked is not None and asked.data.wait


def _asked(ask: Ask) -> Asked:
    return Asked(ask=ask.id, at=ask.created_at, question=ask.question.body, answer=answer_text(ask))
