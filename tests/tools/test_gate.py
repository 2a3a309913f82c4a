"""The gate: every call meets it, in one order, and whatever happens is a result."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.policy.rules import ALIASES, Rule, Verdict
from guildhall.sandbox.view import View
from guildhall.tools.definition import tool
from guildhall.tools.executor import Executor, ToolEnvironment
from guildhall.tools.gate import Gate
from guildhall.tools.model import Tool, ToolCall, ToolResult
from tests.tools.places import by_no_run

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
    """Keeps what the gate tells, in order; says what it is given to say."""

    def __init__(self, said: Approval = "approved", note: str | None = None, doubt: EffectChoice = "again") -> None:
        self.told: list[tuple[str, Any]] = []
        self.done: dict[str, ToolResult] = {}
        self.cut_off: set[str] = set()
        self._said: tuple[Approval, str | None] = (said, note)
        self._doubt: tuple[EffectChoice, str | None] = (doubt, note)

    @property
    def order(self) -> list[str]:
        return [name for name, _ in self.told]

    def find_result(self, call: ToolCall) -> ToolResult | None:
        return self.done.get(call.key)

    def is_interrupted(self, call: ToolCall) -> bool:
        return call.key in self.cut_off

    def answer_calls(self, call: ToolCall) -> Sequence[ToolCall]:
        return ()

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def request_approval(self, call: ToolCall, tool: Tool, verdict: Verdict) -> tuple[Approval, str | None]:
        self.told.append(("approval", verdict))
        return self._said

    async def ask_about_effect(self, call: ToolCall, tool: Tool) -> tuple[EffectChoice, str | None]:
        self.told.append(("doubt", None))
        return self._doubt

    async def record_refusal(self, call: ToolCall, verdict: Verdict, result: ToolResult) -> None:
        self.told.append(("refused", verdict))
        self.done[call.key] = result

    async def record_start(self, call: ToolCall, tool: Tool, verdict: Verdict) -> None:
        self.told.append(("started", verdict))

    async def record_end(self, call: ToolCall, result: ToolResult) -> None:
        self.told.append(("ended", result))
        self.done[call.key] = result


def called(
    ledger: Ledger,
    name: str,
    arguments: dict[str, Any] | None,
    *,
    rules: tuple[Rule, ...] = (),
    mode: Mode = "ask",
) -> ToolResult:
    executor = Executor((keep, put), ToolEnvironment(view=View(cwd=Path.cwd())), by_no_run)
    gate = Gate((keep, put), rules, mode, ledger, executor)
    return asyncio.run(gate.call(ToolCall(key="m1/c1", tool=name, arguments=arguments)))


ASK = Rule(name="fs.write", approval_required=True, timeout=9)
NEVER = Rule(name="fs.write", allowed=False)


@pytest.mark.req("WKR-17", "DO-6")
def test_a_declared_call_is_announced_made_and_recorded() -> None:
    ledger = Ledger()
    result = called(ledger, "keep", {"text": "ab", "times": 2})
    assert (result.text, result.is_error) == ("abab", False)
    assert ledger.order == ["started", "ended"]


@pytest.mark.req("DO-6")
@pytest.mark.parametrize(
    ("name", "arguments", "said"),
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
def test_a_wrong_call_is_not_made_and_the_model_is_told_what_is_wrong(
    name: str, arguments: dict[str, Any] | None, said: str
) -> None:
    ledger = Ledger()
    result = called(ledger, name, arguments, rules=(ASK,))
    assert result.is_error
    assert said in result.text
    assert ledger.order == ["refused"]


@pytest.mark.req("DO-6", "DO-13")
@pytest.mark.parametrize("rule", ["fs.write", "keep", ALIASES["sandbox.write"]])
def test_what_a_rule_forbids_is_not_made(rule: str) -> None:
    ledger = Ledger()
    result = called(ledger, "keep", {"text": "a"}, rules=(Rule(name=rule, allowed=False),), mode="approve_all")
    assert result.is_error
    assert result.text == f"Not permitted: the worker's rule {rule!r} forbids it."
    assert ledger.order == ["refused"]


@pytest.mark.req("DO-6")
def test_what_a_rule_wants_approved_is_asked_first() -> None:
    ledger = Ledger()
    assert called(ledger, "keep", {"text": "a"}, rules=(ASK,)).text == "a"
    assert ledger.order == ["approval", "started", "ended"]
    assert ledger.told[0][1].timeout == 9


@pytest.mark.req("X-5")
def test_a_time_out_is_not_told_as_a_denial() -> None:
    denied = called(Ledger("denied", "not that file"), "keep", {"text": "a"}, rules=(ASK,))
    late = called(Ledger("timed_out"), "keep", {"text": "a"}, rules=(ASK,))
    assert denied.text == "The user denied this call. Do not repeat it unchanged. not that file"
    assert "Approval timed out" in late.text
    assert "not a denial" in late.text
    assert denied.is_error
    assert late.is_error


@pytest.mark.req("DO-6")
@pytest.mark.parametrize(("mode", "order"), [("approve_all", ["started", "ended"]), ("strict", ["refused"])])
def test_the_modes_ask_nobody(mode: Mode, order: list[str]) -> None:
    ledger = Ledger()
    called(ledger, "keep", {"text": "a"}, rules=(ASK,), mode=mode)
    assert ledger.order == order


def test_a_finished_call_is_not_made_again() -> None:
    ledger = Ledger()
    first = called(ledger, "keep", {"text": "a"})
    assert called(ledger, "keep", {"text": "a"}, rules=(NEVER,)) == first
    assert ledger.order == ["started", "ended"]


@pytest.mark.req("X-2")
@pytest.mark.parametrize(
    ("doubt", "said", "order"),
    [
        ("done", "took effect", ["doubt", "ended"]),
        ("fail", "treat it as failed", ["doubt", "ended"]),
        ("again", "a", ["doubt", "started", "ended"]),
    ],
)
def test_a_call_that_was_cut_off_is_settled_by_a_person(doubt: EffectChoice, said: str, order: list[str]) -> None:
    ledger = Ledger(note="I looked", doubt=doubt)
    ledger.cut_off.add("m1/c1")
    result = called(ledger, "keep", {"text": "a"}, rules=(ASK,))  # "again" is an approval: it is not asked twice
    assert said in result.text
    assert ("I looked" in result.text) == (doubt != "again")
    assert result.is_error == (doubt == "fail")
    assert ledger.order == order


@pytest.mark.req("X-2")
def test_a_rule_of_today_does_not_undo_what_may_have_happened() -> None:
    ledger = Ledger(doubt="done")
    ledger.cut_off.add("m1/c1")
    assert "took effect" in called(ledger, "keep", {"text": "a"}, rules=(NEVER,)).text
    ledger = Ledger(doubt="again")
    ledger.cut_off.add("m1/c1")
    assert "Not permitted" in called(ledger, "keep", {"text": "a"}, rules=(NEVER,)).text
    assert ledger.order == ["doubt", "refused"]


def test_a_repeatable_call_that_was_cut_off_is_made_again() -> None:
    ledger = Ledger()
    ledger.cut_off.add("m1/c1")
    assert called(ledger, "put", {"text": "a"}).text == "a"
    assert ledger.order == ["started", "ended"]
