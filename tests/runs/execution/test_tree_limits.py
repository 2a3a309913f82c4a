"""Budget, token and time limits of a tree: parallel calls never exceed them, one ask for all, and resume."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from guildhall.runs.execution.budget import BudgetLevel, InsufficientFunds, RunBudget
from guildhall.runs.limits import Spent
from guildhall.runs.model import Bounds
from tests.runs.execution.test_delegation import answer, run_boss, tool_results
from tests.runs.places import DONE, WRITE, journal, kinds, put_worker, wait_until
from tests.runs.test_asks import terminal as terminal
from tests.runs.test_limits import suggested_command, with_usage
from tests.runs.trees import Answers, call, calls, list_notes, put_answers, put_boss, put_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.places import Terminal
    from tests.conftest import Guild

CHILD_COUNT = 5
TURN_COST_USD = 0.0045  # a turn has 1,100 tokens
HAND: Answers = [
    with_usage({"call": "record_decision", "with": {"question": "q", "decision": "d", "reasoning": "r"}}),
    with_usage({"say": "handed"}),
]


@pytest.fixture
def parallel_project(project: Path) -> Path:
    """Project whose `boss` calls `hand` five times in parallel: twelve turns in all."""
    put_boss(project)
    put_worker(project, "hand", sandboxes=None, tool_rules=None)
    many = calls(*(call("hand", str(number)) for number in range(CHILD_COUNT)))
    put_answers(project, boss=[[with_usage(many), with_usage(DONE)]], hand=[HAND])
    return project


def read_spending(guild: Guild, root: str) -> tuple[float, int]:
    """Return the dollars and tokens of a tree from its journals."""
    answers = [entry["data"] for entry in journal(guild, root) if entry["kind"] == "model_answered"]
    return sum(one["cost_usd"] for one in answers), sum(sum(one["usage"].values()) for one in answers)


# Limits of the called worker


@pytest.mark.req("X-3", "WKR-19")
@pytest.mark.parametrize(
    ("limit", "where"),
    [({"max_turns": 1}, 1), ({"max_tokens": 1500}, 1), ({"max_budget_usd": 0.005}, 1), ({"timeout": "1s"}, 0)],
)
def test_a_limit_of_a_called_worker_ends_only_its_run(
    guild: Guild, project: Path, limit: dict[str, Any], where: int
) -> None:
    put_boss(project)
    put_worker(project, "hand", sandboxes=None, tool_rules=None, limits=limit)
    slow = [{**HAND[0], "sleep": 60 if "timeout" in limit else 0}, HAND[1]]
    put_answers(project, boss=[[with_usage(call("hand")), with_usage({"say": "without it"})]], hand=[slow])
    done = run_boss(guild)
    assert done["output"] == "without it"
    child = done["runs"][0]
    assert (child["status"], child["error"]["code"], child["error"]["limit"]) == (
        "failed",
        "limit_reached",
        next(iter(limit)),
    )
    assert child["error"]["hint"] == f"Raise limits.{next(iter(limit))} in the worker file."
    assert next(iter(limit)) in tool_results(guild, done["run"])
    assert kinds(journal(guild, child["run"])).count("model_answered") == where
    assert guild("replay", done["run"]).code == 0


# Limits of the root run


@pytest.mark.req("X-3", "WKR-19")
@pytest.mark.parametrize("limit", [{"max_budget_usd": 4.5 * TURN_COST_USD}, {"max_tokens": 6000}])
def test_a_limit_applies_to_the_whole_tree_and_resume_continues_the_child_runs(
    guild: Guild, parallel_project: Path, limit: dict[str, float]
) -> None:
    put_boss(parallel_project, limits=limit)
    name, most = next(iter(limit.items()))
    ran = guild("run", "boss", "go", "--output", "json")
    seen: list[str] = []
    for _ in range(6):
        if ran.code == 0:
            break
        assert (ran.code, ran.json["error"]["limit"]) == (5, name), ran
        assert ran.json["error"]["run"] == ran.json["run"]
        dollars, tokens = read_spending(guild, ran.json["run"])
        assert (dollars if name == "max_budget_usd" else tokens) <= most + 1e-9
        assert {one["status"] for one in ran.json["runs"]} <= {"completed", "failed", "paused"}
        seen = seen or [one["run"] for one in ran.json["runs"]]
        words = suggested_command(ran)
        most = float(words[-1])
        ran = guild(*words, "--output", "json")
    assert (ran.code, ran.json["output"]) == (0, "done"), ran
    assert [one["status"] for one in ran.json["runs"]] == ["completed"] * CHILD_COUNT
    assert [one["run"] for one in ran.json["runs"]][: len(seen)] == seen
    assert kinds(journal(guild, ran.json["run"])).count("model_answered") == 12
    assert guild("replay", ran.json["run"]).code == 0


@pytest.mark.req("X-3")
def test_a_raised_limit_must_exceed_the_usage_of_the_whole_tree(guild: Guild, parallel_project: Path) -> None:
    put_boss(parallel_project, limits={"max_budget_usd": 5.4 * TURN_COST_USD})
    ran = guild("run", "boss", "go", "--output", "json")
    assert ran.code == 5
    root, dollars = ran.json["run"], ran.json["cost_usd"]
    assert dollars > 2 * TURN_COST_USD
    for words in (
        ["--budget", str(dollars * 0.9)],
        ["--max-tokens", "2500"],
    ):  # more than boss has used without its child runs
        refused = guild("resume", root, *words)
        assert refused.code == 2
        assert "have already used" in refused.err
    assert guild("resume", root, "--budget", "1").code == 0


# Budget of the command


@pytest.mark.req("X-3")
@pytest.mark.parametrize("reply", ["yes", "0.5"])
def test_a_reached_budget_asks_once_and_the_answer_continues_all_runs(
    guild: Guild, parallel_project: Path, reply: str
) -> None:
    most = 5.4 * TURN_COST_USD
    waiting = run_boss(guild, "--budget", str(most), code=4)
    while waiting["status"] == "waiting":
        assert [(ask["kind"], ask["run"]) for ask in waiting["asks"]] == [("limit", waiting["run"])]
        assert waiting["cost_usd"] <= most + 1e-9
        most += most if reply == "yes" else float(reply)
        waiting = answer(guild, waiting["asks"][0]["ask"], reply).json
    assert waiting["status"] == "completed"
    assert [one["status"] for one in waiting["runs"]] == ["completed"] * CHILD_COUNT
    entries = journal(guild, waiting["run"])
    assert kinds(entries).count("model_answered") == 12
    assert kinds(entries).count("limit_asked") == (2 if reply == "yes" else 1)
    assert {entry["run"] for entry in entries if entry["kind"] == "limit_asked"} == {waiting["run"]}


@pytest.mark.req("X-3")
def test_the_answer_no_ends_the_tree_and_resume_with_more_budget_continues_it(
    guild: Guild, parallel_project: Path
) -> None:
    waiting = run_boss(guild, "--budget", str(5.4 * TURN_COST_USD), code=4)
    ended = answer(guild, waiting["asks"][0]["ask"], "no")
    assert ended.code == 5
    assert ended.json["error"]["message"].startswith("budget: ")
    assert guild("ls", "--json").json["needs_you"] == {"asks": [], "runs": []}
    shown = guild("show", ended.json["run"], "--json").json
    assert [ask["status"] for ask in shown["asks"]] == ["applied"]  # no second ask
    done = guild(*suggested_command(ended)[:-1], "1", "--output", "json")
    assert (done.code, done.json["output"]) == (0, "done"), done
    assert [one["run"] for one in done.json["runs"]] == [one["run"] for one in waiting["runs"]]
    assert kinds(journal(guild, done.json["run"])).count("model_answered") == 12
    assert guild("replay", done.json["run"]).code == 0


@pytest.mark.req("X-3")
def test_the_budget_applies_to_runs_of_every_depth(guild: Guild, project: Path) -> None:
    put_boss(project, "middle")
    put_worker(project, "middle", sandboxes=None, tool_rules=None, allow_workers=["hand"])
    put_worker(project, "hand", sandboxes=None, tool_rules=None)
    two = with_usage(calls(call("hand"), call("hand")))
    put_answers(
        project,
        boss=[[with_usage(calls(call("middle"), call("middle"))), with_usage(DONE)]],
        middle=[[two, with_usage(DONE)]],
        hand=[HAND],
    )
    most = 4.5 * TURN_COST_USD
    waiting = run_boss(guild, "--budget", str(most), code=4)
    for _ in range(4):
        if waiting["status"] != "waiting":
            break
        assert waiting["cost_usd"] <= most + 1e-9
        (ask,) = waiting["asks"]
        assert ask["run"] == waiting["run"]
        most *= 2
        waiting = answer(guild, ask["ask"], "yes").json
    assert (waiting["status"], len(waiting["runs"])) == ("completed", 6)
    assert kinds(journal(guild, waiting["run"])).count("model_answered") == 2 + 2 * 2 + 4 * 2
    assert guild("replay", waiting["run"]).code == 0


def test_a_limit_of_a_middle_run_ends_that_run_and_its_children(guild: Guild, project: Path) -> None:
    put_boss(project, "middle")
    put_worker(
        project,
        "middle",
        sandboxes=None,
        tool_rules=None,
        allow_workers=["hand"],
        limits={"max_budget_usd": 2.5 * TURN_COST_USD},
    )
    put_worker(project, "hand", sandboxes=None, tool_rules=None)
    put_answers(
        project,
        boss=[[with_usage(call("middle")), with_usage({"say": "without"})]],
        middle=[[with_usage(call("hand")), with_usage(DONE)]],
        hand=[HAND],
    )
    done = run_boss(guild)
    assert done["output"] == "without"
    middle, hand = done["runs"]
    assert (middle["status"], hand["status"]) == ("failed", "failed")
    assert middle["error"]["run"] == hand["error"]["run"] == middle["run"]
    assert "max_budget_usd" in tool_results(guild, done["run"])


def test_a_denied_budget_is_asked_for_once_at_a_terminal(
    terminal: Callable[..., Terminal], guild: Guild, parallel_project: Path
) -> None:
    person = terminal("run", "boss", "go", "--budget", str(5.4 * TURN_COST_USD))
    person.wait_for("may exceed boss's limit")
    person.wait_for("Allow more?")
    person.type("no\n")
    code, _ = person.wait_exit()
    assert code == 5
    assert person.output.count("Allow more?") == 1


def test_a_raised_budget_is_asked_for_once_at_a_terminal(
    terminal: Callable[..., Terminal], guild: Guild, parallel_project: Path
) -> None:
    person = terminal("run", "boss", "go", "--budget", str(5.4 * TURN_COST_USD))
    person.wait_for("Allow more?")
    person.type("1\n")
    assert person.wait_exit() == (0, "done\n")
    assert person.output.count("Allow more?") == 1


@pytest.mark.req("X-3")
@pytest.mark.parametrize("where", ["flag", "caller", "hand"])
def test_a_dollar_limit_refuses_a_called_model_without_a_price(
    guild: Guild, parallel_project: Path, where: str
) -> None:
    limit = {"max_budget_usd": 1}
    put_boss(parallel_project, limits=limit if where == "caller" else None)
    put_worker(
        parallel_project,
        "hand",
        sandboxes=None,
        tool_rules=None,
        model="script:free.yaml",
        limits=limit if where == "hand" else None,
    )
    (parallel_project / "free.yaml").write_text("workers: {hand: [[{say: free}]]}\nrepeat: true\n")
    done = run_boss(guild, *(["--budget", "1"] if where == "flag" else []))
    assert done["runs"] == []
    assert tool_results(guild, done["run"]).count("has no known price") == CHILD_COUNT
    put_boss(parallel_project)
    put_worker(parallel_project, "hand", sandboxes=None, tool_rules=None, model="script:free.yaml")
    free = run_boss(guild)
    assert [one["cost_usd"] for one in free["runs"]] == [None] * CHILD_COUNT
    assert free["cost_usd"] == pytest.approx(2 * TURN_COST_USD)


# Time


@pytest.mark.req("X-3")
def test_a_timeout_pauses_the_child_runs_and_resume_continues_them(guild: Guild, project: Path) -> None:
    put_tree(project, limits={"timeout": "3s"})
    both = calls(call("hand", "quick"), call("hand", "slow"))
    quick, slow = [{"say": "quick"}], [{"say": "slow", "sleep": 60}]
    put_answers(project, boss=[[both, DONE]], hand=[quick, slow])
    late = run_boss(guild, code=5)
    assert late["error"]["limit"] == "timeout"
    assert [one["status"] for one in late["runs"]] == ["completed", "paused"]
    put_answers(project, boss=[[both, DONE]], hand=[quick, [{"say": "slow"}]])
    done = guild("resume", late["run"], "--output", "json")
    assert (done.code, done.json["output"]) == (0, "done")
    assert [one["output"] for one in done.json["runs"]] == ["quick", "slow"]
    assert kinds(journal(guild, late["run"])).count("model_answered") == 4


def test_child_runs_start_no_call_after_the_timeout_of_their_parent(
    terminal: Callable[..., Terminal], guild: Guild, project: Path
) -> None:
    put_tree(project, limits={"timeout": "0.5s"})
    put_answers(project, boss=[[call("hand"), DONE]], hand=[[{**WRITE, "sleep": 1}, DONE]])
    person = terminal("run", "boss", "go")
    person.wait_for("Allow more?")
    root = guild("ls", "--json").json["working"][0]["run"]
    wait_until(lambda: kinds(journal(guild, root)).count("model_answered") == 2)  # the child run would write now
    person.type("no\n")
    assert person.wait_exit()[0] == 5
    assert list_notes(project) == []


# Budget arithmetic


def price(tokens: int) -> float:
    return 0.001 + tokens * 0.00001


def build_budgets(shape: list[int], dollars: list[float | None], tokens: list[int | None]) -> list[RunBudget]:
    """Build a tree of budgets. `shape` gives the parent of each as an index."""
    budgets: list[RunBudget] = []
    for number, above in enumerate(shape):
        bounds = Bounds(
            budget=dollars[number] if number == 0 else None, max_budget_usd=dollars[number], max_tokens=tokens[number]
        )
        budgets.append(RunBudget(f"r-{number}", bounds, Spent(), budgets[above % number] if number else None))
    return budgets


@given(
    shape=some.lists(some.integers(0, 7), min_size=1, max_size=6),
    seed=some.integers(0, 2**32),
    dollars=some.lists(some.one_of(some.none(), some.floats(0.002, 0.2)), min_size=6, max_size=6),
    tokens=some.lists(some.one_of(some.none(), some.integers(300, 20_000)), min_size=6, max_size=6),
)
@pytest.mark.req("X-3")
def test_no_order_of_calls_exceeds_a_limit(
    shape: list[int], seed: int, dollars: list[float | None], tokens: list[int | None]
) -> None:
    """Start, end, fail and interrupt calls of many runs in random order."""
    budgets = build_budgets(shape, dollars, tokens)
    levels: list[BudgetLevel] = [level for budget in budgets for level in (*budget.dollars.levels(), budget.tokens)]
    chance = random.Random(seed)
    under_way: dict[str, tuple[RunBudget, int, int]] = {}
    for number in range(60):
        if under_way and chance.random() < 0.4:
            key = chance.choice(list(under_way))
            run_budget, sent, most = under_way.pop(key)
            answered = chance.randint(0, most)
            if chance.random() < 0.1:
                run_budget.settle_all()
                under_way = {key: held for key, held in under_way.items() if held[0] is not run_budget}
            else:
                run_budget.settle(key, price(answered), chance.randint(0, sent) + answered)
        else:
            run_budget, sent, key = chance.choice(budgets), chance.randint(1, 400), f"m{number}"
            held = run_budget.reserve(key, sent, price, floor=64, ceiling=1000)
            if isinstance(held, InsufficientFunds):
                assert held.level.limit is not None
                assert held.needed > (held.level.remaining or 0.0) - 1e-9
            else:
                cost, most = held
                assert cost is not None
                under_way[key] = (run_budget, sent, 1000 if most is None else most)
        for level in levels:
            assert level.limit is None or level.spent + level.reserved <= level.limit + 1e-9, level
    for run_budget in budgets:
        run_budget.settle_all()
    assert all((level.reserved, level.open_call_count) == (0.0, 0) for level in levels)


@given(limit=some.floats(0.0017, 0.2), each=some.lists(some.integers(1, 1000), min_size=1, max_size=30))
def test_every_call_that_waits_for_budget_is_served_or_refused(limit: float, each: list[int]) -> None:
    """No parallel call waits forever."""

    async def make_call(run_budget: RunBudget, answered: int) -> bool:
        while isinstance(held := run_budget.reserve("m1", 10, price, floor=64, ceiling=1000), InsufficientFunds):
            if not await run_budget.wait_for_release(held):
                return False
        await asyncio.sleep(0)
        run_budget.settle("m1", price(min(answered, held[1] or 0)), answered)
        return True

    async def make_all_calls() -> tuple[RunBudget, list[bool]]:
        root = RunBudget("r-0", Bounds(budget=limit), Spent(), None)
        below = [RunBudget(f"r-{number}", Bounds(), Spent(), root) for number in range(1, len(each) + 1)]
        async with asyncio.timeout(5):
            return root, await asyncio.gather(*(make_call(*pair) for pair in zip(below, each, strict=True)))

    root, served = asyncio.run(make_all_calls())
    top = root.dollars.levels()[-1]
    assert top.spent <= limit + 1e-9
    assert any(served) or limit < price(64)
    assert (top.reserved, top.open_call_count) == (0.0, 0)
