"""HTTP/1.1 connections of a run to its provider: post requests and yield each response as it arrives.

A connection serves several requests in sequence. More connections are opened when they are needed.
Each chunk of a response is yielded immediately. Common HTTP clients delay chunks, so they are only used with a proxy.
Does not choose headers or keys: `relay` does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httptools

if TYPE_CHECKING:
    from ssl import SSLContext

    import httpx2

    from guildhall.core.config import ModelTimeouts

_MAX_BUFFERED_BYTES = 1_000_000
_MAX_HEAD_BYTES = 100_000


class ConnectionLost(Exception):
    """A connection that failed, was closed, or carried data that is not HTTP."""


class ConnectionPool:
    """Posts requests over HTTP/1.1 and reuses idle connections."""

    def __init__(self) -> None:
        self._idle: list[tuple[tuple[str, int], _Connection]] = []
        self._client: httpx2.AsyncClient | None = None  # only for proxies

    @asynccontextmanager
    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, ssl: SSLContext | None, timeouts: ModelTimeouts
    ) -> AsyncGenerator[HttpResponse]:
        """Post a request and yield the response when its head has arrived. Raise ConnectionLost."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConnectionLost(f"invalid URL: {url}")
        if getproxies().get(parts.scheme) and not proxy_bypass(parts.hostname):
            async with self._post_by_proxy(url, headers, body, ssl, timeouts) as response:
                yield response
            return
        is_secure = parts.scheme == "https"
        address = (parts.hostname, parts.port or (443 if is_secure else 80))
        target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
        data = _encode_request(target, parts.netloc.rpartition("@")[2], headers, body)
        context = (ssl or _ssl_context()) if is_secure else None
        connection = await self._send_request(address, data, context, timeouts)
        try:
            yield connection
        finally:
            if connection.is_reusable:
                self._idle.append((address, connection))
            else:
                connection.abort()

    async def close(self) -> None:
        for _, connection in self._idle:
            connection.abort()
            await connection.closed
        self._idle.clear()
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _send_request(
        self, address: tuple[str, int], data: bytes, ssl: SSLContext | None, timeouts: ModelTimeouts
    ) -> _Connection:
        """Return a connection with the head of the response. Skip idle connections that were closed."""
        for entry in [entry for entry in self._idle if entry[0] == address]:
            self._idle.remove(entry)
            if entry[1].is_reusable and await entry[1].send(data, is_reused=True):
                return entry[1]
            entry[1].abort()
        connection = await _connect(address, ssl, timeouts)
        await connection.send(data)
        return connection

    @asynccontextmanager
    async def _post_by_proxy(
        self, url: str, headers: Mapping[str, str], body: bytes, ssl: SSLContext | None, timeouts: ModelTimeouts
    ) -> AsyncGenerator[HttpResponse]:
        import httpx2

        if self._client is None:
            silence_s = max(timeouts.first_byte, timeouts.between_bytes)
            timeout = httpx2.Timeout(silence_s, connect=timeouts.connect)
            self._client = httpx2.AsyncClient(verify=ssl or _ssl_context(), timeout=timeout)
        try:
            async with self._client.stream("POST", url, content=body, headers=dict(headers)) as response:
                yield _ProxiedResponse(response)
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            raise ConnectionLost(str(error) or type(error).__name__) from None


class _ProxiedResponse:
    """A response through a proxy."""

    def __init__(self, response: httpx2.Response) -> None:
        self.status = response.status_code
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        self.chunks = response.aiter_bytes


class _Connection(asyncio.Protocol):
    """A connection. Callbacks of the parser fill its fields and wake the reader."""

    def __init__(self, timeouts: ModelTimeouts) -> None:
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport
        self._waiter: asyncio.Future[None] | None = None
        self._error: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reset()

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: dict[str, str] = {}
        self._chunks: deque[bytes] = deque()
        self._buffered_bytes = 0
        self._is_silent = True  # no data has arrived
        self._has_head = self._is_complete = self._keeps_alive = False

    @property
    def is_reusable(self) -> bool:
        return self._is_complete and self._keeps_alive and not self._chunks and self._error is None

    async def send(self, data: bytes, *, is_reused: bool = False) -> bool:
        """Send a request and wait for the head. Return False if a reused connection was closed before any data."""
        self._reset()
        self._transport.write(data)
        self._start_timer()
        while not self._has_head and self._error is None:
            await self._wait()
        if self._error is not None and not self._has_head:
            if is_reused and self._is_silent:
                return False
            raise ConnectionLost(self._error)
        return True

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raise ConnectionLost if the connection ends before the body."""
        while True:
            while self._chunks:
                chunk = self._chunks.popleft()
                self._buffered_bytes -= len(chunk)
                yield chunk
            if self._is_complete:
                return
            if self._error is not None:
                raise ConnectionLost(self._error)
            self._transport.resume_reading()
            await self._wait()

    def abort(self) -> None:
        self._stop_timer()
        self._transport.abort()

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def _max_silence_s(self) -> float:
        """Return the time without data after which the request fails."""
        return self._timeouts.between_bytes if self._has_head else self._timeouts.first_byte

    def _start_timer(self) -> None:
        self._last_data_at = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._max_silence_s, self._check_silence)

    def _check_silence(self) -> None:
        self._timer = None
        remaining_s = self._last_data_at + self._max_silence_s - self._loop.time()
        if remaining_s <= 0:
            limit = f"{self._max_silence_s:g} s"
            self._fail(f"no data for {limit}" if self._has_head else f"no response within {limit}")
        else:
            self._timer = self._loop.call_later(remaining_s, self._check_silence)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fail(self, reason: str) -> None:
        self._error = self._error or reason
        self._stop_timer()
        self._transport.abort()
        self._wake()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # pyright: ignore[reportAttributeAccessIssue]

    def data_received(self, data: bytes) -> None:
        self._is_silent = False
        self._last_data_at = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"invalid HTTP: {error}")
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._has_head and not {"content-length", "transfer-encoding"} & self.headers.keys():
            self._is_complete = True  # the end of the connection is the end of the body
        self._error = self._error or (str(exc) if exc else "the connection was closed")
        self._wake()
        if not self.closed.done():
            self.closed.set_result(None)

    # Callbacks of the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self._buffered_bytes += len(name) + len(value)
        if self._buffered_bytes > _MAX_HEAD_BYTES:
            raise ConnectionLost(f"the headers of the response are longer than {_MAX_HEAD_BYTES:,} bytes")
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._buffered_bytes = 0
        self.status = self._parser.get_status_code()
        self._has_head = self.status >= 200  # a 1xx status precedes the response
        self._stop_timer()
        self._start_timer()

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)
        self._buffered_bytes += len(body)
        if self._buffered_bytes > _MAX_BUFFERED_BYTES:
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if not self._has_head:
            self.headers = {}
            return
        self._is_complete = True
        self._keeps_alive = self._parser.should_keep_alive()
        self._stop_timer()


HttpResponse = _Connection | _ProxiedResponse  # a response whose head has arrived


async def _connect(address: tuple[str, int], ssl: SSLContext | None, timeouts: ModelTimeouts) -> _Connection:
    loop = asyncio.get_running_loop()
    # Happy Eyeballs only for host names: asyncio leaks a socket if the race is cancelled at the moment it is won.
    is_address = ":" in address[0] or address[0].replace(".", "").isdecimal()
    delay = None if is_address else 0.25
    try:
        async with asyncio.timeout(timeouts.connect):
            _, connection = await loop.create_connection(
                lambda: _Connection(timeouts), *address, ssl=ssl, happy_eyeballs_delay=delay
            )
    except TimeoutError:
        raise ConnectionLost(f"no connection within {timeouts.connect:g} s") from None
    except OSError as error:
        raise ConnectionLost(str(error) or type(error).__name__) from None
    return connection


def _ssl_context() -> SSLContext:
    import httpx2

    return httpx2.create_ssl_context()


def _encode_request(target: str, host: str, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"POST {target} HTTP/1.1", f"host: {host}", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if any("\r" in line or "\n" in line for line in lines):
        raise ConnectionLost("a header of the request contains a line break")
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body
