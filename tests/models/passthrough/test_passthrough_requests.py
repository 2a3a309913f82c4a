"""The passthrough session: requests that programs make for themselves, and invalid requests."""

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
from tests.models.claude_messages import TEXT_EVENTS, ask, claude_request, sse
from tests.models.passthrough_run import PassthroughRun, run_with_provider, streamed_answer

if TYPE_CHECKING:
    from guildhall.models.passthrough.session import PassthroughSession, Reply
    from guildhall.store.engine import Store


def test_a_title_is_answered_without_a_model(store: Store) -> None:
    async def work(session: PassthroughSession, passage: PassthroughRun) -> tuple[Reply, bytes]:
        return await ask(session, claude_request(system="You are a title generator.", tools=[], stream=False))

    passage, upstream, (reply, got) = run_with_provider(store, streamed_answer(sse(*TEXT_EVENTS)), then=work)
    assert (reply.status, json.loads(got)["stop_reason"]) == (200, "end_turn")
    assert (upstream.requests, passage.kinds(), passage.answers) == ([], [], [])


def test_a_summary_request_during_a_run_ends_it(store: Store) -> None:
    async def work(session: PassthroughSession, passage: PassthroughRun) -> tuple[Reply, bytes]:
        more = [{"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Summarise."}]
        return await ask(session, claude_request("Say hello.", *more, system="You summarise conversations."))

    passage, upstream, (reply, _) = run_with_provider(store, streamed_answer(sse(*TEXT_EVENTS)), then=work)
    assert (upstream.requests, reply.status) == ([], 400)
    assert isinstance(passage.errors[0], RuntimeFailed)


def test_missing_tools_end_the_run(store: Store) -> None:
    async def work(session: PassthroughSession, passage: PassthroughRun) -> tuple[Reply, bytes]:
        return await ask(session, claude_request(tools=[{"name": "Bash", "input_schema": {}}]))

    passage, upstream, (reply, got) = run_with_provider(store, streamed_answer(sse(*TEXT_EVENTS)), then=work)
    assert (upstream.requests, reply.status, passage.kinds()) == ([], 400, [])
    assert "memory_read" in str(passage.errors[0])
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
        claude_request(messages=[{"role": "system", "content": "x"}]),
        b'{"a": ' * 300 + b"1" + b"}" * 300,
        b'{"system": "Be Bob.", "max_tokens": NaN}',
        b'{"system": "\\ud800"}',
        claude_request(max_tokens="many"),
        claude_request(temperature=10**400),
        claude_request(stream="yes"),
        claude_request(
            "x", {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "n", "input": {}}]}
        ),
        claude_request("x", {"role": "assistant", "content": "the last word"}),
        claude_request(
            "x", {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "nobody", "content": "x"}]}
        ),
    ],
)
def test_an_invalid_request_is_refused_in_the_format_of_the_api(store: Store, body: bytes) -> None:
    async def work(session: PassthroughSession, passage: PassthroughRun) -> tuple[Reply, bytes]:
        return await ask(session, body)

    passage, upstream, (reply, got) = run_with_provider(store, streamed_answer(sse(*TEXT_EVENTS)), then=work)
    assert (reply.status, upstream.requests, passage.errors) == (400, [], [])
    assert json.loads(got)["error"]["type"] == "invalid_request_error"
    assert reply.headers["x-should-retry"] == "false"


PNG = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
TOOL = {"name": "a", "description": "cut", "parameters": {"type": "object"}}
FULL_REQUESTS: list[tuple[Any, dict[str, Any]]] = [
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
MISSING = object()
ODD_VALUES: list[Any] = [MISSING, None, 3, "x", "", [], {}, [3], {"a": 1}, True, -1, 10**400, 1.5, [[]], [{}]]


def _paths(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    below = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [found for name, inner in below for found in [(*path, name), *_paths(inner, (*path, name))]]


def _replace_at(body: Any, path: tuple[Any, ...], odd: Any) -> Any:
    body = copy.deepcopy(body)
    node = reduce(lambda inner, name: inner[name], path[:-1], body)
    if odd is MISSING:
        del node[path[-1]]
    else:
        node[path[-1]] = odd
    return body


def test_a_body_with_too_many_parts_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="more than 2,000,000 commas and brackets"):
        parse_body(b'{"a": [' + b"[]," * 1_000_000 + b"[]]}")
    assert parse_body(b'{"a": "' + b"," * 1_900_000 + b'"}')


@pytest.mark.parametrize(("dialect", "body"), FULL_REQUESTS, ids=["anthropic", "chat", "responses"])
def test_any_value_anywhere_in_a_request_is_accepted_or_refused(dialect: Any, body: dict[str, Any]) -> None:
    definition = ToolDefinition(name="a", description="All of it.", parameters_json_schema={"type": "object"})
    trim = TrimRules(prompt="p", tools=frozenset({"a", "n__a"}), definitions={"a": definition})
    accepted = 0
    for path in _paths(body):
        for odd in ODD_VALUES:
            request = _replace_at(body, path, odd)
            with suppress(InvalidMessage):
                dialect.system_prompt(request)
                left = dialect.trim(request, trim)
                dialect.parse_request(left)
                json.dumps(dialect.upstream_body(left, "m", 100))
                accepted += 1
    assert accepted > 100
    text = json.dumps(dialect.trim(body, trim))
    assert text.count("All of it.") == 1
    assert text.count("cut") == (1 if "input" in body else 0)  # tools without a definition of the run keep their own


@pytest.mark.parametrize(("dialect", "body"), FULL_REQUESTS, ids=["anthropic", "chat", "responses"])
def test_fields_that_change_the_network_access_or_the_price_are_removed(dialect: Any, body: dict[str, Any]) -> None:
    more = {"mcp_servers": [{"url": "https://elsewhere.example"}], "service_tier": "priority", "container": "c"}
    left = dialect.trim({**body, **more}, TrimRules(prompt="p", tools=frozenset({"a"})))
    assert not left.keys() & more.keys()
    assert left["messages" if "messages" in body else "input"]
