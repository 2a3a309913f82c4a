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
from guildhall.models.door import ATTEMPTS, OUTPUT_CEILING, OUTPUT_FLOOR, ModelCall
from guildhall.runs import limits
from guildhall.runs.asks import Asks, RunAsks
from guildhall.runs.execution.budget import InsufficientFunds, RunBudget
from guildhall.runs.model import AMOUNT, Bounds, Question, parse_amount
from guildhall.runs.record import records
from guildhall.runs.record.entries import (
    LimitAsked,
    Listening,
    ModelAnswered,
    ModelAsked,
    ModelCallFailed,
    Said,
    TokenUsage,
    ToolAsked,
    ToolDoubted,
    ToolEnded,
    ToolRefused,
    ToolStarted,
)
from guildhall.runs.record.journal import Journal, entries_with, message_key
from guildhall.runs.record.messages import (
    dump_response,
    format_arguments,
    load_response,
    request_parts,
    tools_fingerprint,
    unusable_answer,
)
from guildhall.tools.model import Tool, ToolCall, ToolResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import ModelRequestParameters
    from sqlalchemy import Connection

    from guildhall.core.clock import Clock
    from guildhall.policy.rules import Verdict
    from guildhall.runs.idle import IdleTracker
    from guildhall.runs.limits import LimitName
    from guildhall.store.engine import Store
    from guildhall.tools.gate import Approval, Doubt


class LiveLedger(RunAsks):
    """Writes the journal of one run, keeps to its bounds, and waits for people on its behalf."""

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
        is_hooked: bool = False,
        below: Iterable[Journal] = (),
        above: LiveLedger | None = None,
    ) -> None:
        """`below`: journals of the called runs. A `seated` run gets more by resuming the run at the top."""
        super().__init__(journal, root, asks=asks, store=store, bus=bus, clock=clock, idle_tracker=idle_tracker)
        self.bounds: Bounds = limits.current_bounds(journal)
        self.run_budget = RunBudget(
            self.run, self.bounds, limits.Spent.by([journal, *below]), above.run_budget if above else None
        )
        self._lost = limits.Spent.by_cut_off_calls([journal, *below])
        self._above = above
        self._denied: set[LimitName] = set()  # those for which the answer was no, in this stretch
        self._asking = asyncio.Lock()  # one ask about a limit at a time: calls side by side reach it together
        self._adding = asyncio.Lock()  # the sum follows from all that came before: answers come side by side too
        self._worker = worker
        self._identity = identity
        self._interactive = interactive
        self._resumed_by = self.run if above is None else root if is_hooked else None

    # the model door

    def answered(
        self, key: str, messages: Sequence[ModelMessage], parameters: ModelRequestParameters
    ) -> ModelResponse | None:
        answer = self.journal.last(key, ModelAnswered)
        if answer is None:
            return None
        if self.journal.last(key, ModelAsked) is None or self.asked_another(key, messages):
            raise _diverged(key)
        return load_response(answer.data.response)

    def asked_another(self, key: str, messages: Sequence[ModelMessage]) -> bool:
        """Whether something else was asked under this key."""
        asked = self.journal.last(key, ModelAsked)
        return asked is not None and asked.data.message != request_parts(messages[-1])

    def failures(self, key: str) -> int:
        return len(entries_with(self.journal.of(key), ModelCallFailed))

    async def permit(
        self, key: str, sent: int, price: Callable[[int], float | None]
    ) -> tuple[float | None, int | None]:
        while (most := self.bounds.max_turns) is not None and self._turns() >= most:
            await self.limit("max_turns")
        while True:
            held = self.run_budget.reserve(key, sent, price, floor=OUTPUT_FLOOR, ceiling=OUTPUT_CEILING)
            if not isinstance(held, InsufficientFunds):
                return held
            if not await self.run_budget.room(held):
                name = cast("LimitName", held.level.name)
                needed = held.level.spent + held.needed
                await self.owner(held.level.owner).limit(name, needed, waiting=self.idle_tracker)

    def _turns(self) -> int:
        """Those that were made and those under way: a program may ask for several side by side."""
        return self.journal.turns() + self.run_budget.calls

    def owner(self, run: str) -> LiveLedger:
        """The ledger of the run above, or of this one, whose limit it is."""
        return self if self.run == run or self._above is None else self._above.owner(run)

    async def asked(self, call: ModelCall) -> None:
        asked = ModelAsked(
            message=request_parts(call.messages[-1]),
            tools=tools_fingerprint(call.parameters),
            answers=self.journal.answers(),  # those that the message follows, so that a replay knows them again
            attempt=call.attempt,
            reserved_usd=call.reserved_usd,
            reserved_tokens=self.run_budget.held(call.key),
            max_tokens=call.max_tokens,
        )
        await self.journal.append(asked, key=call.key)
        spoken = bool(self.journal.all(Said)) and not self.journal.turns()  # the question is the person's
        if call.attempt == 0 and not spoken and (problem := unusable_answer(call.messages)) is not None:
            said = f"the answer was not usable, the model is told why: {problem}"
            self.publish(ErrorData, {"code": RuntimeFailed.code, "message": said, "transient": True})

    async def failed(self, call: ModelCall, error: ModelFailed, cost: float | None) -> None:
        self.run_budget.settle(call.key, cost or 0.0, 0)
        failure = ModelCallFailed(
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
                spent = (limits.used(self.journal).cost_usd or 0.0) + cost
                records.change_run(connection, self.run, cost_usd=spent)

        async with self._adding:
            await self.journal.append(failure, key=call.key, also=also)

    def again(self, error: ModelFailed, attempt: int, pause: float) -> None:
        self.publish(
            ErrorData, {**error.as_dict(), "transient": True, "attempt": attempt, "attempts": ATTEMPTS, "pause": pause}
        )

    async def record(self, call: ModelCall, response: ModelResponse, cost: float | None) -> None:
        usage = TokenUsage(input_tokens=response.usage.input_tokens, output_tokens=response.usage.output_tokens)
        answer = ModelAnswered(response=dump_response(response), usage=usage, cost_usd=cost)
        async with self._adding:
            total = limits.usage_with(self.journal, **usage, cost=cost)
            await self.journal.append(
                answer, key=call.key, also=lambda connection: records.change_run(connection, self.run, **asdict(total))
            )
        self.run_budget.settle(call.key, cost or 0.0, usage["input_tokens"] + usage["output_tokens"])
        self.publish(TurnEndData, {"turn": total.turns, **usage, "cost_usd": cost})

    def on_text(self, text: str) -> None:
        self.publish(TextDeltaData, {"text": text})

    # what a person says

    def heard(self, key: str) -> str | None:
        """What was said under this key, if it was heard before."""
        said = self.journal.last(key, Said)
        return None if said is None else said.data.words

    async def listens(self, number: int) -> None:
        """A turn is over: what is said next is waited for."""
        key = message_key(number)
        first = self.journal.last(key, Listening) is None
        await self.journal.append(Listening(), key=key)
        if first and (problem := _unusable_answer(self.journal)) is not None:
            self.publish(ErrorData, {"code": RuntimeFailed.code, "message": f"the turn is over: {problem}"})
        self.publish(ListeningData, {"number": number})

    async def hears(self, number: int, words: str) -> None:
        await self.journal.append(Said(words=words), key=message_key(number))

    async def more_time(self) -> bool:
        """Whether a run whose time is over gets more of it: in a terminal the person is asked, elsewhere nobody is."""
        try:
            await self.limit("timeout")
        except LimitReached:
            return False
        return True

    def limit_reached(self, name: LimitName, needed: float = 0.0) -> LimitReached:
        """The error that ends the run at one of its limits."""
        return limits.reached(name, self.bounds, self.run, needed, lost=self._lost, resumed_by=self._resumed_by)

    async def limit(self, name: LimitName, needed: float = 0.0, *, waiting: IdleTracker | None = None) -> None:
        """Ask for more at a limit, or raise LimitReached. `waiting`: of the run below that reached the limit."""
        idle_tracker = waiting or self.idle_tracker
        value = getattr(self.bounds, name)
        with idle_tracker.waiting():
            await self._asking.acquire()
        try:
            if getattr(self.bounds, name) == value:  # it was not raised while another call of the tree was asking
                await self._ask_for_more(name, value, needed, idle_tracker)
        finally:
            self._asking.release()

    def _has_answer(self, name: LimitName, value: float) -> bool:
        """Whether a person has answered already, though nobody sits at a terminal now."""
        mark = fingerprint([name, value])
        ask = self._store.read(lambda connection: records.find_latest_ask(connection, self.run, name, mark))
        return ask is not None and ask.status == "answered"

    async def _ask_for_more(self, name: LimitName, value: float, needed: float, idle_tracker: IdleTracker) -> None:
        error = self.limit_reached(name, needed)
        asked = self._interactive or name == "budget" or self._has_answer(name, value)
        if name in self._denied or not asked:
            raise error
        spent = self.run_budget.dollars.spent
        ask = await self._ask(
            "limit",
            name,
            [name, value],
            Question(
                title=f"{self._worker} has reached its limit of {limits.format_limit(name, value)} ({name})",
                body=f"{error.message}.\nSpent so far: {spent:.4f} USD. 'yes' allows as much again.",
                choices=("yes", "no", AMOUNT),
            ),
            lambda ask: LimitAsked(limit=name, value=value, ask=ask),
            idle_tracker=idle_tracker,
        )
        choice = ask.answer.choice if ask.answer else "no"
        more = value if choice == "yes" else parse_amount(choice) or 0
        raised = value + (math.ceil(more) if isinstance(value, int) else more)
        granted = {name: raised} if raised > value else {}  # a tiny amount may add nothing at all
        await self.apply(ask, name, bounds=granted)
        if not granted:
            self._denied.add(name)
            raise error
        self.bounds = replace(self.bounds, **granted)
        self.run_budget.allow(self.run, self.bounds)

    # the tool door

    def finished(self, call: ToolCall) -> ToolResult | None:
        end = self.journal.last(call.key, ToolEnded, ToolRefused)
        if end is None:
            return None
        began = self.journal.last(call.key, ToolStarted, ToolRefused, ToolAsked)
        if began is None or (began.data.tool, began.data.arguments) != (call.tool, call.arguments):
            raise _diverged(call.key)
        return ToolResult.from_dict(end.data.result)

    def interrupted(self, call: ToolCall) -> bool:
        last = self.journal.last(call.key, ToolStarted, ToolEnded)
        return last is not None and isinstance(last.data, ToolStarted)

    async def approval(self, call: ToolCall, tool: Tool, verdict: Verdict) -> tuple[Approval, str | None]:
        body = format_arguments(call.arguments or {})
        return await self.confirm(call, body, reason=verdict.reason, seconds=verdict.timeout)

    async def confirm(
        self, call: ToolCall, body: str, *, shown: Any = None, reason: str | None = None, seconds: float | None = None
    ) -> tuple[Approval, str | None]:
        """Ask for approval of a call, and return it with the note. The answer counts only for this `shown` data."""
        # The same words of another worker may mean another folder.
        subject = [self._identity, call.tool, call.arguments, shown]
        given = self._store.read(lambda c: records.find_standing_approval(c, self.root, fingerprint(subject)))
        if given is not None and (given.run, given.key) != (self.run, call.key):
            return "approved", None
        ask = await self._ask(
            "approval",
            call.key,
            subject,
            Question(title=f"{self._worker} wants to call {call.tool}", body=body, choices=("yes", "no", "always")),
            lambda ask: ToolAsked(tool=call.tool, arguments=call.arguments, reason=reason, ask=ask),
            seconds=seconds,
        )
        if ask.status == "expired" or ask.answer is None:
            return "timed_out", None
        await self.apply(ask, call.key)
        return ("denied" if ask.answer.choice == "no" else "approved"), ask.answer.note

    async def doubt(self, call: ToolCall, tool: Tool) -> tuple[Doubt, str | None]:
        starts = len(entries_with(self.journal.of(call.key), ToolStarted))
        ask = await self._ask(
            "interrupted_call",
            call.key,
            [call.tool, call.arguments, starts],
            Question(
                title=f"{self._worker} was cut off inside {call.tool}: did it take effect?",
                body=(
                    f"{format_arguments(call.arguments or {})}\n\n"
                    "done: it did, go on.  again: it did not, make the call again.  fail: tell the worker it failed."
                ),
                choices=("done", "again", "fail"),
            ),
            lambda ask: ToolDoubted(tool=call.tool, arguments=call.arguments, ask=ask),
        )
        if ask.answer is None:
            return "fail", "nobody answered in time"
        await self.apply(ask, call.key)
        return cast("Doubt", ask.answer.choice), ask.answer.note

    async def refused(self, call: ToolCall, verdict: Verdict, result: ToolResult) -> None:
        refused = ToolRefused(
            tool=call.tool, arguments=call.arguments, reason=verdict.reason, rule=verdict.rule, result=result.as_dict()
        )
        await self.journal.append(refused, key=call.key)
        self.publish(ToolUseData, {"id": call.key, "tool": call.tool, "arguments": call.arguments, "refused": True})
        self._publish_result(call, result)

    async def started(self, call: ToolCall, tool: Tool, verdict: Verdict) -> None:
        # An effect must never come to be without its announcement on disk, whatever happens to the machine.
        started = ToolStarted(
            tool=call.tool,
            arguments=call.arguments,
            decision=verdict.decision,
            rule=verdict.rule,
            reason=verdict.reason,
        )
        await self.journal.append(started, key=call.key, durable=not tool.repeatable)
        self.publish(ToolUseData, {"id": call.key, "tool": call.tool, "arguments": call.arguments})

    async def ended(self, call: ToolCall, result: ToolResult) -> None:
        await self.journal.append(ToolEnded(result=result.as_dict()), key=call.key)
        self._publish_result(call, result)

    def _publish_result(self, call: ToolCall, result: ToolResult) -> None:
        told = ToolResultData(id=call.key, tool=call.tool, text=result.text, is_error=result.is_error)
        self.publish(ToolResultData, told)


def _unusable_answer(journal: Journal) -> str | None:
    """Return what is wrong with the last answer of the model, or None."""
    if not (answers := journal.all(ModelAnswered)):
        return None
    response = answers[-1].data.response
    if response.get("finish_reason") == "length":
        return "the answer was cut off at its maximum length"
    texts = [part["content"] for part in response["parts"] if part["part_kind"] == "text"]
    return None if "".join(texts).strip() else "the answer was empty"


def _diverged(key: str) -> RuntimeFailed:
    return RuntimeFailed(
        f"the run asked something else at {key} than its record says",
        hint="The record cannot be continued; `guild replay` shows the difference. Start a new run.",
    )
