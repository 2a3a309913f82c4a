"""A project with a scripted model, in which commands are killed at their commits."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

from guildhall.core.paths import HOME_VARIABLE
from guildhall.hall.client.discovery import EMBEDDED_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.kill.harness import Driver, When


class CommandProject:
    """The project, and commands in it."""

    def __init__(
        self, project: Path, home: Home, driver: Driver, *, worker: Mapping[str, Any], answers: Mapping[str, Any]
    ) -> None:
        self.home = home
        self.run = ("run", worker["name"], "go", "--approve-all", "--output", "json")
        self._project = project
        self._driver = driver
        (project / "workers").mkdir()
        (project / "workers" / f"{worker['name']}.yaml").write_text(json.dumps(worker))
        (project / "answers.yaml").write_text(json.dumps({"workers": answers}))
        (project / "guildhall.yaml").write_text("model: script:answers.yaml\n")

    def start(self, *words: str, number: int = 0, when: str = "") -> int:
        out = self._project.parent / "command.out"
        return self._driver.start(
            words=list(words),
            number=number,
            when=when,
            function="",
            grouped=False,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self._project.parent),
                HOME_VARIABLE: str(self.home.path),
                EMBEDDED_VARIABLE: "1",
            },
            cwd=str(self._project),
            out=str(out),
            err=str(out.with_suffix(".err")),
        )

    def kill_at(self, number: int, when: When) -> bool:
        """Starts the run and kills it at a commit; False: it ended before."""
        self.start(*self.run, number=number, when=when)
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
