"""The passthrough session in the two formats of OpenAI, with the requests of Codex and OpenCode."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import ContextTooLong, KeyRefused, ModelFailed, NoCredit, Overloaded, RateLimited
from guildhall.models.dialects.openai_chat import OpenAIChat
from guildhall.models.dialects.openai_responses import OpenAIResponses
from guildhall.runs.record.entries import ModelAsked
from tests.models.passthrough_run import (
    KEY,
    PassthroughRun,
    Upstream,
    parse_events,
    provider,
    read_body,
    run_with_provider,
    streamed_answer,
    whole_answer,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildhall.models.dialects.base import Dialect
    from guildhall.models.passthrough.session import PassthroughSession, Reply
    from guildhall.store.engine import Store
    from tests.models.passthrough_run import Answer

RESPONSES, CHAT = OpenAIResponses(), OpenAIChat()
HEADERS = {"authorization": "Bearer the-token-of-the-run", "openai-beta": "x"}
OPENCODE = {"tools_memory_read": "memory_read"}
NAMES: dict[str, dict[str, str]] = {RESPONSES.api: {"mcp__tools__memory_read": "memory_read"}, CHAT.api: OPENCODE}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}


def text_message(role: str, *texts: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": one} for one in texts]}


def codex_request(*more: Any, prompt: str = "Say hello.", **changes: Any) -> bytes:
    body = {
        "model": "gpt-of-the-program",
        "instructions": "You are Codex.",
        "input": [
            text_message("developer", "Be Bob."),
            text_message("developer", "<skills_instructions>x</skills_instructions>", "<permissions instructions>y"),
            text_message("user", "<environment_context>\n  <cwd>/tmp</cwd>\n</environment_context>"),
            text_message("user", prompt),
            *more,
        ],
        "tools": [
            {"type": "function", "name": "view_image", "parameters": {}},
            {"type": "namespace", "name": "multi_agent_v1", "tools": [{"type": "function", "name": "spawn_agent"}]},
            {
                "type": "namespace",
                "name": "mcp__tools",
                "description": "d",
                "tools": [
                    {"type": "function", "name": "memory_read", "description": "d", "parameters": SCHEMA},
                    {"type": "function", "name": "another"},
                ],
            },
            {"type": "web_search"},
        ],
        "tool_choice": "auto",
        "include": ["reasoning.encrypted_content"],
        "store": False,
        "stream": True,
    }
    return json.dumps({**body, **changes}).encode()


def opencode_request(*more: Any, prompt: str = "Say hello.", **changes: Any) -> bytes:
    system = "Be Bob.\nYou are powered by the model named gpt-x.\n<env>\n  Working directory: /tmp\n</env>"
    body = {
        "model": "gpt-of-the-program",
        "max_tokens": 32000,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": prompt}, *more],
        "tools": [
            {"type": "function", "function": {"name": name, "description": "d", "parameters": SCHEMA}}
            for name in ("apply_patch", "tools_memory_read")
        ],
        "tool_choice": "auto",
        "stream": True,
    }
    return json.dumps({**body, **changes}).encode()


REQUESTS = {RESPONSES.api: codex_request, CHAT.api: opencode_request}

REASONING_ITEM = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2VhbGVk"}
UNKNOWN_ITEM = {"type": "of_the_future", "id": "x_1", "payload": {"a": 1}}
TEXT_ITEM = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Hello ü.", "annotations": [], "logprobs": []}],
}
CALL_ITEM = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "namespace": "mcp__tools",
    "name": "memory_read",
    "arguments": '{"name":"a"}',
    "status": "completed",
}
USAGE_COUNTS = {
    "input_tokens": 130,
    "input_tokens_details": {"cached_tokens": 100},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 3},
    "total_tokens": 137,
}


def response(*items: dict[str, Any], **changes: Any) -> dict[str, Any]:
    head = {"id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-5", "error": None}
    return {
        **head,
        "status": "completed",
        "incomplete_details": None,
        "output": list(items),
        "usage": USAGE_COUNTS,
        **changes,
    }


def response_events(*items: dict[str, Any], last: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the events of a response as OpenAI sends them."""
    sent_events: list[dict[str, Any]] = [
        {"type": "response.created", "response": response(status="in_progress", usage=None)}
    ]
    for index, item in enumerate(items):
        sent_events.append(
            {"type": "response.output_item.added", "output_index": index, "item": {**item, "status": "in_progress"}}
        )
        if item["type"] == "message":
            for piece in ("Hello ", "ü."):
                sent_events.append({"type": "response.output_text.delta", "output_index": index, "delta": piece})
        if item["type"] == "function_call":
            sent_events.append(
                {"type": "response.function_call_arguments.delta", "output_index": index, "delta": item["arguments"]}
            )
            sent_events.append(
                {"type": "response.function_call_arguments.done", "output_index": index, "arguments": item["arguments"]}
            )
        sent_events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    return [*sent_events, last or {"type": "response.completed", "response": response(*items)}]


def chunk(delta: dict[str, Any], reason: str | None = None, **more: Any) -> dict[str, Any]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5"}
    return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}], **more}


def call_delta(**function: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": function}]}


TOKENS = {"prompt_tokens": 130, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 100}}
USAGE = {**chunk({}), "choices": [], "usage": TOKENS}
CALL_DELTA = {
    "tool_calls": [
        {"index": 0, "id": "call_1", "type": "function", "function": {"name": "tools_memory_read", "arguments": ""}}
    ]
}
TEXT_CHUNKS = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning_content": "hm "}),
    chunk({"reasoning_content": "hm"}),
    chunk({"content": "Hello "}),
    chunk({"content": "ü."}),
]
CALL_CHUNKS = [
    *TEXT_CHUNKS,
    chunk(CALL_DELTA),
    chunk(call_delta(arguments='{"name"')),
    chunk(call_delta(arguments=':"a"}')),
    chunk({}, "tool_calls"),
]


def sse(sent_events: list[dict[str, Any]], *, done: bool = False) -> list[bytes]:
    pieces = [
        (f"event: {data['type']}\n" if "type" in data else "").encode() + f"data: {json.dumps(data)}\n\n".encode()
        for data in sent_events
    ]
    return [*pieces, *([b"data: [DONE]\n\n"] if done else [])]


ANSWERS: dict[str, list[bytes]] = {
    RESPONSES.api: sse(response_events(REASONING_ITEM, UNKNOWN_ITEM, TEXT_ITEM, CALL_ITEM)),
    CHAT.api: sse([*CALL_CHUNKS, USAGE], done=True),
}
BOTH = pytest.mark.parametrize("dialect", [RESPONSES, CHAT], ids=lambda one: one.api)


def run_in_dialect(
    store: Store, dialect: Dialect, *answers: Answer, then: Callable[..., Any], **more: Any
) -> tuple[PassthroughRun, Upstream, Any]:
    return run_with_provider(store, *answers, then=then, name="openai:gpt-5", names=NAMES[dialect.api], **more)


async def ask(session: PassthroughSession, dialect: Dialect, body: bytes | None = None) -> tuple[Reply, bytes]:
    reply = await session.answer(dialect, REQUESTS[dialect.api]() if body is None else body, HEADERS)
    return reply, await read_body(reply)


def ask_once(dialect: Dialect, body: bytes | None = None) -> Callable[..., Any]:
    return lambda session, passage: ask(session, dialect, body)


@pytest.mark.req("X-14")
@BOTH
def test_the_bytes_are_forwarded_and_the_answer_is_journaled_with_the_tool_names_of_the_run(
    store: Store, dialect: Dialect
) -> None:
    pieces = ANSWERS[dialect.api]
    passage, upstream, (reply, got) = run_in_dialect(store, dialect, streamed_answer(pieces), then=ask_once(dialect))
    assert [event for event in parse_events(got) if event != USAGE_OF.get(dialect.api)] == [
        event for event in parse_events(b"".join(pieces)) if event != USAGE_OF.get(dialect.api)
    ]
    assert (reply.status, passage.errors, passage.keys()) == (200, [], ["m1"])
    answer = passage.answers[0][1]
    (call,) = answer.tool_calls
    assert (call.tool_name, call.args_as_dict(), call.tool_call_id) == ("memory_read", {"name": "a"}, "call_1")
    assert (answer.text, answer.finish_reason) == ("Hello ü.", "tool_call")
    usage = answer.usage
    assert (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens) == (130, 100, 7)
    (request,) = upstream.requests
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.path == {"openai-chat": "/chat/completions"}.get(dialect.api, "/responses")
    assert "the-token-of-the-run" not in str(request)
    assert KEY not in passage.journal_text()


USAGE_OF = {CHAT.api: USAGE}


@pytest.mark.req("X-14")
def test_a_model_behind_codex_gets_only_the_prompt_and_tools_of_the_run(store: Store) -> None:
    result = {
        "type": "function_call_output",
        "call_id": "call_1",
        "output": [
            {"type": "input_text", "text": "Wall time: 0.0012 seconds\nOutput:"},
            {"type": "input_text", "text": "blue"},
        ],
    }
    body = codex_request(REASONING_ITEM, CALL_ITEM, result)
    passage, upstream, _ = run_in_dialect(
        store, RESPONSES, streamed_answer(ANSWERS[RESPONSES.api]), then=ask_once(RESPONSES, body)
    )
    sent = upstream.requests[0].body
    assert (sent["instructions"], sent["model"]) == ("Be Bob.", "gpt-5")
    bare = {**result, "output": [{"type": "input_text", "text": "blue"}]}
    assert sent["input"] == [text_message("user", "Say hello."), REASONING_ITEM, CALL_ITEM, bare]
    (space,) = sent["tools"]
    assert (space["name"], [tool["name"] for tool in space["tools"]]) == ("mcp__tools", ["memory_read"])
    assert (sent["include"], sent["store"]) == (["reasoning.encrypted_content"], False)
    (asked,) = passage.journal.all(ModelAsked)
    assert (asked.key, asked.data.message[0]["content"]) == ("m2", "blue")


def test_input_that_looks_like_text_of_codex_is_kept(store: Store) -> None:
    prompt = "<environment_context>what is this?</environment_context>"
    _, upstream, _ = run_in_dialect(
        store,
        RESPONSES,
        streamed_answer(ANSWERS[RESPONSES.api]),
        then=ask_once(RESPONSES, codex_request(prompt=prompt)),
    )
    assert upstream.requests[0].body["input"] == [text_message("user", prompt)]


@pytest.mark.req("X-14")
def test_a_model_behind_opencode_gets_only_the_prompt_and_tools_of_the_run(store: Store) -> None:
    _, upstream, _ = run_in_dialect(store, CHAT, streamed_answer(ANSWERS[CHAT.api]), then=ask_once(CHAT))
    sent = upstream.requests[0].body
    assert sent["messages"] == [{"role": "system", "content": "Be Bob."}, {"role": "user", "content": "Say hello."}]
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["tools_memory_read"]
    assert (sent["model"], sent["stream_options"]) == ("gpt-5", {"include_usage": True})


@pytest.mark.parametrize("is_wanted", [True, False])
def test_usage_is_always_requested_and_forwarded_only_on_request(store: Store, is_wanted: bool) -> None:
    body = opencode_request(stream_options={"include_usage": True} if is_wanted else {})
    passage, _, (_, got) = run_in_dialect(store, CHAT, streamed_answer(ANSWERS[CHAT.api]), then=ask_once(CHAT, body))
    assert (USAGE in parse_events(got)) is is_wanted
    assert parse_events(got)[-1] == "[DONE]"
    assert passage.answers[0][1].usage.input_tokens == 130


@pytest.mark.req("X-14")
@BOTH
def test_the_end_and_a_call_are_held_until_the_answer_is_journaled(store: Store, dialect: Dialect) -> None:
    async def work(session: PassthroughSession, passage: PassthroughRun) -> list[tuple[str, bool]]:
        reply = await session.answer(dialect, REQUESTS[dialect.api](), HEADERS)
        return [
            (json.dumps(event), "model_answered" in passage.kinds())
            async for piece in reply.body
            for event in parse_events(piece)
        ]

    _, _, got = run_in_dialect(store, dialect, streamed_answer(ANSWERS[dialect.api]), then=work)
    before = " ".join(event for event, recorded in got if not recorded)
    after = " ".join(event for event, recorded in got if recorded)
    assert "Hello" in before
    complete = '"function_call_arguments.done' if dialect is RESPONSES else '"tool_calls"'
    for mark in (complete.strip('"'), '"a\\"', "response.completed" if dialect is RESPONSES else "[DONE]"):
        assert mark in after
    assert "response.completed" not in before
    assert 'finish_reason": "tool_calls' not in before


@pytest.mark.req("X-14", "X-1")
@pytest.mark.parametrize("stream", [True, False])
@BOTH
def test_a_journaled_answer_is_repeated_exactly(store: Store, dialect: Dialect, stream: bool) -> None:
    async def work(session: PassthroughSession, passage: PassthroughRun) -> dict[str, Any]:
        await ask(session, dialect)
        again = REQUESTS[dialect.api](stream=stream)
        _, got = await ask(await passage.open(), dialect, again)
        if not stream:
            return json.loads(got)
        collector = dialect.create_collector(wants_usage=True)
        for event in parse_events(got):
            collector.add(event)
        return collector.answer()

    _, upstream, got = run_in_dialect(store, dialect, streamed_answer(ANSWERS[dialect.api]), then=work)
    assert len(upstream.requests) == 1
    if dialect is RESPONSES:
        assert got == response(REASONING_ITEM, UNKNOWN_ITEM, TEXT_ITEM, CALL_ITEM)
    else:
        message = got["choices"][0]["message"]
        assert (message["content"], message["reasoning_content"]) == ("Hello ü.", "hm hm")
        (call,) = message["tool_calls"]
        assert (call["id"], call["function"]) == ("call_1", {"name": "tools_memory_read", "arguments": '{"name":"a"}'})


def test_an_end_without_output_items_is_accepted(store: Store) -> None:
    sent_events = response_events(TEXT_ITEM, CALL_ITEM, last={"type": "response.completed", "response": response()})
    passage, _, _ = run_in_dialect(store, RESPONSES, streamed_answer(sse(sent_events)), then=ask_once(RESPONSES))
    assert passage.answers[0][1].text == "Hello ü."
    assert len(passage.answers[0][1].tool_calls) == 1


def test_a_truncated_answer_has_the_finish_reason_length(store: Store) -> None:
    short = response(TEXT_ITEM, status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    sent_events = response_events(TEXT_ITEM, last={"type": "response.incomplete", "response": short})
    passage, _, _ = run_in_dialect(store, RESPONSES, streamed_answer(sse(sent_events)), then=ask_once(RESPONSES))
    assert passage.answers[0][1].finish_reason == "length"
    cut = sse([*TEXT_CHUNKS, chunk({}, "length"), USAGE], done=True)
    passage, _, _ = run_in_dialect(store, CHAT, streamed_answer(cut), then=ask_once(CHAT))
    assert passage.answers[0][1].finish_reason == "length"


@BOTH
def test_an_answer_in_one_piece_is_forwarded(store: Store, dialect: Dialect) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hello ü."}, "finish_reason": "stop"}
    chat = {"id": "c", "object": "chat.completion", "model": "gpt-5", "choices": [choice], "usage": TOKENS}
    sent_events = response(TEXT_ITEM) if dialect is RESPONSES else chat
    body = REQUESTS[dialect.api](stream=False)
    passage, _, (_reply, got) = run_in_dialect(
        store, dialect, whole_answer(200, sent_events), then=ask_once(dialect, body)
    )
    assert json.loads(got) == sent_events
    assert (passage.answers[0][1].text, passage.answers[0][1].usage.input_tokens) == ("Hello ü.", 130)


@pytest.mark.parametrize(
    ("status", "error", "kind", "attempts"),
    [
        (401, {"message": f"Incorrect API key provided: {KEY}", "code": "invalid_api_key"}, KeyRefused, 1),
        (429, {"message": "slow", "type": "rate_limit_error", "code": "rate_limit_exceeded"}, RateLimited, 4),
        (429, {"message": "You exceeded your current quota", "code": "insufficient_quota"}, NoCredit, 1),
        (400, {"message": "too many", "code": "context_length_exceeded"}, ContextTooLong, 1),
        (503, {"message": "The server is overloaded"}, Overloaded, 4),
    ],
)
@BOTH
def test_a_refusal_is_classified(
    store: Store, dialect: Dialect, status: int, error: dict[str, Any], kind: type[ModelFailed], attempts: int
) -> None:
    passage, upstream, (reply, got) = run_in_dialect(
        store, dialect, whole_answer(status, {"error": error}), then=ask_once(dialect)
    )
    assert (reply.status, len(upstream.requests)) == (status, attempts)
    assert type(passage.errors[0]) is kind
    assert KEY not in got.decode() + str(passage.errors[0]) + passage.journal_text()


@pytest.mark.parametrize("cut", [True, False])
@BOTH
def test_an_incomplete_answer_is_a_failure(store: Store, dialect: Dialect, cut: bool) -> None:
    pieces = (sse(response_events(TEXT_ITEM)) if dialect is RESPONSES else sse(TEXT_CHUNKS))[:4]
    passage, _, (_, got) = run_in_dialect(store, dialect, streamed_answer(pieces, cut=cut), then=ask_once(dialect))
    assert "ended before it was complete" in str(passage.errors[0])
    assert "error" in json.dumps(parse_events(got)[-1])
    assert passage.kinds() == ["model_asked", "model_failed"]


@pytest.mark.parametrize(
    ("dialect", "sent_events"),
    [
        (RESPONSES, {"type": "error", "code": "server_is_busy", "message": "overloaded"}),
        (
            RESPONSES,
            {"type": "response.failed", "response": response(status="failed", error={"message": "overloaded"})},
        ),
        (CHAT, {"error": {"message": "overloaded"}}),
    ],
)
def test_an_error_event_in_an_answer_is_classified(store: Store, dialect: Dialect, sent_events: dict[str, Any]) -> None:
    first_events = response_events(TEXT_ITEM)[:3] if dialect is RESPONSES else TEXT_CHUNKS
    passage, _, _ = run_in_dialect(
        store, dialect, streamed_answer(sse([*first_events, sent_events])), then=ask_once(dialect)
    )
    assert type(passage.errors[0]) is Overloaded


@pytest.mark.parametrize(
    "data",
    [
        b"data: nonsense\n\n",
        b"data: {}\n\n",
        b'data: {"type": "response.completed", "response": 5}\n\n',
        b'data: {"type": "response.completed", "response": {"status": "completed", "output": [5]}}\n\n',
        b'data: {"type": "response.output_item.done", "output_index": "x", "item": {}}\n\n',
        b'data: {"type": "response.output_text.delta", "delta": 5}\n\n',
        b'data: {"choices": 5}\n\n',
        b'data: {"choices": [{"delta": {"tool_calls": [{"index": "x"}]}}]}\n\n',
        b'data: {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": 5}}]}}]}\n\n',
        b'data: {"choices": [{"delta": {"tool_calls": [{"index": 0}]}, "finish_reason": "tool_calls"}]}\n\n',
        b"data: [DONE]\n\n",
        b"",
    ],
)
@BOTH
def test_an_invalid_stream_is_reported_as_a_failure(store: Store, dialect: Dialect, data: bytes) -> None:
    passage, _, _ = run_in_dialect(store, dialect, streamed_answer([data]), then=ask_once(dialect))
    assert isinstance(passage.errors[0], ModelFailed)
    assert "openai:gpt-5" in str(passage.errors[0])


@BOTH
def test_the_length_of_the_answer_is_limited(store: Store, dialect: Dialect) -> None:
    passage, upstream, _ = run_in_dialect(
        store, dialect, streamed_answer(ANSWERS[dialect.api]), then=ask_once(dialect), max_budget_usd=0.05
    )
    most = passage.journal.all(ModelAsked)[0].data.max_tokens
    sent = upstream.requests[0].body
    assert sent["max_output_tokens" if dialect is RESPONSES else "max_tokens"] == most


@BOTH
def test_a_title_needs_no_model_and_missing_tools_end_the_run(store: Store, dialect: Dialect) -> None:
    title: dict[str, Any] = {"tools": [], "stream": False, "instructions": "You make titles."}
    title |= {"input": [text_message("user", "x")]} if dialect is RESPONSES else {}
    title |= {"messages": [{"role": "system", "content": "Make titles."}, {"role": "user", "content": "x"}]}
    body = REQUESTS[dialect.api](**title)
    passage, upstream, (reply, _) = run_in_dialect(store, dialect, streamed_answer([]), then=ask_once(dialect, body))
    assert (reply.status, upstream.requests, passage.kinds()) == (200, [], [])
    passage, upstream, (reply, _) = run_in_dialect(
        store, dialect, streamed_answer([]), then=ask_once(dialect, REQUESTS[dialect.api](tools=[]))
    )
    assert (reply.status, upstream.requests, passage.errors[0].code) == (400, [], "runtime_toolless")


@pytest.mark.parametrize(
    "changes",
    [{"input": 5, "messages": 5}, {"tools": 5}, {"tools": [5]}, {"tools": [{"type": "namespace"}]}, {"stream": 1}],
)
@BOTH
def test_an_invalid_request_is_refused_in_the_format_of_the_api(
    store: Store, dialect: Dialect, changes: dict[str, Any]
) -> None:
    body = REQUESTS[dialect.api](**changes)
    _, upstream, (reply, got) = run_in_dialect(store, dialect, streamed_answer([]), then=ask_once(dialect, body))
    assert (reply.status, upstream.requests) == (400, [])
    assert json.loads(got)["error"]["message"]


@pytest.mark.req("X-14")
def test_a_request_is_translated_for_a_provider_of_another_format(store: Store) -> None:
    """Codex with a model of Anthropic."""
    message = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5",
        "content": [{"type": "text", "text": "Hello."}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    start = {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    sent_events = [
        start,
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello."}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 2},
        },
        {"type": "message_stop"},
    ]

    async def work() -> tuple[Upstream, bytes]:
        async with Upstream([streamed_answer(sse(sent_events))]).serving() as upstream:
            passage = PassthroughRun(store, provider(upstream.url), names=NAMES[RESPONSES.api])
            return upstream, (await ask(await passage.open(), RESPONSES))[1]

    upstream, got = asyncio.run(work())
    assert parse_events(got)[-1]["type"] == "response.completed"
    assert parse_events(got)[-1]["response"]["output"][0]["content"][0]["text"] == "Hello."
    sent = upstream.requests[0].body
    assert ([tool["name"] for tool in sent["tools"]], sent["system"][0]["text"]) == (["memory_read"], "Be Bob.")
