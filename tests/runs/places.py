"""Helpers for tests of runs: write a project with workers and a script, run it, and read the journal."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tests.conftest import CommandResult, Guild

TIMEOUT_S = 30.0  # for a whole command; machines are slow when many tests run at once
PRICE = {"input": 3.0, "output": 15.0}
WRITE = {"call": "sandbox_write_text", "with": {"sandbox": "notes", "path": "a.md", "content": "one"}}
OTHER = {"call": "sandbox_write_text", "with": {"sandbox": "notes", "path": "b.md", "content": "two"}}
DONE = {"say": "done"}
NOTES = {"notes": {"path": "./notes", "mode": "rw"}}
ASK_BEFORE_WRITING = {"fs.write": {"approval_required": True}}


def put_worker(project: Path, name: str = "scribe", **fields: Any) -> Path:
    """Write a worker file. By default the worker has one sandbox and asks before it writes there."""
    definition: dict[str, Any] = {
        "name": name,
        "instructions": "Write the requested lines.",
        "sandboxes": NOTES,
        "tool_rules": ASK_BEFORE_WRITING,
        **fields,
    }
    (project / "workers").mkdir(exist_ok=True)
    path = project / "workers" / f"{name}.yaml"
    path.write_text(json.dumps({key: value for key, value in definition.items() if value is not None}))
    return path


def put_script(
    project: Path,
    *answers: Mapping[str, Any],
    runs: Sequence[Sequence[Mapping[str, Any]]] | None = None,
    price: Mapping[str, float] | None = PRICE,
) -> str:
    """Write a script that gives every worker the same answers in every run, and return its model name."""
    script: dict[str, Any] = {"workers": {"*": [list(run) for run in runs or [answers]]}, "repeat": True}
    if price is not None:
        script["price"] = dict(price)
    (project / "answers.yaml").write_text(json.dumps(script))
    (project / "guildhall.yaml").write_text("model: script:answers.yaml\n")
    return "script:answers.yaml"


def journal(guild: Guild, run: str) -> list[dict[str, Any]]:
    """Return the journal of a run, as `guild log --json` prints it."""
    return [json.loads(line) for line in guild("log", run, "--json").out.splitlines()]


def kinds(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    return [entry["kind"] for entry in entries]


def model_input(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return everything that was sent to the model, from the journal."""
    return "\n".join(str(entry["data"]["message"]) for entry in entries if entry["kind"] == "model_asked")


def run_until_ask(guild: Guild, *words: str) -> tuple[CommandResult, str, str]:
    """Run a worker until it asks. Return the result of the command, the id of the run and the id of the ask."""
    ran = guild("run", "scribe", "go", "--output", "json", *words)
    assert ran.code == 4, ran
    assert ran.json["status"] == "waiting"
    return ran, ran.json["run"], ran.json["asks"][0]["ask"]


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until another process has made the condition true."""
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)
