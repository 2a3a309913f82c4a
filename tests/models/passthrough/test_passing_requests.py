"""The model door on the wire: what programs ask for themselves, and whatever else they may send."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from functools import reduce
from typing import TYPE_CHECKING, Any

import pytest
from pydantic_ai.tools import ToolDefinition

from guildhall.core.errors import RuntimeFailed
from guildhall.models.dialects.anthropic import Anthropic
from guildhall.models.dialects.base import InvalidMessage, TrimRules, parse_body
from guildhall.models.dialects.openai_chat import OpenAIChat
from guildhall.models.dialects.openai_responses import OpenAIResponses
from tests.models.claudes import SAID, ask, asked, sse
from tests.models.passages import Passage, played, streamed

if TYPE_CHECKING:
    from guildhall.models.passthrough.session import PassthroughSession, Reply
    from guildhall.store.engine import Store


def test_a_title_is_answered_without_a_model(store: Store) -> None:
    async def go(passing: PassthroughSession, passage: Passage) -> tuple[Reply, bytes]:
        return await ask(passing, asked(system="You are a title generator.", tools=[], stream=False))

    passage, upstream, (reply, got) = played(store, streamed(sse(*SAID)), then=go)
    assert (reply.status, json.loads(got)["stop_reason"]) == (200, "end_turn")
    assert (upstream.heard, passage.kinds(), passage.heard) == ([], [], [])


def test_a_summary_in_the_midst_of_a_run_ends_it(store: Store) -> None:
    async def go(passing: PassthroughSession, passage: Passage) -> tuple[Reply, bytes]:
        more = [{"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Summarise."}]
        return await ask(passing, asked("Say hello.", *more, system="You summarise conversations."))

    passage, upstream, (reply, _) = played(store, streamed(sse(*SAID)), then=go)
    assert (upstream.heard, reply.status) == ([], 400)
    assert isinstance(passage.broken[0], RuntimeFailed)


def test_tools_that_are_missing_end_the_run(store: Store) -> None:
    async def go(passing: PassthroughSession, passage: Passage) -> tuple[Reply, bytes]:
        return await ask(passing, asked(tools=[{"name": "Bash", "input_schema": {}}]))

    passage, upstream, (reply, got) = played(store, streamed(sse(*SAID)), then=go)
    assert (upstream.heard, reply.status, passage.kinds()) == ([], 400, [])
    assert "memory_read" in str(passage.broken[0])
    assert "memory_read" in json.loads(got)["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"[]",
        b'{"system": "Be Bob."}',
        b'{"system": "Be Bob.", "messages": 3}',
        b'{"system": [3], "messages": []}',
        b'{"system": "Be Bob.", "tools": {"a": 1}, "messages": []}',
        asked(messages=[{"role": "system", "content": "x"}]),
        b'{"a": ' * 300 + b"1" + b"}" * 300,
        b'{"system": "Be Bob.", "max_tokens": NaN}',
        b'{"system": "\\ud800"}',
        asked(max_tokens="many"),
        asked(temperature=10**400),
        asked(stream="yes"),
        asked("x", {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "n", "input": {}}]}),
        asked("x", {"role": "assistant", "content": "the last word"}),
        asked("x", {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "nobody", "content": "x"}]}),
    ],
)
def test_what_is_no_request_is_refused_in_the_shape_of_the_api(store: Store, body: bytes) -> None:
    async def go(passing: PassthroughSession, passage: Passage) -> tuple[Reply, bytes]:
        return await ask(passing, body)

    passage, upstream, (reply, got) = played(store, streamed(sse(*SAID)), then=go)
    assert (reply.status, upstream.heard, passage.broken) == (400, [], [])
    assert json.loads(got)["error"]["type"] == "invalid_request_error"
    assert reply.headers["x-should-retry"] == "false"


PNG = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
TOOL = {"name": "a", "description": "cut", "parameters": {"type": "object"}}
WHOLE: list[tuple[Any, dict[str, Any]]] = [
    (
        Anthropic(),
        {
            "model": "m",
            "max_tokens": 10,
            "temperature": 1,
            "system": [{"type": "text", "text": "p", "cache_control": {"type": "ephemeral"}}],
            "thinking": {"type": "enabled", "budget_tokens": 5},
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image", "source": PNG}]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "i", "name": "a", "input": {"k": 1}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "i", "content": "r"}]},
            ],
            "tools": [{"name": "a", "description": "cut", "input_schema": {"type": "object"}}],
            "stream": True,
        },
    ),
    (
        OpenAIChat(),
        {
            "model": "m",
            "max_completion_tokens": 10,
            "messages": [
                {"role": "system", "content": "p"},
                {"role": "user", "content": [{"type": "text", "text": "x"}]},
                {"role": "assistant", "tool_calls": [{"id": "i", "function": {"name": "a", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "i", "content": "r"},
            ],
            "tools": [{"type": "function", "function": TOOL}],
            "stream_options": {"include_usage": True},
        },
    ),
    (
        OpenAIResponses(),
        {
            "model": "m",
            "instructions": "p",
            "max_output_tokens": 10,
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
                {"type": "function_call", "call_id": "i", "name": "a", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "i", "output": "r"},
            ],
            "tools": [
                {"type": "function", **TOOL},
                {"type": "namespace", "name": "n", "tools": [{"type": "function", **TOOL}]},
            ],
        },
    ),
]
GONE = object()
ODD: list[Any] = [GONE, None, 3, "x", "", [], {}, [3], {"a": 1}, True, -1, 10**400, 1.5, [[]], [{}]]


def _places(node: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    below = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [place for name, inner in below for place in [(*way, name), *_places(inner, (*way, name))]]


def _changed(body: Any, way: tuple[Any, ...], odd: Any) -> Any:
    body = copy.deepcopy(body)
    node = reduce(lambda inner, name: inner[name], way[:-1], body)
    if odd is GONE:
        del node[way[-1]]
    else:
        node[way[-1]] = odd
    return body


def test_what_would_take_the_hall_long_to_read_is_not_read() -> None:
    with pytest.raises(InvalidMessage, match="too many parts"):
        parse_body(b'{"a": [' + b"[]," * 1_000_000 + b"[]]}")
    assert parse_body(b'{"a": "' + b"," * 1_900_000 + b'"}')


@pytest.mark.parametrize(("dialect", "body"), WHOLE, ids=["anthropic", "chat", "responses"])
def test_whatever_stands_anywhere_in_a_request_is_read_or_refused(dialect: Any, body: dict[str, Any]) -> None:
    ours = ToolDefinition(name="a", description="All of it.", parameters_json_schema={"type": "object"})
    trim = TrimRules(prompt="p", tools=frozenset({"a", "n__a"}), definitions={"a": ours})
    heard = 0
    for way in _places(body):
        for odd in ODD:
            changed = _changed(body, way, odd)
            with suppress(InvalidMessage):
                dialect.system_prompt(changed)
                left = dialect.trim(changed, trim)
                dialect.parse_request(left)
                json.dumps(dialect.upstream_body(left, "m", 100))
                heard += 1
    assert heard > 100
    told = json.dumps(dialect.trim(body, trim))
    assert told.count("All of it.") == 1
    assert told.count("cut") == (1 if "input" in body else 0)  # where we have no words of our own, theirs stay


@pytest.mark.parametrize(("dialect", "body"), WHOLE, ids=["anthropic", "chat", "responses"])
def test_a_provider_is_not_asked_to_reach_others_or_to_be_paid_otherwise(dialect: Any, body: dict[str, Any]) -> None:
    more = {"mcp_servers": [{"url": "https://elsewhere.example"}], "service_tier": "priority", "container": "c"}
    left = dialect.trim({**body, **more}, TrimRules(prompt="p", tools=frozenset({"a"})))
    assert not left.keys() & more.keys()
    assert left["messages" if "messages" in body else "input"]
