"""Metric 1: the start of a command, compared with an empty Python program.

`guild ls` has a target (8x) while a hall is running. Without a hall it is only reported.
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
    from collections.abc import Iterator, Sequence

GUILD = str(Path(sys.executable).with_name("guild"))


def metrics(scratch: Path) -> Iterator[Metric]:
    compileall.compile_dir(str(Path(guildhall.__file__).parent), quiet=1)
    environment = {"PATH": os.environ["PATH"], "HOME": str(scratch), "GUILDHALL_HOME": str(scratch / "home")}
    served = {**environment, "GUILDHALL_HOME": str(scratch / "served")}

    def run(*command: str, environment: dict[str, str] = environment) -> float:
        return seconds(lambda: _run(command, scratch, environment))

    def bare() -> float:
        return run(sys.executable, "-c", "pass")

    name = "python -c pass"
    yield Metric(
        name="1 guild --help",
        floor_name=name,
        floor=bare,
        measured=lambda: run(GUILD, "--help"),
        target=4.0,
        rounds=25,
    )
    yield Metric(
        name="1 guild ls, no hall",
        floor_name=name,
        floor=bare,
        measured=lambda: run(GUILD, "ls"),
        target=None,
        note="an empty home",
    )
    run(GUILD, "memory", "write", "note", "text", "--scope", "global", environment=served)  # starts the hall
    try:
        yield Metric(
            name="1 guild ls",
            floor_name=name,
            floor=bare,
            measured=lambda: run(GUILD, "ls", environment=served),
            target=8.0,
            rounds=25,
            note="the hall is running",
        )
    finally:
        run(GUILD, "hall", "stop", environment=served)


def _run(command: Sequence[str], cwd: Path, environment: dict[str, str]) -> None:
    process = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {process.stderr.strip()[-300:]}")
