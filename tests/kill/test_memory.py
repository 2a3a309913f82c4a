"""Killed at any instant, a run that remembers something has it remembered once when it has gone on to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kill.desk import Desk
from tests.kill.scene import ends

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.kill.scene import Driver, When

COMMITS = 10  # of the run below; the last case finds that there are no more
WORKER = {"name": "scribe", "instructions": "Remember what you are told."}
ANSWERS = [
    {"call": "memory_write", "with": {"scope": "worker", "key": "fact", "content": "one"}},
    {"say": "remembered"},
]


@pytest.fixture
def desk(project: Path, home: Home, driver: Driver) -> Desk:
    return Desk(project, home, driver, worker=WORKER, answers={"*": [ANSWERS]})


def test_the_sweep_goes_over_every_commit(desk: Desk) -> None:
    assert not desk.killed(COMMITS + 1, "before")
    assert desk.rows("SELECT status FROM runs") == [("completed",)]


@pytest.mark.parametrize(("number", "when"), ends(COMMITS))
def test_killed_at_a_commit_it_is_written_once(desk: Desk, number: int, when: When) -> None:
    assert desk.killed(number, when)
    found = desk.rows("SELECT id, status FROM runs")
    if not found:
        assert desk.guild(*desk.run) == 0
    elif found[0][1] != "completed":
        assert desk.guild("resume", str(found[0][0])) == 0
    (run,) = desk.rows("SELECT id, status FROM runs")
    assert run[1] == "completed"
    assert desk.rows("SELECT key, action, worker, run, content FROM memory_log") == [
        ("fact", "write", "scribe", run[0], "one")
    ]
    assert [path.read_text() for path in desk.home.path.rglob("fact.md")] == ["one"]
