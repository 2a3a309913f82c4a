"""A run that is killed at any commit and resumed writes its memory entry exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kill.desk import Desk
from tests.kill.scene import ends

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.kill.scene import Driver, When

COMMITS = 10  # of the whole run; the first test checks the number
WORKER = {"name": "scribe", "instructions": "Remember the requested facts."}
ANSWERS = [
    {"call": "memory_write", "with": {"scope": "worker", "key": "fact", "content": "one"}},
    {"say": "remembered"},
]


@pytest.fixture
def desk(project: Path, home: Home, driver: Driver) -> Desk:
    return Desk(project, home, driver, worker=WORKER, answers={"*": [ANSWERS]})


def test_run_has_exactly_this_many_commits(desk: Desk) -> None:
    assert not desk.kill_at(COMMITS + 1, "before")
    assert desk.rows("SELECT status FROM runs") == [("completed",)]


@pytest.mark.parametrize(("number", "when"), ends(COMMITS))
def test_killed_and_resumed_run_writes_once(desk: Desk, number: int, when: When) -> None:
    assert desk.kill_at(number, when)
    runs = desk.rows("SELECT id, status FROM runs")
    if not runs:
        assert desk.guild(*desk.run) == 0
    elif runs[0][1] != "completed":
        assert desk.guild("resume", str(runs[0][0])) == 0
    ((run, status),) = desk.rows("SELECT id, status FROM runs")
    assert status == "completed"
    assert desk.rows("SELECT key, action, worker, run, content FROM memory_log") == [
        ("fact", "write", "scribe", run, "one")
    ]
    assert [path.read_text() for path in desk.home.path.rglob("fact.md")] == ["one"]
