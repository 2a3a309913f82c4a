"""`guild fork`: another way to go on from a recorded point, without doing or paying anything twice."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from tests.runs.places import DONE, OTHER, WRITE, journal, kinds, put_script, put_worker, run_until_ask

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import Guild

LIST = {"call": "sandbox_list", "with": {"sandbox": "notes"}}


def put_other(project: Path, *answers: dict[str, Any], price: bool = True) -> str:
    """Another model, by its name."""
    script: dict[str, Any] = {"workers": {"*": [list(answers)]}}
    (project / "other.yaml").write_text(
        json.dumps({**script, **({"price": {"input": 1.0, "output": 1.0}} if price else {})})
    )
    return "script:other.yaml"


def numbered(guild: Guild, run: str, kind: str) -> list[int]:
    return [entry["seq"] for entry in journal(guild, run) if entry["kind"] == kind]


@pytest.fixture
def finished(guild: Guild, project: Path) -> str:
    """A run that wrote a.md, then b.md, and was done."""
    put_worker(project, tool_rules=None)
    put_script(project, {"calls": [WRITE, LIST]}, OTHER, DONE)
    return guild("run", "scribe", "go", "--output", "json").json["run"]


@pytest.mark.req("X-17")
def test_a_fork_goes_on_differently_and_repeats_nothing(guild: Guild, project: Path, finished: str) -> None:
    (project / "notes" / "a.md").unlink()
    (project / "notes" / "b.md").unlink()
    at = numbered(guild, finished, "tool_ended")[1]
    model = put_other(project, {"say": "not asked"}, {"say": "otherwise"})
    forked = guild("fork", finished, "--at", str(at), "--model", model, "--output", "json")
    assert (forked.code, forked.json["output"]) == (0, "otherwise")
    assert f"Forked {finished} after entry {at} (tool_ended): " in forked.err
    assert not (project / "notes" / "a.md").exists()
    new = forked.json["run"]
    assert kinds(journal(guild, new))[at + 1 :] == ["resumed", "model_asked", "model_answered", "ended"]
    assert forked.json["usage"]["turns"] == 1
    assert guild("show", new, "--json").json["forked_from"] == {"run": finished, "at": at}
    assert f"{finished} after entry {at}" in guild("show", new).out
    assert guild("replay", new).code == 0
    assert guild("show", finished, "--json").json["output"] == "done"


def test_what_was_paid_is_not_paid_again(guild: Guild, project: Path, finished: str) -> None:
    before = guild("cost", "--json").json["total_usd"]
    model = put_other(project, DONE, DONE, {"say": "x", "usage": {"input": 1_000_000, "output": 0}})
    at = numbered(guild, finished, "ended")[0]
    forked = guild("fork", finished, "--at", str(at), "--model", model, "--budget", "2", "--output", "json")
    assert forked.json["cost_usd"] == 1.0
    assert guild("cost", "--json").json["total_usd"] == pytest.approx(before + 1.0)


@pytest.mark.req("X-17")
def test_every_entry_is_a_point_to_go_on_from(guild: Guild, project: Path, finished: str) -> None:
    entries = journal(guild, finished)
    points = {entry["seq"] for entry in entries if entry["kind"] in {"assembled", "tool_ended"}}
    inside = min(numbered(guild, finished, "tool_ended"))  # the other call of the same answer has not ended there
    points.discard(inside)
    for entry in entries:
        forked = guild("fork", finished, "--at", str(entry["seq"]), "--output", "json")
        assert (forked.code, forked.json["output"]) == (0, "done"), forked
        origin = guild("show", forked.json["run"], "--json").json["forked_from"]
        assert origin["at"] == max(point for point in points if point <= entry["seq"])
        assert guild("replay", forked.json["run"]).code == 0, guild("replay", forked.json["run"]).out


def test_a_fork_of_a_run_that_asked(guild: Guild, project: Path) -> None:
    put_worker(project)
    put_script(project, WRITE, WRITE, DONE)
    _, run, ask = run_until_ask(guild)
    waits = guild("fork", run, "--at", str(numbered(guild, run, "tool_asked")[0]), "--output", "json")
    assert (waits.code, waits.json["status"]) == (4, "waiting")  # it asks for itself
    assert waits.json["asks"][0]["ask"] != ask
    guild("answer", ask, "always")
    answered = numbered(guild, run, "tool_ended")
    forked = guild("fork", run, "--at", str(answered[0]), "--output", "json")
    assert (forked.code, forked.json["status"]) == (4, "waiting")  # "always" was said to the other run
    assert guild("answer", forked.json["asks"][0]["ask"], "no", "--note", "once is enough").code == 0
    assert guild("replay", forked.json["run"]).code == 0
    last = guild("fork", run, "--at", str(answered[1]), "--output", "json")
    assert (last.code, last.json["output"]) == (0, "done")


def test_a_fork_of_a_run_that_failed_or_was_stopped_by_a_limit(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None, limits={"max_turns": 1})
    put_script(project, WRITE, OTHER, DONE)
    run = guild("run", "scribe", "go", "--output", "json").json["run"]
    last = numbered(guild, run, "ended")[0]
    forked = guild("fork", run, "--at", str(last), "--output", "json")
    assert (forked.code, forked.json["usage"]["turns"]) == (5, 1)  # a turn of its own
    assert guild("fork", run, "--at", str(last), "--max-turns", "3", "--output", "json").json["output"] == "done"
    put_script(project, WRITE, {"fail": 401})
    put_worker(project, tool_rules=None)
    run = guild("run", "scribe", "go", "--output", "json").json["run"]
    last = numbered(guild, run, "ended")[0]
    forked = guild("fork", run, "--at", str(last), "--model", put_other(project, DONE, {"say": "saved"}))
    assert (forked.code, forked.out) == (0, "saved\n")


def test_a_fork_of_a_fork_and_of_a_worker_that_is_gone(guild: Guild, project: Path, finished: str) -> None:
    at = numbered(guild, finished, "tool_ended")[-1]
    (project / "workers" / "scribe.yaml").unlink()
    first = guild("fork", finished, "--at", str(at), "--output", "json").json["run"]
    second = guild("fork", first, "--at", "0", "--output", "json")
    assert (second.code, second.json["usage"]["turns"]) == (0, 3)
    script = guild("script", first)
    assert script.code == 0
    assert "say: done" in script.out


@pytest.mark.parametrize("at", ["-1", "x", "", "1.5", "9" * 400, "٣"])
def test_what_is_no_number_of_an_entry(guild: Guild, project: Path, at: str) -> None:
    refused = guild("fork", "r-2222222222", f"--at={at}")
    assert refused.code == 2
    assert "is not the number of an entry" in refused.err


def test_what_cannot_be_forked(guild: Guild, project: Path, finished: str) -> None:
    runs = guild("ls", "--all", "--json").json["done"]
    last = numbered(guild, finished, "ended")[0]
    for words, code in (
        (["--at", str(last + 1)], 2),
        (["--at", "0", "--model", "nobody:knows"], 2),
        (["--at", "0", "--model", "script:nowhere.yaml"], 2),
        (["--at", "0", "--model", "anthropic:claude-sonnet-5-5"], 2),
    ):
        refused = guild("fork", finished, *words)
        assert refused.code == code, refused
        assert "Traceback" not in refused.err
    assert f"has no entry {last + 1} (0 to {last})" in guild("fork", finished, "--at", str(last + 1)).err
    assert guild("fork", "r-2222222222", "--at", "0").code == 3
    assert guild("fork", finished).code == 2
    assert guild("ls", "--all", "--json").json["done"] == runs


def test_a_fork_of_a_run_that_was_called_has_a_budget_of_its_own(
    guild: Guild, project: Path, home: Home, finished: str
) -> None:
    with closing(sqlite3.connect(home.database)) as database, database:
        database.execute("UPDATE runs SET parent = 'r-3333333333', root = 'r-3333333333' WHERE id = ?", [finished])
        database.execute(
            "UPDATE journal SET data = json_set(data, '$.bounds.budget', json('null')) WHERE run = ? AND seq = 0",
            [finished],
        )
    forked = guild("fork", finished, "--at", "0", "--output", "json")
    assert (forked.code, forked.json["output"]) == (0, "done")
    assert "at most 5.00 USD" in forked.err
    assert journal(guild, forked.json["run"])[0]["data"]["bounds"]["budget"] == 5.0


def test_a_model_without_a_price(guild: Guild, project: Path, finished: str) -> None:
    model = put_other(project, DONE, price=False)
    forked = guild("fork", finished, "--at", "0", "--model", model, "--output", "json")
    assert (forked.code, forked.json["cost_usd"]) == (0, None)
    put_worker(project, tool_rules=None, limits={"max_budget_usd": 1.0})
    limited = guild("run", "scribe", "go", "--output", "json").json["run"]
    refused = guild("fork", limited, "--at", "0", "--model", model)
    assert refused.code == 2
    assert "max_budget_usd cannot be enforced" in refused.err
