"""The model door: it reserves the cost, journals the request, calls the provider, and journals the answer."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import (
    BinaryContent,
    ModelRequest,
    ModelResponse,
    TextContent,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from guildhall.core.clock import SystemClock
from guildhall.core.errors import LimitReached, ModelFailed
from guildhall.core.events import EventBus
from guildhall.core.ids import new_id
from guildhall.core.request_frame import RecordedFrame
from guildhall.models.door import (
    MAX_OUTPUT_TOKENS,
    MIN_OUTPUT_TOKENS,
    ModelDoor,
    estimate_input_tokens,
    find_prefix_break,
)
from guildhall.runs.asks import Asks
from guildhall.runs.execution.call_ledger import CallLedger
from guildhall.runs.idle_tracker import IdleTracker
from guildhall.runs.limits import Spent, usage_of
from guildhall.runs.model import Bounds, RunRequest
from guildhall.runs.record.entries import ModelAnswered, ModelAsked, ModelCallFailed
from guildhall.runs.record.journal import Journal
from guildhall.runs.record.records import add_run
from tests.entries import assembly

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildhall.models.model import OnText, Query
    from guildhall.store.engine import Store

RUN_ROW = {
    "worker": "w",
    "model": "test:model",
    "kind": "plain",
    "status": "running",
    "request": {
        **asdict(RunRequest(worker="w", input="go")),
        "frame": RecordedFrame(cwd=Path("/"), root=Path("/")).as_dict(),
    },
    "created_at": "2026-01-01T00:00:00.000Z",
    "turns": 0,
    "input_tokens": 0,
    "output_tokens": 0,
    "running_seconds": 0.0,
}
TOLERANCE_USD = 1e-9


class InstantClock(SystemClock):
    """A clock that does not sleep, and records the durations."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@dataclass
class Provider:
    """A provider with scripted answers and its own prices in USD per token."""

    answers: list[Callable[[Query], ModelResponse]]
    price: tuple[float, float] | None = (3e-6, 15e-6)
    queries: list[Query] = field(default_factory=list)

    name = "test:model"

    def cost(self, usage: RequestUsage, service_tier: str | None = None) -> float | None:
        if self.price is None:
            return None
        return usage.input_tokens * self.price[0] + usage.output_tokens * self.price[1]

    def accepts(self, media_type: str) -> bool:
        return True

    async def answer(self, query: Query, on_text: OnText) -> ModelResponse:
        self.queries.append(query)
        return self.answers[min(len(self.queries), len(self.answers)) - 1](query)


def text_answer(text: str = "hello", usage: RequestUsage | None = None) -> Callable[[Query], ModelResponse]:
    usage = usage or RequestUsage(input_tokens=100, output_tokens=10)
    return lambda query: ModelResponse(parts=[TextPart(text)], usage=usage)


def failed_answer(*, transient: bool = True, after: float | None = None) -> Callable[[Query], ModelResponse]:
    def fail(query: Query) -> ModelResponse:
        raise ModelFailed("the provider is tired", transient=transient, retry_after=after, status=529)

    return fail


def duplicate_calls(query: Query) -> ModelResponse:
    calls = [ToolCallPart("t", {}, "same"), ToolCallPart("t", {}, "same")]
    return ModelResponse(parts=calls, usage=RequestUsage(input_tokens=100, output_tokens=10))


class DoorRun:
    """A run with its own model door."""

    def __init__(self, store: Store, provider: Provider, **bounds: Any) -> None:
        self.provider = provider
        self.clock = InstantClock()
        self.store = store
        self.run = new_id("r")
        self.journal = Journal(self.run, self.store, self.clock)
        self._bounds = Bounds(**bounds)

    async def open(self) -> ModelDoor:
        if not self.journal.entries:
            await self.store.write(
                lambda connection: add_run(connection, **{**RUN_ROW, "id": self.run, "root": self.run})
            )
            await self.journal.append(assembly(bounds=asdict(self._bounds)))
        self.ledger = CallLedger(
            worker="w",
            identity="project:w",
            root=self.run,
            journal=self.journal,
            asks=Asks(self.store, self.clock),
            store=self.store,
            bus=EventBus(),
            clock=self.clock,
            idle_tracker=IdleTracker(self.clock, client_count=0),
            interactive=False,
        )
        return ModelDoor(self.provider, self.ledger, self.clock, worker="w", ordinal=0)

    def kinds(self) -> list[str]:
        return [entry.kind for entry in self.journal.entries[1:]]

    def total_cost(self) -> float:
        costs = [
            getattr(entry.data, "cost_usd", None) for entry in self.journal.entries if entry.kind.startswith("model_")
        ]
        return sum(cost for cost in costs if cost is not None)


@pytest.fixture
def create_run(store: Store) -> Callable[..., DoorRun]:
    return lambda *answers, price=(3e-6, 15e-6), **bounds: DoorRun(store, Provider(list(answers), price), **bounds)


async def ask(run: DoorRun, key: str = "m1", text: str = "do it") -> ModelResponse:
    door = await run.open()
    return await door.call(key, [ModelRequest(parts=[UserPromptPart(text)])], ModelRequestParameters())


@pytest.mark.req("X-14")
def test_an_answer_is_journaled_before_the_run_gets_it_and_requested_once(create_run: Callable[..., DoorRun]) -> None:
    run = create_run(text_answer())
    first = asyncio.run(ask(run))
    assert run.kinds() == ["model_asked", "model_answered"]
    rows = run.store.read(lambda c: c.exec_driver_sql("select kind, data from journal order by seq").all())
    assert [row[0] for row in rows] == ["assembled", "model_asked", "model_answered"]
    assert "hello" in str(rows[-1][1])
    again = asyncio.run(ask(run))
    assert (again.parts, again.usage) == (first.parts, first.usage)
    assert len(run.provider.queries) == 1


def test_the_journaled_answer_to_another_request_is_not_returned(create_run: Callable[..., DoorRun]) -> None:
    run = create_run(text_answer())
    asyncio.run(ask(run))
    with pytest.raises(Exception, match="the call m1 differs"):
        asyncio.run(ask(run, text="do something else"))


def test_a_transient_failure_is_retried_and_every_attempt_is_journaled(create_run: Callable[..., DoorRun]) -> None:
    run = create_run(failed_answer(), failed_answer(after=7), failed_answer(after=1e6), text_answer())
    assert asyncio.run(ask(run)).text == "hello"
    assert run.kinds() == ["model_asked", "model_failed"] * 3 + ["model_asked", "model_answered"]
    assert [entry.data.attempt for entry in run.journal.all(ModelAsked)] == [0, 1, 2, 3]
    assert [query.attempt for query in run.provider.queries] == [0, 1, 2, 3]
    assert run.clock.slept == [1.0, 7, 60.0]
    assert run.journal.all(ModelCallFailed)[0].data.transient is True


def test_the_door_fails_after_the_fourth_attempt(create_run: Callable[..., DoorRun]) -> None:
    run = create_run(failed_answer())
    with pytest.raises(ModelFailed, match="tired"):
        asyncio.run(ask(run))
    assert run.kinds().count("model_failed") == 4
    assert run.total_cost() == 0


def test_a_permanent_failure_is_not_retried(create_run: Callable[..., DoorRun]) -> None:
    run = create_run(failed_answer(transient=False))
    with pytest.raises(ModelFailed):
        asyncio.run(ask(run))
    assert run.kinds() == ["model_asked", "model_failed"]
    assert run.clock.slept == []


@pytest.mark.req("X-14", "X-3")
def test_a_call_is_reserved_before_the_request_and_its_answer_is_limited(create_run: Callable[..., DoorRun]) -> None:
    run = create_run(text_answer(), max_budget_usd=0.01)
    asyncio.run(ask(run))
    asked = run.journal.all(ModelAsked)[0].data
    assert 0 < asked.reserved_usd <= 0.01 + TOLERANCE_USD
    assert MIN_OUTPUT_TOKENS <= asked.max_tokens < MAX_OUTPUT_TOKENS
    assert run.provider.queries[0].settings["max_tokens"] == asked.max_tokens


def test_without_a_limit_the_length_of_the_answer_is_not_limited(create_run: Callable[..., DoorRun]) -> None:
    run = create_run(text_answer())
    asyncio.run(ask(run))
    assert "max_tokens" not in run.provider.queries[0].settings


def test_a_model_without_a_price_has_no_cost(create_run: Callable[..., DoorRun]) -> None:
    run = create_run(text_answer(), price=None)
    asyncio.run(ask(run))
    assert run.journal.all(ModelAsked)[0].data.reserved_usd is None
    assert usage_of(run.journal).cost_usd is None


def test_a_call_that_exceeds_the_remaining_budget_is_not_made(create_run: Callable[..., DoorRun]) -> None:
    run = create_run(text_answer(), max_budget_usd=0.0005)
    with pytest.raises(LimitReached, match="max_budget_usd") as raised:
        asyncio.run(ask(run))
    assert run.kinds() == []
    assert run.provider.queries == []
    assert (raised.value.hint or "").startswith(f"guild resume {run.run} --budget ")
    suggested = float((raised.value.hint or "").split()[-1])
    assert suggested >= 64 * 15e-6  # the suggested budget pays for the smallest call


def test_an_answer_with_two_calls_of_the_same_id_is_charged_and_retried(create_run: Callable[..., DoorRun]) -> None:
    run = create_run(duplicate_calls, text_answer())
    assert asyncio.run(ask(run)).text == "hello"
    failed = run.journal.all(ModelCallFailed)[0]
    assert "the same id" in failed.data.message
    assert failed.data.cost_usd == pytest.approx(100 * 3e-6 + 10 * 15e-6)
    assert usage_of(run.journal).cost_usd == pytest.approx(2 * (100 * 3e-6 + 10 * 15e-6))


def test_an_answer_without_a_token_count_is_charged_by_estimate(create_run: Callable[..., DoorRun]) -> None:
    run = create_run(text_answer(usage=RequestUsage()), max_budget_usd=0.01)
    asyncio.run(ask(run))
    asked, answered = run.journal.all(ModelAsked)[0], run.journal.all(ModelAnswered)[0]
    assert answered.data.cost_usd == asked.data.reserved_usd


@pytest.mark.req("X-3")
def test_an_interrupted_call_counts_as_spent(create_run: Callable[..., DoorRun]) -> None:
    def die(query: Query) -> ModelResponse:
        raise KeyboardInterrupt

    run = create_run(die, text_answer(), max_budget_usd=0.01)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(ask(run))
    assert Spent.in_cut_off_calls([run.journal]).dollars == pytest.approx(0.01, rel=0.01)
    with pytest.raises(LimitReached):
        asyncio.run(ask(run))
    assert len(run.provider.queries) == 1


def test_turns_are_counted_over_all_segments(create_run: Callable[..., DoorRun]) -> None:
    run = create_run(text_answer(), max_turns=2)
    asyncio.run(ask(run))
    asyncio.run(ask(run, "m2"))
    with pytest.raises(LimitReached, match="2 turns"):
        asyncio.run(ask(run, "m3"))


Step = tuple[str, float, float]
STEPS = st.lists(
    st.tuples(st.sampled_from(["answer", "answer", "fail", "twins", "uncounted"]), st.floats(0, 1), st.floats(0, 1)),
    min_size=1,
    max_size=10,
)


@pytest.mark.req("X-3")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    STEPS,
    st.floats(1e-9, 1e-3),
    st.floats(1e-9, 1e-3),
    st.floats(1e-4, 10),
    st.text(max_size=300),
)
def test_the_budget_is_never_exceeded(
    store: Store, steps: list[Step], input: float, output: float, limit: float, text: str
) -> None:
    """Charges are arbitrary, but never for more tokens than were sent and allowed."""
    left = iter(steps)

    def answers(query: Query) -> ModelResponse:
        kind, sent, written = next(left, ("answer", 1.0, 1.0))
        if kind == "fail":
            raise ModelFailed("no", transient=True)
        most = query.settings.get("max_tokens", MAX_OUTPUT_TOKENS)
        usage = RequestUsage(
            input_tokens=int(sent * estimate_input_tokens(query.messages, query.parameters)),
            output_tokens=int(written * most),
        )
        if kind == "uncounted":
            usage = RequestUsage()
        parts = [ToolCallPart("t", {}, "same")] * 2 if kind == "twins" else [TextPart("x")]
        return ModelResponse(parts=parts, usage=usage)

    run = DoorRun(store, Provider([answers], (input, output)), max_budget_usd=limit)

    async def ask_all() -> None:
        door = await run.open()
        for turn in range(1, 8):
            with suppress(ModelFailed):
                messages = [ModelRequest(parts=[UserPromptPart(text)])]
                await door.call(f"m{turn}", messages, ModelRequestParameters())

    with suppress(LimitReached):
        asyncio.run(ask_all())
    assert run.total_cost() <= limit + TOLERANCE_USD
    for entry in run.journal.all(ModelAsked):
        assert entry.data.reserved_usd <= limit + TOLERANCE_USD


def test_an_estimate_counts_all_sent_content() -> None:
    def size(*content: Any, tools: int = 0) -> int:
        shown = [ToolDefinition(name="t", description="d" * 300, parameters_json_schema={})] * tools
        message = ModelRequest(parts=[UserPromptPart(list(content))], instructions="i" * 30)
        return estimate_input_tokens([message], ModelRequestParameters(function_tools=shown))

    bare = size("a" * 300)
    assert size("a" * 3000) > 900
    assert size("字" * 3000) >= 3000  # a Chinese character is a token
    assert size("😀" * 3000) >= 3000
    assert size("\ud800" * 300) > 100
    assert size("a" * 300, BinaryContent(data=b"x" * 3000, media_type="image/png")) >= bare + 1000
    assert size("a" * 300, tools=3) >= bare + 300


def test_an_estimate_counts_attachments() -> None:
    def size(*content: Any) -> int:
        return estimate_input_tokens([ModelRequest(parts=[UserPromptPart(list(content))])], ModelRequestParameters())

    tagged = TextContent("字" * 3000, metadata={"name": "a" * 100_000})
    assert 3000 <= size(tagged) < 5000  # metadata is not sent
    page = size(BinaryContent(data=b"%PDF-1.4 /Type /Page ", media_type="application/pdf"))
    many = size(BinaryContent(data=b"%PDF-1.4" + b"/Type/Page " * 50, media_type="application/pdf"))
    assert page >= 3_000
    assert many >= 150_000


def test_an_estimate_starts_from_the_charged_tokens() -> None:
    asked = ModelRequest(parts=[UserPromptPart("a" * 30_000)])
    answer = ModelResponse(parts=[TextPart("b")], usage=RequestUsage(input_tokens=8000, output_tokens=5))
    more = ModelRequest(parts=[UserPromptPart("c" * 300)])
    assert 8005 < estimate_input_tokens([asked, answer, more], ModelRequestParameters()) < 8300


def test_journal_entries_are_json(create_run: Callable[..., DoorRun]) -> None:
    run = create_run(text_answer("half of a pair: \ud83d, and a NUL: \0"))
    asyncio.run(ask(run))
    json.dumps([entry.as_dict() for entry in run.journal.entries])
    assert asyncio.run(ask(run)).text == "half of a pair: \ud83d, and a NUL: \0"


def test_the_first_place_that_breaks_a_cached_prefix_is_found() -> None:
    def user(*texts: str, instructions: str = "Be.") -> ModelRequest:
        return ModelRequest(parts=[UserPromptPart(text) for text in texts], instructions=instructions)

    tools = ModelRequestParameters(function_tools=[ToolDefinition(name="Read")])
    first, response = user("a", "b"), ModelResponse(parts=[TextPart("c")])
    before = (first, response)
    cases = [
        ((first, response, user("d")), tools, None),
        ((user("a", "b"), ModelResponse(parts=[TextPart("c")]), user("d")), tools, None),
        ((first, response), ModelRequestParameters(), "the tools"),
        ((user("a", "b", instructions="Be quick."), response), tools, "the instructions"),
        ((user("a", "x"), response), tools, "message 1, part 2"),
        ((first, ModelResponse(parts=[TextPart("x")])), tools, "message 2, part 1"),
        ((first,), tools, "message 2, part 1"),
    ]
    for messages, parameters, expected in cases:
        assert find_prefix_break(before, tools, messages, parameters) == expected


@pytest.mark.req("X-33")
def test_a_broken_prefix_is_in_the_journal(create_run: Callable[..., DoorRun]) -> None:
    async def work(run: DoorRun) -> None:
        door = await run.open()
        for key, text in (("m1", "do it"), ("m2", "do something else")):
            await door.call(key, [ModelRequest(parts=[UserPromptPart(text)])], ModelRequestParameters())

    run = create_run(text_answer())
    asyncio.run(work(run))
    first, second = (entry.data.prefix_break for entry in run.journal.all(ModelAsked))
    assert (first, second) == (None, "message 1, part 1")
