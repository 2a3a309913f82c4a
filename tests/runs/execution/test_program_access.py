"""Results of tool calls that the doors know."""

from __future__ import annotations

from typing import Any

from pydantic_ai.messages import ToolCallPart

from guildhall.runs.execution.program_access import CallResults
from guildhall.runtimes.pydantic import to_tool_call
from guildhall.tools.model import Text, ToolResult


def test_a_call_id_that_the_model_reuses_has_no_known_result() -> None:
    nobody: Any = None
    results = CallResults(nobody, frozenset({"add"}))
    for key, id, text in (("m1", "a", "one"), ("m1", "b", "two"), ("m2", "a", "three")):
        part = ToolCallPart("add", {}, id)
        results.add_requested(key, [part])
        results.add(to_tool_call(key, part), ToolResult(content=(Text(text),)))
    assert {id: part.content for id, part in results.known.items()} == {"b": "two"}
