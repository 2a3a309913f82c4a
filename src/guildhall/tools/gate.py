"""Gate: checks, records and executes every tool call of a run.

declared? -> arguments valid? -> allowed? -> approved? -> its turn? -> record start -> execute -> record end

Does not store anything or ask the user. The caller passes in a `CallLedger`. The ledger of a live run writes the
journal and waits for the user. The ledger of a replay reads the journal and has no effects.

Invariant: a finished call is never executed again for its key. If a call was interrupted and is not repeatable, the
user decides. The calls of one model response take effect in its order (see `tools.call_order`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from guildhall.core.errors import ServerGone
from guildhall.core.text_checks import did_you_mean
from guildhall.policy.rules import Action, Mode, Rule, Verdict, judge
from guildhall.tools.call_order import CallOrder, OrderedCall
from guildhall.tools.definition import argument_problem
from guildhall.tools.model import Execute, Tool, ToolCall, ToolResult

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

Approval = Literal["approved", "denied", "timed_out"]
CLOSED = "closed"  # the rule name of a temporarily blocked call
EffectChoice = Literal["done", "again", "fail"]


class CallLedger(Protocol):
    """The record of the calls of one run, as the gate reads and writes it."""

    def find_result(self, call: ToolCall) -> ToolResult | None:
        """Return the result if the call has ended, or None."""
        ...

    def is_interrupted(self, call: ToolCall) -> bool:
        """Return True if the call was started and its end is not recorded."""
        ...

    def answer_calls(self, call: ToolCall) -> Sequence[ToolCall]:
        """Return the open calls of the model response that contains this call, in order.

        The list is empty if the response is unknown.
        """
        ...

    def waiting(self) -> AbstractContextManager[None]:
        """Count a call as waiting, so that a run that can only wait is paused."""
        ...

    async def request_approval(self, call: ToolCall, tool: Tool, verdict: Verdict) -> tuple[Approval, str | None]:
        """Wait for the user's decision on a call. Return the decision and the user's note."""
        ...

    async def ask_about_effect(self, call: ToolCall, tool: Tool) -> tuple[EffectChoice, str | None]:
        """Ask the user about the effect of an interrupted call. Return the choice and the user's note."""
        ...

    async def record_refusal(self, call: ToolCall, verdict: Verdict, result: ToolResult) -> ToolResult:
        """Record that a call was not made, and return the result for the model."""
        ...

    async def record_start(self, call: ToolCall, tool: Tool, verdict: Verdict) -> None: ...

    async def record_end(self, call: ToolCall, result: ToolResult) -> ToolResult:
        """Record the result of a call, and return the result for the model, which may have a note on repeated calls."""
        ...


class Gate:
    """The tool door of one run."""

    def __init__(
        self,
        tools: Iterable[Tool],
        rules: Iterable[Rule],
        mode: Mode,
        ledger: CallLedger,
        execute: Execute,
        *,
        block_reason: Callable[[ToolCall], str | None] | None = None,
    ) -> None:
        """`block_reason` returns why a call is temporarily blocked, or None. It is checked before the rules."""
        self._tools: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self._rules = tuple(rules)
        self._mode: Mode = mode
        self._ledger = ledger
        self._execute = execute
        self._block_reason = block_reason
        self._order = CallOrder(self._tools)

    async def call(self, call: ToolCall) -> ToolResult:
        """Return the result of a call. A finished call is not executed again for its key."""
        with self._order.enter(call, lambda: self._ledger.answer_calls(call)) as ordered:
            return await self._call(call, ordered)

    async def _call(self, call: ToolCall, ordered: OrderedCall) -> ToolResult:
        if (recorded := self._ledger.find_result(call)) is not None:
            return recorded
        tool = self._tools.get(call.tool)
        if tool is None:
            return await self._refuse(call, f"Unknown tool {call.tool!r}.", did_you_mean(call.tool, self._tools))
        if call.arguments is None:
            return await self._refuse(call, "The arguments are not a JSON object.", None)
        if problem := argument_problem(tool, call.arguments):
            return await self._refuse(call, problem, None)
        is_interrupted = self._ledger.is_interrupted(call) and not tool.repeatable
        if is_interrupted and (result := await self._resolve_interrupted(call, tool)) is not None:
            return result  # before the rules: they cannot undo an effect
        if (refused := await self._refuse_blocked(call)) is not None:
            return refused
        action = Action(tool=tool.name, capabilities=tool.capabilities_of(call.arguments))
        verdict = judge(action, self._rules, self._mode)
        if verdict.decision == "refuse":
            return await self._refuse(call, f"Not permitted: {verdict.reason}.", None, verdict)
        if verdict.decision == "ask" and not is_interrupted:  # the choice "again" is an approval
            approval, note = await self._ledger.request_approval(call, tool, verdict)
            if approval != "approved":
                timed_out = "Approval timed out; the call was not made. This is not a denial."
                denied = "The user denied this call. Do not repeat it unchanged."
                return await self._refuse(call, timed_out if approval == "timed_out" else denied, note, verdict)
        await self._order.wait(ordered, self._ledger.waiting())
        if (refused := await self._refuse_blocked(call)) is not None:  # an earlier call may have blocked it
            return refused
        await self._ledger.record_start(call, tool, verdict)
        try:
            result = await self._execute(tool, call)
        except ServerGone as error:  # the call had no effect, so it is not recorded as interrupted
            await self._ledger.record_end(call, ToolResult.error(f"The call was not made: {error.message}."))
            raise
        return await self._ledger.record_end(call, result)

    async def _refuse_blocked(self, call: ToolCall) -> ToolResult | None:
        if self._block_reason is None or (reason := self._block_reason(call)) is None:
            return None
        return await self._refuse(call, reason, None, Verdict(decision="refuse", reason=reason, rule=CLOSED))

    async def _resolve_interrupted(self, call: ToolCall, tool: Tool) -> ToolResult | None:
        """Return the result of an interrupted call, or None if the user says to repeat it."""
        choice, note = await self._ledger.ask_about_effect(call, tool)
        if choice == "again":
            return None
        suffix = f" Note: {note}" if note else ""
        if choice == "done":
            result = ToolResult.of(
                f"The call was interrupted before it returned. The user says that it took effect.{suffix}"
            )
        else:
            result = ToolResult.error(
                f"The call was interrupted. The user says to treat it as failed. Do not rely on its effect.{suffix}"
            )
        return await self._ledger.record_end(call, result)

    async def _refuse(
        self, call: ToolCall, message: str, note: str | None, verdict: Verdict | None = None
    ) -> ToolResult:
        result = ToolResult.error(f"{message} {note}" if note else message)
        verdict = verdict or Verdict(decision="refuse", reason=message)
        return await self._ledger.record_refusal(call, verdict, result)
