"""Metric 9: memory and CPU time of a hall with 100 idle agents.

The memory includes the warm parent process and is compared with an empty Python program. The CPU time is compared with
that of a hall with two agents.

One agent has a long model call, so that the workflow stays live. The process of its run is not counted.
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
AGENTS = 100  # the limit of a workflow
WINDOW_S = 35.0  # includes all periodic work


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
            name="9 idle, CPU time",
            floor_name="two agents",
            floor=lambda: idle.measure()[0],
            measured=lambda: idle.measure()[1],
            target=1.5,
            rounds=1,
            note=f"of {WINDOW_S:g} seconds",
        )


class _Hall:
    """A hall with a workflow in which one agent waits for its model and the rest is idle."""

    def __init__(self, folder: Path, agents: int) -> None:
        folder.mkdir()
        names = ["thinker", *(f"a{number}" for number in range(1, agents))]
        agents_by_name = {name: {"system_prompt": f"You are {name}.", "model": "script:model.yaml"} for name in names}
        parts = {
            "name": "team",
            "agents": agents_by_name,
            "context": {"documentOwner": "none"},
            "kickoff": "@thinker begin",
        }
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
                event = json.loads(line)
                if event["type"] == "run_started" and event.get("worker") == "thinker":
                    break
            else:
                raise RuntimeError(f"the team of {self._folder.name} did not start")
            following.kill()  # the workflow continues
        self.pid = json.loads((self._folder / "home" / "hall.json").read_text())["pid"]
        time.sleep(2)  # the start is finished then
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run([GUILD, "hall", "stop"], cwd=self._folder, env=self._environment, capture_output=True)

    def memory(self) -> float:
        return _pss(self.pid) + _pss(self._parent())

    def cpu_seconds(self) -> float:
        """Return the CPU time of all threads of the hall."""
        threads = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9

    def _parent(self) -> int:
        """Return the process id of the warm parent, from which runs are forked."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
        (parent,) = (pid for pid, command in commands.items() if b"guildhall.runtimes.forked.fork_server" in command)
        return parent


class _Idle:
    """The CPU time of both halls in the same window."""

    def __init__(self, few: _Hall, many: _Hall) -> None:
        self._halls = (few, many)
        self._found: tuple[float, float] | None = None

    def measure(self) -> tuple[float, float]:
        if self._found is None:
            before = [hall.cpu_seconds() for hall in self._halls]
            time.sleep(WINDOW_S)
            few, many = (hall.cpu_seconds() - was for hall, was in zip(self._halls, before, strict=True))
            self._found = (few, many)
        return self._found


def _bare_memory() -> float:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        time.sleep(0.1)
        found = _pss(process.pid)
        process.communicate(b"\n")
        return found


def _pss(pid: int) -> int:
    """Return the proportional set size of a process in bytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
