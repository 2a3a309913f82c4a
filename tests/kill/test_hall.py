"""The hall process is killed again and again while runs wait for a slow model."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from tests.runs.places import put_script, put_worker, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import GuildWithHall

KILLS = 4
SLOW = {"sleep": 300, "say": "late"}
AGENTS = ("ann", "bob")


def read_rows(home: Home, query: str, *values: Any) -> list[Any]:
    with closing(sqlite3.connect(home.database, timeout=5)) as connection:
        return connection.execute(query, values).fetchall()


def wait_for_entries(home: Home, kind: str, runs: int, count: int) -> None:
    """Wait until so many runs have so many entries of a kind."""
    query = "SELECT run FROM journal WHERE kind=? GROUP BY run HAVING count(*) >= ?"
    wait_until(lambda: len(read_rows(home, query, kind, count)) >= runs)


def start_slow_runs(guild: GuildWithHall, home: Home, workflow: Path) -> list[str]:
    """Start a run and a workflow. Return their ids when the run and all agents wait for the model."""
    assert guild("ls").code == 0  # creates the database
    guild.start("run", "scribe", "go")
    guild.start("run", workflow)
    wait_for_entries(home, "model_asked", runs=1 + len(AGENTS), count=1)
    return [id for (id,) in read_rows(home, "SELECT id FROM runs WHERE parent IS NULL")]


def start_hall(guild: GuildWithHall) -> None:
    assert guild("memory", "write", "today", "-", input="a note").code == 0


@pytest.fixture
def workflow(project: Path) -> Path:
    put_worker(project, tool_rules=None)
    put_script(project, SLOW)
    agents = {name: {"system_prompt": f"You are {name}.", "model": "script:answers.yaml"} for name in AGENTS}
    file = project / "review.yaml"
    kickoff = "@ann @bob begin"
    context = {"documentOwner": "none"}
    file.write_text(json.dumps({"name": "review", "agents": agents, "context": context, "kickoff": kickoff}))
    return file


@pytest.mark.req("X-2")
def test_a_run_and_a_workflow_complete_although_the_hall_is_killed_repeatedly(
    guild_hall: GuildWithHall, home: Home, project: Path, workflow: Path
) -> None:
    roots = start_slow_runs(guild_hall, home, workflow)
    for kill in range(1, KILLS + 1):
        guild_hall.kill_hall()
        listed = guild_hall("ls", "@review", "--json").json
        assert (listed["status"], {agent["status"] for agent in listed["agents"]}) == ("paused", {"paused"})
        if kill == KILLS:
            put_script(project, {"say": "at last"})
        start_hall(guild_hall)
        wait_for_entries(home, "resumed", runs=2 + len(AGENTS), count=kill)
    for id in roots:
        waited = guild_hall("wait", id, "--timeout", "60s")
        assert waited.code == 0, waited.err
        assert guild_hall("show", id, "--json").json["status"] == "completed"


def test_runs_that_may_kill_the_hall_are_left_to_the_user(
    guild_hall: GuildWithHall, home: Home, project: Path, workflow: Path
) -> None:
    from guildhall.hall.composition.recovery import MAX_CRASHES

    roots = start_slow_runs(guild_hall, home, workflow)
    guild_hall.kill_hall()
    with closing(sqlite3.connect(home.database)) as connection, connection:
        connection.execute("UPDATE runs SET crashes=?", [MAX_CRASHES - 1])
    start_hall(guild_hall)
    for id in roots:
        shown = guild_hall("show", id, "--json").json
        reason = f"the hall died {MAX_CRASHES} times during this run without progress"
        assert (shown["status"], shown["reason"]) == ("interrupted", reason)
    listed = guild_hall("ls", "@review", "--json").json
    assert (listed["status"], {agent["status"] for agent in listed["agents"]}) == ("paused", {"paused"})
    needs_you = guild_hall("ls").out.partition("Needs you")[2]
    hints = [line.split("  ")[-1].strip() for line in needs_you.splitlines() if "guild resume" in line]
    assert len(hints) == 2, needs_you
    put_script(project, {"say": "at last"})
    for hint in hints:
        resumed = guild_hall(*hint.split()[1:])
        assert resumed.code == 0, resumed.err
