"""Limits: a reached limit fails the run and names the command that continues it. A budget or a terminal asks."""

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
    from tests.conftest import CommandResult, Guild


def with_usage(answer: dict[str, Any], input: int = 1000, output: int = 100) -> dict[str, Any]:
    return {**answer, "usage": {"input": input, "output": output}}


def suggested_command(ran: CommandResult) -> list[str]:
    """Return the command that the error suggests."""
    found = re.search(r"^(?:To grant the same time again: )?guild (resume r-\w{10}.*)$", ran.err, re.MULTILINE)
    assert found, ran.err
    return found[1].split()


@pytest.fixture
def free_project(project: Path) -> Path:
    """Project whose worker writes twice without asking."""
    put_worker(project, tool_rules=None)
    put_script(project, with_usage(WRITE), with_usage(OTHER), with_usage(DONE))
    return project


@pytest.mark.req("WKR-19", "X-3")
@pytest.mark.parametrize(
    "limit",
    [{"max_turns": 1}, {"max_tokens": 1500}, {"max_tokens": 1}, {"max_budget_usd": 0.004}, {"max_budget_usd": 1e-7}],
)
def test_a_reached_limit_fails_the_run_and_the_suggested_command_continues_it(
    guild: Guild, free_project: Path, limit: dict[str, float]
) -> None:
    name = next(iter(limit))
    put_worker(free_project, tool_rules=None, limits=limit)
    ran = guild("run", "scribe", "go", "--output", "json")
    for _ in range(4):
        assert ran.code == 5, ran
        assert ran.json["status"] == "failed"
        assert ran.json["error"]["code"] == "limit_reached"
        assert ran.json["error"]["message"].startswith(f"{name}: ")
        ran = guild(*suggested_command(ran), "--output", "json")
        if ran.code == 0:
            break
    assert (ran.code, ran.json["output"]) == (0, "done")
    entries = journal(guild, ran.json["run"])
    assert len({entry["key"] for entry in entries if entry["kind"] == "model_answered"}) == 3
    assert kinds(entries).count("model_answered") == 3
    assert kinds(entries).count("tool_started") == 2


@pytest.mark.req("WKR-19")
def test_a_timed_out_run_resumes_with_the_same_time_again(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None, limits={"timeout": "2s"})
    put_script(project, {"sleep": 60, "say": "too late"})
    ran = guild("run", "scribe", "go", "--output", "json")
    assert ran.code == 5
    assert ran.json["error"]["message"].startswith("timeout: ")
    details = guild("show", ran.json["run"], "--json").json
    assert details["reserved_usd"] > 0 == details["cost_usd"]  # the interrupted call counts with its reservation
    for command in ("show", "cost"):
        assert "tokens for interrupted model calls; they count against the limits" in guild(command, details["run"]).out
    put_script(project, DONE)
    again = guild(*suggested_command(ran))
    assert (again.code, again.out) == (0, "done\n")


def test_waiting_for_the_user_does_not_count_as_running_time(guild: Guild, project: Path) -> None:
    put_worker(project, limits={"timeout": "20s"})
    put_script(project, WRITE, DONE)
    ran = guild("run", "scribe", "go", "--output", "json")
    assert ran.code == 4
    assert guild("answer", ran.json["asks"][0]["ask"], "yes").code == 0


@pytest.mark.req("X-3")
def test_tokens_are_reserved_before_the_call(guild: Guild, free_project: Path) -> None:
    ran = guild("run", "scribe", "go", "--max-tokens", "5000", "--output", "json")
    assert ran.code == 0
    asked = [entry["data"]["max_tokens"] for entry in journal(guild, ran.json["run"]) if entry["kind"] == "model_asked"]
    assert asked == sorted(asked, reverse=True)
    assert all(0 < tokens < 5000 for tokens in asked)
    used = ran.json["usage"]
    assert used["input_tokens"] + used["output_tokens"] <= 5000


@pytest.mark.req("WKR-19")
def test_limits_of_the_command_override_those_of_the_worker(guild: Guild, free_project: Path) -> None:
    put_worker(free_project, tool_rules=None, limits={"max_turns": 1})
    assert guild("run", "scribe", "go", "--max-turns", "3").code == 0
    assert guild("run", "scribe", "go", "--max-turns", "2").code == 5


@pytest.mark.req("X-3")
@pytest.mark.parametrize(
    ("answer", "code"), [("yes", 0), ("5", 0), ("$0.5", 0), ("no", 5), ("0.000000000000000000001", 5)]
)
def test_a_reached_budget_of_a_command_asks(guild: Guild, free_project: Path, answer: str, code: int) -> None:
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
        assert again.code == 4  # resuming without more budget asks again
        assert again.json["asks"][0]["ask"] != ask["ask"]
        assert guild("answer", again.json["asks"][0]["ask"], "no").code == 5
        assert guild(*suggested_command(ran)[:-1], "1").code == 0


@pytest.mark.req("X-3")
def test_printed_limits_are_in_force_and_explain_the_reservation(guild: Guild, free_project: Path) -> None:
    ran = guild("run", "scribe", "go", "--budget", "0.000001")
    assert "at most 0.000001 USD" in ran.err
    assert "the next model call may exceed scribe's limit of 0.000001 USD (budget)" in ran.err
    ask = guild("ls", "asks", "--json").json["asks"][0]
    assert "is reserved first" in ask["body"]
    assert "Spent so far: 0.0000 USD" in ask["body"]
    answered = guild("answer", ask["ask"], "0.003")
    assert "at most 0.003001 USD" in answered.err
    resumed = guild("resume", ask["run"], "--budget", "0.25")
    assert "at most 0.25 USD" in resumed.err
    assert resumed.code == 0


@pytest.mark.req("X-3")
def test_a_raised_budget_withdraws_the_ask_about_the_old_budget(guild: Guild, free_project: Path) -> None:
    waiting = guild("run", "scribe", "go", "--budget", "0.000001", "--output", "json").json
    ask = waiting["asks"][0]["ask"]
    again = guild("resume", waiting["run"], "--budget", "0.000002", "--output", "json")
    assert again.code == 4
    (current,) = guild("ls", "asks", "--json").json["asks"]
    assert current["ask"] == again.json["asks"][0]["ask"] != ask
    stale = guild("answer", ask, "0.0000005")
    assert (stale.code, "withdrawn" in stale.err) == (1, True), stale
    assert "at most 0.25 USD" in guild("resume", waiting["run"], "--budget", "0.25").err
    assert guild("ls", "asks", "--json").json["asks"] == []


def test_workers_without_a_price_are_never_shown_with_a_budget(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None)
    put_worker(project, "boss", allow_workers=["scribe"], tool_rules=None)
    put_script(project, DONE, price=None)
    plan = guild("plan", "boss")
    assert "USD" not in plan.out
    assert plan.out.count("no known price") == 3  # the model, the called worker and the limits
    assert guild("plan", "boss", "--json").json["worst_case_usd"] is None
    (project / "team.yaml").write_text("agents: {ann: {worker: boss}}\nkickoff: '@ann go'\n")
    for words in (["boss", "go"], ["team.yaml"]):
        ran = guild("run", *words)
        assert ran.code == 0, ran.err
        assert "USD" not in ran.err
        assert "$" not in ran.out + ran.err
        run = guild("ls", "--all", "--json").json["done"][0]["run"]
        for command in (["ls", "--all"], ["show", run], ["wait", run], ["cost"], ["cost", run]):
            shown = guild(*command)
            assert (shown.code, "$" in shown.out + shown.err) == (0, False), shown
        assert guild("show", run, "--json").json["cost_usd"] is None
        assert guild("cost", run, "--json").json["total_usd"] is None
    put_script(project, DONE)
    assert "at most 5.00 USD" in guild("plan", "boss").out
    assert "at most 5.00 USD" in guild("run", "boss", "go").err
    assert "at most 5.00 USD for the workflow" in guild("run", "team.yaml", "--tag", "priced").err


def test_the_budget_of_the_settings_applies_unless_the_command_has_one(guild: Guild, free_project: Path) -> None:
    (free_project / "guildhall.yaml").write_text("model: script:answers.yaml\nbudget: 0.005\n")
    assert guild("run", "scribe", "go").code == 4
    assert guild("run", "scribe", "go", "--budget", "1").code == 0


@pytest.mark.req("X-3")
@pytest.mark.parametrize("where", ["flag", "file"])
def test_a_dollar_limit_refuses_a_model_without_a_price(guild: Guild, project: Path, where: str) -> None:
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
def test_a_reached_limit_asks_at_a_terminal(
    terminal: Callable[..., Terminal], free_project: Path, answer: str, code: int
) -> None:
    person = terminal("run", "scribe", "go", "--max-turns", "2")
    person.wait_for("has reached its limit of 2 turns")
    person.wait_for("Allow more?")
    person.type(f"{answer}\n")
    assert person.wait_exit()[0] == code


def test_a_limit_ask_of_a_terminal_can_be_answered_later(
    terminal: Callable[..., Terminal], guild: Guild, free_project: Path
) -> None:
    person = terminal("run", "scribe", "go", "--max-turns", "2")
    person.wait_for("Allow more?")
    person.type("\x03")
    person.wait_exit()
    (ask,) = guild("ls", "--json").json["needs_you"]["asks"]
    guild("answer", ask["ask"], "yes")
    assert guild("resume", ask["run"]).code == 0


def test_a_reached_timeout_asks_at_a_terminal(terminal: Callable[..., Terminal], project: Path) -> None:
    put_worker(project, tool_rules=None, limits={"timeout": "0.3s"})
    put_script(project, {"sleep": 0.5, **WRITE}, {"sleep": 0.2, "say": "done"})
    person = terminal("run", "scribe", "go")
    person.wait_for("has reached its limit of 0.3 seconds")
    person.wait_for("Allow more?")
    person.type("60\n")
    assert person.wait_exit() == (0, "done\n")


def test_a_denied_timeout_ends_the_run(terminal: Callable[..., Terminal], project: Path) -> None:
    put_worker(project, tool_rules=None, limits={"timeout": "0.2s"})
    put_script(project, {"sleep": 0.5, **WRITE}, DONE)
    person = terminal("run", "scribe", "go")
    person.wait_for("Allow more?")
    person.type("no\n")
    assert person.wait_exit() == (5, "")
    assert not (project / "notes" / "a.md").exists()


@pytest.mark.req("X-3")
def test_budget_levels_form_a_tree() -> None:
    command = BudgetLevel(name="budget", owner="r-1", limit=1.0)
    run = BudgetLevel(name="max_budget_usd", owner="r-1", limit=0.4, parent=command)
    other = BudgetLevel(name="max_budget_usd", owner="r-2", parent=command)
    assert run.tightest() is run
    run.reserve(0.3)
    assert (run.remaining, command.remaining) == (pytest.approx(0.1), pytest.approx(0.7))
    run.settle(0.3, 0.2)
    other.settle(0.0, 0.7)
    assert command.remaining == pytest.approx(0.1)
    assert run.tightest() is command
    assert other.tightest() is command
    assert BudgetLevel(name="x", owner="r-1").tightest() is None
    assert other.remaining is None


def test_affordable_tokens_fit_into_the_remaining_budget() -> None:
    assert affordable_tokens(1.0, lambda tokens: 0.1 + tokens * 0.001, 10_000) == 900
    assert affordable_tokens(100.0, lambda tokens: 0.1 + tokens * 0.001, 10_000) == 10_000
    assert affordable_tokens(0.05, lambda tokens: 0.1 + tokens * 0.001, 10_000) < 0
    assert affordable_tokens(0.05, lambda tokens: 0.1, 10_000) < 0
