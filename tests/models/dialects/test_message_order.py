"""The message order of a program is normalised to that of the pydantic-ai runtime."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.tools import ToolDefinition

from guildhall.models.dialects.anthropic import Anthropic
from guildhall.models.dialects.base import TrimRules
from guildhall.models.dialects.canonical import sort_result_blocks, sort_results

IDS = ["a", "b", "c", "d"]


@given(st.permutations(IDS))
def test_results_are_in_the_order_of_their_calls_and_text_follows_them(order: list[str]) -> None:
    answer = ModelResponse(parts=[ToolCallPart("t", {}, id) for id in IDS])
    results = [ToolReturnPart("t", f"{id}!", id) for id in order]
    told = sort_results(
        [
            ModelRequest(parts=[UserPromptPart("go")]),
            answer,
            ModelRequest(parts=[*results[:2], UserPromptPart("hm"), *results[2:]]),
        ]
    )
    assert [getattr(part, "tool_call_id", "words") for part in told[2].parts] == [*IDS, "words"]
    assert told[:2] == [ModelRequest(parts=told[0].parts, timestamp=told[0].timestamp), answer]


@given(st.permutations(IDS))
def test_provider_formats_are_ordered_in_the_same_way(order: list[str]) -> None:
    answer = {
        "role": "assistant",
        "content": [{"type": "text", "text": "x"}, *({"type": "tool_use", "id": id} for id in IDS)],
    }
    results = [{"type": "tool_result", "tool_use_id": id} for id in order]
    asked = {"role": "user", "content": [*results, {"type": "text", "text": "hm"}]}
    told = sort_result_blocks([answer, asked])
    assert told[0] is answer
    assert [block.get("tool_use_id") for block in told[1]["content"]] == [*IDS, None]


def test_unusual_messages_stay_unchanged() -> None:
    odd = [{"role": "user", "content": "words"}, {"role": "user", "content": [1, None, {"type": "text"}]}, {}]
    assert sort_result_blocks(odd) == odd
    stray = {"role": "user", "content": [3, {"type": "tool_result", "tool_use_id": "x"}]}
    assert sort_result_blocks([stray])[0]["content"] == [stray["content"][1], 3]  # type: ignore[index]


def test_a_tool_has_the_definition_of_the_run_and_not_of_the_program() -> None:
    ours = ToolDefinition(
        name="look", description="Look. " * 2_000, parameters_json_schema={"type": "object", "n": 1.0}
    )
    cut = {
        "name": "mcp__tools__look",
        "description": "Look. … [truncated]",
        "input_schema": {},
        "cache_control": {"x": 1},
    }
    own = {"name": "Bash", "description": "Its own.", "input_schema": {}}
    trim = TrimRules(prompt="Be.", tools=frozenset({"mcp__tools__look"}), definitions={"mcp__tools__look": ours})
    (shown,) = Anthropic().trim({"messages": [], "tools": [cut, own]}, trim)["tools"]
    assert shown == {**cut, "description": ours.description, "input_schema": ours.parameters_json_schema}
