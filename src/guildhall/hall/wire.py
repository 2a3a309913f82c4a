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
                line = await connection.reader.readuntil(b"\n")
                told = json.loads(line)
            except _LOST:
                raise gone(self._address) from None
            if told == {"end": True}:
                return
            yield told


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: Address) -> None:
        self.reader = reader
        self._writer = writer
        self._address = address

    async def ask(self, path: str, body: Any) -> tuple[int, Any]:
        status, headers = await self._send("1.1", path, body)
        data = await self.reader.readexactly(int(headers["content-length"]))
        return status, json.loads(data)

    async def begin(self, path: str, body: Any) -> int:
        """By the older protocol: an answer without a length ends with the connection, and needs no unpacking."""
        status, _ = await self._send("1.0", path, body)
        return status

    async def _send(self, protocol: str, path: str, body: Any) -> tuple[int, dict[str, str]]:
        self._writer.write(request(self._address, path, body, protocol))
        await self._writer.drain()
        return head(await self.reader.readuntil(b"\r\n\r\n"))

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()
