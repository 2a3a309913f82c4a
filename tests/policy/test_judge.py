"""Decisions about tool calls: declared tools are allowed, and rules only restrict them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildhall.policy.rules import CAPABILITIES, Action, Mode, Rule, Verdict, judge

STRICTNESS = {"allow": 0, "ask": 1, "refuse": 2}
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


def decide(*rules: Rule, mode: Mode = "ask", action: Action = WRITE) -> Verdict:
    return judge(action, rules, mode)


@pytest.mark.req("WKR-17")
@given(ACTIONS, MODES)
def test_a_declared_tool_is_allowed_without_rules(action: Action, mode: Mode) -> None:
    assert judge(action, (), mode).decision == "allow"


@pytest.mark.req("DO-6", "DO-13")
@pytest.mark.parametrize("name", ["fs.write", "Write"])
def test_a_rule_applies_by_capability_and_by_tool(name: str) -> None:
    assert decide(Rule(name=name, allowed=False)).decision == "refuse"
    verdict = decide(Rule(name=name, approval_required=True, timeout=30))
    assert (verdict.decision, verdict.rule, verdict.timeout) == ("ask", name, 30)
    assert name in verdict.reason
    assert decide(Rule(name=name)).decision == "allow"


def test_a_rule_for_another_tool_does_not_apply() -> None:
    assert decide(Rule(name="net", allowed=False), Rule(name="Bash", approval_required=True)).decision == "allow"


@pytest.mark.req("DO-6")
def test_modes_change_only_decisions_that_would_ask() -> None:
    ask, forbid = Rule(name="fs.write", approval_required=True), Rule(name="fs.write", allowed=False)
    assert decide(ask, mode="approve_all").decision == "allow"
    assert decide(ask, mode="strict").decision == "refuse"
    assert "--strict" in decide(ask, mode="strict").reason
    assert decide(forbid, mode="approve_all").decision == "refuse"
    assert decide(mode="strict").decision == "allow"


def test_the_shortest_timeout_applies() -> None:
    rules = (
        Rule(name="fs.write", approval_required=True, timeout=60),
        Rule(name="Write", approval_required=True, timeout=5),
        Rule(name="Write", approval_required=True),
        Rule(name="Write", timeout=1),
    )
    assert decide(*rules).timeout == 5


@pytest.mark.req("DO-6")
@given(ACTIONS, st.lists(RULES, max_size=6), RULES, MODES, st.integers(0, 6))
def test_an_additional_rule_never_loosens_the_decision(
    action: Action, rules: list[Rule], more: Rule, mode: Mode, at: int
) -> None:
    before = judge(action, rules, mode)
    after = judge(action, [*rules[:at], more, *rules[at:]], mode)
    assert STRICTNESS[after.decision] >= STRICTNESS[before.decision]
    if before.decision == after.decision == "ask" and before.timeout is not None:
        assert after.timeout is not None
        assert after.timeout <= before.timeout


@given(ACTIONS, st.lists(RULES, max_size=6), MODES, st.randoms())
def test_the_order_of_rules_does_not_matter(action: Action, rules: list[Rule], mode: Mode, random: object) -> None:
    shuffled = sorted(rules, key=lambda _: random.random())  # type: ignore[attr-defined]
    one, other = judge(action, rules, mode), judge(action, shuffled, mode)
    assert (one.decision, one.timeout) == (other.decision, other.timeout)


@given(ACTIONS, st.lists(RULES, max_size=6))
def test_refuse_takes_precedence_over_ask_and_ask_over_allow(action: Action, rules: list[Rule]) -> None:
    matching = [rule for rule in rules if rule.name == action.tool or rule.name in action.capabilities]
    expected = "allow"
    if any(rule.approval_required for rule in matching):
        expected = "ask"
    if any(not rule.allowed for rule in matching):
        expected = "refuse"
    assert judge(action, rules).decision == expected
