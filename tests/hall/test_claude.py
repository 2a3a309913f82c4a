"""The real Claude Code as a worker's runtime, through the real command, against a script."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.clis import claude_program

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild, Ran


class Office:
    """A project with a worker whose runtime is Claude Code, and the command."""

    def __init__(self, guild: Guild, project: Path) -> None:
        self.guild = guild
        self.project = project
        self.env = {"GUILDHALL_CLAUDE": str(claude_program())}
        (project / "notes").mkdir()
        (project / "workers").mkdir()

    def put(self, steps: list[dict[str, Any]], **fields: Any) -> None:
        worker = {
            "runtime": "claude",
            "instructions": "You are Bob.",
            "base": False,
            "model": "script:script.yaml",
            "sandboxes": {"notes": {"path": "./notes", "mode": "rw"}},
            **fields,
        }
        (self.project / "workers" / "bob.yaml").write_text(json.dumps(worker))
        (self.project / "script.yaml").write_text(json.dumps({"workers": {"bob": [steps]}}))

    def run(self, *words: str) -> Ran:
        return self.guild("run", "bob", "Go.", *words, env=self.env)


@pytest.fixture
def office(guild: Guild, project: Path) -> Office:
    return Office(guild, project)


def write(path: str, content: str) -> dict[str, Any]:
    return {"call": "sandbox_write_text", "with": {"sandbox": "notes", "path": path, "content": content}}


@pytest.mark.req("WKR-14")
def test_claude_answers_and_calls_tools(office: Office) -> None:
    office.put([write("a.txt", "hello"), {"say": "All done."}])
    ran = office.run()
    assert (ran.code, ran.out) == (0, "All done.\n"), ran.err
    assert (office.project / "notes" / "a.txt").read_text() == "hello"
    assert "sandbox_write_text sandbox=notes" in ran.err
