"""Declaring is allowing, rules narrow, nothing loosens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildhall.policy.rules import CAPABILITIES, Action, Mode, Rule, Verdict, judge

TIGHTER = {"allow": 0, "ask": 1, "refuse": 2}
WRITE = Action(tool="Write", capabilities=frozenset({"fs.write"}))
NAMES = st.sampled_from([*CAPABILITIES, "Write", "Bash", "record_decision"])
RULES = st.builds(
    Rule,
    name=NAMES,
    allowed=st.booleans(),
    approval_required=st.booleans(),
    timeout=st.none() | st.floats(0.1, 1000),
)
ACTIONS = st.builds(
    Action,
    tool=st.sampled_from(["Write", "Bash", "record_decision"]),
    capabilities=st.frozensets(st.sampled_from([*CAPABILITIES])),
)
MODES: st.SearchStrategy[Mode] = st.sampled_from(["ask", "approve_all", "strict"])


def decided(*rules: Rule, mode: Mode = "ask", action: Action = WRITE) -> Verdict:
    return judge(action, rules, mode)


@pytest.mark.req("WKR-17")
@given(ACTIONS, MODES)
def test_what_is_declared_runs_without_asking(action: Action, mode: Mode) -> None:
    assert judge(action, (), mode).decision == "allow"


@pytest.mark.req("DO-6", "DO-13")
@pytest.mark.parametrize("name", ["fs.write", "Write"])
def test_a_rule_counts_by_capability_and_by_tool(name: str) -> None:
    assert decided(Rule(name=name, allowed=False)).decision == "refuse"
    asked = decided(Rule(name=name, approval_required=True, timeout=30))
    assert (asked.decision, asked.rule, asked.timeout) == ("ask", name, 30)
    assert name in asked.reason
    assert decided(Rule(name=name)).decision == "allow"


def test_a_rule_about_something_else_does_not_count() -> None:
    assert decided(Rule(name="net", allowed=False), Rule(name="Bash", approval_required=True)).decision == "allow"


@pytest.mark.req("DO-6")
def test_the_modes_settle_what_would_be_asked_and_nothing_else() -> None:
    ask, never = Rule(name="fs.write", approval_required=True), Rule(name="fs.write", allowed=False)
    assert decided(ask, mode="approve_all").decision == "allow"
    assert decided(ask, mode="strict").decision == "refuse"
    assert "--strict" in decided(ask, mode="strict").reason
    assert decided(never, mode="approve_all").decision == "refuse"
    assert decided(mode="strict").decision == "allow"


def test_the_shortest_patience_wins() -> None:
    rules = (
        Rule(name="fs.write", approval_required=True, timeout=60),
        Rule(name="Write", approval_required=True, timeout=5),
        Rule(name="Write", approval_required=True),
        Rule(name="Write", timeout=1),
    )
    assert decided(*rules).timeout == 5


@pytest.mark.req("DO-6")
@given(ACTIONS, st.lists(RULES, max_size=6), RULES, MODES, st.integers(0, 6))
def test_one_more_rule_never_loosens(action: Action, rules: list[Rule], more: Rule, mode: Mode, at: int) -> None:
    before = judge(action, rules, mode)
    after = judge(action, [*rules[:at], more, *rules[at:]], mode)
    assert TIGHTER[after.decision] >= TIGHTER[before.decision]
    if before.decision == after.decision == "ask" and before.timeout is not None:
        assert after.timeout is not None
        assert after.timeout <= before.timeout


@given(ACTIONS, st.lists(RULES, max_size=6), MODES, st.randoms())
def test_the_order_of_rules_does_not_matter(action: Action, rules: list[Rule], mode: Mode, random: object) -> None:
    shuffled = sorted(rules, key=lambda _: random.random())  # type: ignore[attr-defined]
    one, other = judge(action, rules, mode), judge(action, shuffled, mode)
    assert (one.decision, one.timeout) == (other.decision, other.timeout)


@given(ACTIONS, st.lists(RULES, max_size=6))
def test_refuse_beats_ask_beats_allow(action: Action, rules: list[Rule]) -> None:
    matching = [rule for rule in rules if rule.name == action.tool or rule.name in action.capabilities]
    expected = "allow"
    if any(rule.approval_required for rule in matching):
        expected = "ask"
    if any(not rule.allowed for rule in matching):
        expected = "refuse"
    assert judge(action, rules).decision == expected
