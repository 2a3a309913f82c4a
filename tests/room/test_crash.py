"""Crashes of a room: killed at any step, the repeated work ends with the same room and no double effect."""

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
def test_work_killed_at_any_step_ends_with_the_same_room_when_repeated(
    warm: WarmProcess, tmp_path: Path, kind: str
) -> None:
    printed = warm.perform("tests.room.crash", tmp_path, kind, 1, STRIDE)
    ends = [json.loads(line) for line in printed.splitlines()]
    undisturbed = ends[-1]
    assert undisturbed["code"] == 0
    assert len(ends) > 20 // STRIDE
    assert all(end["code"] == -9 for end in ends[:-1])
    content = {name: value for name, value in undisturbed.items() if name not in ("step", "code")}
    for end in ends[:-1]:
        assert {name: value for name, value in end.items() if name not in ("step", "code")} == content, end["step"]
    documents = content["documents"] if kind == "sqlite" else content["files"]
    (decisions,) = [text for name, text in documents.items() if name.endswith("decisions.md")]
    assert decisions.count("## p-1") == 1
    assert len(content["messages"]) == 5
