"""The three together: private files, text from outside, a way out. Two are fine, the third is asked about."""

from __future__ import annotations

import pytest

from guildhall.policy.rules import Action, assess_risk, judge

READ, FETCH, WRITE = frozenset({"fs.read"}), frozenset({"net"}), frozenset({"fs.write"})
RECALL = frozenset({"memory.read"})


def asked(**tools: frozenset[str]) -> list[str]:
    return [rule.name for rule in assess_risk(tools, accepted=False).rules if rule.approval_required]


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
    assert assess_risk({"Read": READ, "WebFetch": FETCH}, accepted=True).rules == ()


def test_the_guard_is_a_rule_like_any_other() -> None:
    rules = assess_risk({"Read": READ, "WebFetch": FETCH}, accepted=False).rules
    assert judge(Action(tool="WebFetch", capabilities=FETCH), rules).decision == "ask"
    assert judge(Action(tool="WebFetch", capabilities=FETCH), rules, "strict").decision == "refuse"
    assert judge(Action(tool="Read", capabilities=READ), rules).decision == "allow"


def test_workers_that_call_each_other_count_as_one() -> None:
    for around, expected in ((READ, ["WebFetch"]), (WRITE, []), (FETCH, [])):
        rules = assess_risk({"WebFetch": FETCH}, accepted=False, others=around).rules
        assert [rule.name for rule in rules] == expected
    assert assess_risk({"Read": READ}, accepted=False, others=FETCH).rules == (), "the other one is asked about"
    assert assess_risk({"WebFetch": FETCH}, accepted=True, others=READ).rules == ()


@pytest.mark.parametrize(
    ("tools", "accepted", "said"),
    [
        ({"Read": READ}, False, "none (no network access)"),
        ({"WebFetch": FETCH}, False, "none (reads no private files)"),
        ({"Read": READ, "WebFetch": FETCH}, False, "asks before each call of WebFetch"),
        ({"Read": READ, "WebFetch": FETCH}, True, "accepted for WebFetch (accepts_risk: true)"),
    ],
)
def test_the_verdict_in_words(tools: dict[str, frozenset[str]], accepted: bool, said: str) -> None:
    risk = assess_risk(tools, accepted=accepted)
    assert said in risk.text
    assert risk.is_present is not risk.text.startswith("none")
    assert risk.as_dict()["together"] is risk.is_present
