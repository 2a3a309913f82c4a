"""The passthrough session: failures of the provider are classified, and no limit is exceeded."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import (
    ContextTooLong,
    KeyRefused,
    LimitReached,
    ModelFailed,
    NoCredit,
    NotReachable,
    Overloaded,
    RateLimited,
    UnknownModel,
)
from guildhall.runs.record.entries import ModelAnswered, ModelAsked, ModelCallFailed
from guildhall.runs.record.records import find_run
from tests.models.claude_messages import MESSAGE, START, TEXT, TEXT_EVENTS, ask, ask_once, claude_request, sse
from tests.models.passthrough_run import (
    KEY,
    PassthroughRun,
    parse_events,
    provider,
    run_with_provider,
    streamed_answer,
    whole_answer,
)

if TYPE_CHECKING:
    from guildhall.models.passthrough.session import PassthroughSession, Reply
    from guildhall.store.engine import Store


# Failures


def error_body(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


@pytest.mark.req("X-14")
@pytest.mark.parametrize(
    ("status", "body", "kind", "attempts"),
    [
        (401, error_body("authentication_error", f"invalid x-api-key {KEY}"), KeyRefused, 1),
        (403, error_body("permission_error", "not for you"), KeyRefused, 1),
        (404, error_body("not_found_error", "model: claude-x"), UnknownModel, 1),
        (413, error_body("request_too_large", "too large"), ContextTooLong, 1),
        (400, error_body("invalid_request_error", "prompt is too long: 9 tokens > 8 maximum"), ContextTooLong, 1),
        (400, error_body("invalid_request_error", "Your credit balance is too low"), NoCredit, 1),
        (402, b"", NoCredit, 1),
        (429, error_body("rate_limit_error", "slow down"), RateLimited, 4),
        (529, error_body("overloaded_error", "Overloaded"), Overloaded, 4),
        (500, b"<html>", ModelFailed, 4),
        (400, b'{"error": {"message": {"error": ["deep"]}}}', ModelFailed, 1),
        (302, b"", ModelFailed, 1),
    ],
)
def test_a_refusal_is_forwarded_classified_and_ends_the_run(
    store: Store, status: int, body: Any, kind: type[ModelFailed], attempts: int
) -> None:
    passage, upstream, (reply, got) = run_with_provider(
        store, whole_answer(status, body, retry_after="7"), then=ask_once
    )
    assert reply.status == status
    assert (reply.headers["retry-after"], reply.headers["x-should-retry"]) == ("7", "false")
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert got == content.replace(KEY.encode(), b"[ANTHROPIC_API_KEY]")
    (error,) = passage.errors
    assert type(error) is kind
    assert len(upstream.requests) == attempts
    assert passage.clock.slept == [7.0] * (attempts - 1)
    assert passage.kinds() == ["model_asked", "model_failed"] * attempts
    assert KEY not in str(error) + passage.journal_text() + got.decode()


def test_a_transient_failure_is_not_forwarded_to_the_program(store: Store) -> None:
    overloaded = whole_answer(529, error_body("overloaded_error", "Overloaded"))
    passage, _upstream, (reply, got) = run_with_provider(
        store, overloaded, overloaded, streamed_answer(sse(*TEXT_EVENTS)), then=ask_once
    )
    assert (reply.status, parse_events(got)[-1]["type"], passage.errors) == (200, "message_stop", [])
    assert passage.kinds() == ["model_asked", "model_failed"] * 2 + ["model_asked", "model_answered"]


def test_an_unreachable_provider_is_retried_and_ends_the_run(store: Store) -> None:
    async def work() -> tuple[PassthroughRun, Reply, bytes]:
        passage = PassthroughRun(store, provider("http://127.0.0.1:9"))
        reply, got = await ask(await passage.open())
        await passage.pool.close()
        return passage, reply, got

    passage, reply, got = asyncio.run(work())
    assert reply.status == 400
    assert json.loads(got)["error"]["type"] == "invalid_request_error"
    assert isinstance(passage.errors[0], NotReachable)
    assert passage.kinds().count("model_failed") == 4


@pytest.mark.req("X-14")
@pytest.mark.parametrize("cut", [True, False])
def test_an_incomplete_answer_ends_the_run_and_is_charged(store: Store, cut: bool) -> None:
    pieces = sse(*TEXT_EVENTS)[:4]
    passage, upstream, (_reply, got) = run_with_provider(
        store, streamed_answer(pieces, cut=cut), then=ask_once, max_budget_usd=0.05
    )
    assert parse_events(got)[-1]["type"] == "error"
    assert got.startswith(b"".join(pieces))
    assert len(upstream.requests) == 1, "a partly forwarded answer cannot be retried"
    (failed,) = passage.journal.all(ModelCallFailed)
    assert failed.data.cost_usd > 0
    assert "ended before it was complete" in str(passage.errors[0])


def test_an_answer_that_breaks_before_it_is_forwarded_is_retried(store: Store) -> None:
    incomplete = streamed_answer([b"event: message_start\ndata: {"], cut=True)
    passage, upstream, (_, got) = run_with_provider(
        store, incomplete, streamed_answer(sse(*TEXT_EVENTS)), then=ask_once
    )
    assert parse_events(got)[-1]["type"] == "message_stop"
    assert (len(upstream.requests), passage.errors) == (2, [])


@pytest.mark.parametrize(
    ("kind", "error"),
    [("overloaded_error", Overloaded), ("api_error", ModelFailed), ("authentication_error", KeyRefused)],
)
def test_an_error_event_in_an_answer_is_classified(store: Store, kind: str, error: type[ModelFailed]) -> None:
    pieces = sse(START, *TEXT, error_body(kind, f"oh {KEY}"))
    passage, _, (_, got) = run_with_provider(store, streamed_answer(pieces), then=ask_once)
    assert type(passage.errors[0]) is error
    assert parse_events(got)[-1]["type"] == "error"
    assert KEY not in got.decode() + passage.journal_text()


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
def test_an_invalid_stream_is_reported_as_a_failure(store: Store, data: bytes) -> None:
    passage, _, (reply, _got) = run_with_provider(store, streamed_answer([data]), then=ask_once)
    (error,) = passage.errors
    assert isinstance(error, ModelFailed)
    assert "anthropic:claude-sonnet-5" in str(error)
    assert reply.status in (200, 400)
    assert passage.kinds()[-1] == "model_failed"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"data: nonsense\n\n", "an event is not JSON"),
        (b"data: [1]\n\n", "an event is not a JSON object"),
        (b"data: [DONE]\n\n", "an event is not a JSON object"),
    ],
)
def test_an_event_of_another_api_is_an_error_that_names_the_address(store: Store, data: bytes, problem: str) -> None:
    passage, _, _ = run_with_provider(store, streamed_answer([data]), then=ask_once)
    (error,) = passage.errors
    assert error.message.endswith(f"invalid answer: {problem}")
    assert "check the address of the provider (such as ANTHROPIC_BASE_URL)" in str(error.hint)


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b"{}", json.dumps({**MESSAGE, "stop_reason": None}).encode(), b"\xff", b""]
)
def test_an_invalid_answer_in_one_piece_is_reported_as_a_failure(store: Store, body: bytes) -> None:
    passage, _, (reply, _) = run_with_provider(store, whole_answer(200, body), then=ask_once)
    assert isinstance(passage.errors[0], ModelFailed)
    assert reply.status == 400


def test_an_answer_with_two_calls_of_the_same_id_is_held_and_retried(store: Store) -> None:
    duplicate_calls = {**MESSAGE, "stop_reason": "tool_use"}
    duplicate_calls["content"] = [{"type": "tool_use", "id": "t", "name": "mcp__tools__memory_read", "input": {}}] * 2

    async def work(session: PassthroughSession, passage: PassthroughRun) -> tuple[Reply, bytes]:
        return await ask(session, claude_request(stream=False))

    passage, _, (_reply, got) = run_with_provider(
        store, whole_answer(200, duplicate_calls), whole_answer(200, MESSAGE), then=work
    )
    assert json.loads(got) == MESSAGE
    assert passage.kinds() == ["model_asked", "model_failed", "model_asked", "model_answered"]


# Limits


@pytest.mark.req("X-14", "X-3")
def test_a_call_is_reserved_and_its_answer_is_limited(store: Store) -> None:
    async def work(session: PassthroughSession, passage: PassthroughRun) -> None:
        await ask(session, claude_request(thinking={"type": "enabled", "budget_tokens": 31999}))

    passage, upstream, _ = run_with_provider(store, streamed_answer(sse(*TEXT_EVENTS)), then=work, max_budget_usd=0.1)
    (record,) = passage.journal.all(ModelAsked)
    assert 0 < record.data.reserved_usd <= 0.1 + 1e-9
    sent = upstream.requests[0].body
    assert sent["max_tokens"] == record.data.max_tokens < 32000
    assert sent["thinking"]["budget_tokens"] < sent["max_tokens"]


@pytest.mark.req("X-14", "X-3")
def test_a_reached_limit_ends_the_run_before_the_request(store: Store) -> None:
    passage, upstream, (reply, got) = run_with_provider(
        store, streamed_answer(sse(*TEXT_EVENTS)), then=ask_once, max_budget_usd=0.0001
    )
    assert (upstream.requests, reply.status) == ([], 400)
    assert isinstance(passage.errors[0], LimitReached)
    assert "max_budget_usd" in json.loads(got)["error"]["message"]


def test_the_charged_part_of_a_conversation_is_not_estimated_again(store: Store) -> None:
    async def work(session: PassthroughSession, passage: PassthroughRun) -> None:
        await ask(session, claude_request("x" * 50_000))
        answered = {"role": "assistant", "content": "Hello ü."}
        await ask(session, claude_request("x" * 50_000, answered, {"role": "user", "content": "go on"}))

    passage, _, _ = run_with_provider(store, streamed_answer(sse(*TEXT_EVENTS)), then=work, max_budget_usd=5.0)
    first, second = (entry.data.reserved_usd for entry in passage.journal.all(ModelAsked))
    assert second < first / 1.2


@pytest.mark.req("X-14", "X-3")
@pytest.mark.parametrize("mark", [{}, {"ttl": "5m"}, {"ttl": "1h"}])
def test_cached_content_is_reserved_at_the_price_of_cache_writes(store: Store, mark: dict[str, str]) -> None:
    written = {"cache_creation_input_tokens": 100_000, "input_tokens": 0, "output_tokens": 1}
    split = {"cache_creation": {"ephemeral_1h_input_tokens": 100_000 if mark.get("ttl") == "1h" else 0}}
    answer = {**MESSAGE, "usage": {**written, **split}}
    system = [{"type": "text", "text": "Be Bob.", "cache_control": {"type": "ephemeral", **mark}}]

    async def work(session: PassthroughSession, passage: PassthroughRun) -> None:
        await ask(session, claude_request(system=system, stream=False))
        more = [{"role": "assistant", "content": "Hello ü."}, {"role": "user", "content": "go on"}]
        await ask(
            session, claude_request("Say hello.", *more, system=system, stream=False)
        )  # the whole cache is written again

    passage, _, _ = run_with_provider(store, whole_answer(200, answer), then=work)
    asks, answers = passage.journal.all(ModelAsked), passage.journal.all(ModelAnswered)
    assert answers[1].data.cost_usd <= asks[1].data.reserved_usd


@pytest.mark.req("X-14")
def test_parallel_answers_are_all_counted(store: Store) -> None:
    async def work(session: PassthroughSession, passage: PassthroughRun) -> Any:
        await asyncio.gather(*(ask(session, claude_request(f"{n}", stream=False)) for n in range(8)))
        return store.read(lambda connection: find_run(connection, passage.run))

    passage, _, run = run_with_provider(store, whole_answer(200, MESSAGE), then=work)
    spent = [entry.data.cost_usd for entry in passage.journal.all(ModelAnswered)]
    assert (run.usage.turns, len(spent)) == (8, 8)
    assert run.usage.cost_usd == pytest.approx(sum(spent))


@pytest.mark.req("X-14", "X-3")
def test_parallel_requests_do_not_exceed_the_limit_of_turns(store: Store) -> None:
    async def work(session: PassthroughSession, passage: PassthroughRun) -> list[int]:
        replies = await asyncio.gather(*(ask(session, claude_request(f"{n}", stream=False)) for n in range(5)))
        return sorted(reply.status for reply, _ in replies)

    passage, upstream, statuses = run_with_provider(store, whole_answer(200, MESSAGE), then=work, max_turns=2)
    assert (statuses, len(upstream.requests)) == ([200, 200, 400, 400, 400], 2)
    assert all(isinstance(error, LimitReached) for error in passage.errors)
