"""Killed at any step, between a commit and what follows it too, the room opens right and nothing is done twice."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.warm import WarmProcess

STRIDE = 1 if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else 9


@pytest.mark.req("AW-12", "X-2")
@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_killed_at_any_step_it_ends_as_if_nothing_had_been(warm: WarmProcess, tmp_path: Path, kind: str) -> None:
    printed = warm.perform("tests.room.crash", tmp_path, kind, 1, STRIDE)
    ends = [json.loads(line) for line in printed.splitlines()]
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
