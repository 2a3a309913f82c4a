"""Exfiltration check: a worker with private files and network access asks before its network calls."""

from __future__ import annotations

import pytest

from guildhall.policy.rules import Action, assess_risk, judge

READ, FETCH, WRITE = frozenset({"fs.read"}), frozenset({"net"}), frozenset({"fs.write"})
RECALL = frozenset({"memory.read"})


def tools_to_approve(**tools: frozenset[str]) -> list[str]:
    return [rule.name for rule in assess_risk(tools, accepted=False).rules if rule.approval_required]


def test_private_files_and_network_access_require_approval_of_network_calls() -> None:
    assert tools_to_approve(Read=READ, WebFetch=FETCH) == ["WebFetch"]
    assert tools_to_approve(both=READ | FETCH) == ["both"]


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
def test_other_combinations_need_no_approval(tools: dict[str, frozenset[str]]) -> None:
    assert tools_to_approve(**tools) == []


def test_a_worker_file_may_accept_the_risk() -> None:
    assert assess_risk({"Read": READ, "WebFetch": FETCH}, accepted=True).rules == ()


def test_the_check_adds_an_ordinary_rule() -> None:
    rules = assess_risk({"Read": READ, "WebFetch": FETCH}, accepted=False).rules
    assert judge(Action(tool="WebFetch", capabilities=FETCH), rules).decision == "ask"
    assert judge(Action(tool="WebFetch", capabilities=FETCH), rules, "strict").decision == "refuse"
    assert judge(Action(tool="Read", capabilities=READ), rules).decision == "allow"


def test_workers_that_call_each_other_are_checked_together() -> None:
    for around, expected in ((READ, ["WebFetch"]), (WRITE, []), (FETCH, [])):
        rules = assess_risk({"WebFetch": FETCH}, accepted=False, others=around).rules
        assert [rule.name for rule in rules] == expected
    assert assess_risk({"Read": READ}, accepted=False, others=FETCH).rules == (), "the worker with network access asks"
    assert assess_risk({"WebFetch": FETCH}, accepted=True, others=READ).rules == ()


@pytest.mark.parametrize(
    ("tools", "accepted", "expected"),
    [
        ({"Read": READ}, False, "none (no network access)"),
        ({"WebFetch": FETCH}, False, "none (reads no private files)"),
        ({"Read": READ, "WebFetch": FETCH}, False, "asks before each call of WebFetch"),
        ({"Read": READ, "WebFetch": FETCH}, True, "accepted for WebFetch (accepts_risk: true)"),
    ],
)
def test_the_risk_is_described_in_words(tools: dict[str, frozenset[str]], accepted: bool, expected: str) -> None:
    risk = assess_risk(tools, accepted=accepted)
    assert expected in risk.text
    assert risk.is_present is not risk.text.startswith("none")
    assert risk.as_dict()["together"] is risk.is_present
