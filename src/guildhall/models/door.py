"""Model door: checks, reserves, records and sends each model call of a run, and estimates its tokens.

A transient failure is retried, unless a part of the answer was passed on to a program already.
The runtime gets complete answers only. Text is published while it arrives, for display.
Does not keep state: the recorded answers and the budget are in the `ModelLedger` that runs pass in.

Invariant: every model call of every run passes this door, except for calls of runtimes with their own network
(`runtimes.catalog`). A call with a recorded answer never reaches the source again.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from pydantic_ai.messages import BaseToolCallPart, ModelMessage, ModelResponse, TextContent
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from guildhall.core.errors import ModelFailed
from guildhall.models.model import Query, Source, Upstream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydantic_ai.models import ModelRequestParameters

    from guildhall.core.clock import Clock
    from guildhall.models.passthrough.request import Through


OUTPUT_CEILING = 16_384  # tokens that an answer may have when dollars are counted
OUTPUT_FLOOR = 64  # below this an answer is not worth asking for
ATTEMPTS = 4
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0
# On the safe side, because a reservation must not be too small: digits and code come close to this, prose has twice it.
_BYTES_A_TOKEN = 2
_BYTES_A_PICTURE = 5_000 * _BYTES_A_TOKEN  # providers scale pictures down: larger ones count no more than this
_PAGE = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
_STREAM = re.compile(rb"/ObjStm\b.{0,400}?stream\r?\n", re.DOTALL)
_MOST_UNPACKED = 20_000_000  # bytes: of a small file that claims to be a huge one, no more is looked at
_BYTES_A_HIDDEN_PAGE = 2_000  # the least that a page takes, where pages cannot be counted
_MOST_HIDDEN = 100  # pages: what most providers take in one file
_BYTES_A_PAGE = 5_000 * _BYTES_A_TOKEN  # a page is sent as its text and as a picture


@dataclass(frozen=True, kw_only=True)
class ModelCall:
    """One model call as the ledger sees it."""

    key: str
    messages: Sequence[ModelMessage]
    parameters: ModelRequestParameters
    attempt: int
    reserved_usd: float | None  # the most that this call can cost; None: no price
    max_tokens: int | None


class ModelLedger(Protocol):
    """What the door needs to know and to record about the model calls of one run."""

    def answered(
        self, key: str, messages: Sequence[ModelMessage], parameters: ModelRequestParameters
    ) -> ModelResponse | None:
        """The answer, if this very call has been answered before."""
        ...

    def failures(self, key: str) -> int:
        """How often this call has failed before."""
        ...

    async def permit(
        self, key: str, sent: int, price: Callable[[int], float | None]
    ) -> tuple[float | None, int | None]:
        """Reserves the call: dollars, and the tokens that the answer may have. Raises LimitReached.

        `sent` is how many tokens the question has, `price(n)` the most that the call costs with an answer of n tokens.
        """
        ...

    async def asked(self, call: ModelCall) -> None: ...

    async def failed(self, call: ModelCall, error: ModelFailed, cost: float | None) -> None:
        """Records a failure. `cost` is None when no answer had begun, so that nothing was paid."""
        ...

    def again(self, error: ModelFailed, attempt: int, pause: float) -> None:
        """It is asked again after a pause, for the second, third ... time."""
        ...

    async def record(self, call: ModelCall, response: ModelResponse, cost: float | None) -> None: ...

    def on_text(self, text: str) -> None: ...


class ModelDoor:
    """Asks one source on behalf of one run."""

    def __init__(self, source: Source, ledger: ModelLedger, clock: Clock, *, worker: str, ordinal: int) -> None:
        self._source = source
        self._ledger = ledger
        self._clock = clock
        self._worker = worker
        self._ordinal = ordinal

    async def ask(
        self,
        key: str,
        messages: Sequence[ModelMessage],
        parameters: ModelRequestParameters,
        through: Through | None = None,
    ) -> ModelResponse:
        """The answer to a conversation. The same call, by its key, is answered once however often it is made.

        `through` is the same question as a program has written it: a provider that understands it gets it like that.
        What of the answer was passed on already cannot be taken back, so it is not asked for again then.
        """
        if (recorded := self._ledger.answered(key, messages, parameters)) is not None:
            return recorded
        for attempt in range(ATTEMPTS):
            try:
                return await self._ask_once(key, messages, parameters, through)
            except ModelFailed as error:
                begun = through is not None and through.begun
                if not error.transient or begun or attempt == ATTEMPTS - 1:
                    raise
                wanted = _FIRST_PAUSE * 2**attempt if error.retry_after is None else error.retry_after
                pause = min(wanted, _LONGEST_PAUSE)
                self._ledger.again(error, attempt + 2, pause)
            await self._clock.sleep(pause)
        raise AssertionError

    async def _ask_once(
        self, key: str, messages: Sequence[ModelMessage], parameters: ModelRequestParameters, through: Through | None
    ) -> ModelResponse:
        sent = estimate(messages, parameters)

        @cache  # it is looked up a few times, and looking it up takes longer than all else here
        def price(answer_tokens: int) -> float | None:
            if through is not None:
                return self._source.cost(through.dearest(sent, answer_tokens))
            return self._source.cost(RequestUsage(input_tokens=sent, output_tokens=answer_tokens))

        reserved, max_tokens = await self._ledger.permit(key, sent, price)
        call = ModelCall(
            key=key,
            messages=messages,
            parameters=parameters,
            attempt=self._ledger.failures(key),
            reserved_usd=reserved,
            max_tokens=max_tokens,
        )
        await self._ledger.asked(call)
        query = Query(
            worker=self._worker,
            ordinal=self._ordinal,
            attempt=call.attempt,
            messages=messages,
            settings=ModelSettings() if max_tokens is None else ModelSettings(max_tokens=max_tokens),
            parameters=parameters,
        )
        try:
            if through is not None and (upstream := self._source.upstream(through.api)) is not None:
                response = await through.send(upstream, max_tokens, self._ledger.on_text)
            else:
                response = await self._source.answer(query, self._ledger.on_text)
        except ModelFailed as error:
            await self._ledger.failed(call, error, reserved if error.charged else None)
            raise
        cost = self._cost(response.usage, reserved)
        ids = [part.tool_call_id for part in response.parts if isinstance(part, BaseToolCallPart)]
        if len(ids) != len(set(ids)):  # the calls could not be told apart later: paid for, and asked again
            unusable = ModelFailed("the model gave two tool calls the same id", transient=True)
            await self._ledger.failed(call, unusable, cost)
            raise unusable
        await self._ledger.record(call, response, cost)
        return response

    def upstream(self, api: str) -> Upstream | None:
        return self._source.upstream(api)

    def _cost(self, usage: RequestUsage, reserved: float | None) -> float | None:
        """The dollars of an answer. One whose tokens are not counted, or do not add up, is not free."""
        counted = usage.input_tokens or usage.output_tokens
        cost = self._source.cost(usage) if counted else None
        return reserved if cost is None else round(cost, 9)  # without the dust of multiplying


def estimate(messages: Sequence[ModelMessage], parameters: ModelRequestParameters) -> int:
    """How many tokens a request has at the most. What the last answer was charged for need not be guessed again."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.kind == "response" and message.usage.input_tokens:
            known = message.usage.input_tokens + message.usage.output_tokens
            return known + _tokens(messages[index + 1 :])
    tools = [*parameters.function_tools, *parameters.output_tools]
    shown = sum(_size(tool.description) + _size(json.dumps(tool.parameters_json_schema)) for tool in tools)
    return _tokens(messages) + shown // _BYTES_A_TOKEN


def _tokens(messages: Sequence[ModelMessage]) -> int:
    size = 0
    for message in messages:
        if message.kind == "request":
            size += _size(message.instructions)
        for part in message.parts:
            size += 20 + _size(getattr(part, "content", None)) + _size(getattr(part, "args", None))
    return size // _BYTES_A_TOKEN + 50


def _size(content: Any) -> int:
    if content is None:
        return 0
    if isinstance(content, str):
        return len(content.encode("utf-8", "surrogatepass"))  # a Chinese character is a token, not a third of one
    if isinstance(content, bytes):
        return len(content)
    if isinstance(content, list):
        return sum(map(_size, content))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(content, TextContent):
        return _size(content.content)
    data = getattr(content, "data", None)
    if not isinstance(data, bytes):
        return _size(str(content))
    kind = str(getattr(content, "media_type", ""))
    if kind.startswith("image/"):
        return _BYTES_A_PICTURE
    if kind == "application/pdf":
        return _BYTES_A_PAGE * pages(data)
    return len(data)


def pages(data: bytes) -> int:
    """The pages, those in packed objects too; where none can be seen, as many as could be in a file of this size."""
    found = len(_PAGE.findall(data)) + sum(len(_PAGE.findall(text)) for text in _unpacked(data))
    return found or min(max(1, len(data) // _BYTES_A_HIDDEN_PAGE), _MOST_HIDDEN)


def _unpacked(data: bytes) -> list[bytes]:
    """What is in the streams that hold objects, up to a limit."""
    texts: list[bytes] = []
    left = _MOST_UNPACKED
    end = 0
    while left > 0 and (stream := _STREAM.search(data, end)):  # each byte is passed once
        if (end := data.find(b"endstream", stream.end())) < 0:
            break
        try:
            texts.append(zlib.decompressobj().decompress(data[stream.end() : end], left))
        except zlib.error:
            continue
        left -= len(texts[-1])
    return texts
