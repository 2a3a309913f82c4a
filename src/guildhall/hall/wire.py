"""Questions to a hall on asyncio's streams: several at once, and answers that come line by line.

Not a library for HTTP: importing one takes longer than what most commands do.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from guildhall.hall.postcard import gone, head, request

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from guildhall.hall.start import Address

_LONGEST = 1 << 30  # bytes of an answer or of a line in it; the hall says what it has
_LOST = (OSError, EOFError, asyncio.LimitOverrunError, ValueError, LookupError)


class Wire:
    """Asks one hall. Connections are kept for the next question, and one that is busy does not hold up another."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[_Connection] = []

    async def ask(self, path: str, body: Any) -> tuple[int, Any]:
        """The status and the JSON of an answer."""
        connection = self._idle.pop() if self._idle else await self._connect()
        try:
            answer = await connection.ask(path, body)
        except BaseException as error:
            await connection.close()
            if isinstance(error, _LOST):
                raise gone(self._address) from None
            raise
        self._idle.append(connection)
        return answer

    @asynccontextmanager
    async def stream(self, path: str, body: Any) -> AsyncGenerator[tuple[int, AsyncGenerator[Any]]]:
        """The status of an answer, and its lines of JSON as they come."""
        connection = await self._connect()
        try:
            yield await self._kept(connection.begin(path, body)), self._lines(connection)
        finally:
            await connection.close()

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()

    async def _connect(self) -> _Connection:
        try:
            streams = await asyncio.open_connection("127.0.0.1", self._address.port, limit=_LONGEST)
        except OSError:
            raise gone(self._address) from None
        return _Connection(*streams, self._address)

    async def _kept(self, beginning: Any) -> int:
        try:
            return await beginning
        except _LOST:
            raise gone(self._address) from None

    async def _lines(self, connection: _Connection) -> AsyncGenerator[Any]:
        """Each line, until the hall says that it was the last one."""
        while True:
            try:
                told = json.loads(await connection.line())
            except _LOST:
                raise gone(self._address) from None
            if told == {"end": True}:
                return
            yield told


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: Address) -> None:
        self._reader = reader
        self._writer = writer
        self._address = address
        self._in_chunks = False  # the answer comes in pieces, each with its length before it
        self._chunk = b""

    async def ask(self, path: str, body: Any) -> tuple[int, Any]:
        status, headers = await self._send(path, body)
        data = await self._reader.readexactly(int(headers["content-length"]))
        return status, json.loads(data)

    async def begin(self, path: str, body: Any) -> int:
        """The status of an answer whose lines are read one by one."""
        status, headers = await self._send(path, body)
        self._in_chunks = headers.get("transfer-encoding") == "chunked"
        return status

    async def line(self) -> bytes:
        """The next line of an answer."""
        if not self._in_chunks:
            return await self._reader.readuntil(b"\n")
        while (end := self._chunk.find(b"\n")) < 0:
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            if not size:
                raise EOFError
            self._chunk += (await self._reader.readexactly(size + 2))[:size]
        line, self._chunk = self._chunk[:end], self._chunk[end + 1 :]
        return line

    async def _send(self, path: str, body: Any) -> tuple[int, dict[str, str]]:
        self._writer.write(request(self._address, path, body))
        await self._writer.drain()
        return head(await self._reader.readuntil(b"\r\n\r\n"))

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()
