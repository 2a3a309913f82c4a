"""HTTP/1.1 transport from a client to a hall: sends JSON requests, and reads JSON responses or lines of JSON.

`BlockingTransport` sends a single request without importing asyncio. `AsyncTransport` sends several requests at once.
Does not use an HTTP library: importing such a library takes longer than most commands.
Does not know verbs: `remote` maps verbs to paths.
"""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from guildhall.core.errors import HallGone

if TYPE_CHECKING:
    import asyncio

    from guildhall.hall.client.discovery import Address

T = TypeVar("T")

_TIMEOUT_S = 60.0  # for a response to a blocking call
_MAX_LINE_BYTES = 1 << 30  # the client trusts the hall
_CONNECTION_ERRORS = (OSError, EOFError, ValueError, LookupError)  # closed connection, invalid response


class BlockingTransport:
    """Sends one request at a time on a plain socket and blocks until the response is complete."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._socket: socket.socket | None = None

    async def call(self, path: str, body: Any) -> tuple[int, Any]:
        """Return the status and the JSON of a response. Never yields to an event loop."""
        try:
            if self._socket is None:
                self._socket = socket.create_connection(("127.0.0.1", self._address.port), _TIMEOUT_S)
            self._socket.sendall(_build_request(self._address, path, body))
            with self._socket.makefile("rb") as response:
                status, headers = _parse_head(_read_head(response))
                return status, json.loads(response.read(int(headers["content-length"])))
        except TimeoutError:
            message = f"the hall (pid {self._address.pid}) did not respond within {_TIMEOUT_S:g} seconds"
            raise HallGone(message, hint="Check it: guild hall status") from None
        except _CONNECTION_ERRORS:
            raise _connection_lost(self._address) from None

    async def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


def run_without_event_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that awaits nothing but a BlockingTransport, and return its result."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("cannot run the coroutine: it awaits an event loop")


class AsyncTransport:
    """Sends requests on asyncio streams, several at once. Idle connections are reused."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[_Connection] = []

    async def call(self, path: str, body: Any) -> tuple[int, Any]:
        connection = await self._take_idle() or await self._connect()
        try:
            with _translate_errors(self._address):
                response = await connection.call(path, body)
        except BaseException:
            await connection.close()
            raise
        self._idle.append(connection)
        return response

    @asynccontextmanager
    async def stream(self, path: str, body: Any) -> AsyncGenerator[tuple[int, AsyncGenerator[Any]]]:
        """Yield the status of a response, and its lines of JSON as they arrive."""
        connection = await self._connect()
        try:
            with _translate_errors(self._address):
                status = await connection.start_stream(path, body)
            yield status, self._read_lines(connection)
        finally:
            await connection.close()

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()

    async def _take_idle(self) -> _Connection | None:
        """Return an idle connection, or None. The hall closes connections that are idle for a long time."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_lost:
                return connection
            await connection.close()
        return None

    async def _connect(self) -> _Connection:
        import asyncio

        with _translate_errors(self._address):
            streams = await asyncio.open_connection("127.0.0.1", self._address.port, limit=_MAX_LINE_BYTES)
        return _Connection(*streams, self._address)

    async def _read_lines(self, connection: _Connection) -> AsyncGenerator[Any]:
        """Yield each line up to the line that marks the end."""
        while True:
            with _translate_errors(self._address):
                line = json.loads(await connection.read_line())
            if line == {"end": True}:
                return
            yield line


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: Address) -> None:
        self._reader = reader
        self._writer = writer
        self._address = address
        self._is_chunked = False
        self._chunk = b""

    @property
    def is_lost(self) -> bool:
        return self._reader.at_eof() or self._writer.is_closing()

    async def call(self, path: str, body: Any) -> tuple[int, Any]:
        status, headers = await self._send(path, body)
        data = await self._reader.readexactly(int(headers["content-length"]))
        return status, json.loads(data)

    async def start_stream(self, path: str, body: Any) -> int:
        """Return the status of a response whose lines are read one by one."""
        status, headers = await self._send(path, body)
        self._is_chunked = headers.get("transfer-encoding") == "chunked"
        return status

    async def read_line(self) -> bytes:
        if not self._is_chunked:
            return await self._reader.readuntil(b"\n")
        while (end := self._chunk.find(b"\n")) < 0:
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            if not size:
                raise EOFError
            self._chunk += (await self._reader.readexactly(size + 2))[:size]
        line, self._chunk = self._chunk[:end], self._chunk[end + 1 :]
        return line

    async def _send(self, path: str, body: Any) -> tuple[int, dict[str, str]]:
        self._writer.write(_build_request(self._address, path, body))
        await self._writer.drain()
        return _parse_head(await self._reader.readuntil(b"\r\n\r\n"))

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


@contextmanager
def _translate_errors(address: Address) -> Generator[None]:
    """Raise HallGone instead of the errors of a lost connection."""
    import asyncio

    try:
        yield
    except (*_CONNECTION_ERRORS, asyncio.LimitOverrunError):
        raise _connection_lost(address) from None


def _read_head(response: Any) -> bytes:
    lines = b""
    while not lines.endswith(b"\r\n\r\n"):
        line = response.readline(65536)
        if not line:
            raise EOFError
        lines += line
    return lines


def _build_request(address: Address, path: str, body: Any) -> bytes:
    data = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: 127.0.0.1:{address.port}",
        f"Authorization: Bearer {address.token}",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + data


def _parse_head(data: bytes) -> tuple[int, dict[str, str]]:
    """Return the status and the headers of a response."""
    first, *lines = data.decode("latin-1").splitlines()
    pairs = (line.partition(":") for line in lines if line)
    return int(first.split()[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


def _connection_lost(address: Address) -> HallGone:
    """Return the error for a closed connection or an invalid response, which mean that the process has exited."""
    return HallGone(
        f"the hall (pid {address.pid}) exited",
        hint="List the interrupted runs with the commands that resume them: guild ls",
    )
