"""Metric 9: a hall with 100 idle agents: its memory with that of its warm parent, against a bare Python; and the time
that it computes while nothing happens, against a hall with two agents.

One agent of each team thinks for long, so that it stays together; the process of that run is not counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from bench.frame import Metric

if TYPE_CHECKING:
    from collections.abc import Iterator

GUILD = str(Path(sys.executable).with_name("guild"))
AGENTS = 100  # as many as a workflow may have
WATCHED = 35.0  # seconds: whatever is done now and then is in it


def metrics(scratch: Path) -> Iterator[Metric]:
    with ExitStack() as stack:
        few = stack.enter_context(_Hall(scratch / "few", 2))
        many = stack.enter_context(_Hall(scratch / "many", AGENTS))
        yield Metric(
            name=f"9 hall, {AGENTS} idle agents",
            floor_name="bare Python",
            floor=_bare_memory,
            measured=many.memory,
            target=42.0,
            rounds=3,
            note="with its warm parent; 150 MB where Python takes 3.5 MB",
            unit="MB",
        )
        idle = _Idle(few, many)
        yield Metric(
            name="9 idle, computing",
            floor_name="two agents",
            floor=lambda: idle.computed()[0],
            measured=lambda: idle.computed()[1],
            target=1.5,
            rounds=1,
            note=f"of {WATCHED:g} seconds",
        )


class _Hall:
    """A hall with a team: one agent thinks, the others wait."""

    def __init__(self, folder: Path, agents: int) -> None:
        folder.mkdir()
        names = ["thinker", *(f"a{number}" for number in range(1, agents))]
        seats = {name: {"system_prompt": f"You are {name}.", "model": "script:model.yaml"} for name in names}
        parts = {"name": "team", "agents": seats, "context": {"documentOwner": "none"}, "kickoff": "@thinker begin"}
        (folder / "team.yaml").write_text(json.dumps(parts))
        (folder / "model.yaml").write_text(json.dumps({"workers": {"*": [[{"sleep": 3600, "say": "done"}]]}}))
        self._folder = folder
        self._environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "GUILDHALL_HOME": str(folder / "home")}
        self.pid = 0

    def __enter__(self) -> _Hall:
        command = [GUILD, "run", "team.yaml", "--output", "stream-json"]
        with subprocess.Popen(
            command, cwd=self._folder, env=self._environment, stdout=subprocess.PIPE, text=True
        ) as following:
            for line in following.stdout or ():
                told = json.loads(line)
                if told["type"] == "run_started" and told.get("worker") == "thinker":
                    break
            else:
                raise RuntimeError(f"the team of {self._folder.name} did not begin")
            following.kill()  # the team goes on without
        self.pid = json.loads((self._folder / "home" / "hall.json").read_text())["pid"]
        time.sleep(2)  # what comes with the start is over then
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run([GUILD, "hall", "stop"], cwd=self._folder, env=self._environment, capture_output=True)

    def memory(self) -> float:
        return _pss(self.pid) + _pss(self._parent())

    def computing(self) -> float:
        """Seconds that the hall has computed so far, all its threads."""
        threads = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9

    def _parent(self) -> int:
        """The process that those of the runs are forked from."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        (found,) = (int(pid) for pid in children if b"zygote" in Path(f"/proc/{pid}/cmdline").read_bytes())
        return found


class _Idle:
    """Both halls, watched in the same seconds, once."""

    def __init__(self, few: _Hall, many: _Hall) -> None:
        self._halls = (few, many)
        self._found: tuple[float, float] | None = None

    def computed(self) -> tuple[float, float]:
        if self._found is None:
            before = [hall.computing() for hall in self._halls]
            time.sleep(WATCHED)
            few, many = (hall.computing() - was for hall, was in zip(self._halls, before, strict=True))
            self._found = (few, many)
        return self._found


def _bare_memory() -> float:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        time.sleep(0.1)
        found = _pss(process.pid)
        process.communicate(b"\n")
        return found


def _pss(pid: int) -> int:
    """The memory of a process in bytes; what it shares with others is counted in parts."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
