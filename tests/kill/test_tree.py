"""Kills of a tree of runs at any point: nothing is lost, and nothing is done twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from guildhall.testing.scripted_server import ScriptedServer
from tests.kill.harness import DEEP, Driver, Record, ends, pair_sides
from tests.kill.tree import EFFECTS, SCRIPT, TreeHarness, UndisturbedTree, check_resumed_run, write_project

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.kill.harness import When

# The commits of an undisturbed tree: of `guild run` until both that were called wait for approval, of the last answer
# until its end. The first test holds them to what is really there.
RUN_COMMITS = 21
ANSWER_COMMITS = 24
RUN = ("run", "boss", "go", "--output", "json")


@pytest.fixture(scope="session")
def tree_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ScriptedServer]:
    script = tmp_path_factory.mktemp("tree-script") / "answers.yaml"
    script.write_text(SCRIPT)
    with ScriptedServer(script) as server:
        yield server


@pytest.fixture
def tree(project: Path, home: Home, driver: Driver, tree_server: ScriptedServer) -> Generator[TreeHarness]:
    write_project(project, home.path)
    yield TreeHarness(project=project, home=home.path, driver=driver, server=tree_server)
    driver.settle()


@pytest.fixture(scope="session")
def undisturbed_tree(
    tmp_path_factory: pytest.TempPathFactory, driver: Driver, tree_server: ScriptedServer
) -> UndisturbedTree:
    """Return the outcome of a tree that is not killed."""
    place = tmp_path_factory.mktemp("undisturbed-tree")
    (place / "project").mkdir()
    write_project(place / "project", place / "home")
    harness = TreeHarness(project=place / "project", home=place / "home", driver=driver, server=tree_server)
    return UndisturbedTree.of(harness)


def both_asked(tree: TreeHarness) -> tuple[str, str]:
    first, second = (ask["ask"] for ask in tree.start().json["asks"])
    return first, second


def test_the_sweep_goes_over_every_commit(undisturbed_tree: UndisturbedTree) -> None:
    assert (undisturbed_tree.run_commits, undisturbed_tree.answer_commits) == (RUN_COMMITS, ANSWER_COMMITS)
    assert undisturbed_tree.served.total() == 6


@pytest.mark.req("X-2", "DO-7")
@pytest.mark.parametrize(("number", "when"), ends(RUN_COMMITS))
def test_killed_at_a_commit_of_a_tree(
    tree: TreeHarness, undisturbed_tree: UndisturbedTree, number: int, when: When
) -> None:
    assert tree.guild_until(number, when, *RUN) is None
    check_resumed_run(tree, undisturbed_tree, Record.of(tree))


@pytest.mark.req("X-2", "DO-7")
@pytest.mark.parametrize(("number", "when"), ends(ANSWER_COMMITS))
def test_killed_at_a_commit_after_the_answers(
    tree: TreeHarness, undisturbed_tree: UndisturbedTree, number: int, when: When
) -> None:
    first, second = both_asked(tree)
    assert tree.guild("answer", first, "yes").code == 4
    assert tree.guild_until(number, when, "answer", second, "yes", "--output", "json") is None
    check_resumed_run(tree, undisturbed_tree, Record.of(tree))


@pytest.mark.req("X-2")
@pytest.mark.parametrize(("line", "when"), pair_sides("clerk one", "porter one"))
def test_killed_inside_a_tool_of_a_called_run(
    tree: TreeHarness, undisturbed_tree: UndisturbedTree, line: str, when: When
) -> None:
    tree.lay_hold(when, line)
    tree.guild_until_file(f"held-{when}-{line}", *RUN)
    tree.lift_holds()
    assert tree.book.count(line) == (when == "after")
    killed = Record.of(tree)
    assert killed.cut_off
    check_resumed_run(tree, undisturbed_tree, killed)


@pytest.mark.req("X-2")
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_inside_a_tool_that_was_approved(
    tree: TreeHarness, undisturbed_tree: UndisturbedTree, when: When
) -> None:
    first, second = both_asked(tree)
    tree.guild("answer", first, "yes")
    tree.lay_hold(when, "porter letter")
    tree.guild_until_file(f"held-{when}-porter letter", "answer", second, "yes")
    tree.lift_holds()
    killed = Record.of(tree)
    assert killed.cut_off
    check_resumed_run(tree, undisturbed_tree, killed)


@pytest.mark.req("X-2")
@pytest.mark.parametrize(("first", "second", "third"), [(7, 6, 9), (14, 9, 5)][: 2 if DEEP else 1])
def test_killed_three_times(
    tree: TreeHarness, undisturbed_tree: UndisturbedTree, first: int, second: int, third: int
) -> None:
    assert tree.guild_until(first, "before", *RUN) is None
    kills, run = [Record.of(tree)], tree.run_id()
    assert run is not None
    for number in (second, third):
        if tree.guild_until(number, "after", "resume", run, "--output", "json") is None:
            kills.append(Record.of(tree))
    check_resumed_run(tree, undisturbed_tree, *kills)


def test_a_lost_tree_can_be_stopped(tree: TreeHarness) -> None:
    assert tree.guild_until(9, "after", *RUN) is None
    run = tree.run_id()
    assert run is not None
    before = tree.book
    assert tree.guild("stop", run).code == 0
    assert set(tree.rows("SELECT DISTINCT status FROM runs")) <= {("cancelled",), ("completed",)}
    assert tree.guild("resume", run).code == 1
    assert tree.book == before
    assert set(before) <= set(EFFECTS)
    assert tree.is_complete()
