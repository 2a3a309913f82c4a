"""Killed at any instant, a run that writes a worker has written it once, and called it once, when it has gone on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kill.command_project import CommandProject
from tests.kill.harness import ends

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.kill.harness import Driver, When

COMMITS = 18  # of the run below; the first test finds that there are no more
WORKER = {"name": "boss", "instructions": "Make one, call it.", "tool_rules": {"worker.create": {}}}
ANSWERS = {
    "boss": [
        [
            {"call": "worker_create", "with": {"name": "helper", "instructions": "Help."}},
            {"call": "worker_call", "with": {"worker": "helper", "input_data": "go"}},
            {"say": "done"},
        ]
    ],
    "helper": [[{"say": "helped"}]],
}


@pytest.fixture
def commands(project: Path, home: Home, driver: Driver) -> CommandProject:
    return CommandProject(project, home, driver, worker=WORKER, answers=ANSWERS)


def test_the_sweep_goes_over_every_commit(commands: CommandProject) -> None:
    assert not commands.kill_at(COMMITS + 1, "before")
    assert commands.rows("SELECT count(*) FROM runs WHERE status = 'completed'") == [(2,)]


@pytest.mark.req("X-2", "DO-8")
@pytest.mark.parametrize(("number", "when"), ends(COMMITS))
def test_killed_at_a_commit_it_is_made_and_called_once(
    commands: CommandProject, project: Path, number: int, when: When
) -> None:
    assert commands.kill_at(number, when)
    found = commands.rows("SELECT id, status FROM runs WHERE parent IS NULL")
    if not found:
        assert commands.guild(*commands.run) == 0
    elif found[0][1] != "completed":
        assert commands.guild("resume", str(found[0][0])) == 0
    assert [path.name for path in (project / "workers" / "generated").iterdir()] == ["helper.yaml"]
    made = commands.rows("SELECT count(*) FROM journal WHERE kind = 'worker_created'")
    assert made == [(1,)]
    assert commands.rows("SELECT worker, status FROM runs ORDER BY worker") == [
        ("boss", "completed"),
        ("helper", "completed"),
    ]
