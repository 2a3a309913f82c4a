"""The protocol between the hall and the process of a run: messages arrive unchanged, and invalid lines are refused."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    BinaryContent,
    ModelRequest,
    ModelResponse,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.usage import RequestUsage

from guildhall.core.errors import RuntimeFailed
from guildhall.runs.record import messages
from guildhall.runtimes.forked.protocol import (
    CallModel,
    CallTool,
    Done,
    Failed,
    Reply,
    decode_message,
)

KEYS = ["door", "id", "key", "after", "requests", "output", "message", "hint", "kind", "parts"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["model", "tool", "out"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(), inner, max_size=5),
    max_leaves=15,
)


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_line_is_decoded_or_refused(line: bytes) -> None:
    with contextlib.suppress(ValueError, RecursionError):
        assert isinstance(decode_message(line), CallModel | CallTool | Done | Failed)


@given(st.text(), st.binary())
def test_a_model_request_arrives_unchanged(text: str, data: bytes) -> None:
    """Compare the parts as the journal records them."""
    picture = BinaryContent(data=data, media_type="image/png")
    note = TextContent(text, metadata={"media_type": "text/plain", "bytes": len(text), "digest": "d"})
    request = ModelRequest(
        parts=[
            ToolReturnPart("look", text, "a"),
            ToolReturnPart("look", [text, picture], "b", outcome="failed"),
            UserPromptPart([text, note, picture]),
        ],
        instructions=text,
    )
    line = CallModel(id=1, key="m1", after=1, requests=[request]).encode()
    assert line.count(b"\n") == 1
    arrived = decode_message(line)
    assert isinstance(arrived, CallModel)
    (other,) = arrived.requests
    assert messages.request_parts(other) == messages.request_parts(request)
    assert (other.instructions, other.parts[2].content[2].data) == (text, data)


@given(st.text(), st.dictionaries(st.text(), st.integers() | st.text()) | st.text())
def test_a_model_response_arrives_unchanged(text: str, arguments: Any) -> None:
    response = ModelResponse(
        parts=[ThinkingPart(text, signature=text), TextPart(text), ToolCallPart("look", arguments, "a")],
        usage=RequestUsage(input_tokens=5, output_tokens=6),
        model_name="some",
        finish_reason="tool_call",
        provider_details={"detail": text},
    )
    arrived = Reply.decode(Reply(id=1, response=response).encode()).response
    assert arrived == response


def test_a_line_that_is_too_long_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guildhall.runtimes.forked.protocol.MAX_LINE_BYTES", 100)
    with pytest.raises(RuntimeFailed, match="too long"):
        Done(output="x" * 100).encode()
