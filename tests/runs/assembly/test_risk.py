"""The three together over a tree: what one worker has read, another that runs with it could carry out."""

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
    return {"call": "worker_call", "with": {"worker_name": worker, "input_data": "go"}}


def put_script(project: Path, **workers: list[dict[str, Any]]) -> None:
    script = {"workers": {name: [answers] for name, answers in workers.items()}}
    (project / "answers.yaml").write_text(json.dumps(script))
    (project / "guildhall.yaml").write_text("model: script:answers.yaml\n")


def asks(guild: Guild) -> list[str]:
    ran = guild("run", "boss", "go", "--output", "json")
    return [ask["title"] for ask in ran.json["asks"]]


@pytest.mark.parametrize("accepts", [False, True])
def test_a_worker_that_reaches_out_for_one_that_reads_asks(guild: Guild, project: Path, accepts: bool) -> None:
    put_worker(project, "boss", tool_rules=None, allow_workers=["messenger"])
    put_worker(project, "messenger", sandboxes=None, tool_rules=None, tools=["WebFetch"], accepts_risk=accepts)
    put_script(project, boss=[call("messenger"), DONE], messenger=[FETCH, DONE])
    assert asks(guild) == ([] if accepts else ["messenger wants to call WebFetch"])


def test_a_worker_that_reaches_out_and_calls_one_that_reads_asks(guild: Guild, project: Path) -> None:
    put_worker(project, "boss", sandboxes=None, tool_rules=None, tools=["WebFetch"], allow_workers=["reader"])
    put_worker(project, "reader", tool_rules=None)
    put_script(project, boss=[FETCH, DONE], reader=[DONE])
    assert asks(guild) == ["boss wants to call WebFetch"]


def test_two_that_are_called_by_the_same_one_count_together(guild: Guild, project: Path) -> None:
    put_worker(project, "boss", sandboxes=None, tool_rules=None, allow_workers=["reader", "messenger"])
    put_worker(project, "reader", tool_rules=None)
    put_worker(project, "messenger", sandboxes=None, tool_rules=None, tools=["WebFetch"])
    put_script(project, boss=[call("messenger"), DONE], messenger=[FETCH, DONE])
    assert asks(guild) == ["messenger wants to call WebFetch"]
    plan = guild("plan", "boss", "--json").json
    assert plan["risk_with_calls"]["guarded"] == ["WebFetch of messenger"]
    run = guild("ls", "--json").json["needs_you"]["asks"][0]["root"]
    assert guild("replay", run).code == 0


def test_nobody_who_reads_means_nobody_who_is_asked(guild: Guild, project: Path) -> None:
    put_worker(project, "boss", sandboxes=None, tool_rules=None, allow_workers=["messenger"])
    put_worker(project, "messenger", sandboxes=None, tool_rules=None, tools=["WebFetch"])
    put_script(project, boss=[call("messenger"), DONE], messenger=[FETCH, DONE])
    assert asks(guild) == []


def test_a_run_that_goes_on_still_asks(guild: Guild, project: Path) -> None:
    """The runs above are part of what is frozen: a resumed child is judged with them."""
    put_worker(project, "boss", tool_rules=None, allow_workers=["messenger"])
    put_worker(project, "messenger", sandboxes=None, tool_rules=None, tools=["WebFetch"])
    put_script(project, boss=[call("messenger"), DONE], messenger=[FETCH, FETCH, DONE])
    ran = guild("run", "boss", "go", "--output", "json")
    again = guild("answer", ran.json["asks"][0]["ask"], "no", "--output", "json")
    assert [ask["title"] for ask in again.json["asks"]] == ["messenger wants to call WebFetch"]
