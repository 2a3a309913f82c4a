"""Metric 2: a workflow of two agents with a scripted model, compared with an empty Python program.

Measured without a hall and with a running hall. Both include the 0.2 seconds that an idle workflow waits for messages.
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from bench.frame import Metric, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

GUILD = str(Path(sys.executable).with_name("guild"))

_WORKFLOW = """\
name: pair
agents:
  ann: {system_prompt: You are ann., model: "script:model.yaml"}
  bob: {system_prompt: You are bob., model: "script:model.yaml"}
context: {documentOwner: none}
kickoff: "@ann begin"
"""
_MODEL = """\
workers:
  ann:
    - - {call: channel_send, with: {message: "@bob your turn"}}
      - say: asked
  bob:
    - - {call: channel_send, with: {message: done}}
      - say: done
"""


def metrics(scratch: Path) -> Iterator[Metric]:
    (scratch / "pair.yaml").write_text(_WORKFLOW)
    (scratch / "model.yaml").write_text(_MODEL)
    environment = {"PATH": os.environ["PATH"], "HOME": str(scratch), "GUILDHALL_HOME": str(scratch / "home")}
    tags = count()

    def guild(*arguments: str) -> str:
        return _run((GUILD, *arguments), scratch, environment)

    def run_workflow() -> float:
        output = ""

        def run() -> None:
            nonlocal output
            output = guild("run", "pair.yaml", "--tag", f"t{next(tags)}")

        duration = seconds(run)
        if output.strip() != "done":
            raise RuntimeError(f"the workflow ended with {output!r}")
        return duration

    def run_without_hall() -> float:
        guild("hall", "stop")
        return run_workflow()

    def bare() -> float:
        return seconds(lambda: _run((sys.executable, "-c", "pass"), scratch, environment))

    name = "python -c pass"
    try:
        yield Metric(
            name="2 workflow, no hall",
            floor_name=name,
            floor=bare,
            measured=run_without_hall,
            target=140.0,
            rounds=7,
            note="2 s where Python takes 14 ms",
        )
        yield Metric(
            name="2 workflow",
            floor_name=name,
            floor=bare,
            measured=run_workflow,
            target=28.0,
            note="the hall is running; 0.4 s where Python takes 14 ms",
        )
    finally:
        guild("hall", "stop")


def _run(command: Sequence[str], cwd: Path, environment: dict[str, str]) -> str:
    process = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {process.stderr.strip()[-300:]}")
    return process.stdout
