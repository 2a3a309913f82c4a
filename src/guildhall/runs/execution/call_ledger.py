"""Ledger of a live run: records the calls at both doors, enforces the limits, and asks the user.

Answers a call from the journal if the journal already has its result. Where no ask is possible, a limit ends the run.
Does not judge tool calls (`tools.gate`) and does not compute reservations (`runs.execution.budget`).

Invariant: a call is in the journal before it is made, and its result before the run receives it.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import LimitReached, ModelFailed, RuntimeFailed
from guildhall.core.events import (
    ErrorData,
    EventBus,
    ListeningData,
    TextDeltaData,
    ToolResultData,
    ToolUseData,
    TurnEndData,
)
from guildhall.core.ids import fingerprint
from guildhall.models.door import MAX_ATTEMPTS, MAX_OUTPUT_TOKENS, MIN_OUTPUT_TOKENS, ModelCall
from guildhall.runs import limits
from guildhall.runs.asks import Asks, RunAsks
from guildhall.runs.execution.budget import InsufficientFunds, RunBudget
from guildhall.runs.model import AMOUNT, Bounds, Question, parse_amount
from guildhall.runs.record import entries, records
from guildhall.runs.record.journal import Journal, entries_with, message_key
from guildhall.runs.record.messages import (
    dump_response,
    format_arguments,
    load_response,
    request_parts,
    requested_calls,
    tools_fingerprint,
    unusable_answer,
)
from guildhall.tools.model import Tool, ToolCall, ToolResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import ModelRequestParameters
    from sqlalchemy import Connection

    from guildhall.core.clock import Clock
    from guildhall.policy.rules import Verdict
    from guildhall.runs.idle_tracker import IdleTracker
    from guildhall.runs.limits import LimitName
    from guildhall.store.engine import Store
    from guildhall.tools.gate import Approval, EffectChoice


class LiveLedger(RunAsks):
    """The ledger of one run, for its model door, its gate and its owner."""

    def __init__(
        self,
        *,
        worker: str,
        identity: str,
        root: str,
        journal: Journal,
        asks: Asks,
        store: Store,
        bus: EventBus,
        clock: Clock,
        idle_tracker: IdleTracker,
        interactive: bool,
        is_agent: bool = False,
        child_journals: Iterable[Journal] = (),
        parent: LiveLedger | None = None,
    ) -> None:
        """`is_agent`: the limits of the run are raised by resuming its root run."""
        super().__init__(journal, root, asks=asks, store=store, bus=bus, clock=clock, idle_tracker=idle_tracker)
        self.bounds: Bounds = limits.current_bounds(journal)
        journals = [journal, *child_journals]
        spent = limits.Spent.by(journals)
        self.run_budget = RunBudget(self.run, self.bounds, spent, parent.run_budget if parent else None)
        self._cut_off = limits.Spent.by_cut_off_calls(journals)
        self._parent = parent
        self._denied: set[LimitName] = set()  # limits that the user did not raise in this segment
        self._asking = asyncio.Lock()  # concurrent calls reach a limit together: one ask at a time
        self._adding = asyncio.Lock()  # concurrent answers: each total includes the one before
        self._worker = worker
        self._identity = identity
        self._interactive = interactive
        self._resumed_by = self.run if parent is None else root if is_agent else None

    # the model door

    def find_answer(
        self, key: str, messages: Sequence[ModelMessage], parameters: ModelRequestParameters
    ) -> ModelResponse | None:
        answer = self.journal.last(key, entries.ModelAnswered)
        if answer is None:
            return None
        if self.journal.last(key, entries.ModelAsked) is None or self.is_other_question(key, messages):
            raise _divergence_error(key)
        return load_response(answer.data.response)

    def is_other_question(self, key: str, messages: Sequence[ModelMessage]) -> bool:
        """Return True if the journal has a different model call under this key."""
        asked = self.journal.last(key, entries.ModelAsked)
        return asked is not None and asked.data.message != request_parts(messages[-1])

    def count_failures(self, key: str) -> int:
        return len(entries_with(self.journal.of(key), entries.ModelCallFailed))

    async def reserve(
        self, key: str, input_tokens: int, price: Callable[[int], float | None]
    ) -> tuple[float | None, int | None]:
        # A program may ask the model several times at once, so open calls count as turns.
        while (most := self.bounds.max_turns) is not None and self.journal.turns() + self.run_budget.open_calls >= most:
            await self.ask_for_more("max_turns")
        while True:
            reserved = self.run_budget.reserve(
                key, input_tokens, price, floor=MIN_OUTPUT_TOKENS, ceiling=MAX_OUTPUT_TOKENS
            )
            if not isinstance(reserved, InsufficientFunds):
                return reserved
            if not await self.run_budget.wait_for_release(reserved):
                name = cast("LimitName", reserved.level.name)
                needed = reserved.level.spent + reserved.needed
                await self.ledger_of(reserved.level.owner).ask_for_more(name, needed, waiting=self.idle_tracker)

    def ledger_of(self, run: str) -> LiveLedger:
        return self if self.run == run or self._parent is None else self._parent.ledger_of(run)

    async def record_call(self, call: ModelCall) -> None:
        asked = entries.ModelAsked(
            message=request_parts(call.messages[-1]),
            tools=tools_fingerprint(call.parameters),
            answers=self.journal.answers(),  # that the message follows; a replay compares them
            attempt=call.attempt,
            reserved_usd=call.reserved_usd,
            reserved_tokens=self.run_budget.reserved_tokens(call.key),
            max_tokens=call.max_tokens,
        )
        await self.journal.append(asked, key=call.key)
        is_user_message = bool(self.journal.all(entries.Said)) and not self.journal.turns()
        if call.attempt == 0 and not is_user_message and (problem := unusable_answer(call.messages)) is not None:
            message = f"the answer is not usable ({problem}); asking the model again"
            self.publish(ErrorData, {"code": RuntimeFailed.code, "message": message, "transient": True})

    async def record_failure(self, call: ModelCall, error: ModelFailed, cost: float | None) -> None:
        self.run_budget.settle(call.key, cost or 0.0, 0)
        failure = entries.ModelCallFailed(
            code=error.code,
            message=error.message,
            hint=error.hint,
            where=error.where,
            status=error.status,
            transient=error.transient,
            cost_usd=cost,
        )

        def also(connection: Connection) -> None:
            if cost is not None:
                spent = (limits.usage_of(self.journal).cost_usd or 0.0) + cost
                records.change_run(connection, self.run, cost_usd=spent)

        async with self._adding:
            await self.journal.append(failure, key=call.key, also=also)

    def report_retry(self, error: ModelFailed, attempt: int, pause: float) -> None:
        self.publish(
            ErrorData,
            {**error.as_dict(), "transient": True, "attempt": attempt, "attempts": MAX_ATTEMPTS, "pause": pause},
        )

    async def record_answer(self, call: ModelCall, response: ModelResponse, cost: float | None) -> None:
        usage = entries.TokenUsage(input_tokens=response.usage.input_tokens, output_tokens=response.usage.output_tokens)
        answer = entries.ModelAnswered(response=dump_response(response), usage=usage, cost_usd=cost)
        async with self._adding:
            total = limits.usage_with(self.journal, **usage, cost=cost)
            await self.journal.append(
                answer, key=call.key, also=lambda connection: records.change_run(connection, self.run, **asdict(total))
            )
        self.run_budget.settle(call.key, cost or 0.0, usage["input_tokens"] + usage["output_tokens"])
        self.publish(TurnEndData, {"turn": total.turns, **usage, "cost_usd": cost})

    def on_text(self, text: str) -> None:
        self.publish(TextDeltaData, {"text": text})

    # messages of the user

    async def start_listening(self, number: int) -> None:
        """Record and publish that the turn is over and the run waits for this message."""
        key = message_key(number)
        first = self.journal.last(key, entries.Listening) is None
        await self.journal.append(entries.Listening(), key=key)
        if first and (problem := _unusable_answer(self.journal)) is not None:
            self.publish(ErrorData, {"code": RuntimeFailed.code, "message": f"the turn is over: {problem}"})
        self.publish(ListeningData, {"number": number})

    async def record_message(self, number: int, text: str) -> None:
        await self.journal.append(entries.Said(words=text), key=message_key(number))

    # limits

    async def ask_for_time(self) -> bool:
        """Ask for more time, and return True if the user grants it. Only interactive runs ask."""
        try:
            await self.ask_for_more("timeout")
        except LimitReached:
            return False
        return True

    def limit_reached(self, name: LimitName, needed: float = 0.0) -> LimitReached:
        """Return the error that ends the run at one of its limits."""
        return limits.limit_error(
            name, self.bounds, self.run, needed, cut_off=self._cut_off, resumed_by=self._resumed_by
        )

    async def ask_for_more(self, name: LimitName, needed: float = 0.0, *, waiting: IdleTracker | None = None) -> None:
        """Ask the user to raise a limit. Raise LimitReached if they do not, or cannot be asked.

        `waiting`: of the child run that reached the limit.
        """
        idle_tracker = waiting or self.idle_tracker
        value = getattr(self.bounds, name)
        with idle_tracker.waiting():
            await self._asking.acquire()
        try:
            if getattr(self.bounds, name) == value:  # not raised by the ask of another call
                await self._ask_for_more(name, value, needed, idle_tracker)
        finally:
            self._asking.release()

    def _has_answer(self, name: LimitName, value: float) -> bool:
        """Return True if the user answered an earlier ask about this limit, from somewhere else."""
        mark = fingerprint([name, value])
        ask = self._store.read(lambda connection: records.find_latest_ask(connection, self.run, name, mark))
        return ask is not None and ask.status == "answered"

    async def _ask_for_more(self, name: LimitName, value: float, needed: float, idle_tracker: IdleTracker) -> None:
        error = self.limit_reached(name, needed)
        can_ask = self._interactive or name == "budget" or self._has_answer(name, value)
        if name in self._denied or not can_ask:
            raise error
        spent = self.run_budget.dollars.spent
        ask = await self.open(
            "limit",
            name,
            [name, value],
            Question(
                title=f"{self._worker} has reached its limit of {limits.format_limit(name, value)} ({name})",
                body=f"{error.message}.\nSpent so far: {spent:.4f} USD. 'yes' grants the same amount again.",
                choices=("yes", "no", AMOUNT),
            ),
            lambda ask: entries.LimitAsked(limit=name, value=value, ask=ask),
        )
        ask = await self.wait_closed(ask, idle_tracker)
        choice = ask.answer.choice if ask.answer else "no"
        more = value if choice == "yes" else parse_amount(choice) or 0
        raised = value + (math.ceil(more) if isinstance(value, int) else more)
        granted = {name: raised} if raised > value else {}  # a tiny amount may not change a float
        await self.apply(ask, name, bounds=granted)
        if not granted:
            self._denied.add(name)
            raise error
        self.bounds = replace(self.bounds, **granted)
        self.run_budget.update_limits(self.run, self.bounds)

    # the tool door

    def find_result(self, call: ToolCall) -> ToolResult | None:
        end = self.journal.last(call.key, entries.ToolEnded, entries.ToolRefused)
        if end is None:
            return None
        began = self.journal.last(call.key, entries.ToolStarted, entries.ToolRefused, entries.ToolAsked)
        if began is None or (began.data.tool, began.data.arguments) != (call.tool, call.arguments):
            raise _divergence_error(call.key)
        return ToolResult.from_dict(end.data.result)

    def is_interrupted(self, call: ToolCall) -> bool:
        last = self.journal.last(call.key, entries.ToolStarted, entries.ToolEnded)
        return last is not None and isinstance(last.data, entries.ToolStarted)

    def answer_calls(self, call: ToolCall) -> list[ToolCall]:
        calls, ends = requested_calls(self.journal, call), (entries.ToolEnded, entries.ToolRefused)
        return [one for one in calls if self.journal.last(one.key, *ends) is None]

    def waiting(self) -> AbstractContextManager[None]:
        return self.idle_tracker.waiting()

    async def request_approval(self, call: ToolCall, tool: Tool, verdict: Verdict) -> tuple[Approval, str | None]:
        body = format_arguments(call.arguments or {})
        return await self.confirm(call, body, reason=verdict.reason, seconds=verdict.timeout)

    async def confirm(
        self, call: ToolCall, body: str, *, shown: Any = None, reason: str | None = None, seconds: float | None = None
    ) -> tuple[Approval, str | None]:
        """Ask for approval of a call, and return it with the note. The answer counts only for this `shown` data."""
        # With the worker, because the same arguments of another worker can refer to another folder.
        subject = [self._identity, call.tool, call.arguments, shown]
        given = self._store.read(lambda c: records.find_standing_approval(c, self.root, fingerprint(subject)))
        if given is not None and (given.run, given.key) != (self.run, call.key):
            return "approved", None
        ask = await self.open(
            "approval",
            call.key,
            subject,
            Question(title=f"{self._worker} wants to call {call.tool}", body=body, choices=("yes", "no", "always")),
            lambda ask: entries.ToolAsked(tool=call.tool, arguments=call.arguments, reason=reason, ask=ask),
            seconds=seconds,
        )
        ask = await self.wait_closed(ask)
        if ask.status == "expired" or ask.answer is None:
            return "timed_out", None
        await self.apply(ask, call.key)
        return ("denied" if ask.answer.choice == "no" else "approved"), ask.answer.note

    async def ask_about_effect(self, call: ToolCall, tool: Tool) -> tuple[EffectChoice, str | None]:
        starts = len(entries_with(self.journal.of(call.key), entries.ToolStarted))
        ask = await self.open(
            "interrupted_call",
            call.key,
            [call.tool, call.arguments, starts],
            Question(
                title=f"{self._worker} was interrupted in a call of {call.tool}: did it take effect?",
                body=(
                    f"{format_arguments(call.arguments or {})}\n\ndone: it took effect, continue.  "
                    "again: it did not, make the call again.  fail: report to the worker that it failed."
                ),
                choices=("done", "again", "fail"),
            ),
            lambda ask: entries.ToolDoubted(tool=call.tool, arguments=call.arguments, ask=ask),
        )
        ask = await self.wait_closed(ask)
        if ask.answer is None:
            return "fail", "the ask timed out"
        await self.apply(ask, call.key)
        return cast("EffectChoice", ask.answer.choice), ask.answer.note

    async def record_refusal(self, call: ToolCall, verdict: Verdict, result: ToolResult) -> None:
        refused = entries.ToolRefused(
            tool=call.tool, arguments=call.arguments, reason=verdict.reason, rule=verdict.rule, result=result.as_dict()
        )
        await self.journal.append(refused, key=call.key)
        self.publish(ToolUseData, {"id": call.key, "tool": call.tool, "arguments": call.arguments, "refused": True})
        self._publish_result(call, result)

    async def record_start(self, call: ToolCall, tool: Tool, verdict: Verdict) -> None:
        # Durable, because no effect may happen without its entry on disk, even if the machine crashes.
        started = entries.ToolStarted(
            tool=call.tool,
            arguments=call.arguments,
            decision=verdict.decision,
            rule=verdict.rule,
            reason=verdict.reason,
        )
        await self.journal.append(started, key=call.key, durable=not tool.repeatable)
        self.publish(ToolUseData, {"id": call.key, "tool": call.tool, "arguments": call.arguments})

    async def record_end(self, call: ToolCall, result: ToolResult) -> None:
        await self.journal.append(entries.ToolEnded(result=result.as_dict()), key=call.key)
        self._publish_result(call, result)

    def _publish_result(self, call: ToolCall, result: ToolResult) -> None:
        data = ToolResultData(id=call.key, tool=call.tool, text=result.text, is_error=result.is_error)
        self.publish(ToolResultData, data)


def _unusable_answer(journal: Journal) -> str | None:
    """Return the problem of the last model answer, or None."""
    if not (answers := journal.all(entries.ModelAnswered)):
        return None
    response = answers[-1].data.response
    if response.get("finish_reason") == "length":
        return "the answer was cut off at its maximum length"
    texts = [part["content"] for part in response["parts"] if part["part_kind"] == "text"]
    return None if "".join(texts).strip() else "the answer was empty"


def _divergence_error(key: str) -> RuntimeFailed:
    return RuntimeFailed(
        f"cannot continue: the call {key} of the run differs from its journal",
        hint="`guild replay` shows the difference. Start a new run.",
    )
