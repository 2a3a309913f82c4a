"""Exfiltration check over a tree: private files that one worker reads, another worker could send."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.runs.places import put_worker

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild

FETCH = {"call": "WebFetch", "with": {"url": "https://192.0.2.1/"}}
DONE = {"say": "done"}


def call(worker: str) -> dict[str, Any]:
    return {"call": "worker_call", "with": {"worker": worker, "input_data": "go"}}


def put_script(project: Path, **workers: list[dict[str, Any]]) -> None:
    script = {"workers": {name: [answers] for name, answers in workers.items()}}
    (project / "answers.yaml").write_text(json.dumps(script))
    (project / "guildhall.yaml").write_text("model: script:answers.yaml\n")


def run_and_list_asks(guild: Guild) -> list[str]:
    ran = guild("run", "boss", "go", "--output", "json")
    return [ask["title"] for ask in ran.json["asks"]]


@pytest.mark.parametrize("accepts", [False, True])
def test_a_networked_worker_asks_if_its_caller_reads_files(guild: Guild, project: Path, accepts: bool) -> None:
    put_worker(project, "boss", tool_rules=None, allow_workers=["messenger"])
    put_worker(project, "messenger", sandboxes=None, tool_rules=None, tools=["WebFetch"], accepts_risk=accepts)
    put_script(project, boss=[call("messenger"), DONE], messenger=[FETCH, DONE])
    assert run_and_list_asks(guild) == ([] if accepts else ["messenger wants to call WebFetch"])


def test_a_networked_worker_asks_if_it_calls_a_worker_that_reads_files(guild: Guild, project: Path) -> None:
    put_worker(project, "boss", sandboxes=None, tool_rules=None, tools=["WebFetch"], allow_workers=["reader"])
    put_worker(project, "reader", tool_rules=None)
    put_script(project, boss=[FETCH, DONE], reader=[DONE])
    assert run_and_list_asks(guild) == ["boss wants to call WebFetch"]


def test_two_workers_of_the_same_caller_are_checked_together(guild: Guild, project: Path) -> None:
    put_worker(project, "boss", sandboxes=None, tool_rules=None, allow_workers=["reader", "messenger"])
    put_worker(project, "reader", tool_rules=None)
    put_worker(project, "messenger", sandboxes=None, tool_rules=None, tools=["WebFetch"])
    put_script(project, boss=[call("messenger"), DONE], messenger=[FETCH, DONE])
    assert run_and_list_asks(guild) == ["messenger wants to call WebFetch"]
    plan = guild("plan", "boss", "--json").json
    assert plan["risk_with_calls"]["guarded"] == ["WebFetch of messenger"]
    run = guild("ls", "--json").json["needs_you"]["asks"][0]["root"]
    assert guild("replay", run).code == 0


def test_no_approval_is_required_if_no_worker_reads_files(guild: Guild, project: Path) -> None:
    put_worker(project, "boss", sandboxes=None, tool_rules=None, allow_workers=["messenger"])
    put_worker(project, "messenger", sandboxes=None, tool_rules=None, tools=["WebFetch"])
    put_script(project, boss=[call("messenger"), DONE], messenger=[FETCH, DONE])
    assert run_and_list_asks(guild) == []


def test_a_resumed_run_still_asks(guild: Guild, project: Path) -> None:
    """Resuming restores the parent runs, which the check includes."""
    put_worker(project, "boss", tool_rules=None, allow_workers=["messenger"])
    put_worker(project, "messenger", sandboxes=None, tool_rules=None, tools=["WebFetch"])
    put_script(project, boss=[call("messenger"), DONE], messenger=[FETCH, FETCH, DONE])
    ran = guild("run", "boss", "go", "--output", "json")
    again = guild("answer", ran.json["asks"][0]["ask"], "no", "--output", "json")
    assert [ask["title"] for ask in again.json["asks"]] == ["messenger wants to call WebFetch"]
