"""Ledger of a live run: records the calls at both doors, enforces the limits, and asks the user.

Answers a call from the journal if the journal has its result. A limit ends the run if the user cannot be asked.
Does not judge tool calls (`tools.gate`) and does not compute reservations (`runs.execution.budget`).

Invariant: a call is in the journal before it is made, and its result before the run receives it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import LimitReached, ModelFailed, RuntimeFailed
from guildhall.core.events import (
    ErrorData,
    ListeningData,
    TextDeltaData,
    ToolResultData,
    ToolUseData,
    TurnEndData,
)
from guildhall.core.ids import fingerprint
from guildhall.models.door import MAX_ATTEMPTS, MIN_OUTPUT_TOKENS, ModelCall
from guildhall.runs import limits
from guildhall.runs.asks import RunAsks
from guildhall.runs.execution.budget import InsufficientFunds, RunBudget
from guildhall.runs.execution.repeated_calls import count_repeats, with_repeat_note
from guildhall.runs.model import AMOUNT, Bounds, Question
from guildhall.runs.record import entries, records
from guildhall.runs.record.journal import Journal, entries_with, message_key
from guildhall.runs.record.messages import (
    dump_response,
    find_correction,
    format_arguments,
    load_response,
    request_parts,
    requested_calls,
    tools_fingerprint,
)
from guildhall.tools.model import Tool, ToolCall, ToolResult

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.usage import RequestUsage
    from sqlalchemy import Connection

    from guildhall.policy.rules import Verdict
    from guildhall.runs.idle_tracker import IdleTracker
    from guildhall.runs.limits import LimitName
    from guildhall.tools.gate import Approval, EffectChoice


@dataclass(kw_only=True, eq=False)
class CallLedger(RunAsks):
    """The ledger of one run, for its model door, its gate and its owner."""

    worker: str
    identity: str
    interactive: bool
    is_agent: bool = False  # resuming the root run raises the limits of the run
    child_journals: Iterable[Journal] = ()
    parent: CallLedger | None = None

    def __post_init__(self) -> None:
        self.bounds: Bounds = limits.current_bounds(self.journal)
        journals = [self.journal, *self.child_journals]
        spent = limits.Spent.in_journals(journals)
        self.run_budget = RunBudget(self.run_id, self.bounds, spent, self.parent.run_budget if self.parent else None)
        self._cut_off = limits.Spent.in_cut_off_calls(journals)
        self._denied_limits: set[LimitName] = set()  # limits that the user did not raise in this segment
        self._ask_lock = asyncio.Lock()  # concurrent calls reach a limit together and share one ask
        self._usage_lock = asyncio.Lock()  # each recorded total includes the usage of the call before

    # the model door

    def find_answer(
        self, key: str, messages: Sequence[ModelMessage], parameters: ModelRequestParameters
    ) -> ModelResponse | None:
        recorded = self.journal.last(key, entries.ModelAnswered)
        if recorded is None:
            return None
        if self.journal.last(key, entries.ModelAsked) is None or self.is_other_question(key, messages):
            raise _divergence_error(self.run_id, key)
        return load_response(recorded.data.response)

    def is_other_question(self, key: str, messages: Sequence[ModelMessage]) -> bool:
        """Return True if the journal has a different model call under this key."""
        asked = self.journal.last(key, entries.ModelAsked)
        return asked is not None and asked.data.message != request_parts(messages[-1])

    def count_failures(self, key: str) -> int:
        return len(entries_with(self.journal.of(key), entries.ModelCallFailed))

    async def reserve(
        self, key: str, input_tokens: int, price: Callable[[int], float | None], max_output_tokens: int
    ) -> tuple[float | None, int | None]:
        # A program may ask the model several times at once, so open calls count as turns.
        while (limit := self.bounds.max_turns) and self.journal.turns() + self.run_budget.open_call_count >= limit:
            await self.ask_for_more("max_turns")
        while True:
            reserved = self.run_budget.reserve(
                key, input_tokens, price, floor=min(MIN_OUTPUT_TOKENS, max_output_tokens), ceiling=max_output_tokens
            )
            if not isinstance(reserved, InsufficientFunds):
                return reserved
            if not await self.run_budget.wait_for_release(reserved):
                name = cast("LimitName", reserved.level.name)
                needed = reserved.level.spent + reserved.needed
                await self.ledger_of(reserved.level.owner).ask_for_more(name, needed, waiting=self.idle_tracker)

    def ledger_of(self, run_id: str) -> CallLedger:
        return self if self.run_id == run_id or self.parent is None else self.parent.ledger_of(run_id)

    async def record_call(self, call: ModelCall) -> None:
        asked = entries.ModelAsked(
            message=request_parts(call.messages[-1]),
            tools=tools_fingerprint(call.parameters),
            answers=self.journal.responses_fingerprint(),  # a replay compares it
            attempt=call.attempt,
            reserved_usd=call.reserved_usd,
            reserved_tokens=self.run_budget.reserved_tokens(call.key),
            max_tokens=call.max_tokens,
            prefix_break=call.prefix_break,
        )
        await self.journal.append(asked, key=call.key)
        is_user_message = bool(self.journal.all(entries.Said)) and not self.journal.turns()
        if call.attempt == 0 and not is_user_message and (problem := find_correction(call.messages)) is not None:
            message = f"the model response is not usable ({problem}); calling the model again"
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
                records.change_run(connection, self.run_id, cost_usd=spent)

        async with self._usage_lock:
            await self.journal.append(failure, key=call.key, also=also)

    def report_retry(self, error: ModelFailed, attempt: int, pause: float) -> None:
        self.publish(
            ErrorData,
            {**error.as_dict(), "transient": True, "attempt": attempt, "attempts": MAX_ATTEMPTS, "pause": pause},
        )

    async def record_answer(self, call: ModelCall, response: ModelResponse, cost: float | None) -> None:
        usage = token_usage(response.usage)
        answer = entries.ModelAnswered(response=dump_response(response), usage=usage, cost_usd=cost)
        async with self._usage_lock:
            total = limits.usage_with(self.journal, usage, cost)
            await self.journal.append(
                answer,
                key=call.key,
                also=lambda connection: records.change_run(connection, self.run_id, **asdict(total)),
            )
        self.run_budget.settle(call.key, cost or 0.0, usage["input_tokens"] + usage["output_tokens"])
        self.publish(TurnEndData, {"turn": total.turns, **usage, "cost_usd": cost})

    def on_text(self, text: str) -> None:
        self.publish(TextDeltaData, {"text": text})

    # user messages

    async def start_listening(self, number: int) -> None:
        """Record and publish that the run waits for the user message with this number."""
        key = message_key(number)
        first = self.journal.last(key, entries.Listening) is None
        await self.journal.append(entries.Listening(), key=key)
        if first and (problem := _find_response_problem(self.journal)) is not None:
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

    def make_limit_error(self, name: LimitName, needed: float = 0.0) -> LimitReached:
        """Return the error that ends the run at one of its limits."""
        run_to_resume = self.run_id if self.parent is None else self.root if self.is_agent else None
        return limits.limit_error(
            name, self.bounds, self.run_id, needed, cut_off=self._cut_off, run_to_resume=run_to_resume
        )

    async def ask_for_more(self, name: LimitName, needed: float = 0.0, *, waiting: IdleTracker | None = None) -> None:
        """Ask the user to raise a limit. Raise LimitReached if the user does not raise it or cannot be asked.

        `waiting`: the idle tracker of the child run that reached the limit.
        """
        idle_tracker = waiting or self.idle_tracker
        value = getattr(self.bounds, name)
        with idle_tracker.waiting_call():
            await self._ask_lock.acquire()
        try:
            if getattr(self.bounds, name) == value:  # otherwise the ask of another call raised it
                await self._ask_for_more(name, value, needed, idle_tracker)
        finally:
            self._ask_lock.release()

    def _has_answer(self, name: LimitName, value: float) -> bool:
        """Return True if an earlier ask about this limit has an answer that was not applied."""
        subject = fingerprint([name, value])
        ask = self.store.read(lambda connection: records.find_latest_ask(connection, self.run_id, name, subject))
        return ask is not None and ask.status == "answered"

    async def _ask_for_more(self, name: LimitName, value: float, needed: float, idle_tracker: IdleTracker) -> None:
        error = self.make_limit_error(name, needed)
        can_ask = self.interactive or name == "budget" or self._has_answer(name, value)
        if name in self._denied_limits or not can_ask:
            raise error
        limit = f"limit of {limits.format_limit(name, value)} ({name})"
        title, reserved = f"{self.worker} has reached its {limit}", ""
        if name in ("budget", "max_budget_usd", "max_tokens"):
            title = f"the next model call may exceed {self.worker}'s {limit}"
            reserved = f" The maximum of a call is reserved first, here {limits.format_limit(name, needed)} or more."
        spent = self.run_budget.dollars.spent
        ask = await self.open(
            "limit",
            name,
            [name, value],
            Question(
                title=title,
                body=f"{error.message}.{reserved}\nSpent so far: {spent:.4f} USD. 'yes' grants the same amount again.",
                choices=("yes", "no", AMOUNT),
            ),
            lambda ask: entries.LimitAsked(limit=name, value=value, ask=ask),
        )
        ask = await self.wait_closed(ask, idle_tracker)
        granted = limits.raised_bounds(self.bounds, ask)
        await self.apply(ask, name, bounds=granted)
        if not granted:
            self._denied_limits.add(name)
            raise error
        self.bounds = replace(self.bounds, **granted)
        self.run_budget.update_limits(self.run_id, self.bounds)

    # the tool door

    def find_result(self, call: ToolCall) -> ToolResult | None:
        end = self.journal.last(call.key, entries.ToolEnded, entries.ToolRefused)
        if end is None:
            return None
        began = self.journal.last(call.key, entries.ToolStarted, entries.ToolRefused, entries.ToolAsked)
        if began is None or (began.data.tool, began.data.arguments) != (call.tool, call.arguments):
            raise _divergence_error(self.run_id, call.key)
        return ToolResult.from_dict(end.data.result)

    def is_interrupted(self, call: ToolCall) -> bool:
        last = self.journal.last(call.key, entries.ToolStarted, entries.ToolEnded)
        return last is not None and isinstance(last.data, entries.ToolStarted)

    def answer_calls(self, call: ToolCall) -> list[ToolCall]:
        calls, ends = requested_calls(self.journal, call), (entries.ToolEnded, entries.ToolRefused)
        return [call for call in calls if self.journal.last(call.key, *ends) is None]

    def waiting(self) -> AbstractContextManager[None]:
        return self.idle_tracker.waiting_call()

    async def request_approval(self, call: ToolCall, tool: Tool, verdict: Verdict) -> tuple[Approval, str | None]:
        body = format_arguments(call.arguments or {})
        return await self.confirm(call, body, because=verdict.reason, timeout_s=verdict.timeout)

    async def confirm(
        self, call: ToolCall, body: str, *, because: str, data: Any = None, timeout_s: float | None = None
    ) -> tuple[Approval, str | None]:
        """Ask for approval of a call, and return the approval and the note of the user.

        The answer counts only for the same worker, arguments and `data`.
        """
        # The worker is a part, because equal arguments of another worker can refer to another folder.
        subject = [self.identity, call.tool, call.arguments, data]
        given = self.store.read(lambda c: records.find_standing_approval(c, self.root, fingerprint(subject)))
        if given is not None and (given.run, given.key) != (self.run_id, call.key):
            return "approved", None
        title, choices = f"{self.worker} wants to call {call.tool}", ("yes", "no", "always")
        ask = await self.open(
            "approval",
            call.key,
            subject,
            Question(title=title, body=body, choices=choices, because=because),
            lambda ask: entries.ToolAsked(tool=call.tool, arguments=call.arguments, reason=because, ask=ask),
            timeout_s=timeout_s,
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
                title=f"{self.worker} was interrupted in a call of {call.tool}: did it take effect?",
                body=(
                    f"{format_arguments(call.arguments or {})}\n\ndone: the call took effect, continue.  "
                    "again: it had no effect, make the call again.  fail: report to the worker that it failed."
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

    async def record_refusal(self, call: ToolCall, verdict: Verdict, result: ToolResult) -> ToolResult:
        repeats = count_repeats(self.journal, call, result)
        result = with_repeat_note(result, repeats)
        refused = entries.ToolRefused(
            tool=call.tool,
            arguments=call.arguments,
            reason=verdict.reason,
            rule=verdict.rule,
            result=result.as_dict(),
            repeats=repeats,
        )
        await self.journal.append(refused, key=call.key)
        self.publish(ToolUseData, {"id": call.key, "tool": call.tool, "arguments": call.arguments, "refused": True})
        return await self._finish_call(call, result, repeats)

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

    async def record_end(self, call: ToolCall, result: ToolResult) -> ToolResult:
        repeats = count_repeats(self.journal, call, result)
        result = with_repeat_note(result, repeats)
        await self.journal.append(entries.ToolEnded(result=result.as_dict(), repeats=repeats), key=call.key)
        return await self._finish_call(call, result, repeats)

    async def _finish_call(self, call: ToolCall, result: ToolResult, repeats: int) -> ToolResult:
        """Publish and return the result. At the limit of equal calls, ask the user or raise LimitReached."""
        data = ToolResultData(id=call.key, tool=call.tool, text=result.text, is_error=result.is_error)
        self.publish(ToolResultData, data)
        while (limit := self.bounds.max_repeats) is not None and repeats >= limit:
            await self.ask_for_more("max_repeats")
        return result


def token_usage(usage: RequestUsage) -> entries.TokenUsage:
    counted = entries.TokenUsage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
    if usage.cache_read_tokens or usage.cache_write_tokens:
        counted["cache_read_tokens"], counted["cache_write_tokens"] = usage.cache_read_tokens, usage.cache_write_tokens
    return counted


def _find_response_problem(journal: Journal) -> str | None:
    """Return the problem of the last model response, or None."""
    if not (responses := journal.all(entries.ModelAnswered)):
        return None
    response = responses[-1].data.response
    if response.get("finish_reason") == "length":
        return "the model response was cut off at its maximum length"
    texts = [part["content"] for part in response["parts"] if part["part_kind"] == "text"]
    return None if "".join(texts).strip() else "the model response was empty"


def _divergence_error(run_id: str, key: str) -> RuntimeFailed:
    return RuntimeFailed(
        f"cannot continue {run_id}: the call {key} differs from the journal",
        hint=f"Show the difference: guild replay {run_id}. Then start a new run.",
    )
