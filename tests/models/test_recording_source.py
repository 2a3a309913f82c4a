"""The recording source: answers of a recorded run, given again."""

from __future__ import annotations

import asyncio

import pytest
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.usage import RequestUsage

from guildhall.core.errors import ModelFailed
from guildhall.models.catalog import RecordingSource
from tests.models.scripts import query, start_conversation


def test_recorded_answers_are_given_in_order_until_they_are_exhausted() -> None:
    answers = [ModelResponse(parts=[ToolCallPart("Read", {}, "1")]), ModelResponse(parts=[TextPart("done")])]
    source = RecordingSource("r-2222222222", {("w", 0): answers})
    heard: list[str] = []
    conversation = start_conversation()
    for answer in answers:
        assert asyncio.run(source.answer(query(conversation), heard.append)) is answer
        conversation += [answer, ModelRequest(parts=[UserPromptPart("go on")])]
    assert heard == ["done"]
    with pytest.raises(ModelFailed, match="has only 2 responses"):
        asyncio.run(source.answer(query(conversation), heard.append))
    assert source.name == "replay:r-2222222222"
    assert source.cost(RequestUsage(input_tokens=5)) == 0.0
