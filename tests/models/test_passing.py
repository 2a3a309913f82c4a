"""The model door on the wire: a program asks as it would ask Anthropic, a real provider on loopback answers."""

from __future__ import annotations

import asyncio
import copy
import json
from contextlib import suppress
from functools import reduce
from typing import TYPE_CHECKING, Any

import pytest
from pydantic_ai.tools import ToolDefinition

from guildhall.core.errors import (
    ContextTooLong,
    KeyRefused,
    LimitReached,
    ModelFailed,
    NoCredit,
    NotReachable,
    Overloaded,
    RateLimited,
    RuntimeFailed,
    UnknownModel,
)
from guildhall.models.dialects.anthropic import Anthropic
from guildhall.models.dialects.model import Trim
from guildhall.models.dialects.openai_chat import OpenAIChat
from guildhall.models.dialects.openai_responses import OpenAIResponses
from guildhall.models.dialects.reading import Malformed, parse
from guildhall.models.script import ScriptSource, load_script
from guildhall.runs.records import find_run
from guildhall.store.engine import Store
from guildhall.store.migrate import prepare
from tests.models.passages import KEY, TOOLS, Passage, Upstream, events, provider, read, streamed, whole
from tests.models.scripts import script

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from guildhall.models.passing import Passing, Reply
    from tests.models.passages import Answer

API = Anthropic()
HEADERS = {"x-api-key": "the-token-of-the-run", "anthropic-version": "2023-06-01", "anthropic-beta": "thinking-x"}
ENVIRONMENT = "# Environment\nYou have been invoked in /tmp, today is Monday."
CLAUDES_LINES = [
    {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.325"},
    {"type": "text", "text": "You are a Claude agent, built on Anthropic's Claude Agent SDK."},
]


@pytest.fixture
def store(tmp_path: Path) -> Generator[Store]:
    prepare(tmp_path / "hall.db")
    opened = Store(tmp_path / "hall.db")
    yield opened
    opened.close()


def asked(text: str = "Say hello.", *more: Any, stream: bool = True, **changes: Any) -> bytes:
    """A request as Claude Code writes it."""
    body = {
        "model": "claude-of-the-program",
        "max_tokens": 32000,
        "system": [*CLAUDES_LINES, {"type": "text", "text": "Be Bob.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": text}, {"role": "system", "content": ENVIRONMENT}, *more],
        "tools": [
            {"name": "mcp__tools__memory_read", "description": "d", "input_schema": {"type": "object"}},
            {"name": "Bash", "description": "d", "input_schema": {"type": "object"}},
        ],
        "metadata": {"user_id": "u"},
        "stream": stream,
    }
    return json.dumps({**body, **changes}).encode()


def sse(*told: dict[str, Any]) -> list[bytes]:
    return [f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode() for data in told]


USAGE = {"input_tokens": 10, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20, "output_tokens": 1}
START = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": USAGE,
    },
}


def delta(index: int, **data: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": data}


def block(index: int, opened: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    begin = {"type": "content_block_start", "index": index, "content_block": opened}
    return [begin, *deltas, {"type": "content_block_stop", "index": index}]


def end(reason: str = "end_turn", tokens: int = 7) -> list[dict[str, Any]]:
    told = {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}}
    return [{**told, "usage": {"output_tokens": tokens}}, {"type": "message_stop"}]


THINKING = block(
    0,
    {"type": "thinking", "thinking": "", "signature": ""},
    delta(0, type="thinking_delta", thinking="hm "),
    delta(0, type="thinking_delta", thinking="hm"),
    delta(0, type="signature_delta", signature="c2lnbmVk"),
)
ODD = block(1, {"type": "of_the_future", "payload": {"a": [1]}})
TEXT = block(
    2, {"type": "text", "text": ""}, delta(2, type="text_delta", text="Hel"), delta(2, type="text_delta", text="lo ü.")
)
CALL = block(
    3,
    {"type": "tool_use", "id": "toolu_1", "name": "mcp__tools__memory_read", "input": {}},
    delta(3, type="input_json_delta", partial_json=""),
    delta(3, type="input_json_delta", partial_json='{"name": '),
    delta(3, type="input_json_delta", partial_json='"a"}'),
)
SAID = [START, {"type": "ping"}, *TEXT, *end()]
CALLED = [START, *THINKING, *ODD, *TEXT, *CALL, *end("tool_use")]
MESSAGE = {
    **START["message"],
    "content": [{"type": "text", "text": "Hello."}],
    "stop_reason": "end_turn",
    "usage": {**USAGE, "output_tokens": 7},
}


def played(store: Store, *answers: Answer, then: Callable[..., Any], **more: Any) -> tuple[Passage, Upstream, Any]:
    """What `then(passing, passage)` gives, with a provider that answers so."""

    async def go() -> tuple[Passage, Upstream, Any]:
        async with Upstream(list(answers)).serving() as upstream:
            passage = Passage(store, provider(upstream.url), **more)
            passing = await passage.open()
            try:
                async with asyncio.timeout(8):
                    return passage, upstream, await then(passing, passage)
            finally:
                passing.close()
                await passage.line.close()

    return asyncio.run(go())


async def ask(passing: Passing, body: bytes | None = None) -> tuple[Reply, bytes]:
    reply = await passing.answer(API, asked() if body is None else body, HEADERS)
    return reply, await read(reply)


async def once(passing: Passing, passage: Passage) -> tuple[Reply, bytes]:
    return await ask(passing)


# What goes through


@pytest.mark.req("X-14")
def test_the_bytes_of_the_provider_are_passed_on_and_the_answer_is_on_record(store: Store) -> None:
    said = b"".join(sse(*CALLED))
    passage, _upstream, (reply, got) = played(store, streamed([said], headers={"request-id": "req_1"}), then=once)
    assert got == said
    assert (reply.status, reply.headers["request-id"]) == (200, "req_1")
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert passage.kinds() == ["model_asked", "model_answered"]
    ((key, response),) = passage.heard
    assert (key, passage.broken) == ("m1", [])
    (call,) = response.tool_calls
    assert (call.tool_name, call.args_as_dict(), call.tool_call_id) == ("memory_read", {"name": "a"}, "toolu_1")
    assert response.text == "Hello ü."
    assert [(part.content, part.signature) for part in response.parts if part.part_kind == "thinking"] == [
        ("hm hm", "c2lnbmVk")
    ]
    usage = response.usage
    assert (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens) == (130, 100, 20)
    assert (usage.output_tokens, response.finish_reason) == (7, "tool_call")
    assert passage.journal.kind("model_answered")[0].data["cost_usd"] > 0


@pytest.mark.req("X-14")
def test_the_model_is_shown_the_runs_prompt_and_tools_and_nothing_of_the_programs_own(store: Store) -> None:
    reminder = {"type": "text", "text": "<system-reminder>Your todo list is empty.</system-reminder>"}
    results = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}, reminder]}
    answered = {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "t", "name": "mcp__tools__memory_read", "input": {}}],
    }

    async def go(passing: Passing, passage: Passage) -> None:
        await ask(passing, asked("Say hello.", answered, results))

    passage, upstream, _ = played(store, streamed(sse(*SAID)), then=go)
    (heard,) = upstream.heard
    assert heard.body["system"] == [{"type": "text", "text": "Be Bob.", "cache_control": {"type": "ephemeral"}}]
    assert [tool["name"] for tool in heard.body["tools"]] == ["mcp__tools__memory_read"]
    shown = heard.body["messages"]
    assert [message["role"] for message in shown] == ["user", "assistant", "user"]
    assert shown[2]["content"] == results["content"][:1]
    assert (heard.path, heard.body["model"], heard.body["metadata"]) == (
        "/v1/messages",
        "claude-sonnet-5",
        {"user_id": "u"},
    )
    (record,) = passage.journal.kind("model_asked")
    assert record.key == "m2"
    assert [part["tool_name"] for part in record.data["message"]] == ["memory_read"]


@pytest.mark.req("X-14")
def test_the_key_is_put_in_by_the_hall_and_the_token_of_the_run_stays_here(store: Store) -> None:
    passage, upstream, (reply, got) = played(store, streamed(sse(*SAID)), then=once)
    (heard,) = upstream.heard
    assert heard.headers["x-api-key"] == KEY
    assert "the-token-of-the-run" not in str(heard)
    assert (heard.headers["anthropic-version"], heard.headers["anthropic-beta"]) == ("2023-06-01", "thinking-x")
    assert KEY not in passage.text() + str(reply.headers) + got.decode()


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_an_answer_that_dribbles_is_the_same_answer(store: Store, size: int) -> None:
    said = b"".join(sse(*CALLED)).replace(b"\n", b"\r\n") if size == 7 else b"".join(sse(*CALLED))
    pieces = [said[start : start + size] for start in range(0, len(said), size)]
    passage, _, (_, got) = played(store, streamed(pieces), then=once)
    assert got == said
    assert passage.heard[0][1].text == "Hello ü."


def test_an_answer_in_one_piece(store: Store) -> None:
    async def go(passing: Passing, passage: Passage) -> tuple[Reply, bytes]:
        return await ask(passing, asked(stream=False))

    passage, _, (reply, got) = played(store, whole(200, MESSAGE), then=go)
    assert json.loads(got) == MESSAGE
    assert reply.headers["content-type"] == "application/json"
    assert passage.heard[0][1].text == "Hello."


# What is held


@pytest.mark.req("X-14")
@pytest.mark.parametrize(("told", "shown"), [(SAID, "content_block_stop"), (CALLED, "content_block_delta")])
def test_the_end_and_a_complete_call_wait_until_the_answer_is_on_record(
    store: Store, told: list[dict[str, Any]], shown: str
) -> None:
    async def go(passing: Passing, passage: Passage) -> list[tuple[Any, bool]]:
        reply = await passing.answer(API, asked(), HEADERS)
        recorded = lambda: "model_answered" in passage.kinds()  # noqa: E731
        return [(event, recorded()) async for piece in reply.body for event in events(piece)]

    _, _, got = played(store, streamed(sse(*told)), then=go)
    assert [event for event, _ in got] == told
    before = [event for event, recorded in got if not recorded]
    after = [event["type"] for event, recorded in got if recorded]
    assert before[-1]["type"] == shown
    assert [event["type"] for event in before].count("content_block_start") == len(
        [event for event in told if event["type"] == "content_block_start"]
    )
    assert after[-2:] == ["message_delta", "message_stop"]
    assert ("content_block_stop" in after) == (told is CALLED)


def test_text_is_passed_on_while_the_provider_still_writes(store: Store) -> None:
    async def go(passing: Passing, passage: Passage) -> bytes:
        reply = await passing.answer(API, asked(), HEADERS)
        first = await anext(aiter(reply.body))
        while b"Hel" not in first:
            first += await anext(aiter(reply.body))
        assert "model_answered" not in passage.kinds()
        more.set()
        return first + await read(reply)

    more = asyncio.Event()
    pieces = sse(*SAID)
    _passage, _, got = played(store, streamed([*pieces[:5], more, *pieces[5:]]), then=go)
    assert got == b"".join(pieces)


# The same again


@pytest.mark.req("X-14", "X-1")
@pytest.mark.parametrize("stream", [True, False])
def test_what_was_answered_is_given_again_exactly_after_a_restart(store: Store, stream: bool) -> None:
    async def go(passing: Passing, passage: Passage) -> bytes:
        await ask(passing)
        again = await passage.open()
        return (await ask(again, asked(stream=stream)))[1]

    passage, upstream, got = played(store, streamed(sse(*CALLED)), then=go)
    assert len(upstream.heard) == 1
    if stream:
        collector = API.collector(usage=True)
        for event in events(got):
            collector.take(event)
        got = json.dumps(collector.answer()).encode()
    blocks = json.loads(got)["content"]
    assert blocks == [
        {"type": "thinking", "thinking": "hm hm", "signature": "c2lnbmVk"},
        {"type": "of_the_future", "payload": {"a": [1]}},
        {"type": "text", "text": "Hello ü."},
        {"type": "tool_use", "id": "toolu_1", "name": "mcp__tools__memory_read", "input": {"name": "a"}},
    ]
    assert json.loads(got)["usage"]["cache_read_input_tokens"] == 100
    assert [key for key, _ in passage.heard] == ["m1", "m1"]  # each program hears it once


def test_a_client_that_goes_away_does_not_stop_the_call_and_comes_back_to_it(store: Store) -> None:
    async def go(passing: Passing, passage: Passage) -> tuple[bytes, bytes]:
        reply = await passing.answer(API, asked(), HEADERS)
        await anext(aiter(reply.body))
        await reply.body.aclose()  # type: ignore[attr-defined]
        joined = [asyncio.create_task(ask(passing)), asyncio.create_task(ask(passing, asked(stream=False)))]
        await asyncio.sleep(0.05)
        more.set()
        return (await joined[0])[1], (await joined[1])[1]

    more = asyncio.Event()
    pieces = sse(*SAID)
    passage, upstream, (first, second) = played(store, streamed([*pieces[:4], more, *pieces[4:]]), then=go)
    assert len(upstream.heard) == 1
    assert passage.kinds() == ["model_asked", "model_answered"]
    assert events(first)[-1] == {"type": "message_stop"}
    assert json.loads(second)["content"] == [{"type": "text", "text": "Hello ü."}]
    assert len(passage.heard) == 1


def test_another_question_at_the_same_place_is_another_call_and_stays_it(store: Store) -> None:
    async def go(passing: Passing, passage: Passage) -> list[str]:
        both = await asyncio.gather(ask(passing, asked("one")), ask(passing, asked("two")))
        again = await passage.open()
        turned = [await ask(again, asked("two")), await ask(again, asked("one")), await ask(again, asked("three"))]
        return [json.dumps(events(got)[2]) for _, got in [*both, *turned]]

    passage, upstream, _ = played(store, streamed(sse(*SAID)), then=go)
    assert sorted(passage.keys()) == ["m1", "m1.2", "m1.3"]
    assert len(upstream.heard) == 3
    assert [key for key, _ in passage.heard][2:] == [*reversed([key for key, _ in passage.heard][:2]), "m1.3"]


def test_one_connection_serves_the_whole_run(store: Store) -> None:
    async def go(passing: Passing, passage: Passage) -> None:
        for number in range(3):
            await ask(passing, asked(f"{number}"))

    _, upstream, _ = played(store, streamed(sse(*SAID)), then=go)
    assert (len(upstream.heard), upstream.connections) == (3, 1)


# Failures


def said(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


@pytest.mark.req("X-14")
@pytest.mark.parametrize(
    ("status", "body", "kind", "attempts"),
    [
        (401, said("authentication_error", f"invalid x-api-key {KEY}"), KeyRefused, 1),
        (403, said("permission_error", "not for you"), KeyRefused, 1),
        (404, said("not_found_error", "model: claude-x"), UnknownModel, 1),
        (413, said("request_too_large", "too large"), ContextTooLong, 1),
        (400, said("invalid_request_error", "prompt is too long: 9 tokens > 8 maximum"), ContextTooLong, 1),
        (400, said("invalid_request_error", "Your credit balance is too low"), NoCredit, 1),
        (402, b"", NoCredit, 1),
        (429, said("rate_limit_error", "slow down"), RateLimited, 4),
        (529, said("overloaded_error", "Overloaded"), Overloaded, 4),
        (500, b"<html>", ModelFailed, 4),
        (400, b'{"error": {"message": {"error": ["deep"]}}}', ModelFailed, 1),
        (302, b"", ModelFailed, 1),
    ],
)
def test_a_refusal_is_passed_on_as_it_came_told_apart_and_ends_the_run(
    store: Store, status: int, body: Any, kind: type[ModelFailed], attempts: int
) -> None:
    passage, upstream, (reply, got) = played(store, whole(status, body, retry_after="7"), then=once)
    assert reply.status == status
    assert (reply.headers["retry-after"], reply.headers["x-should-retry"]) == ("7", "false")
    told = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert got == told.replace(KEY.encode(), b"[ANTHROPIC_API_KEY]")
    (error,) = passage.broken
    assert type(error) is kind
    assert len(upstream.heard) == attempts
    assert passage.clock.slept == [7.0] * (attempts - 1)
    assert passage.kinds() == ["model_asked", "model_failed"] * attempts
    assert KEY not in str(error) + passage.text() + got.decode()


def test_a_failure_that_passes_is_not_seen_by_the_program(store: Store) -> None:
    tired = whole(529, said("overloaded_error", "Overloaded"))
    passage, _upstream, (reply, got) = played(store, tired, tired, streamed(sse(*SAID)), then=once)
    assert (reply.status, events(got)[-1]["type"], passage.broken) == (200, "message_stop", [])
    assert passage.kinds() == ["model_asked", "model_failed"] * 2 + ["model_asked", "model_answered"]


def test_a_provider_that_is_not_there(store: Store) -> None:
    async def go() -> tuple[Passage, Reply, bytes]:
        passage = Passage(store, provider("http://127.0.0.1:9"))
        reply, got = await ask(await passage.open())
        await passage.line.close()
        return passage, reply, got

    passage, reply, got = asyncio.run(go())
    assert reply.status == 400
    assert json.loads(got)["error"]["type"] == "invalid_request_error"
    assert isinstance(passage.broken[0], NotReachable)
    assert passage.kinds().count("model_failed") == 4


@pytest.mark.req("X-14")
@pytest.mark.parametrize("cut", [True, False])
def test_an_answer_that_breaks_off_in_the_midst_ends_the_run_and_is_paid_for(store: Store, cut: bool) -> None:
    pieces = sse(*SAID)[:4]
    passage, upstream, (_reply, got) = played(store, streamed(pieces, cut=cut), then=once, max_budget_usd=0.05)
    assert events(got)[-1]["type"] == "error"
    assert got.startswith(b"".join(pieces))
    assert len(upstream.heard) == 1, "what was shown cannot be taken back"
    (failed,) = passage.journal.kind("model_failed")
    assert failed.data["cost_usd"] > 0
    assert "broke off" in str(passage.broken[0])


def test_an_answer_that_breaks_off_before_anything_was_shown_is_asked_for_again(store: Store) -> None:
    torn = streamed([b"event: message_start\ndata: {"], cut=True)
    passage, upstream, (_, got) = played(store, torn, streamed(sse(*SAID)), then=once)
    assert events(got)[-1]["type"] == "message_stop"
    assert (len(upstream.heard), passage.broken) == (2, [])


@pytest.mark.parametrize(
    ("kind", "error"),
    [("overloaded_error", Overloaded), ("api_error", ModelFailed), ("authentication_error", KeyRefused)],
)
def test_an_error_in_the_midst_of_an_answer_is_told_apart(store: Store, kind: str, error: type[ModelFailed]) -> None:
    pieces = sse(START, *TEXT, said(kind, f"oh {KEY}"))
    passage, _, (_, got) = played(store, streamed(pieces), then=once)
    assert type(passage.broken[0]) is error
    assert events(got)[-1]["type"] == "error"
    assert KEY not in got.decode() + passage.text()


@pytest.mark.parametrize(
    "data",
    [
        b"data: nonsense\n\n",
        b"data: [1]\n\n",
        b"data: [DONE]\n\n",
        b'data: {"type": "content_block_delta", "index": 9, "delta": {}}\n\n',
        b'data: {"type": "content_block_delta", "index": "x", "delta": {}}\n\n',
        b'data: {"type": "message_start", "message": 3}\n\n',
        b"data: " + b"[" * 5000 + b"\n\n",
        b"",
        b": only a comment\n\n",
        b"data: " + json.dumps({"type": "message_start", "message": {**MESSAGE, "content": 5}}).encode() + b"\n\n",
    ],
)
def test_whatever_a_provider_streams_is_a_failure_that_can_be_read(store: Store, data: bytes) -> None:
    passage, _, (reply, _got) = played(store, streamed([data]), then=once)
    (error,) = passage.broken
    assert isinstance(error, ModelFailed)
    assert "anthropic:claude-sonnet-5" in str(error)
    assert reply.status in (200, 400)
    assert passage.kinds()[-1] == "model_failed"


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b"{}", json.dumps({**MESSAGE, "stop_reason": None}).encode(), b"\xff", b""]
)
def test_whatever_a_provider_says_in_one_piece_is_too(store: Store, body: bytes) -> None:
    passage, _, (reply, _) = played(store, whole(200, body), then=once)
    assert isinstance(passage.broken[0], ModelFailed)
    assert reply.status == 400


def test_two_calls_of_one_id_are_held_back_and_asked_for_again(store: Store) -> None:
    twins = {**MESSAGE, "stop_reason": "tool_use"}
    twins["content"] = [{"type": "tool_use", "id": "t", "name": "mcp__tools__memory_read", "input": {}}] * 2

    async def go(passing: Passing, passage: Passage) -> tuple[Reply, bytes]:
        return await ask(passing, asked(stream=False))

    passage, _, (_reply, got) = played(store, whole(200, twins), whole(200, MESSAGE), then=go)
    assert json.loads(got) == MESSAGE
    assert passage.kinds() == ["model_asked", "model_failed", "model_asked", "model_answered"]


# Limits


@pytest.mark.req("X-14", "X-3")
def test_a_call_is_reserved_and_its_answer_bounded(store: Store) -> None:
    async def go(passing: Passing, passage: Passage) -> None:
        await ask(passing, asked(thinking={"type": "enabled", "budget_tokens": 31999}))

    passage, upstream, _ = played(store, streamed(sse(*SAID)), then=go, max_budget_usd=0.1)
    (record,) = passage.journal.kind("model_asked")
    assert 0 < record.data["reserved_usd"] <= 0.1 + 1e-9
    sent = upstream.heard[0].body
    assert sent["max_tokens"] == record.data["max_tokens"] < 32000
    assert sent["thinking"]["budget_tokens"] < sent["max_tokens"]


@pytest.mark.req("X-14", "X-3")
def test_a_limit_ends_the_run_and_nothing_is_asked(store: Store) -> None:
    passage, upstream, (reply, got) = played(store, streamed(sse(*SAID)), then=once, max_budget_usd=0.0001)
    assert (upstream.heard, reply.status) == ([], 400)
    assert isinstance(passage.broken[0], LimitReached)
    assert "max_budget_usd" in json.loads(got)["error"]["message"]


def test_what_was_charged_is_not_guessed_again(store: Store) -> None:
    async def go(passing: Passing, passage: Passage) -> None:
        await ask(passing, asked("x" * 50_000))
        answered = {"role": "assistant", "content": "Hello ü."}
        await ask(passing, asked("x" * 50_000, answered, {"role": "user", "content": "go on"}))

    passage, _, _ = played(store, streamed(sse(*SAID)), then=go, max_budget_usd=5.0)
    first, second = (entry.data["reserved_usd"] for entry in passage.journal.kind("model_asked"))
    assert second < first / 1.2


@pytest.mark.req("X-14", "X-3")
@pytest.mark.parametrize("mark", [{}, {"ttl": "5m"}, {"ttl": "1h"}])
def test_what_a_program_wants_to_be_cached_is_reserved_at_the_price_of_writing_it(
    store: Store, mark: dict[str, str]
) -> None:
    written = {"cache_creation_input_tokens": 100_000, "input_tokens": 0, "output_tokens": 1}
    split = {"cache_creation": {"ephemeral_1h_input_tokens": 100_000 if mark.get("ttl") == "1h" else 0}}
    answer = {**MESSAGE, "usage": {**written, **split}}
    system = [{"type": "text", "text": "Be Bob.", "cache_control": {"type": "ephemeral", **mark}}]

    async def go(passing: Passing, passage: Passage) -> None:
        await ask(passing, asked(system=system, stream=False))
        more = [{"role": "assistant", "content": "Hello ü."}, {"role": "user", "content": "go on"}]
        await ask(passing, asked("Say hello.", *more, system=system, stream=False))  # all of it is written again

    passage, _, _ = played(store, whole(200, answer), then=go)
    asks, answers = passage.journal.kind("model_asked"), passage.journal.kind("model_answered")
    assert answers[1].data["cost_usd"] <= asks[1].data["reserved_usd"]


@pytest.mark.req("X-14")
def test_answers_that_come_side_by_side_are_all_in_the_sum(store: Store) -> None:
    async def go(passing: Passing, passage: Passage) -> Any:
        await asyncio.gather(*(ask(passing, asked(f"{n}", stream=False)) for n in range(8)))
        return store.read(lambda connection: find_run(connection, passage.run))

    passage, _, run = played(store, whole(200, MESSAGE), then=go)
    spent = [entry.data["cost_usd"] for entry in passage.journal.kind("model_answered")]
    assert (run.usage.turns, len(spent)) == (8, 8)
    assert run.usage.cost_usd == pytest.approx(sum(spent))


@pytest.mark.req("X-14", "X-3")
def test_questions_side_by_side_do_not_pass_the_limit_of_turns(store: Store) -> None:
    async def go(passing: Passing, passage: Passage) -> list[int]:
        replies = await asyncio.gather(*(ask(passing, asked(f"{n}", stream=False)) for n in range(5)))
        return sorted(reply.status for reply, _ in replies)

    passage, upstream, statuses = played(store, whole(200, MESSAGE), then=go, max_turns=2)
    assert (statuses, len(upstream.heard)) == ([200, 200, 400, 400, 400], 2)
    assert all(isinstance(error, LimitReached) for error in passage.broken)


# What programs ask for themselves, and what is wrong


def test_a_title_is_answered_without_a_model(store: Store) -> None:
    async def go(passing: Passing, passage: Passage) -> tuple[Reply, bytes]:
        return await ask(passing, asked(system="You are a title generator.", tools=[], stream=False))

    passage, upstream, (reply, got) = played(store, streamed(sse(*SAID)), then=go)
    assert (reply.status, json.loads(got)["stop_reason"]) == (200, "end_turn")
    assert (upstream.heard, passage.kinds(), passage.heard) == ([], [], [])


def test_a_summary_in_the_midst_of_a_run_ends_it(store: Store) -> None:
    async def go(passing: Passing, passage: Passage) -> tuple[Reply, bytes]:
        more = [{"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Summarise."}]
        return await ask(passing, asked("Say hello.", *more, system="You summarise conversations."))

    passage, upstream, (reply, _) = played(store, streamed(sse(*SAID)), then=go)
    assert (upstream.heard, reply.status) == ([], 400)
    assert isinstance(passage.broken[0], RuntimeFailed)


def test_tools_that_are_missing_end_the_run(store: Store) -> None:
    async def go(passing: Passing, passage: Passage) -> tuple[Reply, bytes]:
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
    async def go(passing: Passing, passage: Passage) -> tuple[Reply, bytes]:
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
    with pytest.raises(Malformed, match="too many parts"):
        parse(b'{"a": [' + b"[]," * 1_000_000 + b"[]]}")
    assert parse(b'{"a": "' + b"," * 1_900_000 + b'"}')


@pytest.mark.parametrize(("dialect", "body"), WHOLE, ids=["anthropic", "chat", "responses"])
def test_whatever_stands_anywhere_in_a_request_is_read_or_refused(dialect: Any, body: dict[str, Any]) -> None:
    ours = ToolDefinition(name="a", description="All of it.", parameters_json_schema={"type": "object"})
    trim = Trim(prompt="p", tools=frozenset({"a", "n__a"}), definitions={"a": ours})
    heard = 0
    for way in _places(body):
        for odd in ODD:
            changed = _changed(body, way, odd)
            with suppress(Malformed):
                dialect.system(changed)
                left = dialect.trimmed(changed, trim)
                dialect.read(left)
                json.dumps(dialect.sent(left, "m", 100))
                heard += 1
    assert heard > 100
    told = json.dumps(dialect.trimmed(body, trim))
    assert told.count("All of it.") == 1
    assert told.count("cut") == (1 if "input" in body else 0)  # where we have no words of our own, theirs stay


@pytest.mark.parametrize(("dialect", "body"), WHOLE, ids=["anthropic", "chat", "responses"])
def test_a_provider_is_not_asked_to_reach_others_or_to_be_paid_otherwise(dialect: Any, body: dict[str, Any]) -> None:
    more = {"mcp_servers": [{"url": "https://elsewhere.example"}], "service_tier": "priority", "container": "c"}
    left = dialect.trimmed({**body, **more}, Trim(prompt="p", tools=frozenset({"a"})))
    assert not left.keys() & more.keys()
    assert left["messages" if "messages" in body else "input"]


def test_a_run_that_ends_ends_its_calls(store: Store) -> None:
    async def go(passing: Passing, passage: Passage) -> list[Any]:
        flowing = await passing.answer(API, asked(), HEADERS)
        await anext(aiter(flowing.body))
        waiting = asyncio.create_task(passing.answer(API, asked(), HEADERS))
        await asyncio.sleep(0.02)
        passing.close()
        return [events(await read(flowing))[-1]["type"], (await waiting).status, passing.under_way()]

    never = asyncio.Event()
    passage, _, got = played(store, streamed([*sse(*SAID)[:4], never]), then=go)
    assert got == ["error", 503, ()]
    assert passage.broken == []


def test_so_many_calls_at_once_and_no_more(store: Store) -> None:
    async def go(passing: Passing, passage: Passage) -> list[int]:
        asks = [asyncio.create_task(passing.answer(API, asked(f"{n}", stream=False), HEADERS)) for n in range(17)]
        _done, _ = await asyncio.wait(asks, return_when=asyncio.FIRST_COMPLETED)
        more.set()
        return sorted([reply.status for reply in await asyncio.gather(*asks)])

    more = asyncio.Event()
    body = json.dumps(MESSAGE).encode()

    async def slow(heard: Any) -> Any:
        await more.wait()
        yield b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body

    _, _, statuses = played(store, slow, then=go)
    assert statuses == [200] * 16 + [429]


# Whoever else answers


def test_a_script_answers_with_its_own_names_for_tools(store: Store, tmp_path: Path) -> None:
    path = script(tmp_path, "workers: {w: [[{say: I look., call: memory_read, with: {name: a}}, {say: done}]]}")

    async def go() -> tuple[Passage, bytes]:
        passage = Passage(store, ScriptSource(path, load_script(path)))
        return passage, (await ask(await passage.open()))[1]

    passage, got = asyncio.run(go())
    assert [event["content_block"]["name"] for event in events(got) if "name" in event.get("content_block", {})] == [
        *TOOLS
    ]
    assert passage.heard[0][1].tool_calls[0].tool_name == "memory_read"


def test_tokens_are_counted_by_the_provider_and_without_one_by_a_rule(store: Store, tmp_path: Path) -> None:
    async def go(passing: Passing, passage: Passage) -> Any:
        reply = await passing.answer(API, asked(), HEADERS, count=True)
        return json.loads(await read(reply))

    passage, upstream, got = played(store, whole(200, {"input_tokens": 42}), then=go)
    assert got == {"input_tokens": 42}
    assert (upstream.heard[0].path, passage.kinds()) == ("/v1/messages/count_tokens", [])
    assert "max_tokens" not in upstream.heard[0].body
    assert upstream.heard[0].headers["x-api-key"] == KEY
    path = script(tmp_path, "workers: {w: [[{say: done}]]}")

    async def by_rule() -> Any:
        passing = await Passage(store, ScriptSource(path, load_script(path))).open()
        return await go(passing, passage)

    assert asyncio.run(by_rule()) == {"input_tokens": 3}


def test_what_a_program_counts_for_itself_is_seen_by_nobody_and_ends_nothing(store: Store) -> None:
    async def go(passing: Passing, passage: Passage) -> Any:
        more = [{"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Now this result."}]
        body = asked("Say hello.", *more, system="", tools=[])
        return json.loads(await read(await passing.answer(API, body, HEADERS, count=True)))

    passage, upstream, got = played(store, whole(200, {"input_tokens": 42}), then=go)
    assert got["input_tokens"] > 3
    assert (upstream.heard, passage.kinds(), passage.broken) == ([], [], [])
