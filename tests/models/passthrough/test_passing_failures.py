"""The model door on the wire: what fails is told apart, and no limit is passed."""

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
from tests.models.claudes import MESSAGE, SAID, START, TEXT, ask, asked, once, sse
from tests.models.passages import KEY, Passage, events, played, provider, streamed, whole

if TYPE_CHECKING:
    from guildhall.models.passthrough.session import PassthroughSession, Reply
    from guildhall.store.engine import Store


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
    (failed,) = passage.journal.all(ModelCallFailed)
    assert failed.data.cost_usd > 0
    assert "ended before it was complete" in str(passage.broken[0])


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

    async def go(passing: PassthroughSession, passage: Passage) -> tuple[Reply, bytes]:
        return await ask(passing, asked(stream=False))

    passage, _, (_reply, got) = played(store, whole(200, twins), whole(200, MESSAGE), then=go)
    assert json.loads(got) == MESSAGE
    assert passage.kinds() == ["model_asked", "model_failed", "model_asked", "model_answered"]


# Limits


@pytest.mark.req("X-14", "X-3")
def test_a_call_is_reserved_and_its_answer_bounded(store: Store) -> None:
    async def go(passing: PassthroughSession, passage: Passage) -> None:
        await ask(passing, asked(thinking={"type": "enabled", "budget_tokens": 31999}))

    passage, upstream, _ = played(store, streamed(sse(*SAID)), then=go, max_budget_usd=0.1)
    (record,) = passage.journal.all(ModelAsked)
    assert 0 < record.data.reserved_usd <= 0.1 + 1e-9
    sent = upstream.heard[0].body
    assert sent["max_tokens"] == record.data.max_tokens < 32000
    assert sent["thinking"]["budget_tokens"] < sent["max_tokens"]


@pytest.mark.req("X-14", "X-3")
def test_a_limit_ends_the_run_and_nothing_is_asked(store: Store) -> None:
    passage, upstream, (reply, got) = played(store, streamed(sse(*SAID)), then=once, max_budget_usd=0.0001)
    assert (upstream.heard, reply.status) == ([], 400)
    assert isinstance(passage.broken[0], LimitReached)
    assert "max_budget_usd" in json.loads(got)["error"]["message"]


def test_what_was_charged_is_not_guessed_again(store: Store) -> None:
    async def go(passing: PassthroughSession, passage: Passage) -> None:
        await ask(passing, asked("x" * 50_000))
        answered = {"role": "assistant", "content": "Hello ü."}
        await ask(passing, asked("x" * 50_000, answered, {"role": "user", "content": "go on"}))

    passage, _, _ = played(store, streamed(sse(*SAID)), then=go, max_budget_usd=5.0)
    first, second = (entry.data.reserved_usd for entry in passage.journal.all(ModelAsked))
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

    async def go(passing: PassthroughSession, passage: Passage) -> None:
        await ask(passing, asked(system=system, stream=False))
        more = [{"role": "assistant", "content": "Hello ü."}, {"role": "user", "content": "go on"}]
        await ask(passing, asked("Say hello.", *more, system=system, stream=False))  # all of it is written again

    passage, _, _ = played(store, whole(200, answer), then=go)
    asks, answers = passage.journal.all(ModelAsked), passage.journal.all(ModelAnswered)
    assert answers[1].data.cost_usd <= asks[1].data.reserved_usd


@pytest.mark.req("X-14")
def test_answers_that_come_side_by_side_are_all_in_the_sum(store: Store) -> None:
    async def go(passing: PassthroughSession, passage: Passage) -> Any:
        await asyncio.gather(*(ask(passing, asked(f"{n}", stream=False)) for n in range(8)))
        return store.read(lambda connection: find_run(connection, passage.run))

    passage, _, run = played(store, whole(200, MESSAGE), then=go)
    spent = [entry.data.cost_usd for entry in passage.journal.all(ModelAnswered)]
    assert (run.usage.turns, len(spent)) == (8, 8)
    assert run.usage.cost_usd == pytest.approx(sum(spent))


@pytest.mark.req("X-14", "X-3")
def test_questions_side_by_side_do_not_pass_the_limit_of_turns(store: Store) -> None:
    async def go(passing: PassthroughSession, passage: Passage) -> list[int]:
        replies = await asyncio.gather(*(ask(passing, asked(f"{n}", stream=False)) for n in range(5)))
        return sorted(reply.status for reply, _ in replies)

    passage, upstream, statuses = played(store, whole(200, MESSAGE), then=go, max_turns=2)
    assert (statuses, len(upstream.heard)) == ([200, 200, 400, 400, 400], 2)
    assert all(isinstance(error, LimitReached) for error in passage.broken)
