"""Passthrough request: forwards a program's request to the provider and relays the answer byte by byte.

Pieces that a program could act on (a complete tool call, the end of the answer) are held until the answer is recorded.
The program's headers are filtered, and the hall's key or login is added.
Does not trim the request: `session` does. Does not decide if the call is allowed: `models.door` does.

Invariant: a program never acts on an answer that is not recorded.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from pydantic_ai.usage import RequestUsage

from guildhall.core.errors import ContextTooLong, KeyRefused, ModelFailed, NoCredit, NotReachable, UnknownModel
from guildhall.core.sse import EventReader, EventTooLarge
from guildhall.models.credentials import BETA
from guildhall.models.dialects.base import MAX_EVENT_BYTES, BrokenOff, Dialect, Malformed, read_event
from guildhall.models.passthrough.connection import Answered, Line, LineLost
from guildhall.models.provider_errors import explained, read_body, retry_after_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Mapping

    from pydantic_ai.messages import ModelResponse

    from guildhall.models.model import OnText, Upstream

LARGEST = 64_000_000  # bytes of an answer
_LARGEST_ERROR = 100_000
# Headers that belong to one connection, or to who is asking here; none of them is passed on.
_CONNECTION = ("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect", "via", "alt-svc")
_CONTENT = ("content-length", "content-encoding", "accept-encoding", "date", "server")
_IDENTITY = ("host", "origin", "referer", "authorization", "x-api-key", "cookie", "set-cookie", "forwarded")
_OWN = frozenset((*_CONNECTION, *_CONTENT, *_IDENTITY))
_OWN_BEGINNINGS = ("proxy-", "x-forwarded-", "sec-")
_PASSED = 40  # headers that are passed on, each way
_LASTING = (ContextTooLong, KeyRefused, NoCredit, UnknownModel)


class Through:
    """One such request. `on` hears each piece of the answer that may go on; `head` is known before the first."""

    def __init__(
        self,
        dialect: Dialect,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        line: Line,
        *,
        on: Callable[[bytes], None],
        ours: Callable[[ModelResponse], ModelResponse],
        query: str = "",
    ) -> None:
        self.api = dialect.api
        self.begun = False  # something was passed on
        self.held = bytearray()  # what waits for the record
        self.head: dict[str, str] | None = None  # the headers of the provider's answer, as soon as there is one
        self.refusal: tuple[int, dict[str, str], bytes] | None = None  # the provider's last word, where it said no
        self._dialect = dialect
        self._body = body
        self._headers = headers
        self._line = line
        self._on = on
        self._ours = ours  # an answer with our names for tools
        self._query = query

    def dearest(self, sent: int, answered: int) -> RequestUsage:
        """The dearest usage of so many tokens: what the program wants the provider to cache costs more to write."""
        marks = [mark for block in _blocks(self._body) if (mark := block.get("cache_control")) is not None]
        hour = any(isinstance(mark, dict) and cast("dict[str, Any]", mark).get("ttl") == "1h" for mark in marks)
        return RequestUsage(
            input_tokens=sent,
            cache_write_tokens=sent if marks else 0,
            cache_write_1h_tokens=sent if hour else 0,
            output_tokens=answered,
        )

    async def send(self, upstream: Upstream, max_tokens: int | None, on_text: OnText) -> ModelResponse:
        """The whole answer; most of it has been passed on by then. Raises ModelFailed."""
        self.held.clear()
        self.head = self.refusal = None
        charged = False
        try:
            async with self._asked(upstream, max_tokens) as response:
                if response.status != 200:
                    raise await self._refused(upstream, response)
                charged = True
                self.head = passed(response.headers)
                if response.headers.get("content-type", "").startswith("text/event-stream"):
                    answer = await self._streamed(response, on_text)
                else:
                    answer = await self._in_one_piece(response)
                whole = self._dialect.response(answer)
        except BrokenOff as broken:
            raise _broken_off(upstream, broken) from None
        except (Malformed, EventTooLarge) as error:
            is_known = isinstance(error, Malformed)
            problem = error.message if is_known else f"an event of the answer is larger than {MAX_EVENT_BYTES:,} bytes"
            said = upstream.clean(f"{upstream.name}: it is no answer of this API: {problem}")
            raise ModelFailed(said, transient=True, charged=charged) from None
        if not self.begun and whole.text:
            on_text(whole.text)
        return self._ours(whole)

    @asynccontextmanager
    async def _asked(self, upstream: Upstream, max_tokens: int | None) -> AsyncGenerator[Answered]:
        sent = json.dumps(self._dialect.sent(self._body, upstream.model, max_tokens)).encode()
        url = f"{upstream.url}{self._dialect.path}{self._query}"
        try:
            async with self._line.post(url, _headers(self._headers, upstream), sent, upstream.ssl) as response:
                yield response
        except LineLost as error:
            if self.head is not None:
                raise BrokenOff from None
            raise explained(NotReachable, upstream.name, upstream.clean(str(error))) from None

    async def _refused(self, upstream: Upstream, response: Answered) -> ModelFailed:
        body = bytearray()
        async for piece in response.pieces():
            body += piece
            if len(body) > _LARGEST_ERROR:
                break
        said = upstream.clean(bytes(body[:_LARGEST_ERROR]).decode("utf-8", "replace"))
        headers = passed(response.headers)
        self.refusal = (response.status, headers, said.encode())
        return upstream.failure(response.status, read_body(said.encode()), retry_after_of(response.headers))

    async def _streamed(self, response: Answered, on_text: OnText) -> dict[str, Any]:
        options = self._body.get("stream_options")
        wants_usage = isinstance(options, dict) and cast("dict[str, Any]", options).get("include_usage") is True
        collector = self._dialect.collector(usage=wants_usage)
        events = EventReader(MAX_EVENT_BYTES)
        size = 0
        async for data in response.pieces():
            size += len(data)
            if size > LARGEST:
                raise Malformed(f"the answer is larger than {LARGEST:,} bytes")
            going = bytearray()
            for event in events.feed(data):
                said = read_event(event.data)
                piece = None if said is None else collector.take(said)
                if piece is not None and piece.text:
                    on_text(piece.text)
                if piece is None or piece.fate == "on":
                    going += event.raw
                elif piece.fate == "held":
                    self.held += event.raw
            if going:
                self.begun = True
                self._on(bytes(going))
        return collector.answer()

    async def _in_one_piece(self, response: Answered) -> dict[str, Any]:
        async for data in response.pieces():
            self.held += data
            if len(self.held) > LARGEST:
                raise Malformed(f"the answer is larger than {LARGEST:,} bytes")
        answer = read_body(bytes(self.held))
        if not isinstance(answer, dict):
            raise Malformed("it is not a JSON object")
        return answer  # pyright: ignore[reportUnknownVariableType]


async def counted(
    dialect: Dialect, body: Mapping[str, Any], headers: Mapping[str, str], line: Line, upstream: Upstream
) -> tuple[int, dict[str, str], bytes]:
    """What a provider says of how many tokens a request has: nothing is asked, and nothing is paid."""
    sent = {name: value for name, value in body.items() if name not in ("max_tokens", "stream")}
    url = f"{upstream.url}{dialect.path}/count_tokens"
    told = json.dumps({**sent, "model": upstream.model}).encode()
    said = bytearray()
    try:
        async with line.post(url, _headers(headers, upstream), told, upstream.ssl) as response:
            async for piece in response.pieces():
                said += piece[: _LARGEST_ERROR - len(said)]
    except LineLost as error:
        raise explained(NotReachable, upstream.name, upstream.clean(str(error))) from None
    return response.status, passed(response.headers), upstream.clean(said.decode("utf-8", "replace")).encode()


def _headers(headers: Mapping[str, str], upstream: Upstream) -> dict[str, str]:
    """The program's headers, with the key or the login of the hall."""
    sent = {**passed(headers), **upstream.headers, "accept-encoding": "identity", "content-type": "application/json"}
    if upstream.login:
        said = [part.strip() for part in sent.get("anthropic-beta", "").split(",") if part.strip()]
        sent["anthropic-beta"] = ",".join(said if BETA in said else [*said, BETA])
    return sent


def passed(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that are for the other end."""
    told = ((name.lower(), value) for name, value in headers.items())
    kept = [(name, value) for name, value in told if name not in _OWN and not name.startswith(_OWN_BEGINNINGS)]
    return dict(kept[:_PASSED])


def _blocks(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """All that can be marked for the provider's cache."""
    yield body
    said = body.get("messages")
    contents = [one.get("content") for one in cast("list[Any]", said if isinstance(said, list) else ())]
    for blocks in (body.get("system"), body.get("tools"), *contents):
        for block in cast("list[Any]", blocks if isinstance(blocks, list) else ()):
            if isinstance(block, dict):
                yield cast("dict[str, Any]", block)


def _broken_off(upstream: Upstream, broken: BrokenOff) -> ModelFailed:
    """What an answer that did not come to its end means: what the provider said, or that it said nothing."""
    if broken.body is None:
        text = f"{upstream.name}: the answer broke off before it was complete"
        return ModelFailed(text, transient=True, charged=True)
    failed = upstream.failure(None, broken.body, None)
    failed.charged = True
    failed.transient = not isinstance(failed, _LASTING)
    return failed
