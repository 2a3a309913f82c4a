"""What the tests of programs as runtimes stand on: a project with a worker of such a runtime, and the real command."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.conftest import Guild, Ran

_WITHIN = 150.0  # seconds: OpenCode takes five of a whole processor each time, and there may be many who want one


class Office:
    """A project with a worker whose runtime is a program of others."""

    def __init__(self, guild: Guild, project: Path, runtime: str, program: Path) -> None:
        self.guild = guild
        self.project = project
        self.runtime = runtime
        self.program = program
        self.env = {f"GUILDHALL_{runtime.upper()}": str(program)}
        (project / "notes").mkdir()
        (project / "workers").mkdir()

    def put(self, steps: list[dict[str, Any]], **fields: Any) -> None:
        """Its worker bob, and what his model says."""
        worker = {
            "runtime": self.runtime,
            "instructions": "You are Bob.",
            "base": False,
            "model": "script:script.yaml",
            "sandboxes": {"notes": {"path": "./notes", "mode": "rw"}},
            **({"accepts_risk": True} if self.runtime == "cursor" else {}),  # it has the network
            **fields,
        }
        (self.project / "workers" / "bob.yaml").write_text(json.dumps(worker))
        (self.project / "script.yaml").write_text(json.dumps({"workers": {"bob": [steps]}}))

    def run(self, *words: str, task: str = "Go.") -> Ran:
        return self.guild("run", "bob", task, *words, env=self.env, timeout=_WITHIN)

    def start(self, event: str, task: str = "Go.") -> tuple[subprocess.Popen[str], str]:
        """A run that is under way and has come to an event, and its id."""
        process = self.guild.start("run", "bob", task, "--output", "stream-json", env=self.env)
        assert process.stdout is not None
        for line in process.stdout:
            if (said := json.loads(line))["type"] == event:
                return process, said["run"]
        raise AssertionError(process.communicate())

    def resume(self, run: str) -> Ran:
        return self.guild("resume", run, env=self.env, timeout=_WITHIN)

    def kinds(self, run: str, kind: str) -> list[dict[str, Any]]:
        """What the journal of a run has of a kind."""
        entries = map(json.loads, self.guild("log", run, "--json").out.splitlines())
        return [entry["data"] for entry in entries if entry["kind"] == kind]

    def kill_program(self, process: subprocess.Popen[str]) -> None:
        """Kills the program that a command has started, and nothing else."""
        found = [pid for pid in _below(process.pid) if _runs(pid, self.program)]
        assert found, "the program is not at work"
        os.kill(found[0], signal.SIGKILL)

    def notes(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in (self.project / "notes").iterdir()}


def write(path: str, content: str) -> dict[str, Any]:
    return {"call": "sandbox_write_text", "with": {"sandbox": "notes", "path": path, "content": content}}


def _below(pid: int) -> Iterator[int]:
    """All that a process has started, and those have."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield int(child)
            yield from _below(int(child))


def _runs(pid: int, program: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/exe").readlink() == program
    except OSError:
        return False
