"""What the tests of trees of runs start from: workers that call one another, and a script with answers for each."""

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
    """A call of another worker, as an answer or as one of the calls of an answer."""
    return {"call": "worker_call", "with": {"worker_name": worker, "input_data": data}}


def calls(*each: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """An answer with several calls."""
    return {"calls": [dict(one) for one in each], **more}


def put_answers(project: Path, *, price: Mapping[str, float] | None = PRICE, **runs: Sequence[Answers]) -> str:
    """A script: for each worker its runs, the last one again and again; the name of the model that it is."""
    script: dict[str, Any] = {"workers": runs, "repeat": True}
    if price is not None:
        script["price"] = dict(price)
    (project / "answers.yaml").write_text(json.dumps(script))
    (project / "guildhall.yaml").write_text("model: script:answers.yaml\n")
    return "script:answers.yaml"


def put_boss(project: Path, *allowed: str, **fields: Any) -> None:
    """A worker that has no tools of its own and may call others."""
    bare = {"sandboxes": None, "tool_rules": None}
    put_worker(project, "boss", **{**bare, "allow_workers": list(allowed) or ["hand"], **fields})


def put_tree(project: Path, *, asking: bool = False, hand: Mapping[str, Any] | None = None, **boss: Any) -> None:
    """`boss`, which calls `hand` twice in one answer; each `hand` writes a file, and asks first if it is to."""
    put_boss(project, **boss)
    put_worker(project, "hand", **({} if asking else {"tool_rules": None}), **(hand or {}))
    both = calls(call("hand", "write one"), call("hand", "write two"))
    put_answers(project, boss=[[both, {"say": "both are written"}]], hand=[ONE, TWO])


def list_notes(project: Path) -> list[str]:
    return sorted(path.name for path in (project / "notes").glob("*"))
