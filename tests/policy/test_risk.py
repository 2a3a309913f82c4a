"""The three together: private files, text from outside, a way out. Two are fine, the third is asked about."""

from __future__ import annotations

import pytest

from guildhall.policy.judge import judge
from guildhall.policy.model import Action
from guildhall.policy.risk import rules_against_risk

READ, FETCH, WRITE = frozenset({"fs.read"}), frozenset({"net"}), frozenset({"fs.write"})
RECALL = frozenset({"memory.read"})


def asked(**tools: frozenset[str]) -> list[str]:
    return [rule.name for rule in rules_against_risk(tools, accepted=False) if rule.approval_required]


def test_all_three_need_approval_for_the_way_out() -> None:
    assert asked(Read=READ, WebFetch=FETCH) == ["WebFetch"]
    assert asked(both=READ | FETCH) == ["both"]


@pytest.mark.parametrize(
    "tools",
    [
        {},
        {"Read": READ},
        {"WebFetch": FETCH},
        {"Write": WRITE, "WebFetch": FETCH},
        {"recall": RECALL, "WebFetch": FETCH},
    ],
)
def test_less_than_that_is_fine(tools: dict[str, frozenset[str]]) -> None:
    assert asked(**tools) == []


def test_a_worker_s_file_may_accept_it() -> None:
    assert rules_against_risk({"Read": READ, "WebFetch": FETCH}, accepted=True) == ()


def test_the_guard_is_a_rule_like_any_other() -> None:
    rules = rules_against_risk({"Read": READ, "WebFetch": FETCH}, accepted=False)
    assert judge(Action(tool="WebFetch", capabilities=FETCH), rules).decision == "ask"
    assert judge(Action(tool="WebFetch", capabilities=FETCH), rules, "strict").decision == "refuse"
    assert judge(Action(tool="Read", capabilities=READ), rules).decision == "allow"
