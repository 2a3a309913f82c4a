"""Killed at any instant, a run that remembers something has it remembered once when it has gone on to its end."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from guildhall.core.paths import HOME_VARIABLE

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
RUN = ["run", "scribe", "go", "--output", "json"]


class Desk:
    """The project, and commands in it."""

    def __init__(self, project: Path, home: Home, driver: Driver) -> None:
        self.home = home
        self._project = project
        self._driver = driver
        (project / "workers").mkdir()
        (project / "workers" / "scribe.yaml").write_text(json.dumps(WORKER))
        (project / "answers.yaml").write_text(json.dumps({"workers": {"*": [ANSWERS]}}))
        (project / "guildhall.yaml").write_text("model: script:answers.yaml\n")

    def start(self, *words: str, number: int = 0, when: str = "") -> int:
        out = self._project.parent / "command.out"
        return self._driver.start(
            words=list(words),
            number=number,
            when=when,
            function="",
            grouped=False,
            env={"PATH": os.environ["PATH"], "HOME": str(self._project.parent), HOME_VARIABLE: str(self.home.path)},
            cwd=str(self._project),
            out=str(out),
            err=str(out.with_suffix(".err")),
        )

    def killed(self, number: int, when: When) -> bool:
        """Starts the run and kills it at a commit; False: it ended before."""
        self.start(*RUN, number=number, when=when)
        pid = self._driver.stopped()
        if pid is not None:
            self._driver.kill(pid)
        return pid is not None

    def guild(self, *words: str) -> int:
        self.start(*words)
        return self._driver.ended()

    def rows(self, query: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.home.database, timeout=5)) as connection:
            return connection.execute(query).fetchall()


@pytest.fixture
def desk(project: Path, home: Home, driver: Driver) -> Desk:
    return Desk(project, home, driver)


def test_the_sweep_goes_over_every_commit(desk: Desk) -> None:
    assert not desk.killed(COMMITS + 1, "before")
    assert desk.rows("SELECT status FROM runs") == [("completed",)]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, COMMITS + 1))
def test_killed_at_a_commit_it_is_written_once(desk: Desk, number: int, when: When) -> None:
    assert desk.killed(number, when)
    found = desk.rows("SELECT id, status FROM runs")
    if not found:
        assert desk.guild(*RUN) == 0
    elif found[0][1] != "completed":
        assert desk.guild("resume", str(found[0][0])) == 0
    (run,) = desk.rows("SELECT id, status FROM runs")
    assert run[1] == "completed"
    assert desk.rows("SELECT key, action, worker, run, content FROM memory_log") == [
        ("fact", "write", "scribe", run[0], "one")
    ]
    assert [path.read_text() for path in desk.home.path.rglob("fact.md")] == ["one"]
