"""`guild replay` of a tree: repeat all runs, and name the run that differs."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from tests.runs.execution.test_delegation import answer, run_boss
from tests.runs.places import DONE, WRITE, journal, put_worker
from tests.runs.trees import ONE, TWO, call, calls, list_notes, put_answers, put_boss, put_tree

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import Guild


@pytest.fixture
def recorded_tree(guild: Guild, project: Path) -> dict[str, Any]:
    """Tree of three recorded runs with an approval in each child run."""
    put_tree(project, asking=True)
    waiting = run_boss(guild, code=4)
    for ask in waiting["asks"]:
        done = answer(guild, ask["ask"], "yes")
    assert done.json["status"] == "completed"
    return done.json


def execute(home: Home, statement: str, *values: Any) -> None:
    with closing(sqlite3.connect(home.database, timeout=5, isolation_level=None)) as connection:
        connection.execute(statement, values)


def change_entry(home: Home, run: str, kind: str, key: str | None, old: str, new: str) -> int:
    """Edit an entry of a journal and return its step."""
    with closing(sqlite3.connect(home.database, timeout=5, isolation_level=None)) as connection:
        query = "SELECT seq, data FROM journal WHERE run = ? AND kind = ? AND (key = ? OR ? IS NULL) ORDER BY seq DESC"
        seq, data = connection.execute(query, (run, kind, key, key)).fetchone()
        assert old in data
        values = (data.replace(old, new), run, seq)
        connection.execute("UPDATE journal SET data = ? WHERE run = ? AND seq = ?", values)
    return seq


@pytest.mark.req("X-1")
def test_an_unchanged_tree_matches_and_nothing_is_written(
    guild: Guild, project: Path, recorded_tree: dict[str, Any]
) -> None:
    entries = journal(guild, recorded_tree["run"])
    for path in (project / "notes").glob("*"):
        path.unlink()
    (project / "answers.yaml").unlink()
    ran = guild("replay", recorded_tree["run"])
    assert (ran.code, ran.out, ran.err) == (0, f"Replay matches the recording ({len(entries)} steps).\n", "")
    assert journal(guild, recorded_tree["run"]) == entries
    assert list_notes(project) == []
    child = recorded_tree["runs"][1]["run"]
    alone = guild("replay", child, "--json").json
    assert (alone["same"], alone["run"], alone["steps"]) == (True, child, len(journal(guild, child)))


@pytest.mark.req("X-1")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"instructions": "Write it in ink."}, "+ Write it in ink."),
        ({"tools": ["Glob"]}, "the tools of the model"),
        ({"tool_rules": {"fs.write": {"allowed": False}}}, "the tools of the model"),
        ({"tool_rules": None}, "needed approval; now it needs none"),
        ({"limits": {"max_turns": 3}}, "the worker's limits"),
    ],
)
def test_a_change_of_a_called_worker_is_named_with_its_run(
    guild: Guild, project: Path, recorded_tree: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    put_worker(project, "hand", **fields)
    first = recorded_tree["runs"][0]["run"]
    result = guild("replay", recorded_tree["run"], "--json")
    assert (result.code, result.json["run"], result.json["same"]) == (1, first, False)
    assert message in result.json["difference"]
    shown = guild("replay", recorded_tree["run"]).out
    assert shown.startswith(f"{first} differs at step {result.json['step']}.\n")


@pytest.mark.req("X-1")
def test_a_changed_description_of_a_callee_is_a_difference_of_the_caller(
    guild: Guild, project: Path, recorded_tree: dict[str, Any]
) -> None:
    put_worker(project, "hand", description="Writes in ink")
    result = guild("replay", recorded_tree["run"], "--json").json
    assert (result["run"], result["step"]) == (recorded_tree["run"], 0)
    assert "- hand: Writes in ink" in result["difference"]


@pytest.mark.req("X-1")
@pytest.mark.parametrize("gone", [["hand"], ["boss"], ["hand", "boss"]])
def test_deleted_workers_are_replayed_from_the_journal(guild: Guild, project: Path, gone: list[str]) -> None:
    put_boss(project)
    put_worker(project, "hand", tool_rules=None, description="Writes")
    put_answers(project, boss=[[calls(call("hand"), call("hand")), DONE]], hand=[ONE, TWO])
    done = run_boss(guild)
    for name in gone:
        (project / "workers" / f"{name}.yaml").unlink()
    ran = guild("replay", done["run"])
    assert ran.code == 0, ran
    assert "no longer exists" in ran.err


@pytest.mark.req("X-1")
@pytest.mark.parametrize(
    ("kind", "key", "old", "new"),
    [
        ("model_answered", "m1", '"content": "one"', '"content": "tampered"'),
        ("model_answered", "m2", "one is written", "nothing is written"),
        ("tool_ended", "m1/call_0_0", "a.md", "c.md"),
        ("tool_started", "m1/call_0_0", "a.md", "c.md"),
        ("assembled", None, "Write the requested lines.", "Write nothing."),
        ("ended", None, "one is written", "nothing is written"),
    ],
)
def test_a_changed_journal_of_a_child_run_is_reported(
    guild: Guild, home: Home, recorded_tree: dict[str, Any], kind: str, key: str | None, old: str, new: str
) -> None:
    child = recorded_tree["runs"][0]["run"]
    change_entry(home, child, kind, key, old, new)
    result = guild("replay", recorded_tree["run"], "--json")
    assert result.code == 1, result
    assert result.json["run"] == child or child in result.json["difference"]


@pytest.mark.req("X-1")
def test_a_consistently_changed_child_run_differs_from_its_caller(
    guild: Guild, home: Home, recorded_tree: dict[str, Any]
) -> None:
    """Answer and end of the child run agree, but not with the result that its caller recorded."""
    child = recorded_tree["runs"][0]["run"]
    for kind, key in (("model_answered", "m2"), ("ended", None)):
        change_entry(home, child, kind, key, "one is written", "nothing is written")
    assert guild("replay", child).code == 0
    result = guild("replay", recorded_tree["run"], "--json").json
    assert (result["run"], result["same"]) == (recorded_tree["run"], False)
    assert child in result["difference"]
    assert "+ nothing is written" in result["difference"]


def test_missing_entries_of_a_child_run_are_reported(guild: Guild, home: Home, recorded_tree: dict[str, Any]) -> None:
    child = recorded_tree["runs"][0]["run"]
    execute(home, "DELETE FROM journal WHERE run = ? AND kind IN ('tool_ended', 'tool_started')", child)
    result = guild("replay", recorded_tree["run"], "--json").json
    assert (result["run"], result["same"]) == (child, False)


@pytest.mark.req("X-1")
def test_a_waiting_or_failed_tree_is_replayed_up_to_its_last_step(guild: Guild, project: Path) -> None:
    put_tree(project, asking=True)
    waiting = run_boss(guild, code=4)
    assert guild("replay", waiting["run"]).code == 0
    put_answers(project, boss=[[call("hand"), {"fail": 400}]], hand=[[{**WRITE, "expect": "nothing"}]])
    failed = run_boss(guild, code=1)
    assert guild("replay", failed["run"]).code == 0
    assert json.dumps(failed["runs"][0]["error"])
