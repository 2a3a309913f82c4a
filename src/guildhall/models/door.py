"""Model door: checks, reserves, records and sends each model call of a run, and estimates its tokens.

A transient failure is retried, unless a part of the response was already forwarded to a program.
The runtime gets complete responses only. Text is published while it arrives, for display.
Does not keep state: the recorded responses and the budget are in the `ModelLedger` that runs pass in.

Invariant: every model call of every run passes this door, except for calls of runtimes with their own network
(`runtimes.catalog`). A call with a recorded response never reaches the source again.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Protocol, cast

from pydantic_ai.messages import BaseToolCallPart, ModelMessage, ModelResponse, TextContent
from pydantic_ai.usage import RequestUsage

from guildhall.core.errors import ModelFailed
from guildhall.models.model import Query, Source, Upstream, system_text

if TYPE_CHECKING:
    from pydantic_ai.models import ModelRequestParameters

    from guildhall.core.clock import Clock
    from guildhall.models.passthrough.relay import PassthroughRequest


MAX_OUTPUT_TOKENS = 16_384  # of a response under a budget
MIN_OUTPUT_TOKENS = 64  # a smaller response is useless
MAX_ATTEMPTS = 4
_FIRST_PAUSE_S = 1.0
_MAX_PAUSE_S = 60.0
# A lower bound, because a reservation must not be too small: digits and code come close to it, prose has twice as many.
_BYTES_PER_TOKEN = 2
_BYTES_PER_IMAGE = 5_000 * _BYTES_PER_TOKEN  # the maximum, because providers scale images down
_PAGE = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
_OBJECT_STREAM = re.compile(rb"/ObjStm\b.{0,400}?stream\r?\n", re.DOTALL)
_MAX_UNPACKED_BYTES = 20_000_000  # guards against a small file that unpacks to a huge one
_MIN_PAGE_BYTES = 2_000  # for the estimate if pages cannot be counted
_MAX_GUESSED_PAGES = 100  # the limit of most providers for one file
_BYTES_PER_PAGE = 5_000 * _BYTES_PER_TOKEN  # a page is sent as text and as an image


@dataclass(frozen=True, kw_only=True)
class ModelCall:
    """A model call as the ledger records it."""

    key: str
    messages: Sequence[ModelMessage]
    parameters: ModelRequestParameters
    attempt: int
    reserved_usd: float | None  # the maximum cost, or None if the model has no price
    max_tokens: int | None
    prefix_break: str | None = None  # where the conversation does not continue the previous call, so no cache helps


class ModelLedger(Protocol):
    """Records the model calls of one run and reserves their cost."""

    def find_answer(
        self, key: str, messages: Sequence[ModelMessage], parameters: ModelRequestParameters
    ) -> ModelResponse | None: ...

    def count_failures(self, key: str) -> int: ...

    async def reserve(
        self, key: str, input_tokens: int, price: Callable[[int], float | None], max_output_tokens: int
    ) -> tuple[float | None, int | None]:
        """Reserve the cost of a call. Return the dollars, and the maximum number of output tokens under a limit.

        `price(n)` is the maximum cost of the call with n output tokens. Raise LimitReached.
        """
        ...

    async def record_call(self, call: ModelCall) -> None: ...

    async def record_failure(self, call: ModelCall, error: ModelFailed, cost: float | None) -> None:
        """Record a failure. `cost` is None if the provider charged nothing, because no response had begun."""
        ...

    def report_retry(self, error: ModelFailed, attempt: int, pause: float) -> None:
        """Report that the call is repeated after a pause. `attempt` starts at 2."""
        ...

    async def record_answer(self, call: ModelCall, response: ModelResponse, cost: float | None) -> None: ...

    def on_text(self, text: str) -> None: ...


class ModelDoor:
    """Passes the model calls of one run to one source."""

    def __init__(
        self,
        source: Source,
        ledger: ModelLedger,
        clock: Clock,
        *,
        worker: str,
        ordinal: int,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`settings`: of each model call, under the names of pydantic-ai."""
        self._source = source
        self._ledger = ledger
        self._clock = clock
        self._worker = worker
        self._ordinal = ordinal
        self._settings = settings or {}
        self._last_call: tuple[Sequence[ModelMessage], ModelRequestParameters] | None = None

    async def call(
        self,
        key: str,
        messages: Sequence[ModelMessage],
        parameters: ModelRequestParameters,
        passthrough: PassthroughRequest | None = None,
    ) -> ModelResponse:
        """Return the response to a conversation. A call with a recorded response is not repeated.

        `passthrough` is the request of a program in the provider's format. It is sent unchanged to a provider that
        supports the format, and not retried after a part of the response was forwarded.
        """
        if (recorded := self._ledger.find_answer(key, messages, parameters)) is not None:
            return recorded
        for attempt in range(MAX_ATTEMPTS):
            try:
                return await self._call_once(key, messages, parameters, passthrough)
            except ModelFailed as error:
                is_forwarded = passthrough is not None and passthrough.has_started
                if not error.transient or is_forwarded or attempt == MAX_ATTEMPTS - 1:
                    raise
                pause = _FIRST_PAUSE_S * 2**attempt if error.retry_after is None else error.retry_after
                pause = min(pause, _MAX_PAUSE_S)
                self._ledger.report_retry(error, attempt + 2, pause)
            await self._clock.sleep(pause)
        raise AssertionError

    async def _call_once(
        self,
        key: str,
        messages: Sequence[ModelMessage],
        parameters: ModelRequestParameters,
        passthrough: PassthroughRequest | None,
    ) -> ModelResponse:
        input_tokens = estimate_input_tokens(messages, parameters)
        tier = self._settings.get("service_tier")

        @cache  # the ledger calls it a few times, and the lookup is slower than everything else here
        def price(output_tokens: int) -> float | None:
            if passthrough is not None:
                return self._source.cost(passthrough.max_usage(input_tokens, output_tokens))
            usage = RequestUsage(input_tokens=input_tokens, output_tokens=output_tokens)
            written = replace(usage, cache_write_tokens=input_tokens if self._settings.get("cache") else 0)
            costs = (self._source.cost(usage, tier), self._source.cost(written, tier))
            return max((cost for cost in costs if cost is not None), default=None)

        max_output = self._settings.get("max_tokens")
        reserved, max_tokens = await self._ledger.reserve(key, input_tokens, price, max_output or MAX_OUTPUT_TOKENS)
        max_tokens = max_output if max_tokens is None else max_tokens
        call = ModelCall(
            key=key,
            messages=messages,
            parameters=parameters,
            attempt=self._ledger.count_failures(key),
            reserved_usd=reserved,
            max_tokens=max_tokens,
            prefix_break=find_prefix_break(*self._last_call, messages, parameters) if self._last_call else None,
        )
        self._last_call = (tuple(messages), parameters)
        await self._ledger.record_call(call)
        query = Query(
            worker=self._worker,
            ordinal=self._ordinal,
            attempt=call.attempt,
            messages=messages,
            settings=cast("Any", {**self._settings, **({} if max_tokens is None else {"max_tokens": max_tokens})}),
            parameters=parameters,
        )
        try:
            if passthrough is not None and (upstream := self._source.upstream(passthrough.api)) is not None:
                response = await passthrough.send(upstream, max_tokens, self._ledger.on_text)
            else:
                response = await self._source.answer(query, self._ledger.on_text)
        except ModelFailed as error:
            await self._ledger.record_failure(call, error, reserved if error.charged else None)
            raise
        cost = self._cost(response.usage, reserved)
        ids = [part.tool_call_id for part in response.parts if isinstance(part, BaseToolCallPart)]
        if len(ids) != len(set(ids)):  # ambiguous ids: the call is charged and repeated
            unusable = ModelFailed("invalid response: two tool calls have the same id", transient=True)
            await self._ledger.record_failure(call, unusable, cost)
            raise unusable
        await self._ledger.record_answer(call, response, cost)
        return response

    def upstream(self, api: str) -> Upstream | None:
        return self._source.upstream(api)

    def _cost(self, usage: RequestUsage, reserved: float | None) -> float | None:
        """Return the cost of a response, or the reservation if its token counts are missing or inconsistent."""
        tier = self._settings.get("service_tier")
        cost = self._source.cost(usage, tier) if usage.input_tokens or usage.output_tokens else None
        return reserved if cost is None else round(cost, 9)  # removes rounding errors


def find_prefix_break(
    before: Sequence[ModelMessage],
    tools_before: ModelRequestParameters,
    messages: Sequence[ModelMessage],
    parameters: ModelRequestParameters,
) -> str | None:
    """Return the first place where a conversation does not continue the previous one, or None.

    A provider caches a prefix: the tools, the instructions, then the messages. It reads nothing from its cache after
    the first difference.
    """
    if tools_before.function_tools != parameters.function_tools:
        return "the tools"
    if system_text(before) != system_text(messages):
        return "the instructions"
    for number, (old, new) in enumerate(zip_longest(before, messages[: len(before)]), 1):
        if old is new:
            continue
        parts = (map(_part_content, message.parts if message else ()) for message in (old, new))
        for part, (old_content, new_content) in enumerate(zip_longest(*parts), 1):
            if old_content != new_content:
                return f"message {number}, part {part}"
    return None


def _part_content(part: Any) -> list[Any]:
    return [getattr(part, name, None) for name in ("part_kind", "tool_name", "tool_call_id", "args", "content")]


def estimate_input_tokens(messages: Sequence[ModelMessage], parameters: ModelRequestParameters) -> int:
    """Return an upper bound of the tokens of a request. The last response with a known usage is the starting point."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.kind == "response" and message.usage.input_tokens:
            known = message.usage.input_tokens + message.usage.output_tokens
            return known + _message_tokens(messages[index + 1 :])
    tools = [*parameters.function_tools, *parameters.output_tools]
    texts = [text for tool in tools for text in (tool.description, json.dumps(tool.parameters_json_schema))]
    return _message_tokens(messages) + sum(map(_content_bytes, texts)) // _BYTES_PER_TOKEN


def _message_tokens(messages: Sequence[ModelMessage]) -> int:
    size = 0
    for message in messages:
        if message.kind == "request":
            size += _content_bytes(message.instructions)
        for part in message.parts:
            size += 20 + _content_bytes(getattr(part, "content", None)) + _content_bytes(getattr(part, "args", None))
    return size // _BYTES_PER_TOKEN + 50


def _content_bytes(content: Any) -> int:
    if content is None:
        return 0
    if isinstance(content, str):
        return len(content.encode("utf-8", "surrogatepass"))  # bytes, because a Chinese character is a token
    if isinstance(content, bytes):
        return len(content)
    if isinstance(content, list):
        return sum(map(_content_bytes, content))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(content, TextContent):
        return _content_bytes(content.content)
    data = getattr(content, "data", None)
    if not isinstance(data, bytes):
        return _content_bytes(str(content))
    kind = str(getattr(content, "media_type", ""))
    if kind.startswith("image/"):
        return _BYTES_PER_IMAGE
    if kind == "application/pdf":
        return _BYTES_PER_PAGE * count_pages(data)
    return len(data)


def count_pages(data: bytes) -> int:
    """Return the number of pages of a PDF, or an estimate by its size if no page is visible."""
    found = len(_PAGE.findall(data)) + sum(len(_PAGE.findall(text)) for text in _unpack_streams(data))
    return found or min(max(1, len(data) // _MIN_PAGE_BYTES), _MAX_GUESSED_PAGES)


def _unpack_streams(data: bytes) -> list[bytes]:
    """Return the contents of the object streams, up to a limit."""
    texts: list[bytes] = []
    left = _MAX_UNPACKED_BYTES
    end = 0
    while left > 0 and (stream := _OBJECT_STREAM.search(data, end)):
        if (end := data.find(b"endstream", stream.end())) < 0:
            break
        try:
            texts.append(zlib.decompressobj().decompress(data[stream.end() : end], left))
        except zlib.error:
            continue
        left -= len(texts[-1])
    return texts
