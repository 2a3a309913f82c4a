"""`guild replay` of a tree of runs: all of it again, and the run in which something is not as it was."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from tests.runs.execution.test_delegation import answer, run
from tests.runs.places import DONE, WRITE, journal, put_worker
from tests.runs.trees import ONE, TWO, call, calls, list_notes, put_answers, put_boss, put_tree

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import Guild


@pytest.fixture
def recorded(guild: Guild, project: Path) -> dict[str, Any]:
    """A tree of three runs on record, with an approval in each of those below."""
    put_tree(project, asking=True)
    waiting = run(guild, code=4)
    for ask in waiting["asks"]:
        done = answer(guild, ask["ask"], "yes")
    assert done.json["status"] == "completed"
    return done.json


def execute(home: Home, statement: str, *values: Any) -> None:
    with closing(sqlite3.connect(home.database, timeout=5, isolation_level=None)) as connection:
        connection.execute(statement, values)


def change(home: Home, run: str, kind: str, key: str | None, old: str, new: str) -> int:
    """Edits an entry of a journal; its step."""
    with closing(sqlite3.connect(home.database, timeout=5, isolation_level=None)) as connection:
        query = "SELECT seq, data FROM journal WHERE run = ? AND kind = ? AND (key = ? OR ? IS NULL) ORDER BY seq DESC"
        seq, data = connection.execute(query, (run, kind, key, key)).fetchone()
        assert old in data
        values = (data.replace(old, new), run, seq)
        connection.execute("UPDATE journal SET data = ? WHERE run = ? AND seq = ?", values)
    return seq


@pytest.mark.req("X-1")
def test_a_tree_is_the_same_and_touches_nothing(guild: Guild, project: Path, recorded: dict[str, Any]) -> None:
    entries = journal(guild, recorded["run"])
    for path in (project / "notes").glob("*"):
        path.unlink()
    (project / "answers.yaml").unlink()
    ran = guild("replay", recorded["run"])
    assert (ran.code, ran.out, ran.err) == (0, f"Replay matches the recording ({len(entries)} steps).\n", "")
    assert journal(guild, recorded["run"]) == entries
    assert list_notes(project) == []
    child = recorded["runs"][1]["run"]
    alone = guild("replay", child, "--json").json
    assert (alone["same"], alone["run"], alone["steps"]) == (True, child, len(journal(guild, child)))


@pytest.mark.req("X-1")
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"instructions": "Write it in ink."}, "+ Write it in ink."),
        ({"tools": ["Glob"]}, "the tools of the model"),
        ({"tool_rules": {"fs.write": {"allowed": False}}}, "now it is refused"),
        ({"tool_rules": None}, "needed approval; now it needs none"),
        ({"limits": {"max_turns": 3}}, "the worker's limits"),
    ],
)
def test_a_change_of_a_called_worker_is_named_with_its_run(
    guild: Guild, project: Path, recorded: dict[str, Any], fields: dict[str, Any], said: str
) -> None:
    put_worker(project, "hand", **fields)
    first = recorded["runs"][0]["run"]
    told = guild("replay", recorded["run"], "--json")
    assert (told.code, told.json["run"], told.json["same"]) == (1, first, False)
    assert said in told.json["difference"]
    shown = guild("replay", recorded["run"]).out
    assert shown.startswith(f"{first} differs at step {told.json['step']}.\n")


@pytest.mark.req("X-1")
def test_what_a_caller_is_told_of_those_it_may_call_is_a_part_of_it(
    guild: Guild, project: Path, recorded: dict[str, Any]
) -> None:
    put_worker(project, "hand", description="Writes in ink")
    told = guild("replay", recorded["run"], "--json").json
    assert (told["run"], told["step"]) == (recorded["run"], 0)
    assert "- hand: Writes in ink" in told["difference"]


@pytest.mark.req("X-1")
@pytest.mark.parametrize("gone", [["hand"], ["boss"], ["hand", "boss"]])
def test_workers_that_are_gone_are_replayed_as_they_were(guild: Guild, project: Path, gone: list[str]) -> None:
    put_boss(project)
    put_worker(project, "hand", tool_rules=None, description="Writes")
    put_answers(project, boss=[[calls(call("hand"), call("hand")), DONE]], hand=[ONE, TWO])
    done = run(guild)
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
        ("assembled", None, "Write what you are told.", "Write nothing."),
        ("ended", None, "one is written", "nothing is written"),
    ],
)
def test_a_changed_record_of_a_called_run_is_found(
    guild: Guild, home: Home, recorded: dict[str, Any], kind: str, key: str | None, old: str, new: str
) -> None:
    child = recorded["runs"][0]["run"]
    change(home, child, kind, key, old, new)
    told = guild("replay", recorded["run"], "--json")
    assert told.code == 1, told
    assert told.json["run"] == child or child in told.json["difference"]


@pytest.mark.req("X-1")
def test_a_record_that_is_changed_throughout_does_not_fit_the_caller_s(
    guild: Guild, home: Home, recorded: dict[str, Any]
) -> None:
    """The called run's answer and end agree with one another, but not with what its caller was told."""
    child = recorded["runs"][0]["run"]
    for kind, key in (("model_answered", "m2"), ("ended", None)):
        change(home, child, kind, key, "one is written", "nothing is written")
    assert guild("replay", child).code == 0
    told = guild("replay", recorded["run"], "--json").json
    assert (told["run"], told["same"]) == (recorded["run"], False)
    assert child in told["difference"]
    assert "+ nothing is written" in told["difference"]


def test_a_called_run_whose_record_is_cut_short_is_found(guild: Guild, home: Home, recorded: dict[str, Any]) -> None:
    child = recorded["runs"][0]["run"]
    execute(home, "DELETE FROM journal WHERE run = ? AND kind IN ('tool_ended', 'tool_started')", child)
    told = guild("replay", recorded["run"], "--json").json
    assert (told["run"], told["same"]) == (child, False)


@pytest.mark.req("X-1")
def test_a_tree_that_waits_or_has_failed_is_replayed_as_far_as_it_came(guild: Guild, project: Path) -> None:
    put_tree(project, asking=True)
    waiting = run(guild, code=4)
    assert guild("replay", waiting["run"]).code == 0
    put_answers(project, boss=[[call("hand"), {"fail": 400}]], hand=[[{**WRITE, "expect": "nothing"}]])
    failed = run(guild, code=1)
    assert guild("replay", failed["run"]).code == 0
    assert json.dumps(failed["runs"][0]["error"])
