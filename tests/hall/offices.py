"""What the tests of programs as runtimes stand on: a project with a worker of such a runtime, and the real command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild, Ran


class Office:
    """A project with a worker whose runtime is a program of others."""

    def __init__(self, guild: Guild, project: Path, runtime: str, program: Path) -> None:
        self.guild = guild
        self.project = project
        self.runtime = runtime
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
            **fields,
        }
        (self.project / "workers" / "bob.yaml").write_text(json.dumps(worker))
        (self.project / "script.yaml").write_text(json.dumps({"workers": {"bob": [steps]}}))

    def run(self, *words: str, task: str = "Go.") -> Ran:
        return self.guild("run", "bob", task, *words, env=self.env)

    def notes(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in (self.project / "notes").iterdir()}


def write(path: str, content: str) -> dict[str, Any]:
    return {"call": "sandbox_write_text", "with": {"sandbox": "notes", "path": path, "content": content}}
