"""Passthrough request: forwards a program's request to the provider and relays the answer byte by byte.

Pieces that a program could act on (a complete tool call, the end of the answer) are held until the answer is recorded.
The program's headers are filtered, and the hall's key or login is added.
Does not trim the request: `session` does. Does not decide if the call is allowed: `models.door` does.

Invariant: a program never acts on an answer that is not recorded.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from pydantic_ai.usage import RequestUsage

from guildhall.core.errors import ContextTooLong, KeyRefused, ModelFailed, NoCredit, NotReachable, UnknownModel
from guildhall.core.sse import EventReader, EventTooLarge
from guildhall.models.credentials import LOGIN_BETA
from guildhall.models.dialects.base import MAX_EVENT_BYTES, Dialect, IncompleteAnswer, InvalidMessage, decode_event
from guildhall.models.passthrough.provider_connection import ConnectionLost, ConnectionPool, HttpResponse
from guildhall.models.provider_errors import build_error, decode_body, parse_retry_after

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse

    from guildhall.models.model import OnText, Upstream

MAX_ANSWER_BYTES = 64_000_000
_MAX_ERROR_BYTES = 100_000
# Headers of one connection, of the content or of the caller. They are not forwarded.
_CONNECTION = ("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect", "via", "alt-svc")
_CONTENT = ("content-length", "content-encoding", "accept-encoding", "date", "server")
_IDENTITY = ("host", "origin", "referer", "authorization", "x-api-key", "cookie", "set-cookie", "forwarded")
_DROPPED_HEADERS = frozenset((*_CONNECTION, *_CONTENT, *_IDENTITY))
_DROPPED_PREFIXES = ("proxy-", "x-forwarded-", "sec-")
_MAX_HEADERS = 40  # in each direction
_INVALID_ANSWER_HINT = (
    "Resume the run. If this repeats, check the address of the provider (such as ANTHROPIC_BASE_URL): another API or a "
    "proxy may answer there."
)
_PERMANENT_ERRORS = (ContextTooLong, KeyRefused, NoCredit, UnknownModel)


class PassthroughRequest:
    """A request of a program. `on_data` gets each part of the answer that may be forwarded.

    `answer_headers` are known before the first part.
    """

    def __init__(
        self,
        dialect: Dialect,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        pool: ConnectionPool,
        *,
        on_data: Callable[[bytes], None],
        restore_names: Callable[[ModelResponse], ModelResponse],
        query: str = "",
    ) -> None:
        self.api = dialect.api
        self.has_started = False  # a part of the answer was forwarded
        self.held_bytes = bytearray()  # the end of the answer, until it is recorded
        self.answer_headers: dict[str, str] | None = None  # of the provider, before the first part
        self.error_response: tuple[int, dict[str, str], bytes] | None = None  # of the provider
        self._dialect = dialect
        self._body = body
        self._headers = headers
        self._pool = pool
        self._on_data = on_data
        self._restore_names = restore_names  # an answer with our names for tools
        self._query = query

    def max_usage(self, sent: int, answered: int) -> RequestUsage:
        """Return the most expensive usage with these token counts: writing to the provider's cache costs extra."""
        marks = [mark for block in _cacheable_blocks(self._body) if (mark := block.get("cache_control")) is not None]
        hour = any(isinstance(mark, dict) and cast("dict[str, Any]", mark).get("ttl") == "1h" for mark in marks)
        return RequestUsage(
            input_tokens=sent,
            cache_write_tokens=sent if marks else 0,
            cache_write_1h_tokens=sent if hour else 0,
            output_tokens=answered,
        )

    async def send(self, upstream: Upstream, max_tokens: int | None, on_text: OnText) -> ModelResponse:
        """Return the complete answer. Most of it has been forwarded by then. Raise ModelFailed."""
        self.held_bytes.clear()
        self.answer_headers = self.error_response = None
        is_charged = False
        try:
            async with self._post(upstream, max_tokens) as response:
                if response.status != 200:
                    raise await self._read_error(upstream, response)
                is_charged = True
                self.answer_headers = forwarded_headers(response.headers)
                if response.headers.get("content-type", "").startswith("text/event-stream"):
                    answer = await self._read_stream(response, on_text)
                else:
                    answer = await self._read_whole(response)
                whole = self._dialect.parse_answer(answer)
        except IncompleteAnswer as broken:
            raise _incomplete_error(upstream, broken) from None
        except (InvalidMessage, EventTooLarge) as error:
            is_known = isinstance(error, InvalidMessage)
            problem = error.message if is_known else f"an event is larger than {MAX_EVENT_BYTES:,} bytes"
            text = upstream.redact(f"{upstream.name}: invalid answer: {problem}")
            raise ModelFailed(text, transient=True, charged=is_charged, hint=_INVALID_ANSWER_HINT) from None
        if not self.has_started and whole.text:
            on_text(whole.text)
        return self._restore_names(whole)

    @asynccontextmanager
    async def _post(self, upstream: Upstream, max_tokens: int | None) -> AsyncGenerator[HttpResponse]:
        sent = json.dumps(self._dialect.upstream_body(self._body, upstream.model, max_tokens)).encode()
        url = f"{upstream.url}{self._dialect.path}{self._query}"
        try:
            headers = _request_headers(self._headers, upstream)
            async with self._pool.post(url, headers, sent, upstream.ssl, upstream.timeouts) as response:
                yield response
        except ConnectionLost as error:
            if self.answer_headers is not None:
                raise IncompleteAnswer(reason=str(error)) from None
            raise _unreachable_error(upstream, error) from None

    async def _read_error(self, upstream: Upstream, response: HttpResponse) -> ModelFailed:
        body = bytearray()
        async for chunk in response.chunks():
            body += chunk
            if len(body) > _MAX_ERROR_BYTES:
                break
        data = upstream.redact(bytes(body[:_MAX_ERROR_BYTES]).decode("utf-8", "replace")).encode()
        self.error_response = (response.status, forwarded_headers(response.headers), data)
        return upstream.make_error(response.status, decode_body(data), parse_retry_after(response.headers))

    async def _read_stream(self, response: HttpResponse, on_text: OnText) -> dict[str, Any]:
        options = self._body.get("stream_options")
        wants_usage = isinstance(options, dict) and cast("dict[str, Any]", options).get("include_usage") is True
        collector = self._dialect.create_collector(wants_usage=wants_usage)
        events = EventReader(MAX_EVENT_BYTES)
        size = 0
        async for data in response.chunks():
            size += len(data)
            if size > MAX_ANSWER_BYTES:
                raise InvalidMessage(f"the answer is larger than {MAX_ANSWER_BYTES:,} bytes")
            forwarded = bytearray()
            for event in events.feed(data):
                content = decode_event(event.data)
                collected = None if content is None else collector.add(content)
                if collected is not None and collected.text:
                    on_text(collected.text)
                if collected is None or collected.action == "forward":
                    forwarded += event.raw
                elif collected.action == "hold":
                    self.held_bytes += event.raw
            if forwarded:
                self.has_started = True
                self._on_data(bytes(forwarded))
        return collector.answer()

    async def _read_whole(self, response: HttpResponse) -> dict[str, Any]:
        async for data in response.chunks():
            self.held_bytes += data
            if len(self.held_bytes) > MAX_ANSWER_BYTES:
                raise InvalidMessage(f"the answer is larger than {MAX_ANSWER_BYTES:,} bytes")
        answer = decode_body(bytes(self.held_bytes))
        if not isinstance(answer, dict):
            raise InvalidMessage("not a JSON object")
        return answer  # pyright: ignore[reportUnknownVariableType]


async def count_tokens(
    dialect: Dialect, body: Mapping[str, Any], headers: Mapping[str, str], pool: ConnectionPool, upstream: Upstream
) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of the provider's token count for a request. It is free."""
    sent = {name: value for name, value in body.items() if name not in ("max_tokens", "stream")}
    url = f"{upstream.url}{dialect.path}/count_tokens"
    data = json.dumps({**sent, "model": upstream.model}).encode()
    answer = bytearray()
    try:
        sent_headers = _request_headers(headers, upstream)
        async with pool.post(url, sent_headers, data, upstream.ssl, upstream.timeouts) as response:
            async for chunk in response.chunks():
                answer += chunk[: _MAX_ERROR_BYTES - len(answer)]
    except ConnectionLost as error:
        raise _unreachable_error(upstream, error) from None
    data = upstream.redact(answer.decode("utf-8", "replace")).encode()
    return response.status, forwarded_headers(response.headers), data


def _request_headers(headers: Mapping[str, str], upstream: Upstream) -> dict[str, str]:
    fixed = {"accept-encoding": "identity", "content-type": "application/json"}
    sent = {**forwarded_headers(headers), **upstream.headers, **fixed}
    if upstream.has_login:
        betas = [part.strip() for part in sent.get("anthropic-beta", "").split(",") if part.strip()]
        sent["anthropic-beta"] = ",".join(betas if LOGIN_BETA in betas else [*betas, LOGIN_BETA])
    return sent


def forwarded_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that are meant for the other end."""
    lower = [(name.lower(), value) for name, value in headers.items()]
    forwarded = [(n, value) for n, value in lower if n not in _DROPPED_HEADERS and not n.startswith(_DROPPED_PREFIXES)]
    return dict(forwarded[:_MAX_HEADERS])


def _cacheable_blocks(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield all blocks that can be marked for the provider's cache."""
    yield body
    messages = body.get("messages")
    contents = [item.get("content") for item in cast("list[Any]", messages if isinstance(messages, list) else ())]
    for blocks in (body.get("system"), body.get("tools"), *contents):
        for block in cast("list[Any]", blocks if isinstance(blocks, list) else ()):
            if isinstance(block, dict):
                yield cast("dict[str, Any]", block)


def _unreachable_error(upstream: Upstream, error: ConnectionLost) -> ModelFailed:
    message = f"{upstream.name} cannot be reached at {upstream.address}"
    return build_error(NotReachable, upstream.name, upstream.redact(str(error)), message=message)


def _incomplete_error(upstream: Upstream, broken: IncompleteAnswer) -> ModelFailed:
    """Return the error for an incomplete answer, with the provider's message if there is one."""
    if broken.body is None:
        reason = f": {broken.reason}" if broken.reason else ""
        text = f"{upstream.name}: the response ended before it was complete{reason}"
        return ModelFailed(text, transient=True, charged=True)
    failed = upstream.make_error(None, broken.body, None)
    failed.charged = True
    failed.transient = not isinstance(failed, _PERMANENT_ERRORS)
    return failed
