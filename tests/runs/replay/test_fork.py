"""`guild fork`: continue from a recorded step, without repeating or paying anything twice."""

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


def put_other_model(project: Path, *answers: dict[str, Any], price: bool = True) -> str:
    """Write the script of a second model, and return its name."""
    script: dict[str, Any] = {"workers": {"*": [list(answers)]}}
    (project / "other.yaml").write_text(
        json.dumps({**script, **({"price": {"input": 1.0, "output": 1.0}} if price else {})})
    )
    return "script:other.yaml"


def find_steps(guild: Guild, run: str, kind: str) -> list[int]:
    return [entry["seq"] for entry in journal(guild, run) if entry["kind"] == kind]


@pytest.fixture
def finished_run(guild: Guild, project: Path) -> str:
    """Completed run that wrote a.md and b.md."""
    put_worker(project, tool_rules=None)
    put_script(project, {"calls": [WRITE, LIST]}, OTHER, DONE)
    return guild("run", "scribe", "go", "--output", "json").json["run"]


@pytest.mark.req("X-17")
def test_a_fork_continues_with_another_model_and_repeats_nothing(
    guild: Guild, project: Path, finished_run: str
) -> None:
    (project / "notes" / "a.md").unlink()
    (project / "notes" / "b.md").unlink()
    at = find_steps(guild, finished_run, "tool_ended")[1]
    model = put_other_model(project, {"say": "not asked"}, {"say": "otherwise"})
    forked = guild("fork", finished_run, "--at", str(at), "--model", model, "--output", "json")
    assert (forked.code, forked.json["output"]) == (0, "otherwise")
    assert f"Forked {finished_run} after entry {at} (tool_ended): " in forked.err
    assert not (project / "notes" / "a.md").exists()
    new = forked.json["run"]
    assert kinds(journal(guild, new))[at + 1 :] == ["resumed", "model_asked", "model_answered", "ended"]
    assert forked.json["usage"]["turns"] == 1
    assert guild("show", new, "--json").json["forked_from"] == {"run": finished_run, "at": at}
    assert f"{finished_run} after entry {at}" in guild("show", new).out
    assert guild("replay", new).code == 0
    assert guild("show", finished_run, "--json").json["output"] == "done"


def test_a_fork_does_not_pay_again_for_copied_answers(guild: Guild, project: Path, finished_run: str) -> None:
    before = guild("cost", "--json").json["total_usd"]
    model = put_other_model(project, DONE, DONE, {"say": "x", "usage": {"input": 1_000_000, "output": 0}})
    at = find_steps(guild, finished_run, "ended")[0]
    forked = guild("fork", finished_run, "--at", str(at), "--model", model, "--budget", "2", "--output", "json")
    assert forked.json["cost_usd"] == 1.0
    assert guild("cost", "--json").json["total_usd"] == pytest.approx(before + 1.0)


@pytest.mark.req("X-17")
def test_every_entry_can_be_forked(guild: Guild, project: Path, finished_run: str) -> None:
    entries = journal(guild, finished_run)
    points = {entry["seq"] for entry in entries if entry["kind"] in {"assembled", "tool_ended"}}
    # The other call of the same answer is still running there.
    inside = min(find_steps(guild, finished_run, "tool_ended"))
    points.discard(inside)
    for entry in entries:
        forked = guild("fork", finished_run, "--at", str(entry["seq"]), "--output", "json")
        assert (forked.code, forked.json["output"]) == (0, "done"), forked
        origin = guild("show", forked.json["run"], "--json").json["forked_from"]
        assert origin["at"] == max(point for point in points if point <= entry["seq"])
        assert guild("replay", forked.json["run"]).code == 0, guild("replay", forked.json["run"]).out


def test_a_fork_of_a_run_with_asks_asks_again(guild: Guild, project: Path) -> None:
    put_worker(project)
    put_script(project, WRITE, WRITE, DONE)
    _, run, ask = run_until_ask(guild)
    waits = guild("fork", run, "--at", str(find_steps(guild, run, "tool_asked")[0]), "--output", "json")
    assert (waits.code, waits.json["status"]) == (4, "waiting")  # the fork has its own ask
    assert waits.json["asks"][0]["ask"] != ask
    guild("answer", ask, "always")
    answered = find_steps(guild, run, "tool_ended")
    forked = guild("fork", run, "--at", str(answered[0]), "--output", "json")
    assert (forked.code, forked.json["status"]) == (4, "waiting")  # "always" applies to the other run
    assert guild("answer", forked.json["asks"][0]["ask"], "no", "--note", "once is enough").code == 0
    assert guild("replay", forked.json["run"]).code == 0
    last = guild("fork", run, "--at", str(answered[1]), "--output", "json")
    assert (last.code, last.json["output"]) == (0, "done")


def test_a_failed_run_can_be_forked(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None, limits={"max_turns": 1})
    put_script(project, WRITE, OTHER, DONE)
    run = guild("run", "scribe", "go", "--output", "json").json["run"]
    last = find_steps(guild, run, "ended")[0]
    forked = guild("fork", run, "--at", str(last), "--output", "json")
    assert (forked.code, forked.json["usage"]["turns"]) == (5, 1)  # the fork has its own turns
    assert guild("fork", run, "--at", str(last), "--max-turns", "3", "--output", "json").json["output"] == "done"
    put_script(project, WRITE, {"fail": 401})
    put_worker(project, tool_rules=None)
    run = guild("run", "scribe", "go", "--output", "json").json["run"]
    last = find_steps(guild, run, "ended")[0]
    forked = guild("fork", run, "--at", str(last), "--model", put_other_model(project, DONE, {"say": "saved"}))
    assert (forked.code, forked.out) == (0, "saved\n")


def test_a_fork_and_a_run_of_a_deleted_worker_can_be_forked(guild: Guild, project: Path, finished_run: str) -> None:
    at = find_steps(guild, finished_run, "tool_ended")[-1]
    (project / "workers" / "scribe.yaml").unlink()
    first = guild("fork", finished_run, "--at", str(at), "--output", "json").json["run"]
    second = guild("fork", first, "--at", "0", "--output", "json")
    assert (second.code, second.json["usage"]["turns"]) == (0, 3)
    script = guild("script", first)
    assert script.code == 0
    assert "say: done" in script.out


@pytest.mark.parametrize("at", ["-1", "x", "", "1.5", "9" * 400, "٣"])
def test_an_invalid_entry_number_is_rejected(guild: Guild, project: Path, at: str) -> None:
    refused = guild("fork", "r-2222222222", f"--at={at}")
    assert refused.code == 2
    assert "is not the number of an entry" in refused.err


def test_a_fork_with_an_unknown_entry_run_or_model_is_refused(guild: Guild, project: Path, finished_run: str) -> None:
    runs = guild("ls", "--all", "--json").json["done"]
    last = find_steps(guild, finished_run, "ended")[0]
    for words, code in (
        (["--at", str(last + 1)], 2),
        (["--at", "0", "--model", "nobody:knows"], 2),
        (["--at", "0", "--model", "script:nowhere.yaml"], 2),
        (["--at", "0", "--model", "anthropic:claude-sonnet-5-5"], 2),
    ):
        refused = guild("fork", finished_run, *words)
        assert refused.code == code, refused
        assert "Traceback" not in refused.err
    assert (
        f"invalid entry {last + 1}: {finished_run} has the entries 0 to {last}"
        in guild("fork", finished_run, "--at", str(last + 1)).err
    )
    assert guild("fork", "r-2222222222", "--at", "0").code == 3
    assert guild("fork", finished_run).code == 2
    assert guild("ls", "--all", "--json").json["done"] == runs


def test_a_fork_of_a_child_run_has_its_own_budget(guild: Guild, project: Path, home: Home, finished_run: str) -> None:
    with closing(sqlite3.connect(home.database)) as database, database:
        database.execute("UPDATE runs SET parent = 'r-3333333333', root = 'r-3333333333' WHERE id = ?", [finished_run])
        database.execute(
            "UPDATE journal SET data = json_set(data, '$.bounds.budget', json('null')) WHERE run = ? AND seq = 0",
            [finished_run],
        )
    forked = guild("fork", finished_run, "--at", "0", "--output", "json")
    assert (forked.code, forked.json["output"]) == (0, "done")
    assert "at most 5.00 USD" in forked.err
    assert journal(guild, forked.json["run"])[0]["data"]["bounds"]["budget"] == 5.0


def test_a_dollar_limit_refuses_a_fork_to_a_model_without_a_price(
    guild: Guild, project: Path, finished_run: str
) -> None:
    model = put_other_model(project, DONE, price=False)
    forked = guild("fork", finished_run, "--at", "0", "--model", model, "--output", "json")
    assert (forked.code, forked.json["cost_usd"]) == (0, None)
    put_worker(project, tool_rules=None, limits={"max_budget_usd": 1.0})
    limited = guild("run", "scribe", "go", "--output", "json").json["run"]
    refused = guild("fork", limited, "--at", "0", "--model", model)
    assert refused.code == 2
    assert "max_budget_usd cannot be enforced" in refused.err
