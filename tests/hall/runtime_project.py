"""A project with a worker whose runtime is a program such as Codex, used through the real command."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.conftest import CommandResult, Guild

_TIMEOUT_S = 150.0  # OpenCode uses five seconds of CPU time for each start, and other tests run at the same time


class RuntimeProject:
    """A project with a worker that an external program executes."""

    def __init__(self, guild: Guild, project: Path, runtime: str, program: Path) -> None:
        self.guild = guild
        self.project = project
        self.runtime = runtime
        self.program = program
        self.env = {f"GUILDHALL_{runtime.upper()}": str(program)}
        (project / "notes").mkdir()
        (project / "workers").mkdir()

    def write_worker(self, steps: list[dict[str, Any]], **fields: Any) -> None:
        """Write the file of the worker `bob`, and the script of its model."""
        worker = {
            "runtime": self.runtime,
            "instructions": "You are Bob.",
            "base": False,
            "model": "script:script.yaml",
            "sandboxes": {"notes": {"path": "./notes", "mode": "rw"}},
            **({"accepts_risk": True} if self.runtime == "cursor" else {}),  # it uses the network itself
            **fields,
        }
        (self.project / "workers" / "bob.yaml").write_text(json.dumps(worker))
        (self.project / "script.yaml").write_text(json.dumps({"workers": {"bob": [steps]}}))

    def run(self, *words: str, task: str = "Go.") -> CommandResult:
        return self.guild("run", "bob", task, *words, env=self.env, timeout=_TIMEOUT_S)

    def start(self, event: str, task: str = "Go.") -> tuple[subprocess.Popen[str], str]:
        """Start a run, wait for an event, and return the process and the id of the run."""
        process = self.guild.start("run", "bob", task, "--output", "stream-json", env=self.env)
        assert process.stdout is not None
        for line in process.stdout:
            if (data := json.loads(line))["type"] == event:
                return process, data["run"]
        raise AssertionError(process.communicate())

    def resume(self, run: str) -> CommandResult:
        return self.guild("resume", run, env=self.env, timeout=_TIMEOUT_S)

    def read_entries(self, run: str, kind: str) -> list[dict[str, Any]]:
        """Return the data of all journal entries of a kind."""
        entries = map(json.loads, self.guild("log", run, "--json").out.splitlines())
        return [entry["data"] for entry in entries if entry["kind"] == kind]

    def kill_program(self, process: subprocess.Popen[str]) -> None:
        """Kill only the program that a command has started."""
        found = [pid for pid in _descendants(process.pid) if _is_running(pid, self.program)]
        assert found, "the program is not running"
        os.kill(found[0], signal.SIGKILL)

    def notes(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in (self.project / "notes").iterdir()}


def write(path: str, content: str) -> dict[str, Any]:
    return {"call": "sandbox_write_text", "with": {"sandbox": "notes", "path": path, "content": content}}


def _descendants(pid: int) -> Iterator[int]:
    """Yield the pids of all descendants of a process."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield int(child)
            yield from _descendants(int(child))


def _is_running(pid: int, program: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/exe").readlink() == program
    except OSError:
        return False
