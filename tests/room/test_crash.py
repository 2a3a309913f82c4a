"""Killed at any step, between a commit and what follows it too, the room opens right and nothing is done twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STRIDE = 1 if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else 9


@pytest.mark.req("AW-12", "X-2")
@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_killed_at_any_step_it_ends_as_if_nothing_had_been(tmp_path: Path, kind: str):
    done = subprocess.run(
        [sys.executable, "-m", "tests.room.crash", tmp_path, kind, "1", f"{STRIDE}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    ends = [json.loads(line) for line in done.stdout.splitlines()]
    undisturbed = ends[-1]
    assert undisturbed["code"] == 0
    assert len(ends) > 20 // STRIDE
    assert all(end["code"] == -9 for end in ends[:-1])
    same = {name: value for name, value in undisturbed.items() if name not in ("step", "code")}
    for end in ends[:-1]:
        assert {name: value for name, value in end.items() if name not in ("step", "code")} == same, end["step"]
    documents = same["documents"] if kind == "sqlite" else same["files"]
    (decisions,) = [text for name, text in documents.items() if name.endswith("decisions.md")]
    assert decisions.count("## p-1") == 1
    assert len(same["messages"]) == 5
