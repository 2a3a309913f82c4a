"""Crashes of a workflow: the hall is killed at any point, and the resulting room is that of an undisturbed workflow."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kill.harness import DEEP
from tests.kill.team import RUN, SCRIPT, TeamHarness

if TYPE_CHECKING:
    from collections.abc import Generator

    from guildhall.core.paths import Home
    from tests.conftest import GuildWithHall
    from tests.kill.harness import Driver, When

# The commits of the commands of an undisturbed workflow: until it waits for the person, and after each answer. The
# first test holds them to what is really there.
COMMITS = {"sqlite": (37, 66), "memory": (39, 72), "talk": (58, 37, 9)}
# The usual suite takes a few of the points, to keep its time. 57: between two calls of a response, after a final call.
FEW = {"sqlite": ((12, 46), (57, 75)), "file": ((31,), (110,)), "memory": ((57,), ()), "talk": ((39, 100), (21,))}
SIDES: tuple[When, ...] = ("before", "after")

End = dict[str, Any]
Undisturbed = Callable[[str], tuple[list[int], End]]


def points(command: int) -> list[tuple[str, int, When]]:
    """Return the points at which each kind of team is killed."""
    found: list[tuple[str, int, When]] = []
    for kind, few in FEW.items():
        commits = COMMITS.get(kind, COMMITS["sqlite"])[command]
        every: list[tuple[str, int, When]] = [(kind, n, when) for n in range(1, commits + 1) for when in SIDES]
        found += every if DEEP else [every[place] for place in few[command]]
    return found


def write_project(harness: TeamHarness, kind: str) -> TeamHarness:
    return harness.lay_out_talk() if kind == "talk" else harness.write_project(provider=kind)


@pytest.fixture
def team(project: Path, home: Home, driver: Driver) -> Generator[TeamHarness]:
    yield TeamHarness(project=project, home=home.path, driver=driver)
    driver.settle()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, driver: Driver) -> Undisturbed:
    """Return the outcome of a team that is not killed, and the commits of each command."""
    found: dict[str, tuple[list[int], End]] = {}

    def of(kind: str) -> tuple[list[int], End]:
        if kind not in found:
            place = tmp_path_factory.mktemp(kind)
            (place / "project").mkdir()
            harness = write_project(TeamHarness(project=place / "project", home=place / "home", driver=driver), kind)
            ended = harness.start()
            commits = [ended.commits]
            while ended.code == 4:
                ended = harness.answer(ended.json["asks"][0])
                commits.append(ended.commits)
            assert ended.code == 0, ended
            found[kind] = commits, harness.end()
        return found[kind]

    return of


def check_resumed_run(team: TeamHarness, end: End) -> None:
    """Lets the killed workflow go on to its end, and asks the witnesses."""
    team.resume()
    assert team.is_complete()
    came = team.end()
    for what, was in end.items():
        assert came[what] == was, what


@pytest.mark.parametrize("kind", ["sqlite", "talk"])
def test_the_sweep_goes_over_every_commit(undisturbed: Undisturbed, kind: str) -> None:
    commits, end = undisturbed(kind)
    assert tuple(commits) == COMMITS[kind]
    assert end["workflow"] == [("team", 1, "done")]
    assert {status for _, status, _ in end["agents"]} == {"idle"}


@pytest.mark.req("X-2", "AW-14")
@pytest.mark.parametrize(("kind", "number", "when"), points(0))
def test_killed_at_a_commit(team: TeamHarness, undisturbed: Undisturbed, kind: str, number: int, when: When) -> None:
    """Check every provider. The talking team elects first and reaches a loop that the user is asked about."""
    assert write_project(team, kind).kill_at(number, when, *RUN)
    check_resumed_run(team, undisturbed(kind)[1])


@pytest.mark.req("X-2")
@pytest.mark.parametrize(("kind", "number", "when"), points(1))
def test_killed_at_a_commit_after_an_answer(
    team: TeamHarness, undisturbed: Undisturbed, kind: str, number: int, when: When
) -> None:
    """Check that the answer to an approval or a loop is applied once."""
    ask = write_project(team, kind).start().json["asks"][0]
    assert team.kill_at(number, when, "answer", ask["ask"], team.choice(ask), "--output", "json")
    check_resumed_run(team, undisturbed(kind)[1])


@pytest.mark.req("X-2")
@pytest.mark.parametrize("kills", [(30, 9, 21), (9, 30, 14)][: 2 if DEEP else 1])
def test_killed_again_and_again(team: TeamHarness, undisturbed: Undisturbed, kills: tuple[int, ...]) -> None:
    assert write_project(team, "sqlite").kill_at(kills[0], "after", *RUN)
    run = team.rows("SELECT id FROM runs WHERE parent IS NULL")[0][0]
    for number in kills[1:]:
        team.kill_at(number, "before", "resume", run, "--output", "json")
    check_resumed_run(team, undisturbed("sqlite")[1])


# The hall as a process of its own


@pytest.mark.req("X-1", "X-2", "AW-15")
def test_a_started_team_is_killed_while_it_is_busy(
    guild_hall: GuildWithHall, team: TeamHarness, undisturbed: Undisturbed
) -> None:
    """Kill the hall twice while agents are running. The next command finds them running again."""
    slow = {name: [[{"sleep": 0.2, **answer} for answer in run] for run in runs] for name, runs in SCRIPT.items()}
    write_project(team, "sqlite")
    (team.project / "script.yaml").write_text(json.dumps({"workers": slow}))
    run = guild_hall("start", "team.yaml", "--background", "--json").json["run"]
    for messages in (1, 2):
        until(lambda most=messages: len(team.rows("SELECT 1 FROM messages")) >= most)
        guild_hall.kill_hall()
        guild_hall("schedule", "@team", "clear")  # nothing is set; it starts the next one
    until(lambda: bool(team.rows("SELECT 1 FROM asks WHERE status = 'open'")))
    for (ask,) in team.rows("SELECT id FROM asks WHERE status = 'open'"):
        assert guild_hall("answer", ask, "yes").code == 0
    until(lambda: team.rows("SELECT count(*) FROM runs WHERE status = 'completed'") == [(5,)])
    assert guild_hall("wait", "@team", "--timeout", "20s").code == 0
    assert guild_hall("stop", "@team").code == 0
    came, end = team.end(), undisturbed("sqlite")[1]
    for what in ("messages", "mail", "documents", "proposals", "votes", "files", "made"):
        assert came[what] == end[what], what
    assert [row for row in came["runs"] if row[0] != "team"] == [row for row in end["runs"] if row[0] != "team"]
    replayed = guild_hall("replay", run)
    assert replayed.code == 0, replayed.out + replayed.err


@pytest.mark.req("AW-21", "X-2")
def test_the_processes_of_agents_are_killed_while_they_work(
    guild_hall: GuildWithHall, team: TeamHarness, undisturbed: Undisturbed
) -> None:
    """Check that a live hall asks nothing beyond the usual asks."""
    slow = {name: [[{"sleep": 0.2, **answer} for answer in run] for run in runs] for name, runs in SCRIPT.items()}
    write_project(team, "file")
    (team.project / "script.yaml").write_text(json.dumps({"workers": slow}))
    run = guild_hall("start", "team.yaml", "--background", "--json").json["run"]
    hall = guild_hall.hall().pid

    def kill_when(asked: int) -> None:
        until(lambda: len(team.rows("SELECT 1 FROM journal WHERE kind = 'model_asked'")) >= asked)
        for child in children_of(hall):
            os.kill(child, signal.SIGKILL)

    kill_when(2)
    kill_when(4)
    until(lambda: bool(team.rows("SELECT 1 FROM asks WHERE status = 'open'")))
    assert team.rows("SELECT kind FROM asks") == [("approval",)]
    assert guild_hall("answer", team.rows("SELECT id FROM asks")[0][0], "yes").code == 0
    kill_when(9)
    until(lambda: team.rows("SELECT count(*) FROM runs WHERE status = 'completed'") == [(5,)])
    assert guild_hall("wait", "@team", "--timeout", "20s").code == 0
    assert guild_hall("stop", run).code == 0
    came, end = team.end(), undisturbed("file")[1]
    for what in ("messages", "mail", "documents", "proposals", "votes", "files", "made"):
        assert came[what] == end[what], what
    assert len(team.rows("SELECT 1 FROM journal WHERE kind = 'crashed'")) >= 2


def children_of(hall: int) -> list[int]:
    """Return the processes of runs, which are children of the warm parent of the hall."""

    def below(pid: int) -> list[int]:
        try:
            return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            return []

    return [child for parent in below(hall) for child in below(parent)]


def until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit, "it did not come to that"
        time.sleep(0.02)
