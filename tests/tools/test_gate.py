"""Gate: the order of the checks of a call, and the result of each outcome."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.policy.rules import ALIASES, Rule, Verdict
from guildhall.sandbox.view import View
from guildhall.tools.call_router import CallRouter, ToolEnvironment
from guildhall.tools.definition import tool
from guildhall.tools.gate import Gate
from guildhall.tools.model import Tool, ToolCall, ToolResult
from tests.tools.places import refuse_run_tool

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from guildhall.policy.rules import Mode
    from guildhall.tools.gate import Approval, EffectChoice


@tool(capabilities={"fs.write"}, runs_in="hall")
def keep(text: str, times: int = 1) -> str:
    """Keep a text."""
    return text * times


@tool(capabilities={"fs.write"}, repeatable=True, runs_in="hall")
def put(text: str) -> str:
    """Put a text where it belongs."""
    return text


class Ledger:
    """A ledger that records the events of the gate and gives fixed answers."""

    def __init__(
        self, approval: Approval = "approved", note: str | None = None, effect: EffectChoice = "again"
    ) -> None:
        self.events: list[tuple[str, Any]] = []
        self.done: dict[str, ToolResult] = {}
        self.interrupted: set[str] = set()
        self._approval: tuple[Approval, str | None] = (approval, note)
        self._effect: tuple[EffectChoice, str | None] = (effect, note)

    @property
    def order(self) -> list[str]:
        return [name for name, _ in self.events]

    def find_result(self, call: ToolCall) -> ToolResult | None:
        return self.done.get(call.key)

    def is_interrupted(self, call: ToolCall) -> bool:
        return call.key in self.interrupted

    def answer_calls(self, call: ToolCall) -> Sequence[ToolCall]:
        return ()

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def request_approval(self, call: ToolCall, tool: Tool, verdict: Verdict) -> tuple[Approval, str | None]:
        self.events.append(("approval", verdict))
        return self._approval

    async def ask_about_effect(self, call: ToolCall, tool: Tool) -> tuple[EffectChoice, str | None]:
        self.events.append(("effect", None))
        return self._effect

    async def record_refusal(self, call: ToolCall, verdict: Verdict, result: ToolResult) -> ToolResult:
        self.events.append(("refused", verdict))
        self.done[call.key] = result
        return result

    async def record_start(self, call: ToolCall, tool: Tool, verdict: Verdict) -> None:
        self.events.append(("started", verdict))

    async def record_end(self, call: ToolCall, result: ToolResult) -> ToolResult:
        self.events.append(("ended", result))
        self.done[call.key] = result
        return result


def call_tool(
    ledger: Ledger,
    name: str,
    arguments: dict[str, Any] | None,
    *,
    rules: tuple[Rule, ...] = (),
    mode: Mode = "ask",
) -> ToolResult:
    executor = CallRouter((keep, put), ToolEnvironment(view=View(cwd=Path.cwd())), refuse_run_tool)
    gate = Gate((keep, put), rules, mode, ledger, executor)
    return asyncio.run(gate.call(ToolCall(key="m1/c1", tool=name, arguments=arguments)))


ASK = Rule(name="fs.write", approval_required=True, timeout=9)
FORBID = Rule(name="fs.write", allowed=False)


@pytest.mark.req("WKR-17", "DO-6")
def test_a_declared_call_is_recorded_before_and_after_it_is_made() -> None:
    ledger = Ledger()
    result = call_tool(ledger, "keep", {"text": "ab", "times": 2})
    assert (result.text, result.is_error) == ("abab", False)
    assert ledger.order == ["started", "ended"]


@pytest.mark.req("DO-6")
@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("kepe", {}, "Unknown tool 'kepe'. Did you mean 'keep'?"),
        ("KEEP", {}, "Did you mean 'keep'?"),
        ("xyzzy", {}, "Known: keep, put."),
        ("", {}, "Unknown tool ''."),
        ("\ud800", {}, "Unknown tool"),
        ("keep", None, "The arguments are not a JSON object."),
        ("keep", {}, "text: this argument is required"),
        ("keep", {"text": 5}, "text:"),
        ("keep", {"text": "a", "time": 2}, "Did you mean 'times'?"),
        ("keep", {"text": "a", "times": "many"}, "times:"),
    ],
)
def test_an_invalid_call_is_refused_with_the_reason(name: str, arguments: dict[str, Any] | None, message: str) -> None:
    ledger = Ledger()
    result = call_tool(ledger, name, arguments, rules=(ASK,))
    assert result.is_error
    assert message in result.text
    assert ledger.order == ["refused"]


@pytest.mark.req("DO-6", "DO-13")
@pytest.mark.parametrize("rule", ["fs.write", "keep", ALIASES["sandbox.write"]])
def test_a_forbidden_call_is_not_made(rule: str) -> None:
    ledger = Ledger()
    result = call_tool(ledger, "keep", {"text": "a"}, rules=(Rule(name=rule, allowed=False),), mode="approve_all")
    assert result.is_error
    assert result.text == f"Not permitted: the worker's rule {rule!r} forbids it."
    assert ledger.order == ["refused"]


@pytest.mark.req("DO-6")
def test_a_rule_that_requires_approval_asks_before_the_call() -> None:
    ledger = Ledger()
    assert call_tool(ledger, "keep", {"text": "a"}, rules=(ASK,)).text == "a"
    assert ledger.order == ["approval", "started", "ended"]
    assert ledger.events[0][1].timeout == 9


@pytest.mark.req("X-5")
def test_a_timeout_is_not_reported_as_a_denial() -> None:
    denied = call_tool(Ledger("denied", "not that file"), "keep", {"text": "a"}, rules=(ASK,))
    late = call_tool(Ledger("timed_out"), "keep", {"text": "a"}, rules=(ASK,))
    assert denied.text == "The user denied this call. Do not repeat it unchanged. not that file"
    assert "Approval timed out" in late.text
    assert "not a denial" in late.text
    assert denied.is_error
    assert late.is_error


@pytest.mark.req("DO-6")
@pytest.mark.parametrize(("mode", "order"), [("approve_all", ["started", "ended"]), ("strict", ["refused"])])
def test_approve_all_and_strict_do_not_ask(mode: Mode, order: list[str]) -> None:
    ledger = Ledger()
    call_tool(ledger, "keep", {"text": "a"}, rules=(ASK,), mode=mode)
    assert ledger.order == order


def test_a_finished_call_is_not_made_again() -> None:
    ledger = Ledger()
    first = call_tool(ledger, "keep", {"text": "a"})
    assert call_tool(ledger, "keep", {"text": "a"}, rules=(FORBID,)) == first
    assert ledger.order == ["started", "ended"]


@pytest.mark.req("X-2")
@pytest.mark.parametrize(
    ("effect", "message", "order"),
    [
        ("done", "took effect", ["effect", "ended"]),
        ("fail", "treat it as failed", ["effect", "ended"]),
        ("again", "a", ["effect", "started", "ended"]),
    ],
)
def test_the_user_decides_about_an_interrupted_call(effect: EffectChoice, message: str, order: list[str]) -> None:
    ledger = Ledger(note="I looked", effect=effect)
    ledger.interrupted.add("m1/c1")
    result = call_tool(ledger, "keep", {"text": "a"}, rules=(ASK,))  # "again" is an approval: no second ask
    assert message in result.text
    assert ("I looked" in result.text) == (effect != "again")
    assert result.is_error == (effect == "fail")
    assert ledger.order == order


@pytest.mark.req("X-2")
def test_a_new_rule_does_not_apply_to_an_effect_that_may_have_happened() -> None:
    ledger = Ledger(effect="done")
    ledger.interrupted.add("m1/c1")
    assert "took effect" in call_tool(ledger, "keep", {"text": "a"}, rules=(FORBID,)).text
    ledger = Ledger(effect="again")
    ledger.interrupted.add("m1/c1")
    assert "Not permitted" in call_tool(ledger, "keep", {"text": "a"}, rules=(FORBID,)).text
    assert ledger.order == ["effect", "refused"]


def test_an_interrupted_repeatable_call_is_made_again() -> None:
    ledger = Ledger()
    ledger.interrupted.add("m1/c1")
    assert call_tool(ledger, "put", {"text": "a"}).text == "a"
    assert ledger.order == ["started", "ended"]
