"""The passthrough session: a program sends requests for Anthropic, and a real provider on loopback answers."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.models.scripted.source import ScriptSource, load_script
from guildhall.runs.record.entries import ModelAnswered, ModelAsked
from tests.models.claude_messages import (
    API,
    CALL_EVENTS,
    HEADERS,
    MESSAGE,
    TEXT_EVENTS,
    ask,
    ask_once,
    claude_request,
    sse,
)
from tests.models.passthrough_run import (
    KEY,
    TOOLS,
    PassthroughRun,
    parse_events,
    read_body,
    run_with_provider,
    streamed_answer,
    whole_answer,
)
from tests.models.scripts import write_script

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.models.passthrough.session import PassthroughSession, Reply
    from guildhall.store.engine import Store

# Answers and requests


@pytest.mark.req("X-14")
def test_the_bytes_of_the_provider_are_forwarded_and_the_answer_is_journaled(store: Store) -> None:
    answer = b"".join(sse(*CALL_EVENTS))
    passage, _upstream, (reply, got) = run_with_provider(
        store, streamed_answer([answer], headers={"request-id": "req_1"}), then=ask_once
    )
    assert got == answer
    assert (reply.status, reply.headers["request-id"]) == (200, "req_1")
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert passage.kinds() == ["model_asked", "model_answered"]
    ((key, response),) = passage.answers
    assert (key, passage.errors) == ("m1", [])
    (call,) = response.tool_calls
    assert (call.tool_name, call.args_as_dict(), call.tool_call_id) == ("memory_read", {"name": "a"}, "toolu_1")
    assert response.text == "Hello ü."
    assert [(part.content, part.signature) for part in response.parts if part.part_kind == "thinking"] == [
        ("hm hm", "c2lnbmVk")
    ]
    usage = response.usage
    assert (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens) == (130, 100, 20)
    assert (usage.output_tokens, response.finish_reason) == (7, "tool_call")
    assert passage.journal.all(ModelAnswered)[0].data.cost_usd > 0


@pytest.mark.req("X-14")
def test_the_model_gets_the_prompt_and_tools_of_the_run_and_none_of_the_program(store: Store) -> None:
    reminder = {"type": "text", "text": "<system-reminder>Your todo list is empty.</system-reminder>"}
    results = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}, reminder]}
    answered = {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "t", "name": "mcp__tools__memory_read", "input": {}}],
    }

    async def work(session: PassthroughSession, passage: PassthroughRun) -> None:
        await ask(session, claude_request("Say hello.", answered, results))

    passage, upstream, _ = run_with_provider(store, streamed_answer(sse(*TEXT_EVENTS)), then=work)
    (request,) = upstream.requests
    assert request.body["system"] == [{"type": "text", "text": "Be Bob.", "cache_control": {"type": "ephemeral"}}]
    assert [tool["name"] for tool in request.body["tools"]] == ["mcp__tools__memory_read"]
    shown = request.body["messages"]
    assert [message["role"] for message in shown] == ["user", "assistant", "user"]
    assert shown[2]["content"] == results["content"][:1]
    assert (request.path, request.body["model"], request.body["metadata"]) == (
        "/v1/messages",
        "claude-sonnet-5",
        {"user_id": "u"},
    )
    (record,) = passage.journal.all(ModelAsked)
    assert record.key == "m2"
    assert [part["tool_name"] for part in record.data.message] == ["memory_read"]


@pytest.mark.req("X-14")
def test_the_hall_adds_the_key_and_the_token_of_the_run_is_not_forwarded(store: Store) -> None:
    passage, upstream, (reply, got) = run_with_provider(store, streamed_answer(sse(*TEXT_EVENTS)), then=ask_once)
    (request,) = upstream.requests
    assert request.headers["x-api-key"] == KEY
    assert "the-token-of-the-run" not in str(request)
    assert (request.headers["anthropic-version"], request.headers["anthropic-beta"]) == ("2023-06-01", "thinking-x")
    assert KEY not in passage.journal_text() + str(reply.headers) + got.decode()


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_an_answer_in_small_pieces_is_forwarded_unchanged(store: Store, size: int) -> None:
    answer = b"".join(sse(*CALL_EVENTS)).replace(b"\n", b"\r\n") if size == 7 else b"".join(sse(*CALL_EVENTS))
    pieces = [answer[start : start + size] for start in range(0, len(answer), size)]
    passage, _, (_, got) = run_with_provider(store, streamed_answer(pieces), then=ask_once)
    assert got == answer
    assert passage.answers[0][1].text == "Hello ü."


def test_an_answer_in_one_piece_is_forwarded(store: Store) -> None:
    async def work(session: PassthroughSession, passage: PassthroughRun) -> tuple[Reply, bytes]:
        return await ask(session, claude_request(stream=False))

    passage, _, (reply, got) = run_with_provider(store, whole_answer(200, MESSAGE), then=work)
    assert json.loads(got) == MESSAGE
    assert reply.headers["content-type"] == "application/json"
    assert passage.answers[0][1].text == "Hello."


# Held events


@pytest.mark.req("X-14")
@pytest.mark.parametrize(
    ("events", "shown"), [(TEXT_EVENTS, "content_block_stop"), (CALL_EVENTS, "content_block_delta")]
)
def test_the_end_and_a_complete_call_are_held_until_the_answer_is_journaled(
    store: Store, events: list[dict[str, Any]], shown: str
) -> None:
    async def work(session: PassthroughSession, passage: PassthroughRun) -> list[tuple[Any, bool]]:
        reply = await session.answer(API, claude_request(), HEADERS)
        is_recorded = lambda: "model_answered" in passage.kinds()  # noqa: E731
        return [(event, is_recorded()) async for piece in reply.body for event in parse_events(piece)]

    _, _, got = run_with_provider(store, streamed_answer(sse(*events)), then=work)
    assert [event for event, _ in got] == events
    before = [event for event, recorded in got if not recorded]
    after = [event["type"] for event, recorded in got if recorded]
    assert before[-1]["type"] == shown
    assert [event["type"] for event in before].count("content_block_start") == len(
        [event for event in events if event["type"] == "content_block_start"]
    )
    assert after[-2:] == ["message_delta", "message_stop"]
    assert ("content_block_stop" in after) == (events is CALL_EVENTS)


def test_text_is_forwarded_while_the_provider_still_writes(store: Store) -> None:
    async def work(session: PassthroughSession, passage: PassthroughRun) -> bytes:
        reply = await session.answer(API, claude_request(), HEADERS)
        first = await anext(aiter(reply.body))
        while b"Hel" not in first:
            first += await anext(aiter(reply.body))
        assert "model_answered" not in passage.kinds()
        more.set()
        return first + await read_body(reply)

    more = asyncio.Event()
    pieces = sse(*TEXT_EVENTS)
    _passage, _, got = run_with_provider(store, streamed_answer([*pieces[:5], more, *pieces[5:]]), then=work)
    assert got == b"".join(pieces)


# Repeated requests


@pytest.mark.req("X-14", "X-1")
@pytest.mark.parametrize("stream", [True, False])
def test_a_journaled_answer_is_repeated_exactly_after_a_restart(store: Store, stream: bool) -> None:
    async def work(session: PassthroughSession, passage: PassthroughRun) -> bytes:
        await ask(session)
        again = await passage.open()
        return (await ask(again, claude_request(stream=stream)))[1]

    passage, upstream, got = run_with_provider(store, streamed_answer(sse(*CALL_EVENTS)), then=work)
    assert len(upstream.requests) == 1
    if stream:
        collector = API.create_collector(wants_usage=True)
        for event in parse_events(got):
            collector.add(event)
        got = json.dumps(collector.answer()).encode()
    blocks = json.loads(got)["content"]
    assert blocks == [
        {"type": "thinking", "thinking": "hm hm", "signature": "c2lnbmVk"},
        {"type": "of_the_future", "payload": {"a": [1]}},
        {"type": "text", "text": "Hello ü."},
        {"type": "tool_use", "id": "toolu_1", "name": "mcp__tools__memory_read", "input": {"name": "a"}},
    ]
    assert json.loads(got)["usage"]["cache_read_input_tokens"] == 100
    assert [key for key, _ in passage.answers] == ["m1", "m1"]  # each session reports it once


def test_a_client_that_disconnects_does_not_stop_the_call_and_can_join_it_again(store: Store) -> None:
    async def work(session: PassthroughSession, passage: PassthroughRun) -> tuple[bytes, bytes]:
        reply = await session.answer(API, claude_request(), HEADERS)
        await anext(aiter(reply.body))
        await reply.body.aclose()  # type: ignore[attr-defined]
        joined = [asyncio.create_task(ask(session)), asyncio.create_task(ask(session, claude_request(stream=False)))]
        await asyncio.sleep(0.05)
        more.set()
        return (await joined[0])[1], (await joined[1])[1]

    more = asyncio.Event()
    pieces = sse(*TEXT_EVENTS)
    passage, upstream, (first, second) = run_with_provider(
        store, streamed_answer([*pieces[:4], more, *pieces[4:]]), then=work
    )
    assert len(upstream.requests) == 1
    assert passage.kinds() == ["model_asked", "model_answered"]
    assert parse_events(first)[-1] == {"type": "message_stop"}
    assert json.loads(second)["content"] == [{"type": "text", "text": "Hello ü."}]
    assert len(passage.answers) == 1


def test_another_request_at_the_same_position_is_another_call_also_after_a_restart(store: Store) -> None:
    async def work(session: PassthroughSession, passage: PassthroughRun) -> list[str]:
        both = await asyncio.gather(ask(session, claude_request("one")), ask(session, claude_request("two")))
        again = await passage.open()
        later = [
            await ask(again, claude_request("two")),
            await ask(again, claude_request("one")),
            await ask(again, claude_request("three")),
        ]
        return [json.dumps(parse_events(got)[2]) for _, got in [*both, *later]]

    passage, upstream, _ = run_with_provider(store, streamed_answer(sse(*TEXT_EVENTS)), then=work)
    assert sorted(passage.keys()) == ["m1", "m1.2", "m1.3"]
    assert len(upstream.requests) == 3
    assert [key for key, _ in passage.answers][2:] == [*reversed([key for key, _ in passage.answers][:2]), "m1.3"]


def test_one_connection_serves_the_whole_run(store: Store) -> None:
    async def work(session: PassthroughSession, passage: PassthroughRun) -> None:
        for number in range(3):
            await ask(session, claude_request(f"{number}"))

    _, upstream, _ = run_with_provider(store, streamed_answer(sse(*TEXT_EVENTS)), then=work)
    assert (len(upstream.requests), upstream.connections) == (3, 1)


def test_the_end_of_a_run_ends_its_calls(store: Store) -> None:
    async def work(session: PassthroughSession, passage: PassthroughRun) -> list[Any]:
        streaming = await session.answer(API, claude_request(), HEADERS)
        await anext(aiter(streaming.body))
        waiting = asyncio.create_task(session.answer(API, claude_request(), HEADERS))
        await asyncio.sleep(0.02)
        session.close()
        return [parse_events(await read_body(streaming))[-1]["type"], (await waiting).status, session.active_calls()]

    never = asyncio.Event()
    passage, _, got = run_with_provider(store, streamed_answer([*sse(*TEXT_EVENTS)[:4], never]), then=work)
    assert got == ["error", 503, ()]
    assert passage.errors == []


def test_parallel_calls_are_limited(store: Store) -> None:
    async def work(session: PassthroughSession, passage: PassthroughRun) -> list[int]:
        asks = [
            asyncio.create_task(session.answer(API, claude_request(f"{n}", stream=False), HEADERS)) for n in range(17)
        ]
        _done, _ = await asyncio.wait(asks, return_when=asyncio.FIRST_COMPLETED)
        more.set()
        return sorted([reply.status for reply in await asyncio.gather(*asks)])

    more = asyncio.Event()
    body = json.dumps(MESSAGE).encode()

    async def slow(request: Any) -> Any:
        await more.wait()
        yield b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body

    _, _, statuses = run_with_provider(store, slow, then=work)
    assert statuses == [200] * 16 + [429]


# Scripts and token counts


def test_a_script_answers_with_the_tool_names_of_the_program(store: Store, tmp_path: Path) -> None:
    path = write_script(tmp_path, "workers: {w: [[{say: I look., call: memory_read, with: {name: a}}, {say: done}]]}")

    async def work() -> tuple[PassthroughRun, bytes]:
        passage = PassthroughRun(store, ScriptSource(path, load_script(path)))
        return passage, (await ask(await passage.open()))[1]

    passage, got = asyncio.run(work())
    assert [
        event["content_block"]["name"] for event in parse_events(got) if "name" in event.get("content_block", {})
    ] == [*TOOLS]
    assert passage.answers[0][1].tool_calls[0].tool_name == "memory_read"


def test_tokens_are_counted_by_the_provider_or_estimated_without_one(store: Store, tmp_path: Path) -> None:
    async def work(session: PassthroughSession, passage: PassthroughRun) -> Any:
        reply = await session.answer(API, claude_request(), HEADERS, count=True)
        return json.loads(await read_body(reply))

    passage, upstream, got = run_with_provider(store, whole_answer(200, {"input_tokens": 42}), then=work)
    assert got == {"input_tokens": 42}
    assert (upstream.requests[0].path, passage.kinds()) == ("/v1/messages/count_tokens", [])
    assert "max_tokens" not in upstream.requests[0].body
    assert upstream.requests[0].headers["x-api-key"] == KEY
    path = write_script(tmp_path, "workers: {w: [[{say: done}]]}")

    async def count_by_rule() -> Any:
        session = await PassthroughRun(store, ScriptSource(path, load_script(path))).open()
        return await work(session, passage)

    assert asyncio.run(count_by_rule()) == {"input_tokens": 3}


def test_a_token_count_of_the_program_itself_is_not_forwarded_and_ends_nothing(store: Store) -> None:
    async def work(session: PassthroughSession, passage: PassthroughRun) -> Any:
        more = [{"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Now this result."}]
        body = claude_request("Say hello.", *more, system="", tools=[])
        return json.loads(await read_body(await session.answer(API, body, HEADERS, count=True)))

    passage, upstream, got = run_with_provider(store, whole_answer(200, {"input_tokens": 42}), then=work)
    assert got["input_tokens"] > 3
    assert (upstream.requests, passage.kinds(), passage.errors) == ([], [], [])
