"""The model door on the wire in OpenAI's two formats: as Codex and OpenCode ask, with a real provider on loopback."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import ContextTooLong, KeyRefused, ModelFailed, NoCredit, Overloaded, RateLimited
from guildhall.models.dialects.openai_chat import OpenAIChat
from guildhall.models.dialects.openai_responses import OpenAIResponses
from guildhall.runs.record.entries import ModelAsked
from tests.models.passages import KEY, Passage, Upstream, events, played, provider, read, streamed, whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildhall.models.dialects.base import Dialect
    from guildhall.models.passthrough.session import PassthroughSession, Reply
    from guildhall.store.engine import Store
    from tests.models.passages import Answer

RESPONSES, CHAT = OpenAIResponses(), OpenAIChat()
HEADERS = {"authorization": "Bearer the-token-of-the-run", "openai-beta": "x"}
OPENCODE = {"tools_memory_read": "memory_read"}
NAMES: dict[str, dict[str, str]] = {RESPONSES.api: {"mcp__tools__memory_read": "memory_read"}, CHAT.api: OPENCODE}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}


def text(role: str, *texts: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": said} for said in texts]}


def as_codex(*more: Any, said: str = "Say hello.", **changes: Any) -> bytes:
    body = {
        "model": "gpt-of-the-program",
        "instructions": "You are Codex.",
        "input": [
            text("developer", "Be Bob."),
            text("developer", "<skills_instructions>x</skills_instructions>", "<permissions instructions>y"),
            text("user", "<environment_context>\n  <cwd>/tmp</cwd>\n</environment_context>"),
            text("user", said),
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


def as_opencode(*more: Any, said: str = "Say hello.", **changes: Any) -> bytes:
    system = "Be Bob.\nYou are powered by the model named gpt-x.\n<env>\n  Working directory: /tmp\n</env>"
    body = {
        "model": "gpt-of-the-program",
        "max_tokens": 32000,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": said}, *more],
        "tools": [
            {"type": "function", "function": {"name": name, "description": "d", "parameters": SCHEMA}}
            for name in ("apply_patch", "tools_memory_read")
        ],
        "tool_choice": "auto",
        "stream": True,
    }
    return json.dumps({**body, **changes}).encode()


WRITES = {RESPONSES.api: as_codex, CHAT.api: as_opencode}

REASONED = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2VhbGVk"}
ODD = {"type": "of_the_future", "id": "x_1", "payload": {"a": 1}}
SPOKE = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Hello ü.", "annotations": [], "logprobs": []}],
}
CALLED = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "namespace": "mcp__tools",
    "name": "memory_read",
    "arguments": '{"name":"a"}',
    "status": "completed",
}
COUNTED = {
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
        "usage": COUNTED,
        **changes,
    }


def responded(*items: dict[str, Any], last: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """The events of a response, as OpenAI sends them."""
    told: list[dict[str, Any]] = [{"type": "response.created", "response": response(status="in_progress", usage=None)}]
    for index, item in enumerate(items):
        told.append(
            {"type": "response.output_item.added", "output_index": index, "item": {**item, "status": "in_progress"}}
        )
        if item["type"] == "message":
            for piece in ("Hello ", "ü."):
                told.append({"type": "response.output_text.delta", "output_index": index, "delta": piece})
        if item["type"] == "function_call":
            told.append(
                {"type": "response.function_call_arguments.delta", "output_index": index, "delta": item["arguments"]}
            )
            told.append(
                {"type": "response.function_call_arguments.done", "output_index": index, "arguments": item["arguments"]}
            )
        told.append({"type": "response.output_item.done", "output_index": index, "item": item})
    return [*told, last or {"type": "response.completed", "response": response(*items)}]


def chunk(delta: dict[str, Any], reason: str | None = None, **more: Any) -> dict[str, Any]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5"}
    return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}], **more}


def a_call(**function: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": function}]}


TOKENS = {"prompt_tokens": 130, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 100}}
USAGE = {**chunk({}), "choices": [], "usage": TOKENS}
OPENED = {
    "tool_calls": [
        {"index": 0, "id": "call_1", "type": "function", "function": {"name": "tools_memory_read", "arguments": ""}}
    ]
}
CHATTED = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning_content": "hm "}),
    chunk({"reasoning_content": "hm"}),
    chunk({"content": "Hello "}),
    chunk({"content": "ü."}),
]
CHAT_CALLED = [
    *CHATTED,
    chunk(OPENED),
    chunk(a_call(arguments='{"name"')),
    chunk(a_call(arguments=':"a"}')),
    chunk({}, "tool_calls"),
]


def sse(told: list[dict[str, Any]], *, done: bool = False) -> list[bytes]:
    pieces = [
        (f"event: {data['type']}\n" if "type" in data else "").encode() + f"data: {json.dumps(data)}\n\n".encode()
        for data in told
    ]
    return [*pieces, *([b"data: [DONE]\n\n"] if done else [])]


ANSWERS: dict[str, list[bytes]] = {
    RESPONSES.api: sse(responded(REASONED, ODD, SPOKE, CALLED)),
    CHAT.api: sse([*CHAT_CALLED, USAGE], done=True),
}
BOTH = pytest.mark.parametrize("dialect", [RESPONSES, CHAT], ids=lambda one: one.api)


def asked_in(
    store: Store, dialect: Dialect, *answers: Answer, then: Callable[..., Any], **more: Any
) -> tuple[Passage, Upstream, Any]:
    return played(store, *answers, then=then, name="openai:gpt-5", names=NAMES[dialect.api], **more)


async def ask(passing: PassthroughSession, dialect: Dialect, body: bytes | None = None) -> tuple[Reply, bytes]:
    reply = await passing.answer(dialect, WRITES[dialect.api]() if body is None else body, HEADERS)
    return reply, await read(reply)


def once(dialect: Dialect, body: bytes | None = None) -> Callable[..., Any]:
    return lambda passing, passage: ask(passing, dialect, body)


@pytest.mark.req("X-14")
@BOTH
def test_the_bytes_are_passed_on_and_the_answer_is_on_record_with_our_names(store: Store, dialect: Dialect) -> None:
    pieces = ANSWERS[dialect.api]
    passage, upstream, (reply, got) = asked_in(store, dialect, streamed(pieces), then=once(dialect))
    assert [event for event in events(got) if event != USAGE_OF.get(dialect.api)] == [
        event for event in events(b"".join(pieces)) if event != USAGE_OF.get(dialect.api)
    ]
    assert (reply.status, passage.broken, passage.keys()) == (200, [], ["m1"])
    answer = passage.heard[0][1]
    (call,) = answer.tool_calls
    assert (call.tool_name, call.args_as_dict(), call.tool_call_id) == ("memory_read", {"name": "a"}, "call_1")
    assert (answer.text, answer.finish_reason) == ("Hello ü.", "tool_call")
    usage = answer.usage
    assert (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens) == (130, 100, 7)
    (heard,) = upstream.heard
    assert heard.headers["authorization"] == f"Bearer {KEY}"
    assert heard.path == {"openai-chat": "/chat/completions"}.get(dialect.api, "/responses")
    assert "the-token-of-the-run" not in str(heard)
    assert KEY not in passage.text()


USAGE_OF = {CHAT.api: USAGE}


@pytest.mark.req("X-14")
def test_codex_shows_its_model_nothing_but_the_runs_own(store: Store) -> None:
    result = {
        "type": "function_call_output",
        "call_id": "call_1",
        "output": [
            {"type": "input_text", "text": "Wall time: 0.0012 seconds\nOutput:"},
            {"type": "input_text", "text": "blue"},
        ],
    }
    body = as_codex(REASONED, CALLED, result)
    passage, upstream, _ = asked_in(store, RESPONSES, streamed(ANSWERS[RESPONSES.api]), then=once(RESPONSES, body))
    sent = upstream.heard[0].body
    assert (sent["instructions"], sent["model"]) == ("Be Bob.", "gpt-5")
    bare = {**result, "output": [{"type": "input_text", "text": "blue"}]}
    assert sent["input"] == [text("user", "Say hello."), REASONED, CALLED, bare]
    (space,) = sent["tools"]
    assert (space["name"], [tool["name"] for tool in space["tools"]]) == ("mcp__tools", ["memory_read"])
    assert (sent["include"], sent["store"]) == (["reasoning.encrypted_content"], False)
    (asked,) = passage.journal.all(ModelAsked)
    assert (asked.key, asked.data.message[0]["content"]) == ("m2", "blue")


def test_what_looks_like_codex_s_own_words_and_is_the_persons_is_kept(store: Store) -> None:
    said = "<environment_context>what is this?</environment_context>"
    _, upstream, _ = asked_in(
        store, RESPONSES, streamed(ANSWERS[RESPONSES.api]), then=once(RESPONSES, as_codex(said=said))
    )
    assert upstream.heard[0].body["input"] == [text("user", said)]


@pytest.mark.req("X-14")
def test_opencode_shows_its_model_nothing_but_the_runs_own(store: Store) -> None:
    _, upstream, _ = asked_in(store, CHAT, streamed(ANSWERS[CHAT.api]), then=once(CHAT))
    sent = upstream.heard[0].body
    assert sent["messages"] == [{"role": "system", "content": "Be Bob."}, {"role": "user", "content": "Say hello."}]
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["tools_memory_read"]
    assert (sent["model"], sent["stream_options"]) == ("gpt-5", {"include_usage": True})


@pytest.mark.parametrize("wanted", [True, False])
def test_the_tokens_are_asked_for_and_told_only_to_whoever_wants_them(store: Store, wanted: bool) -> None:
    body = as_opencode(stream_options={"include_usage": True} if wanted else {})
    passage, _, (_, got) = asked_in(store, CHAT, streamed(ANSWERS[CHAT.api]), then=once(CHAT, body))
    assert (USAGE in events(got)) is wanted
    assert events(got)[-1] == "[DONE]"
    assert passage.heard[0][1].usage.input_tokens == 130


@pytest.mark.req("X-14")
@BOTH
def test_the_end_and_a_call_wait_until_the_answer_is_on_record(store: Store, dialect: Dialect) -> None:
    async def go(passing: PassthroughSession, passage: Passage) -> list[tuple[str, bool]]:
        reply = await passing.answer(dialect, WRITES[dialect.api](), HEADERS)
        return [
            (json.dumps(event), "model_answered" in passage.kinds())
            async for piece in reply.body
            for event in events(piece)
        ]

    _, _, got = asked_in(store, dialect, streamed(ANSWERS[dialect.api]), then=go)
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
def test_what_was_answered_is_given_again_exactly(store: Store, dialect: Dialect, stream: bool) -> None:
    async def go(passing: PassthroughSession, passage: Passage) -> dict[str, Any]:
        await ask(passing, dialect)
        again = WRITES[dialect.api](stream=stream)
        _, got = await ask(await passage.open(), dialect, again)
        if not stream:
            return json.loads(got)
        collector = dialect.create_collector(wants_usage=True)
        for event in events(got):
            collector.add(event)
        return collector.answer()

    _, upstream, got = asked_in(store, dialect, streamed(ANSWERS[dialect.api]), then=go)
    assert len(upstream.heard) == 1
    if dialect is RESPONSES:
        assert got == response(REASONED, ODD, SPOKE, CALLED)
    else:
        message = got["choices"][0]["message"]
        assert (message["content"], message["reasoning_content"]) == ("Hello ü.", "hm hm")
        (call,) = message["tool_calls"]
        assert (call["id"], call["function"]) == ("call_1", {"name": "tools_memory_read", "arguments": '{"name":"a"}'})


def test_a_server_that_leaves_the_items_out_at_the_end_is_understood(store: Store) -> None:
    told = responded(SPOKE, CALLED, last={"type": "response.completed", "response": response()})
    passage, _, _ = asked_in(store, RESPONSES, streamed(sse(told)), then=once(RESPONSES))
    assert passage.heard[0][1].text == "Hello ü."
    assert len(passage.heard[0][1].tool_calls) == 1


def test_an_answer_that_was_cut_short(store: Store) -> None:
    short = response(SPOKE, status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    told = responded(SPOKE, last={"type": "response.incomplete", "response": short})
    passage, _, _ = asked_in(store, RESPONSES, streamed(sse(told)), then=once(RESPONSES))
    assert passage.heard[0][1].finish_reason == "length"
    cut = sse([*CHATTED, chunk({}, "length"), USAGE], done=True)
    passage, _, _ = asked_in(store, CHAT, streamed(cut), then=once(CHAT))
    assert passage.heard[0][1].finish_reason == "length"


@BOTH
def test_an_answer_in_one_piece(store: Store, dialect: Dialect) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hello ü."}, "finish_reason": "stop"}
    chat = {"id": "c", "object": "chat.completion", "model": "gpt-5", "choices": [choice], "usage": TOKENS}
    told = response(SPOKE) if dialect is RESPONSES else chat
    body = WRITES[dialect.api](stream=False)
    passage, _, (_reply, got) = asked_in(store, dialect, whole(200, told), then=once(dialect, body))
    assert json.loads(got) == told
    assert (passage.heard[0][1].text, passage.heard[0][1].usage.input_tokens) == ("Hello ü.", 130)


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
def test_a_refusal_is_told_apart(
    store: Store, dialect: Dialect, status: int, error: dict[str, Any], kind: type[ModelFailed], attempts: int
) -> None:
    passage, upstream, (reply, got) = asked_in(store, dialect, whole(status, {"error": error}), then=once(dialect))
    assert (reply.status, len(upstream.heard)) == (status, attempts)
    assert type(passage.broken[0]) is kind
    assert KEY not in got.decode() + str(passage.broken[0]) + passage.text()


@pytest.mark.parametrize("cut", [True, False])
@BOTH
def test_an_answer_that_breaks_off_is_no_answer(store: Store, dialect: Dialect, cut: bool) -> None:
    pieces = (sse(responded(SPOKE)) if dialect is RESPONSES else sse(CHATTED))[:4]
    passage, _, (_, got) = asked_in(store, dialect, streamed(pieces, cut=cut), then=once(dialect))
    assert "ended before it was complete" in str(passage.broken[0])
    assert "error" in json.dumps(events(got)[-1])
    assert passage.kinds() == ["model_asked", "model_failed"]


@pytest.mark.parametrize(
    ("dialect", "told"),
    [
        (RESPONSES, {"type": "error", "code": "server_is_busy", "message": "overloaded"}),
        (
            RESPONSES,
            {"type": "response.failed", "response": response(status="failed", error={"message": "overloaded"})},
        ),
        (CHAT, {"error": {"message": "overloaded"}}),
    ],
)
def test_an_error_in_the_midst_is_told_apart(store: Store, dialect: Dialect, told: dict[str, Any]) -> None:
    begun = responded(SPOKE)[:3] if dialect is RESPONSES else CHATTED
    passage, _, _ = asked_in(store, dialect, streamed(sse([*begun, told])), then=once(dialect))
    assert type(passage.broken[0]) is Overloaded


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
def test_whatever_a_provider_streams_is_a_failure_that_can_be_read(store: Store, dialect: Dialect, data: bytes) -> None:
    passage, _, _ = asked_in(store, dialect, streamed([data]), then=once(dialect))
    assert isinstance(passage.broken[0], ModelFailed)
    assert "openai:gpt-5" in str(passage.broken[0])


@BOTH
def test_the_answer_is_bounded(store: Store, dialect: Dialect) -> None:
    passage, upstream, _ = asked_in(
        store, dialect, streamed(ANSWERS[dialect.api]), then=once(dialect), max_budget_usd=0.05
    )
    most = passage.journal.all(ModelAsked)[0].data.max_tokens
    sent = upstream.heard[0].body
    assert sent["max_output_tokens" if dialect is RESPONSES else "max_tokens"] == most


@BOTH
def test_a_title_and_missing_tools(store: Store, dialect: Dialect) -> None:
    title: dict[str, Any] = {"tools": [], "stream": False, "instructions": "You make titles."}
    title |= {"input": [text("user", "x")]} if dialect is RESPONSES else {}
    title |= {"messages": [{"role": "system", "content": "Make titles."}, {"role": "user", "content": "x"}]}
    body = WRITES[dialect.api](**title)
    passage, upstream, (reply, _) = asked_in(store, dialect, streamed([]), then=once(dialect, body))
    assert (reply.status, upstream.heard, passage.kinds()) == (200, [], [])
    passage, upstream, (reply, _) = asked_in(
        store, dialect, streamed([]), then=once(dialect, WRITES[dialect.api](tools=[]))
    )
    assert (reply.status, upstream.heard, passage.broken[0].code) == (400, [], "runtime_toolless")


@pytest.mark.parametrize(
    "changes",
    [{"input": 5, "messages": 5}, {"tools": 5}, {"tools": [5]}, {"tools": [{"type": "namespace"}]}, {"stream": 1}],
)
@BOTH
def test_what_is_no_request_is_refused_in_the_shape_of_the_api(
    store: Store, dialect: Dialect, changes: dict[str, Any]
) -> None:
    body = WRITES[dialect.api](**changes)
    _, upstream, (reply, got) = asked_in(store, dialect, streamed([]), then=once(dialect, body))
    assert (reply.status, upstream.heard) == (400, [])
    assert json.loads(got)["error"]["message"]


@pytest.mark.req("X-14")
def test_a_provider_of_another_format_is_asked_in_its_own(store: Store) -> None:
    """Codex with a model of Anthropic: the question is read, and asked as our own runtime would."""
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
    told = [
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

    async def go() -> tuple[Upstream, bytes]:
        async with Upstream([streamed(sse(told))]).serving() as upstream:
            passage = Passage(store, provider(upstream.url), names=NAMES[RESPONSES.api])
            return upstream, (await ask(await passage.open(), RESPONSES))[1]

    upstream, got = asyncio.run(go())
    assert events(got)[-1]["type"] == "response.completed"
    assert events(got)[-1]["response"]["output"][0]["content"][0]["text"] == "Hello."
    sent = upstream.heard[0].body
    assert ([tool["name"] for tool in sent["tools"]], sent["system"][0]["text"]) == (["memory_read"], "Be Bob.")
