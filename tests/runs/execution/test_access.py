"""What the doors know of the results of a program's calls."""

from __future__ import annotations

from typing import Any

from pydantic_ai.messages import ToolCallPart

from guildhall.runs.execution.access import CallResults
from guildhall.runtimes.pydantic import to_tool_call
from guildhall.tools.model import Text, ToolResult


def test_an_id_that_the_model_gives_again_in_another_answer_is_not_taken_for_the_first() -> None:
    nobody: Any = None
    results = CallResults(nobody, frozenset({"add"}))
    for key, id, said in (("m1", "a", "one"), ("m1", "b", "two"), ("m2", "a", "three")):
        part = ToolCallPart("add", {}, id)
        results.add_requested(key, [part])
        results.add(to_tool_call(key, part), ToolResult(content=(Text(said),)))
    assert {id: part.content for id, part in results.known.items()} == {"b": "two"}
