"""HTTP/1.1 connections of a run to its provider: post requests, and yield each answer as it arrives.

A connection serves several requests, in sequence. More connections are opened when they are needed.
Each piece of an answer is yielded immediately, which common HTTP clients delay. If a proxy is set, such a client sends
the request.
Does not choose headers or keys: `request` does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httptools

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping
    from ssl import SSLContext

    import httpx2

_SILENCE = 600.0  # seconds that a provider may take for its next word
_CONNECT_SECONDS = 10.0
_WAITING = 1_000_000  # bytes that may wait to be read
_LARGEST_HEAD = 100_000


class LineLost(Exception):
    """A connection could not be made, was lost, or carried something that is not HTTP."""


class Answered(Protocol):
    """An answer whose head has come."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def pieces(self) -> AsyncIterator[bytes]:
        """Its body as it comes. Raises LineLost where it breaks off."""
        ...


class Line:
    """Posts requests. One connection serves one request after another; more are made when they are needed."""

    def __init__(self, *, silence: float = _SILENCE) -> None:
        """`silence`: seconds that a provider may take for its next bytes."""
        self._silence = silence
        self._idle: list[tuple[tuple[str, int], _Connection]] = []
        self._client: httpx2.AsyncClient | None = None  # where a proxy is in between

    @asynccontextmanager
    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, ssl: SSLContext | None
    ) -> AsyncGenerator[Answered]:
        """Sends a request; inside, its answer is there. Raises LineLost."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise LineLost(f"{url} is not an address")
        if getproxies().get(parts.scheme) and not proxy_bypass(parts.hostname):
            async with self._by_proxy(url, headers, body, ssl) as answered:
                yield answered
            return
        secure = parts.scheme == "https"
        place = (parts.hostname, parts.port or (443 if secure else 80))
        target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
        sent = _request(target, parts.netloc.rpartition("@")[2], headers, body)
        connection = await self._asked(place, sent, (ssl or _context()) if secure else None)
        try:
            yield connection
        finally:
            if connection.reusable:
                self._idle.append((place, connection))
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

    async def _asked(self, place: tuple[str, int], sent: bytes, ssl: SSLContext | None) -> _Connection:
        """A connection on which the head of the answer has come. One that was idle may have been closed meanwhile."""
        for kept in [kept for kept in self._idle if kept[0] == place]:
            self._idle.remove(kept)
            if kept[1].reusable and await kept[1].ask(sent, again=True):
                return kept[1]
        connection = await _connected(place, ssl, self._silence)
        await connection.ask(sent)
        return connection

    @asynccontextmanager
    async def _by_proxy(
        self, url: str, headers: Mapping[str, str], body: bytes, ssl: SSLContext | None
    ) -> AsyncGenerator[Answered]:
        import httpx2

        if self._client is None:
            timeout = httpx2.Timeout(self._silence, connect=_CONNECT_SECONDS)
            self._client = httpx2.AsyncClient(verify=ssl or _context(), timeout=timeout)
        try:
            async with self._client.stream("POST", url, content=body, headers=dict(headers)) as response:
                yield _Proxied(response)
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            raise LineLost(str(error) or type(error).__name__) from None


class _Proxied:
    """An answer that came through a proxy."""

    def __init__(self, response: httpx2.Response) -> None:
        self.status = response.status_code
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        self.pieces = response.aiter_bytes


class _Connection(asyncio.Protocol):
    """One connection. The parser tells what it has found; whoever reads is woken."""

    def __init__(self, silence: float) -> None:
        self._silence = silence
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport
        self._woken: asyncio.Future[None] | None = None
        self._lost: str | None = None
        self._late: asyncio.TimerHandle | None = None
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: dict[str, str] = {}
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._silent = True  # nothing of an answer has come
        self._head = self._complete = self._kept = False

    @property
    def reusable(self) -> bool:
        return self._complete and self._kept and not self._pieces and self._lost is None

    async def ask(self, sent: bytes, *, again: bool = False) -> bool:
        """Sends a request and waits for the head of its answer; False: an idle connection was not there any more."""
        self._begin()
        self._transport.write(sent)
        self._heard()
        while not self._head and self._lost is None:
            await self._wait()
        if self._lost is not None and not self._head:
            if again and self._silent:
                return False
            raise LineLost(self._lost)
        return True

    async def pieces(self) -> AsyncIterator[bytes]:
        while True:
            while self._pieces:
                piece = self._pieces.popleft()
                self._size -= len(piece)
                yield piece
            if self._complete:
                return
            if self._lost is not None:
                raise LineLost(self._lost)
            self._transport.resume_reading()
            await self._wait()

    def abort(self) -> None:
        self._still()
        self._transport.abort()

    async def _wait(self) -> None:
        self._woken = self._loop.create_future()
        try:
            await self._woken
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            self._woken = None

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def _heard(self) -> None:
        self._last = self._loop.time()
        if self._late is None:
            self._late = self._loop.call_later(self._silence, self._look)

    def _look(self) -> None:
        self._late = None
        left = self._last + self._silence - self._loop.time()
        if left <= 0:
            self._lose(f"it was silent for {self._silence:g} s")
        else:
            self._late = self._loop.call_later(left, self._look)

    def _still(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _lose(self, why: str) -> None:
        self._lost = self._lost or why
        self._still()
        self._transport.abort()
        self._wake()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # pyright: ignore[reportAttributeAccessIssue]

    def data_received(self, data: bytes) -> None:
        self._silent = False
        self._last = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lose(f"the answer is not HTTP: {error}")
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._still()
        if self._head and not self._complete and not {"content-length", "transfer-encoding"} & self.headers.keys():
            self._complete = True  # its end was the end of the connection
        self._lost = self._lost or (str(exc) if exc else "the connection was closed")
        self._wake()
        if not self.closed.done():
            self.closed.set_result(None)

    # Callbacks of the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self._size += len(name) + len(value)
        if self._size > _LARGEST_HEAD:
            raise LineLost("the head of the answer is too long")
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._size = 0
        self.status = self._parser.get_status_code()
        self._head = self.status >= 200  # what comes before only says that more is to come

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)
        self._size += len(body)
        if self._size > _WAITING:
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if not self._head:
            self.headers = {}
            return
        self._complete = True
        self._kept = self._parser.should_keep_alive()
        self._still()


async def _connected(place: tuple[str, int], ssl: SSLContext | None, silence: float) -> _Connection:
    loop = asyncio.get_running_loop()
    # Only names are raced: if a race is cancelled in the moment that it is won, asyncio does not close the socket.
    is_address = ":" in place[0] or place[0].replace(".", "").isdecimal()
    delay = None if is_address else 0.25
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, connection = await loop.create_connection(
                lambda: _Connection(silence), *place, ssl=ssl, happy_eyeballs_delay=delay
            )
    except TimeoutError:
        raise LineLost(f"there was no connection after {_CONNECT_SECONDS:g} s") from None
    except OSError as error:
        raise LineLost(str(error) or type(error).__name__) from None
    return connection


def _context() -> SSLContext:
    import httpx2

    return httpx2.create_ssl_context()


def _request(target: str, host: str, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"POST {target} HTTP/1.1", f"host: {host}", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if any("\r" in line or "\n" in line for line in lines):
        raise LineLost("a header of the request has a line break in it")
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body
