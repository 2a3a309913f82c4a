"""Gate: checks, records and executes every tool call of a run.

declared? -> arguments valid? -> allowed? -> approved? -> record start -> execute -> record end

Does not store anything or ask the user. The caller passes in a `CallLedger`. The ledger of a live run writes the
journal and waits for the user. The ledger of a replay reads the journal and has no effects.

Invariant: a finished call is never executed again for its key. If a call was interrupted and is not repeatable, the
user decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from guildhall.core.errors import ServerGone
from guildhall.core.text import did_you_mean
from guildhall.policy.rules import Action, Mode, Rule, Verdict, judge
from guildhall.tools.definition import argument_problem
from guildhall.tools.model import Execute, Tool, ToolCall, ToolResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Approval = Literal["approved", "denied", "timed_out"]
CLOSED = "closed"  # the rule by which a call was refused that others keep closed for now
Doubt = Literal["done", "again", "fail"]


class CallLedger(Protocol):
    """What the gate needs to know and to record about the calls of one run."""

    def finished(self, call: ToolCall) -> ToolResult | None:
        """The result, if this very call has been finished before."""
        ...

    def interrupted(self, call: ToolCall) -> bool:
        """Whether the call was started and its end is not on record."""
        ...

    async def approval(self, call: ToolCall, tool: Tool, verdict: Verdict) -> tuple[Approval, str | None]:
        """The person's word on a call, with a note; waits for it."""
        ...

    async def doubt(self, call: ToolCall, tool: Tool) -> tuple[Doubt, str | None]:
        """What the person knows of a call that was caught between start and end; waits for it."""
        ...

    async def refused(self, call: ToolCall, verdict: Verdict, result: ToolResult) -> None: ...

    async def started(self, call: ToolCall, tool: Tool, verdict: Verdict) -> None: ...

    async def ended(self, call: ToolCall, result: ToolResult) -> None: ...


class Gate:
    """Lets the declared calls of one run through, as its rules say."""

    def __init__(
        self,
        tools: Iterable[Tool],
        rules: Iterable[Rule],
        mode: Mode,
        ledger: CallLedger,
        execute: Execute,
        *,
        closed: Callable[[ToolCall], str | None] | None = None,
    ) -> None:
        """`closed` says of a call why it is not to be made for now, whatever the rules say; None: it may be."""
        self._tools: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self._rules = tuple(rules)
        self._mode: Mode = mode
        self._ledger = ledger
        self._execute = execute
        self._closed = closed

    async def call(self, call: ToolCall) -> ToolResult:
        """The result of a call. The same call, by its key, is executed once however often it is made."""
        if (recorded := self._ledger.finished(call)) is not None:
            return recorded
        tool = self._tools.get(call.tool)
        if tool is None:
            return await self._refuse(call, f"There is no tool {call.tool!r}.", did_you_mean(call.tool, self._tools))
        if call.arguments is None:
            return await self._refuse(call, "The arguments are not a JSON object.", None)
        if problem := argument_problem(tool, call.arguments):
            return await self._refuse(call, problem, None)
        doubtful = self._ledger.interrupted(call) and not tool.repeatable
        if doubtful and (settled := await self._settle_doubt(call, tool)) is not None:
            return settled  # first of all: a rule of today does not undo what may have happened
        if self._closed is not None and (why := self._closed(call)) is not None:
            return await self._refuse(call, why, None, Verdict(decision="refuse", reason=why, rule=CLOSED))
        action = Action(tool=tool.name, capabilities=tool.capabilities_of(call.arguments), arguments=call.arguments)
        verdict = judge(action, self._rules, self._mode)
        if verdict.decision == "refuse":
            return await self._refuse(call, f"Not permitted: {verdict.reason}.", None, verdict)
        if verdict.decision == "ask" and not doubtful:  # whoever said "again" has approved it
            approval, note = await self._ledger.approval(call, tool, verdict)
            if approval != "approved":
                return await self._refuse(call, _not_approved(approval), note, verdict)
        await self._ledger.started(call, tool, verdict)
        try:
            result = await self._execute(tool, call)
        except ServerGone as error:  # nothing was done, and that is known: it ends the run, but leaves no doubt
            await self._ledger.ended(call, ToolResult.error(f"The call was not made: {error.message}."))
            raise
        await self._ledger.ended(call, result)
        return result

    async def _settle_doubt(self, call: ToolCall, tool: Tool) -> ToolResult | None:
        """The result of a call whose effect is unknown, or None when the person says to make it again."""
        choice, note = await self._ledger.doubt(call, tool)
        if choice == "again":
            return None
        suffix = f" They add: {note}" if note else ""
        if choice == "done":
            result = ToolResult.of(
                f"The call was interrupted before its result was seen. A person says that it took effect.{suffix}"
            )
        else:
            result = ToolResult.error(
                f"The call was interrupted. A person says to treat it as failed; do not rely on its effect.{suffix}"
            )
        await self._ledger.ended(call, result)
        return result

    async def _refuse(
        self, call: ToolCall, message: str, more: str | None, verdict: Verdict | None = None
    ) -> ToolResult:
        result = ToolResult.error(f"{message} {more}" if more else message)
        verdict = verdict or Verdict(decision="refuse", reason=message)
        await self._ledger.refused(call, verdict, result)
        return result


def _not_approved(approval: Approval) -> str:
    if approval == "timed_out":
        return "Nobody answered the request for approval in time, so the call was not made. This is not a refusal."
    return "A person refused this call."
