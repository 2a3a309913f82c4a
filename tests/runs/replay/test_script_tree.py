"""`guild script` for a tree: answers of every worker by run, and the answers to asks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core import yaml
from guildhall.models.scripted.source import Script
from tests.runs.places import put_worker

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild


def write(name: str) -> dict[str, Any]:
    return {"call": "sandbox_write_text", "with": {"sandbox": "notes", "path": name, "content": name}}


def call_worker(worker: str, text: str) -> dict[str, Any]:
    return {"call": "worker_call", "with": {"worker": worker, "input_data": text}}


@pytest.fixture
def recorded_run(guild: Guild, project: Path) -> str:
    """Run that called `helper` twice and an unknown worker: one write was denied, one run failed."""
    put_worker(project, "boss", sandboxes=None, tool_rules=None, allow_workers=["helper"])
    put_worker(project, "helper")
    script = {
        "price": {"input": 3.0, "output": 15.0},
        "workers": {
            "boss": [
                [
                    {
                        "calls": [
                            call_worker("helper", "first"),
                            call_worker("helper", "second"),
                            call_worker("nobody", "x"),
                        ]
                    },
                    {"say": "done"},
                ]
            ],
            "helper": [[write("a.md"), {"say": "one"}], [write("b.md"), {"fail": 401}]],
        },
    }
    (project / "answers.yaml").write_text(json.dumps(script))
    (project / "guildhall.yaml").write_text("model: script:answers.yaml\n")
    waiting = guild("run", "boss", "go", "--output", "json").json
    below = [one["run"] for one in guild("show", waiting["run"], "--json").json["below"]]
    for one in sorted(waiting["asks"], key=lambda one: below.index(one["run"])):
        first = one["run"] == below[0]
        guild("answer", one["ask"], "no" if first else "yes", *(["--note", "not this"] if first else []))
    return waiting["run"]


@pytest.mark.req("X-17")
def test_a_tree_becomes_a_test_that_passes(guild: Guild, project: Path, recorded_run: str) -> None:
    path = project / "tests" / "tree.yaml"
    assert guild("script", recorded_run, "--out", path).code == 0
    script = yaml.validate(Script, yaml.read(path))
    assert script.test is not None
    assert [(reply.worker, reply.run, reply.answer, reply.note) for reply in script.test.answers] == [
        ("helper", 1, "no", "not this"),
        ("helper", 2, "yes", None),
    ]
    assert [run[0].sent for run in script.workers["helper"]] == ["first", "second"]
    for _ in range(2):
        tested = guild("test")
        assert tested.code == 0, tested.out
    put_worker(project, "helper", instructions="Do less.")
    changed = guild("test")
    assert changed.code == 1
    assert "helper: system prompt changed" in changed.out


@pytest.mark.req("X-17")
def test_a_child_run_can_be_exported_and_forked_alone(guild: Guild, project: Path, recorded_run: str) -> None:
    child = guild("show", recorded_run, "--json").json["below"][0]["run"]
    assert guild("script", child, "--out", "tests/child.yaml").code == 0
    tested = guild("test")
    assert tested.code == 0, tested.out
    forked = guild("fork", child, "--at", "0", "--output", "json")
    assert (forked.code, forked.json["status"]) == (4, "waiting")
    assert guild("show", forked.json["run"], "--json").json["parent"] is None
    again = guild("fork", recorded_run, "--at", "99999")
    assert again.code == 2
