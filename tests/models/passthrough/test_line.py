"""Connections to a provider, on loopback: kept, lost, odd, and through a proxy."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.models.passthrough.connection import ConnectionLost, ConnectionPool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX-Odd: \xe4\r\n\r\nhi"


class Server:
    """Says these bytes to one request after another; None: it hangs up."""

    def __init__(self, *says: bytes | None) -> None:
        self.says = list(says)
        self.heads: list[str] = []
        self.connections = 0
        self.url = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Server]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = next(line for line in head.lower().split("\r\n") if line.startswith("content-length"))
                await reader.readexactly(int(length.split(": ")[1]))
                self.heads.append(head)
                said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
                if said is None:
                    break
                writer.write(said)
                await writer.drain()
                if b"content-length" not in said and b"chunked" not in said and b" 100 " not in said:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def posted(line: ConnectionPool, url: str, **headers: str) -> tuple[int, bytes]:
    async with asyncio.timeout(5), line.post(url, headers, b"{}", None) as answered:
        return answered.status, b"".join([piece async for piece in answered.chunks()])


def played(server: Server, then: Callable[[ConnectionPool, Server], Awaitable[Any]]) -> Any:
    async def go() -> Any:
        line = ConnectionPool()
        async with server.serving():
            try:
                return await then(line, server)
            finally:
                await line.close()
                await asyncio.sleep(0.01)

    return asyncio.run(go())


def test_one_connection_after_another_request_and_two_for_two_at_once() -> None:
    async def go(line: ConnectionPool, server: Server) -> list[int]:
        for _ in range(3):
            assert await posted(line, f"{server.url}/v1/x?beta=true", **{"x-api-key": "k"}) == (200, b"hi")
        kept = server.connections
        await asyncio.gather(posted(line, server.url), posted(line, server.url))
        return [kept, server.connections]

    server = Server(OK)
    assert played(server, go) == [1, 2]
    assert server.heads[0].startswith("POST /v1/x?beta=true HTTP/1.1\r\nhost: 127.0.0.1:")
    assert "x-api-key: k\r\n" in server.heads[0]


def test_an_idle_connection_that_was_closed_is_not_missed() -> None:
    async def go(line: ConnectionPool, server: Server) -> tuple[int, bytes]:
        await posted(line, server.url)
        return await posted(line, server.url)

    server = Server(OK, None, OK)
    assert played(server, go) == (200, b"hi")
    assert (server.connections, len(server.heads)) == (2, 3)


@pytest.mark.parametrize(
    ("said", "body"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", b"hi"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", b"hi"),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi", b"hi"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3000000\r\n\r\n" + b"x" * 3_000_000, b"x" * 3_000_000),
    ],
)
def test_what_an_answer_may_look_like(said: bytes, body: bytes) -> None:
    async def go(line: ConnectionPool, server: Server) -> list[bytes]:
        return [(await posted(line, server.url))[1] for _ in range(2)]

    assert played(Server(said), go) == [body, body]


@pytest.mark.parametrize(
    "said",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 200",
        None,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_answer_is_told_in_words(said: bytes | None) -> None:
    async def go(line: ConnectionPool, server: Server) -> str:
        with pytest.raises(ConnectionLost) as lost:
            await posted(line, server.url)
        return str(lost.value)

    assert played(Server(said), go)


def test_an_answer_that_breaks_off_is_no_whole_one() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi")
        await writer.drain()
        writer.close()

    async def go() -> list[bytes]:
        got: list[bytes] = []
        line = ConnectionPool()
        async with await asyncio.start_server(cut, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

            async def reading() -> None:
                async with line.post(url, {}, b"", None) as answered:
                    async for piece in answered.chunks():
                        got.append(piece)

            with pytest.raises(ConnectionLost, match="closed"):
                await reading()
            await line.close()
        return got

    assert asyncio.run(go()) == [b"hi"]


@pytest.mark.parametrize("steps", range(12))
def test_a_request_that_is_cancelled_while_it_connects_leaves_no_socket_open(steps: int) -> None:
    async def go(url: str) -> None:
        task = asyncio.create_task(posted(ConnectionPool(), url))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with socket.create_server(("127.0.0.1", 0)) as listening, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        asyncio.run(go(f"http://127.0.0.1:{listening.getsockname()[1]}"))
        gc.collect()
    assert [str(warning.message) for warning in warned] == []


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("http://127.0.0.1:9", {}),
        ("ftp://127.0.0.1", {}),
        ("http://", {}),
        ("nowhere", {}),
        ("http://127.0.0.1:9", {"x": "a\r\nhost: elsewhere"}),
    ],
)
def test_where_there_is_nobody(url: str, headers: dict[str, str]) -> None:
    async def go() -> None:
        with pytest.raises(ConnectionLost):
            await posted(ConnectionPool(), url, **headers)

    asyncio.run(go())


def test_a_provider_that_says_nothing_is_given_up() -> None:
    async def go(line: ConnectionPool, server: Server) -> None:
        with pytest.raises(ConnectionLost, match="no data for"):
            await posted(ConnectionPool(idle_timeout_s=0.05), server.url)

    played(Server(b"HTTP/1.1 100 Continue\r\n\r\n"), go)


def test_whoever_is_cancelled_leaves_no_connection_behind() -> None:
    async def go(line: ConnectionPool, server: Server) -> int:
        asking = asyncio.create_task(posted(line, server.url))
        await asyncio.sleep(0.05)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        return len(line._idle)

    assert played(Server(b"HTTP/1.1 100 Continue\r\n\r\n"), go) == 0


def test_a_proxy_that_is_set_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go(line: ConnectionPool, server: Server) -> tuple[int, bytes]:
        monkeypatch.setenv("http_proxy", server.url)
        monkeypatch.setenv("no_proxy", "localhost")
        got = await posted(line, "http://127.0.0.1:9/v1/messages")
        with pytest.raises(ConnectionLost):
            await posted(line, "http://localhost:9/v1/messages")
        return got

    server = Server(OK)
    assert played(server, go) == (200, b"hi")
    assert server.heads[0].startswith("POST http://127.0.0.1:9/v1/messages HTTP/1.1")
