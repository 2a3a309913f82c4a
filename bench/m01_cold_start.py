"""Metric 1: how long a command takes to start, against a Python that does nothing.

`guild ls` has its target (8x) only where a hall already runs as a process of its own; until then it is reported.
"""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import guildhall
from bench.frame import Metric, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

GUILD = str(Path(sys.executable).with_name("guild"))


def metrics(scratch: Path) -> list[Metric]:
    compileall.compile_dir(str(Path(guildhall.__file__).parent), quiet=1)
    environment = {"PATH": os.environ["PATH"], "HOME": str(scratch), "GUILDHALL_HOME": str(scratch / "home")}

    def run(*command: str) -> float:
        return seconds(lambda: _run(command, scratch, environment))

    return [
        Metric(
            name="1 guild --help",
            floor_name="python -c pass",
            floor=lambda: run(sys.executable, "-c", "pass"),
            measured=lambda: run(GUILD, "--help"),
            target=4.0,
            rounds=25,
        ),
        Metric(
            name="1 guild ls",
            floor_name="python -c pass",
            floor=lambda: run(sys.executable, "-c", "pass"),
            measured=lambda: run(GUILD, "ls"),
            target=None,
            note="an empty home, no hall running",
        ),
    ]


def _run(command: Sequence[str], cwd: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
