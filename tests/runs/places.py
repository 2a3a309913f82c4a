"""What the tests of runs start from: a project with workers, a script that answers for them, and ways to look."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tests.conftest import Guild, Ran

PATIENCE = 30.0  # seconds for a whole command; machines are slow when many tests run at once
PRICE = {"input": 3.0, "output": 15.0}
WRITE = {"call": "sandbox_write_text", "with": {"sandbox": "notes", "path": "a.md", "content": "one"}}
OTHER = {"call": "sandbox_write_text", "with": {"sandbox": "notes", "path": "b.md", "content": "two"}}
DONE = {"say": "done"}
NOTES = {"notes": {"path": "./notes", "mode": "rw"}}
ASK_BEFORE_WRITING = {"fs.write": {"approval_required": True}}


def put_worker(project: Path, name: str = "scribe", **fields: Any) -> Path:
    """A worker file in the project; by default it has one sandbox and asks before it writes there."""
    definition: dict[str, Any] = {
        "name": name,
        "instructions": "Write what you are told.",
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
    """A script for whoever asks, in every run the same answers; the name of the model that it is."""
    script: dict[str, Any] = {"workers": {"*": [list(run) for run in runs or [answers]]}, "repeat": True}
    if price is not None:
        script["price"] = dict(price)
    (project / "answers.yaml").write_text(json.dumps(script))
    (project / "guildhall.yaml").write_text("model: script:answers.yaml\n")
    return "script:answers.yaml"


def journal(guild: Guild, run: str) -> list[dict[str, Any]]:
    """The whole record of a run, as `guild log --json` prints it."""
    return [json.loads(line) for line in guild("log", run, "--json").out.splitlines()]


def kinds(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    return [entry["kind"] for entry in entries]


def model_input(entries: Sequence[Mapping[str, Any]]) -> str:
    """Everything that the model was sent, as the record has it."""
    return "\n".join(str(entry["data"]["message"]) for entry in entries if entry["kind"] == "model_asked")


def run_until_ask(guild: Guild, *words: str) -> tuple[Ran, str, str]:
    """A run that stops with an ask: what the command said, the run, the ask."""
    ran = guild("run", "scribe", "go", "--output", "json", *words)
    assert ran.code == 4, ran
    assert ran.json["status"] == "waiting"
    return ran, ran.json["run"], ran.json["asks"][0]["ask"]


def wait_until(true: Callable[[], object]) -> None:
    """Waits for something that another process does."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
