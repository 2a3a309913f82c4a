"""Helpers for tests of trees of runs: workers that call each other, and a script with answers for each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.runs.places import OTHER, PRICE, WRITE, put_worker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

Answers = list[dict[str, Any]]
ONE: Answers = [WRITE, {"say": "one is written"}]  # a run of `hand`
TWO: Answers = [OTHER, {"say": "two is written"}]


def call(worker: str, data: object = "do it") -> dict[str, Any]:
    """Return a call of a worker, as an answer or as one of the calls of an answer."""
    return {"call": "worker_call", "with": {"worker": worker, "input_data": data}}


def calls(*each: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return an answer with several calls."""
    return {"calls": [dict(one) for one in each], **more}


def put_answers(project: Path, *, price: Mapping[str, float] | None = PRICE, **runs: Sequence[Answers]) -> str:
    """Write a script with the runs of each worker, and return its model name. The last run repeats."""
    script: dict[str, Any] = {"workers": runs, "repeat": True}
    if price is not None:
        script["price"] = dict(price)
    (project / "answers.yaml").write_text(json.dumps(script))
    (project / "guildhall.yaml").write_text("model: script:answers.yaml\n")
    return "script:answers.yaml"


def put_boss(project: Path, *allowed: str, **fields: Any) -> None:
    """Write a worker that has no tools of its own and may call workers."""
    bare = {"sandboxes": None, "tool_rules": None}
    put_worker(project, "boss", **{**bare, "allow_workers": list(allowed) or ["hand"], **fields})


def put_tree(project: Path, *, asking: bool = False, hand: Mapping[str, Any] | None = None, **boss: Any) -> None:
    """Write `boss`, which calls `hand` twice in one answer. Each `hand` writes a file, and asks first if `asking`."""
    put_boss(project, **boss)
    put_worker(project, "hand", **({} if asking else {"tool_rules": None}), **(hand or {}))
    both = calls(call("hand", "write one"), call("hand", "write two"))
    put_answers(project, boss=[[both, {"say": "both are written"}]], hand=[ONE, TWO])


def list_notes(project: Path) -> list[str]:
    return sorted(path.name for path in (project / "notes").glob("*"))
