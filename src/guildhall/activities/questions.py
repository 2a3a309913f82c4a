"""Questions of a run: opens asks in the inbox, delivers the answers to the run, and resumes waiting runs.

A question either waits for its answer within its call, or the run continues and a later call delivers the answer. A
timer resumes a waiting run at once if no open ask blocks it, and otherwise when the first blocking ask expires.

Does not record answers of the user (`runs.asks`) and does not resume runs itself: the owner passes in the function.

Invariant: a call asks its question once, and a repeated call receives the answers that it received before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from guildhall.activities.contract import AskedQuestion
from guildhall.core.clock import Clock, parse_stamp
from guildhall.runs.model import FREE_TEXT, RELAYED, Ask, Question, Run
from guildhall.runs.record import records
from guildhall.runs.record.entries import Answered, QuestionAsked
from guildhall.runs.record.journal import entries_with
from guildhall.tools.definition import call_method
from guildhall.tools.model import Text, Tool, ToolCall, ToolResult

if TYPE_CHECKING:
    from guildhall.runs.asks import Asks
    from guildhall.runs.execution.call_ledger import CallLedger
    from guildhall.runs.record.queries import History
    from guildhall.store.engine import Store


def answer_text(ask: Ask) -> str:
    """Return the user's answer with its note. An answer that a model passed on is marked as such."""
    if ask.answer is None:
        return ""
    text = f"{ask.answer.choice}\n{ask.answer.note}" if ask.answer.note else ask.answer.choice
    return f"{text}\n(passed on by another model)" if ask.answer.by == RELAYED else text


@dataclass(frozen=True, kw_only=True)
class QuestionChannel:
    """Asks the questions of one run and collects the answers."""

    title: str  # the title of every ask
    store: Store
    ledger: Callable[[], CallLedger]
    lock: asyncio.Lock  # concurrent calls collect answers one after another
    keep: Callable[[AskedQuestion], Awaitable[None]]  # also records the question with the activity

    async def ask(self, key: str, question: str, wait: bool) -> str | None:
        """Ask a question, once for each call. With `wait`, return the answer, or None if the ask expires."""
        ledger = self.ledger()
        form = Question(title=self.title, body=question, choices=(FREE_TEXT,))
        ask = await ledger.open(
            "question", key, [question], form, lambda ask: QuestionAsked(question=question, wait=wait, ask=ask)
        )
        await self.keep(AskedQuestion(ask=ask.id, at=ask.created_at, question=question))
        if not wait:
            return None
        ask = await ledger.wait_closed(ask)
        await ledger.apply(ask, key)
        return answer_text(ask) if ask.answer is not None else None

    async def new_answers(self, key: str) -> Sequence[AskedQuestion]:
        """Return the answers since the last call. A repeated call, by its key, receives its earlier answers again."""
        ledger = self.ledger()
        async with self.lock:
            asks = self.store.read(lambda connection: records.list_asks(connection, run_id=ledger.run_id))
            others = [ask for ask in asks if ask.kind == "question" and not _is_awaited(ledger, ask)]
            received = {entry.data.ask for entry in entries_with(ledger.journal.of(key), Answered)}
            for ask in others:
                if ask.status == "answered":
                    await ledger.apply(ask, key)
                    received.add(ask.id)
        return [
            AskedQuestion(ask=ask.id, at=ask.created_at, question=ask.question.body, answer=answer_text(ask))
            for ask in others
            if ask.id in received
        ]


def _is_awaited(ledger: CallLedger, ask: Ask) -> bool:
    """Return True if the call that asked waits for the answer itself."""
    asked = ledger.journal.last(ask.key, QuestionAsked)
    return asked is not None and asked.data.wait


async def call_with_answers(tools: object, tool: Tool, call: ToolCall, questions: QuestionChannel) -> ToolResult:
    """Call the method of the tool's name, and append the user's new answers to its result."""
    result = await call_method(tools, tool, call)
    answers = [
        Text(f"The user answered your question {asked.question!r}: {asked.answer}")
        for asked in await questions.new_answers(call.key)
    ]
    return replace(result, content=(*result.content, *answers))


class ResumeTimers:
    """Timers that resume waiting runs by `resume`, one for each run."""

    def __init__(self, *, asks: Asks, history: History, clock: Clock, resume: Callable[[Run], Awaitable[None]]) -> None:
        self._asks = asks
        self._history = history
        self._clock = clock
        self._resume = resume
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def is_busy(self) -> bool:
        return bool(self._tasks)

    def start(self, run_id: str) -> None:
        """Resume a waiting run at once if no open ask blocks it, or when the first blocking ask expires."""
        blocking = [ask for ask in self._asks.list_of_run(run_id) if ask.status == "open" and self._is_blocking(ask)]
        expiries = [ask.expires_at for ask in blocking if ask.expires_at is not None]
        self.cancel(run_id)
        if not blocking or expiries:
            self._tasks[run_id] = asyncio.create_task(self._resume_at(run_id, min(expiries, default=None)))

    def cancel(self, run_id: str) -> None:
        if (task := self._tasks.pop(run_id, None)) is not None:
            task.cancel()

    def close(self) -> None:
        for run_id in list(self._tasks):
            self.cancel(run_id)

    def _is_blocking(self, ask: Ask) -> bool:
        """Return True if the run cannot resume without the answer. A question blocks if its call waits."""
        asked = self._history.journal(ask.run).last(ask.key, QuestionAsked) if ask.kind == "question" else None
        return asked is None or asked.data.wait

    async def _resume_at(self, run_id: str, time: str | None) -> None:
        if time is not None:
            await self._clock.sleep(max((parse_stamp(time) - self._clock.now()).total_seconds(), 0.0))
        del self._tasks[run_id]
        run = self._history.get(run_id)
        if run.status == "waiting":
            await self._resume(run)
