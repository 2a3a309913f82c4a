"""A run that is killed at any commit and resumed writes its memory entry exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kill.command_project import CommandProject
from tests.kill.harness import ends

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.kill.harness import Driver, When

COMMITS = 10  # of the whole run; the first test checks the number
WORKER = {"name": "scribe", "instructions": "Remember the requested facts."}
ANSWERS = [
    {"call": "memory_write", "with": {"scope": "worker", "key": "fact", "content": "one"}},
    {"say": "remembered"},
]


@pytest.fixture
def commands(project: Path, home: Home, driver: Driver) -> CommandProject:
    return CommandProject(project, home, driver, worker=WORKER, answers={"*": [ANSWERS]})


def test_run_has_exactly_this_many_commits(commands: CommandProject) -> None:
    assert not commands.kill_at(COMMITS + 1, "before")
    assert commands.rows("SELECT status FROM runs") == [("completed",)]


@pytest.mark.parametrize(("number", "when"), ends(COMMITS))
def test_killed_and_resumed_run_writes_once(commands: CommandProject, number: int, when: When) -> None:
    assert commands.kill_at(number, when)
    runs = commands.rows("SELECT id, status FROM runs")
    if not runs:
        assert commands.guild(*commands.run) == 0
    elif runs[0][1] != "completed":
        assert commands.guild("resume", str(runs[0][0])) == 0
    ((run, status),) = commands.rows("SELECT id, status FROM runs")
    assert status == "completed"
    assert commands.rows("SELECT key, action, worker, run, content FROM memory_log") == [
        ("fact", "write", "scribe", run, "one")
    ]
    assert [path.read_text() for path in commands.home.path.rglob("fact.md")] == ["one"]
