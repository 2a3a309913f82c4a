"""Connections to a provider on loopback: reused, lost, invalid, and through a proxy."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.config import ModelTimeouts
from guildhall.models.passthrough.provider_connection import ConnectionLost, ConnectionPool
from tests.servers import close_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

TIMEOUTS = ModelTimeouts()
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX-Odd: \xe4\r\n\r\nhi"


class Server:
    """A server that gives these answers to one request after another. None closes the connection."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.heads: list[str] = []
        self.connections = 0
        self.url = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Server]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            await close_server(server)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = next(pool for pool in head.lower().split("\r\n") if pool.startswith("content-length"))
                await reader.readexactly(int(length.split(": ")[1]))
                self.heads.append(head)
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
                if b"content-length" not in answer and b"chunked" not in answer and b" 100 " not in answer:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def post(
    pool: ConnectionPool,
    url: str,
    timeouts: ModelTimeouts = TIMEOUTS,
    **headers: str,
) -> tuple[int, bytes]:
    async with asyncio.timeout(5), pool.post(url, headers, b"{}", None, timeouts) as response:
        return response.status, b"".join([piece async for piece in response.chunks()])


def run_with_server(server: Server, then: Callable[[ConnectionPool, Server], Awaitable[Any]]) -> Any:
    async def work() -> Any:
        pool = ConnectionPool()
        async with server.serving():
            try:
                return await then(pool, server)
            finally:
                await pool.close()
                await asyncio.sleep(0.01)

    return asyncio.run(work())


def test_sequential_requests_share_a_connection_and_parallel_ones_do_not() -> None:
    async def work(pool: ConnectionPool, server: Server) -> list[int]:
        for _ in range(3):
            assert await post(pool, f"{server.url}/v1/x?beta=true", **{"x-api-key": "k"}) == (200, b"hi")
        kept = server.connections
        await asyncio.gather(post(pool, server.url), post(pool, server.url))
        return [kept, server.connections]

    server = Server(OK)
    assert run_with_server(server, work) == [1, 2]
    assert server.heads[0].startswith("POST /v1/x?beta=true HTTP/1.1\r\nhost: 127.0.0.1:")
    assert "x-api-key: k\r\n" in server.heads[0]


def test_a_closed_idle_connection_is_replaced() -> None:
    async def work(pool: ConnectionPool, server: Server) -> tuple[int, bytes]:
        await post(pool, server.url)
        return await post(pool, server.url)

    server = Server(OK, None, OK)
    assert run_with_server(server, work) == (200, b"hi")
    assert (server.connections, len(server.heads)) == (2, 3)


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", b"hi"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", b"hi"),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi", b"hi"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3000000\r\n\r\n" + b"x" * 3_000_000, b"x" * 3_000_000),
    ],
)
def test_valid_answers_are_read_completely(answer: bytes, body: bytes) -> None:
    async def work(pool: ConnectionPool, server: Server) -> list[bytes]:
        return [(await post(pool, server.url))[1] for _ in range(2)]

    assert run_with_server(Server(answer), work) == [body, body]


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 200",
        None,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_an_invalid_answer_raises_connection_lost(answer: bytes | None) -> None:
    async def work(pool: ConnectionPool, server: Server) -> str:
        with pytest.raises(ConnectionLost) as lost:
            await post(pool, server.url)
        return str(lost.value)

    assert run_with_server(Server(answer), work)


def test_an_incomplete_answer_raises_connection_lost() -> None:
    async def answer_partly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi")
        await writer.drain()
        writer.close()

    async def work() -> list[bytes]:
        got: list[bytes] = []
        pool = ConnectionPool()
        async with await asyncio.start_server(answer_partly, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

            async def read_response() -> None:
                async with pool.post(url, {}, b"", None, ModelTimeouts()) as response:
                    async for piece in response.chunks():
                        got.append(piece)

            with pytest.raises(ConnectionLost, match="closed"):
                await read_response()
            await pool.close()
        return got

    assert asyncio.run(work()) == [b"hi"]


@pytest.mark.parametrize("steps", range(12))
def test_a_request_cancelled_during_connect_leaves_no_socket_open(steps: int) -> None:
    async def work(url: str) -> None:
        task = asyncio.create_task(post(ConnectionPool(), url))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with socket.create_server(("127.0.0.1", 0)) as listening, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        asyncio.run(work(f"http://127.0.0.1:{listening.getsockname()[1]}"))
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
def test_an_unreachable_or_invalid_address_raises_connection_lost(url: str, headers: dict[str, str]) -> None:
    async def work() -> None:
        with pytest.raises(ConnectionLost):
            await post(ConnectionPool(), url, **headers)

    asyncio.run(work())


def test_a_silent_provider_times_out() -> None:
    async def work(pool: ConnectionPool, server: Server) -> None:
        with pytest.raises(ConnectionLost, match="no response within"):
            await post(ConnectionPool(), server.url, timeouts=ModelTimeouts(first_byte=0.05))

    run_with_server(Server(b"HTTP/1.1 100 Continue\r\n\r\n"), work)


def test_a_cancelled_request_leaves_no_connection() -> None:
    async def work(pool: ConnectionPool, server: Server) -> int:
        asking = asyncio.create_task(post(pool, server.url))
        await asyncio.sleep(0.05)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        return len(pool._idle)

    assert run_with_server(Server(b"HTTP/1.1 100 Continue\r\n\r\n"), work) == 0


def test_the_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(pool: ConnectionPool, server: Server) -> tuple[int, bytes]:
        monkeypatch.setenv("http_proxy", server.url)
        monkeypatch.setenv("no_proxy", "localhost")
        got = await post(pool, "http://127.0.0.1:9/v1/messages")
        with pytest.raises(ConnectionLost):
            await post(pool, "http://localhost:9/v1/messages")
        return got

    server = Server(OK)
    assert run_with_server(server, work) == (200, b"hi")
    assert server.heads[0].startswith("POST http://127.0.0.1:9/v1/messages HTTP/1.1")
