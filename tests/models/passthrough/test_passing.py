"""The model door on the wire: a program asks as it would ask Anthropic, a real provider on loopback answers."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.models.scripted.source import ScriptSource, load_script
from guildhall.runs.record.entries import ModelAnswered, ModelAsked
from tests.models.claudes import API, CALLED, HEADERS, MESSAGE, SAID, ask, asked, once, sse
from tests.models.passages import KEY, TOOLS, Passage, events, played, read, streamed, whole
from tests.models.scripts import script

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.models.passthrough.session import PassthroughSession, Reply
    from guildhall.store.engine import Store

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
    assert passage.journal.all(ModelAnswered)[0].data.cost_usd > 0


@pytest.mark.req("X-14")
def test_the_model_is_shown_the_runs_prompt_and_tools_and_nothing_of_the_programs_own(store: Store) -> None:
    reminder = {"type": "text", "text": "<system-reminder>Your todo list is empty.</system-reminder>"}
    results = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}, reminder]}
    answered = {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "t", "name": "mcp__tools__memory_read", "input": {}}],
    }

    async def go(passing: PassthroughSession, passage: Passage) -> None:
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
    (record,) = passage.journal.all(ModelAsked)
    assert record.key == "m2"
    assert [part["tool_name"] for part in record.data.message] == ["memory_read"]


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
    async def go(passing: PassthroughSession, passage: Passage) -> tuple[Reply, bytes]:
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
    async def go(passing: PassthroughSession, passage: Passage) -> list[tuple[Any, bool]]:
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
    async def go(passing: PassthroughSession, passage: Passage) -> bytes:
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
    async def go(passing: PassthroughSession, passage: Passage) -> bytes:
        await ask(passing)
        again = await passage.open()
        return (await ask(again, asked(stream=stream)))[1]

    passage, upstream, got = played(store, streamed(sse(*CALLED)), then=go)
    assert len(upstream.heard) == 1
    if stream:
        collector = API.create_collector(wants_usage=True)
        for event in events(got):
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
    assert [key for key, _ in passage.heard] == ["m1", "m1"]  # each program hears it once


def test_a_client_that_goes_away_does_not_stop_the_call_and_comes_back_to_it(store: Store) -> None:
    async def go(passing: PassthroughSession, passage: Passage) -> tuple[bytes, bytes]:
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
    async def go(passing: PassthroughSession, passage: Passage) -> list[str]:
        both = await asyncio.gather(ask(passing, asked("one")), ask(passing, asked("two")))
        again = await passage.open()
        turned = [await ask(again, asked("two")), await ask(again, asked("one")), await ask(again, asked("three"))]
        return [json.dumps(events(got)[2]) for _, got in [*both, *turned]]

    passage, upstream, _ = played(store, streamed(sse(*SAID)), then=go)
    assert sorted(passage.keys()) == ["m1", "m1.2", "m1.3"]
    assert len(upstream.heard) == 3
    assert [key for key, _ in passage.heard][2:] == [*reversed([key for key, _ in passage.heard][:2]), "m1.3"]


def test_one_connection_serves_the_whole_run(store: Store) -> None:
    async def go(passing: PassthroughSession, passage: Passage) -> None:
        for number in range(3):
            await ask(passing, asked(f"{number}"))

    _, upstream, _ = played(store, streamed(sse(*SAID)), then=go)
    assert (len(upstream.heard), upstream.connections) == (3, 1)


def test_a_run_that_ends_ends_its_calls(store: Store) -> None:
    async def go(passing: PassthroughSession, passage: Passage) -> list[Any]:
        flowing = await passing.answer(API, asked(), HEADERS)
        await anext(aiter(flowing.body))
        waiting = asyncio.create_task(passing.answer(API, asked(), HEADERS))
        await asyncio.sleep(0.02)
        passing.close()
        return [events(await read(flowing))[-1]["type"], (await waiting).status, passing.active_calls()]

    never = asyncio.Event()
    passage, _, got = played(store, streamed([*sse(*SAID)[:4], never]), then=go)
    assert got == ["error", 503, ()]
    assert passage.broken == []


def test_so_many_calls_at_once_and_no_more(store: Store) -> None:
    async def go(passing: PassthroughSession, passage: Passage) -> list[int]:
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
    async def go(passing: PassthroughSession, passage: Passage) -> Any:
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
    async def go(passing: PassthroughSession, passage: Passage) -> Any:
        more = [{"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Now this result."}]
        body = asked("Say hello.", *more, system="", tools=[])
        return json.loads(await read(await passing.answer(API, body, HEADERS, count=True)))

    passage, upstream, got = played(store, whole(200, {"input_tokens": 42}), then=go)
    assert got["input_tokens"] > 3
    assert (upstream.heard, passage.kinds(), passage.broken) == ([], [], [])
