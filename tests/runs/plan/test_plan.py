"""Plans of workers in memory: no child process is started and nothing is written."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.config import Settings
from guildhall.core.errors import NotFound, ToolUnavailable
from guildhall.core.request_frame import Frame
from guildhall.hall.composition.hall import Hall
from guildhall.runs.assembly.callees import find_callees
from guildhall.runs.assembly.preflight import Problem
from guildhall.runs.model import RunRequest
from guildhall.runs.plan.planner import PlanContext, WorkerFacts, plan
from guildhall.tools.definition import tool
from tests.workers.conftest import make_worker

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.runs.plan.model import Plan
    from guildhall.workers.model import Worker


def make_plan(
    project: Path,
    home: Home,
    first: Worker,
    *others: Worker,
    facts: Mapping[str, WorkerFacts] | None = None,
    priced: bool = True,
    request: RunRequest | None = None,
) -> Plan:
    """Return the plan of an unsaved worker among unsaved workers."""
    by_name = {one.name: one for one in others}

    def find(name: str) -> Worker:
        if name not in by_name:
            raise NotFound(f"there is no worker {name!r}")
        return by_name[name]

    known = PlanContext(
        home=home,
        environ={},
        settings=Settings(model="openai:gpt-5"),
        find_worker=find,
        list_active_workers=lambda: list(others),
        find_facts=lambda one: (facts or {}).get(one.name, WorkerFacts()),
        has_price=lambda model: priced,
    )
    return plan(first, Frame(cwd=project, root=project, env={"PATH": "/usr/bin"}), known, request)


@tool(capabilities={"net"})
def send(to: str) -> str:
    """Send a letter."""
    return to


@pytest.mark.req("X-16")
def test_an_unsaved_worker_has_a_plan(project: Path, home: Home) -> None:
    found = make_plan(
        project, home, make_worker("new", tools=["Read"], sandboxes={"out": {"path": "./out", "mode": "rw"}})
    )
    assert found.place == "/guild/workers/new.yaml"
    assert found.line() == "model openai:gpt-5; reads ., ./out; writes ./out; at most 5.00 USD; 150 turns"
    assert found.text().startswith("worker        new (/guild/workers/new.yaml, active)\n")
    assert (found.env, found.max_cost_usd) == (("PATH",), 5.0)
    assert list(project.iterdir()) == []
    assert not home.path.exists()


def test_an_external_runtime_is_named_with_the_model(project: Path, home: Home) -> None:
    codex, other = make_worker(runtime="codex", allow_workers=["other"]), make_worker("other", runtime="codex")
    found = make_plan(project, home, codex, other)
    assert found.line().startswith("Codex CLI, model openai:gpt-5; may call other; ")
    assert "may call      other: Codex CLI, model openai:gpt-5; " in found.text()


def test_two_plans_of_the_same_worker_are_equal(project: Path, home: Home) -> None:
    first = make_worker(tools=["Bash"], allow_workers=["other"])
    other = make_worker("other", tools=["WebFetch"])
    one, two = (make_plan(project, home, first, other) for _ in range(2))
    assert one.text() == two.text()
    assert one.as_dict() == two.as_dict()


def test_workers_that_call_each_other_are_listed_once(project: Path, home: Home) -> None:
    circle = [make_worker(name, allow_workers=["a", "b", "c", name]) for name in ("a", "b", "c")]
    found = make_plan(project, home, circle[0], *circle)
    assert [called.name for called in found.calls] == ["b", "c"]
    assert "may call b, c" in found.line()


def test_many_workers_that_call_each_other_are_each_visited_once(project: Path, home: Home) -> None:
    crowd = [make_worker(f"w{number}", allow_workers="*") for number in range(60)]
    assert len(find_callees(crowd[0], lambda name: crowd[0], lambda: crowd)) == 59


@pytest.mark.parametrize("reads", ["caller", "callee", "sibling"])
def test_the_risk_combines_what_one_worker_reads_and_another_sends(project: Path, home: Home, reads: str) -> None:
    tools = {"caller": ["Read"] if reads == "caller" else [], "callee": ["WebFetch"], "sibling": ["Read"]}
    if reads == "callee":
        tools |= {"caller": ["WebFetch"], "callee": ["Read"]}
    first = make_worker("caller", tools=tools["caller"], allow_workers=["callee", "sibling"])
    others = [make_worker(name, tools=tools[name]) for name in ("callee", "sibling")]
    others = (
        others if reads == "sibling" else [others[0], replace(others[1], definition=make_worker("sibling").definition)]
    )
    found = make_plan(project, home, first, *others)
    outward = "caller" if reads == "callee" else "callee"
    assert found.risk.is_present is False
    assert found.risk_with_calls is not None
    assert found.risk_with_calls.guarded == (f"WebFetch of {outward}",)
    plans = [found, *(called.plan for called in found.calls if called.plan)]
    assert [tool.name for one in plans for tool in one.tools if tool.decision == "ask"] == ["WebFetch"]
    assert {"fs.read", "net"} <= found.reach


def test_the_plan_names_a_callee_that_accepts_the_risk(project: Path, home: Home) -> None:
    first = make_worker("caller", tools=["Read"], allow_workers=["callee"])
    found = make_plan(project, home, first, make_worker("callee", tools=["WebFetch"], accepts_risk=True))
    assert found.risk_with_calls is not None
    assert "accepted for WebFetch of callee" in found.risk_with_calls.text


@pytest.mark.parametrize(
    "rules", [{"fs.read": {"allowed": False}}, {"Read": {"allowed": False}}, {"fs.write": {"allowed": False}}]
)
def test_a_forbidden_tool_does_not_count_as_a_risk(project: Path, home: Home, rules: dict[str, Any]) -> None:
    """Otherwise the plan would report an accepted risk that does not exist."""
    reads = {"tools": ["Read"], "tool_rules": rules}
    counts = "fs.write" in rules
    boss = make_worker("boss", **reads, allow_workers=["fetcher"])
    below = make_plan(project, home, boss, make_worker("fetcher", tools=["WebFetch"]))
    above = make_plan(
        project, home, make_worker("boss", tools=["WebFetch"], allow_workers=["reader"]), make_worker("reader", **reads)
    )
    for found in (below, above):
        assert found.risk_with_calls is not None
        assert found.risk_with_calls.is_present is counts
        assert "accepted for" not in found.text()
        assert ("none (reads no private files)" in found.risk_with_calls.text) is not counts
    alone = make_plan(project, home, make_worker(tools=["Read", "WebFetch"], tool_rules=rules))
    assert alone.risk.is_present is counts
    assert [tool.decision for tool in alone.tools if tool.name == "WebFetch"] == ["ask" if counts else "allow"]


def test_a_worker_accepts_the_risk_only_for_itself(project: Path, home: Home) -> None:
    others = [make_worker("bold", tools=["WebFetch"], accepts_risk=True), make_worker("shy", tools=["WebFetch"])]
    found = make_plan(project, home, make_worker("boss", tools=["Read"], allow_workers=["bold", "shy"]), *others)
    assert found.risk_with_calls is not None
    assert "asks before each call of WebFetch of shy" in found.risk_with_calls.text
    assert "accepted for WebFetch of bold" in found.risk_with_calls.text


def test_a_called_worker_shares_the_budget_of_its_caller(project: Path, home: Home) -> None:
    boss = make_worker("boss", limits={"max_budget_usd": 0.5}, allow_workers=["hand", "poor"])
    poor = make_worker("poor", limits={"max_budget_usd": 0.1})
    found = make_plan(project, home, boss, make_worker("hand"), poor)
    assert found.max_cost_usd == 0.5
    assert [called.plan.max_cost_usd for called in found.calls if called.plan] == [None, 0.1]
    assert "hand: model openai:gpt-5; shares the parent's budget; 150 turns" in found.text()


@pytest.mark.parametrize(
    ("fields", "most"),
    [({}, None), ({"allow_workers": ["hand"]}, None), ({"tool_rules": {"worker.create": {"allowed": True}}}, 5.0)],
)
def test_a_worker_without_a_price_has_a_budget_only_for_workers_that_may_have_one(
    project: Path, home: Home, fields: dict[str, Any], most: float | None
) -> None:
    found = make_plan(project, home, make_worker(model="nobody:none", **fields), make_worker("hand"), priced=False)
    assert found.max_cost_usd == most
    assert "no known price" in found.line()
    assert ("USD" in found.line()) is (most is not None)


def test_plans_of_callees_inherit_model_mode_and_budget_of_the_request(project: Path, home: Home) -> None:
    boss = make_worker("boss", model="openai:gpt-5-mini", allow_workers=["hand"])
    hand = make_worker("hand", tools=["Read"], tool_rules={"Read": {"approval_required": True}})
    request = RunRequest(worker="boss", input="", override_model="openai:gpt-4o", mode="strict", budget=1.0)
    plans = [make_plan(project, home, boss, hand, request=one).calls[0].plan for one in (None, request)]
    assert [one.model for one in plans if one] == ["openai:gpt-5-mini", "openai:gpt-4o"]
    assert [one.tools[0].decision for one in plans if one] == ["ask", "refuse"]
    assert [one.max_cost_usd for one in plans if one] == [None, None]


def test_the_plan_contains_the_facts_of_the_toolboxes(project: Path, home: Home) -> None:
    first = make_worker(toolboxes=["mail", "desk"], tool_rules={"send": {"allowed": False}})
    odd = Problem("toolbox", ToolUnavailable("odd"))
    facts = WorkerFacts(toolboxes={"mail": [send]}, problems=(odd,))
    found = make_plan(project, home, first, facts={"w": facts})
    assert [(tool.name, tool.decision, tool.rule) for tool in found.tools] == [("send", "refuse", "send")]
    assert (found.unknown, found.problems) == (("desk",), (odd,))
    assert "forbidden: send" in found.text()
    assert "network       none" in found.text(), "a refused tool has no network access"


def test_the_plan_names_the_limits_of_the_worker(project: Path, home: Home) -> None:
    found = make_plan(project, home, make_worker(limits={"max_budget_usd": 1.5, "max_turns": 1, "max_tokens": 100}))
    assert "limits        at most 1.50 USD; 1 turn; 100 tokens; then fails" in found.text()


def test_quick_plan_executes_no_code(project: Path, home: Home) -> None:
    """Quick plans are shown before a created worker is saved, so they must not start a process."""
    home.toolboxes.mkdir(parents=True)
    (home.toolboxes / "mail.py").write_text("1 / 0\n")
    hall = Hall(home, environ={"OPENAI_API_KEY": "sk-x"})
    try:
        new, frame = make_worker(toolboxes=["mail"], model="openai:gpt-5"), Frame(cwd=project, root=project)
        found = asyncio.run(hall.workers.planner.quick_plan(new, frame))
        assert (found.unknown, found.problems) == (("mail",), ())
        assert "memory_write" in [tool.name for tool in found.tools]
        whole = asyncio.run(hall.workers.planner.plan(new, frame))
        assert "ZeroDivisionError" in whole.problems[0].text
    finally:
        hall.release()
