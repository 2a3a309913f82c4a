"""Limits end a run and name the command that goes on; the budget pauses and asks; a terminal is asked first."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.runs.execution.budget import BudgetLevel, affordable_tokens
from tests.runs.places import DONE, OTHER, WRITE, journal, kinds, put_script, put_worker
from tests.runs.test_asks import terminal as terminal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.places import Terminal
    from tests.conftest import Guild, Ran

DEAR = {"input": 3.0, "output": 1000.0}


def with_usage(answer: dict[str, Any], input: int = 1000, output: int = 100) -> dict[str, Any]:
    return {**answer, "usage": {"input": input, "output": output}}


def suggested(ran: Ran) -> list[str]:
    """The command that the error names."""
    found = re.search(r"^guild (resume r-\w{10}.*?)( (?:gives|grants).*)?$", ran.err, re.MULTILINE)
    assert found, ran.err
    return found[1].split()


@pytest.fixture
def free(project: Path) -> Path:
    """A project whose worker writes twice without asking."""
    put_worker(project, tool_rules=None)
    put_script(project, with_usage(WRITE), with_usage(OTHER), with_usage(DONE))
    return project


@pytest.mark.req("WKR-19", "X-3")
@pytest.mark.parametrize(
    "limit",
    [{"max_turns": 1}, {"max_tokens": 1500}, {"max_tokens": 1}, {"max_budget_usd": 0.004}, {"max_budget_usd": 1e-7}],
)
def test_a_limit_fails_the_run_and_the_command_it_names_goes_on(
    guild: Guild, free: Path, limit: dict[str, float]
) -> None:
    name = next(iter(limit))
    put_worker(free, tool_rules=None, limits=limit)
    ran = guild("run", "scribe", "go", "--output", "json")
    for _ in range(4):
        assert ran.code == 5, ran
        assert ran.json["status"] == "failed"
        assert ran.json["error"]["code"] == "limit_reached"
        assert ran.json["error"]["message"].startswith(f"{name}: ")
        ran = guild(*suggested(ran), "--output", "json")
        if ran.code == 0:
            break
    assert (ran.code, ran.json["output"]) == (0, "done")
    entries = journal(guild, ran.json["run"])
    assert len({entry["key"] for entry in entries if entry["kind"] == "model_answered"}) == 3
    assert kinds(entries).count("model_answered") == 3
    assert kinds(entries).count("tool_started") == 2


@pytest.mark.req("WKR-19")
def test_a_time_out_counts_running_time_and_goes_on_with_the_same_again(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None, limits={"timeout": "2s"})
    put_script(project, {"sleep": 60, "say": "too late"})
    ran = guild("run", "scribe", "go", "--output", "json")
    assert ran.code == 5
    assert ran.json["error"]["message"].startswith("timeout: ")
    put_script(project, DONE)
    again = guild(*suggested(ran))
    assert (again.code, again.out) == (0, "done\n")


def test_waiting_for_a_person_is_not_running(guild: Guild, project: Path) -> None:
    put_worker(project, limits={"timeout": "20s"})
    put_script(project, WRITE, DONE)
    ran = guild("run", "scribe", "go", "--output", "json")
    assert ran.code == 4
    assert guild("answer", ran.json["asks"][0]["ask"], "yes").code == 0


@pytest.mark.req("X-3")
def test_tokens_are_reserved_before_the_call(guild: Guild, free: Path) -> None:
    ran = guild("run", "scribe", "go", "--max-tokens", "5000", "--output", "json")
    assert ran.code == 0
    asked = [entry["data"]["max_tokens"] for entry in journal(guild, ran.json["run"]) if entry["kind"] == "model_asked"]
    assert asked == sorted(asked, reverse=True)
    assert all(0 < tokens < 5000 for tokens in asked)
    used = ran.json["usage"]
    assert used["input_tokens"] + used["output_tokens"] <= 5000


@pytest.mark.req("WKR-19")
def test_the_caller_overrides_the_worker(guild: Guild, free: Path) -> None:
    put_worker(free, tool_rules=None, limits={"max_turns": 1})
    assert guild("run", "scribe", "go", "--max-turns", "3").code == 0
    assert guild("run", "scribe", "go", "--max-turns", "2").code == 5


@pytest.mark.req("X-3")
@pytest.mark.parametrize(
    ("answer", "code"), [("yes", 0), ("5", 0), ("$0.5", 0), ("no", 5), ("0.000000000000000000001", 5)]
)
def test_the_budget_of_a_command_pauses_and_asks(guild: Guild, free: Path, answer: str, code: int) -> None:
    ran = guild("run", "scribe", "go", "--budget", "0.005", "--output", "json")
    assert ran.code == 4
    assert ran.json["status"] == "waiting"
    assert ran.json["cost_usd"] <= 0.005
    ask = ran.json["asks"][0]
    assert (ask["kind"], ask["choices"]) == ("limit", ["yes", "no", "amount"])
    for _ in range(4):
        ran = guild("answer", ask["ask"], answer, "--output", "json")
        if ran.code != 4:
            break
        ask = ran.json["asks"][0]
    assert ran.code == code, ran
    if code:
        assert ran.json["error"]["message"].startswith("budget: ")
        again = guild("resume", ran.json["run"], "--output", "json")
        assert again.code == 4  # whoever resumes it without more is asked once more
        assert again.json["asks"][0]["ask"] != ask["ask"]
        assert guild("answer", again.json["asks"][0]["ask"], "no").code == 5
        assert guild(*suggested(ran)[:-1], "1").code == 0


def test_the_budget_of_the_settings_holds_and_a_project_only_tightens_it(guild: Guild, free: Path) -> None:
    (free / "guildhall.yaml").write_text("model: script:answers.yaml\nbudget: 0.005\n")
    assert guild("run", "scribe", "go").code == 4
    assert guild("run", "scribe", "go", "--budget", "1").code == 0


@pytest.mark.req("X-3")
@pytest.mark.parametrize("where", ["flag", "file"])
def test_dollars_are_not_promised_for_a_model_without_a_price(guild: Guild, project: Path, where: str) -> None:
    put_worker(project, tool_rules=None, limits={"max_budget_usd": 1} if where == "file" else None)
    put_script(project, DONE, price=None)
    ran = guild("run", "scribe", "go", *(["--budget", "1"] if where == "flag" else []))
    assert ran.code == 2
    assert "has no known price" in ran.err
    assert "max_turns" in ran.err
    assert guild("ls", "--json", "--all").json["done"] == []


def test_without_a_dollar_limit_a_model_needs_no_price(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, DONE, price=None)
    ran = guild("run", "scribe", "go", "--output", "json")
    assert (ran.code, ran.json["cost_usd"]) == (0, None)
    assert "no known price" in ran.err


@pytest.mark.parametrize(("answer", "code"), [("yes", 0), ("1", 0), ("0.5", 0), ("no", 5)])
def test_at_a_terminal_a_limit_asks_first(
    terminal: Callable[..., Terminal], free: Path, answer: str, code: int
) -> None:
    person = terminal("run", "scribe", "go", "--max-turns", "2")
    person.wait_for("has reached its limit of 2 turns")
    person.wait_for("Allow more?")
    person.type(f"{answer}\n")
    assert person.wait_exit()[0] == code


def test_an_answer_that_comes_later_counts_without_a_terminal_too(
    terminal: Callable[..., Terminal], guild: Guild, free: Path
) -> None:
    person = terminal("run", "scribe", "go", "--max-turns", "2")
    person.wait_for("Allow more?")
    person.type("\x03")
    person.wait_exit()
    (ask,) = guild("ls", "--json").json["needs_you"]["asks"]
    guild("answer", ask["ask"], "yes")
    assert guild("resume", ask["run"]).code == 0


def test_at_a_terminal_time_asks_first(terminal: Callable[..., Terminal], project: Path) -> None:
    put_worker(project, tool_rules=None, limits={"timeout": "0.3s"})
    put_script(project, {"sleep": 0.5, **WRITE}, {"sleep": 0.2, "say": "done"})
    person = terminal("run", "scribe", "go")
    person.wait_for("has reached its limit of 0.3 seconds")
    person.wait_for("Allow more?")
    person.type("60\n")
    assert person.wait_exit() == (0, "done\n")


def test_at_a_terminal_no_more_time_ends_it(terminal: Callable[..., Terminal], project: Path) -> None:
    put_worker(project, tool_rules=None, limits={"timeout": "0.2s"})
    put_script(project, {"sleep": 0.5, **WRITE}, DONE)
    person = terminal("run", "scribe", "go")
    person.wait_for("Allow more?")
    person.type("no\n")
    assert person.wait_exit() == (5, "")
    assert not (project / "notes" / "a.md").exists()


@pytest.mark.req("X-3")
def test_dollars_are_a_tree() -> None:
    command = BudgetLevel(name="budget", owner="r-1", limit=1.0)
    run = BudgetLevel(name="max_budget_usd", owner="r-1", limit=0.4, parent=command)
    other = BudgetLevel(name="max_budget_usd", owner="r-2", parent=command)
    assert run.tightest() is run
    run.reserve(0.3)
    assert (run.left, command.left) == (pytest.approx(0.1), pytest.approx(0.7))
    run.settle(0.3, 0.2)
    other.settle(0.0, 0.7)
    assert command.left == pytest.approx(0.1)
    assert run.tightest() is command
    assert other.tightest() is command
    assert BudgetLevel(name="x", owner="r-1").tightest() is None
    assert other.left is None


def test_how_much_of_an_answer_the_rest_pays_for() -> None:
    assert affordable_tokens(1.0, lambda tokens: 0.1 + tokens * 0.001, 10_000) == 900
    assert affordable_tokens(100.0, lambda tokens: 0.1 + tokens * 0.001, 10_000) == 10_000
    assert affordable_tokens(0.05, lambda tokens: 0.1 + tokens * 0.001, 10_000) < 0
    assert affordable_tokens(0.05, lambda tokens: 0.1, 10_000) < 0
