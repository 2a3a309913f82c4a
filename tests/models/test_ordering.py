"""Results of calls are told in the order of the calls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart, UserPromptPart

from guildhall.models.ordering import blocks_in_order, in_order

IDS = ["a", "b", "c", "d"]


@given(st.permutations(IDS))
def test_results_stand_where_their_calls_were_and_words_after_them(order: list[str]) -> None:
    answer = ModelResponse(parts=[ToolCallPart("t", {}, id) for id in IDS])
    results = [ToolReturnPart("t", f"{id}!", id) for id in order]
    told = in_order(
        [
            ModelRequest(parts=[UserPromptPart("go")]),
            answer,
            ModelRequest(parts=[*results[:2], UserPromptPart("hm"), *results[2:]]),
        ]
    )
    assert [getattr(part, "tool_call_id", "words") for part in told[2].parts] == [*IDS, "words"]
    assert told[:2] == [ModelRequest(parts=told[0].parts, timestamp=told[0].timestamp), answer]


@given(st.permutations(IDS))
def test_the_same_as_the_provider_takes_them(order: list[str]) -> None:
    answer = {
        "role": "assistant",
        "content": [{"type": "text", "text": "x"}, *({"type": "tool_use", "id": id} for id in IDS)],
    }
    results = [{"type": "tool_result", "tool_use_id": id} for id in order]
    asked = {"role": "user", "content": [*results, {"type": "text", "text": "hm"}]}
    told = blocks_in_order([answer, asked])
    assert told[0] is answer
    assert [block.get("tool_use_id") for block in told[1]["content"]] == [*IDS, None]


def test_what_is_odd_stays_as_it_is() -> None:
    odd = [{"role": "user", "content": "words"}, {"role": "user", "content": [1, None, {"type": "text"}]}, {}]
    assert blocks_in_order(odd) == odd
    stray = {"role": "user", "content": [3, {"type": "tool_result", "tool_use_id": "x"}]}
    assert blocks_in_order([stray])[0]["content"] == [stray["content"][1], 3]  # type: ignore[index]
