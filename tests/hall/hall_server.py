"""A hall served over HTTP inside the test, and requests sent byte by byte."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guildhall.hall.client.discovery import find_hall
from guildhall.hall.client.remote import RemoteHall
from guildhall.hall.composition.hall import Hall
from guildhall.hall.server.process import HallProcess, RedactingFormatter
from tests.hall.conformance import ConformingProcess

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from guildhall.core.paths import Home
    from guildhall.hall.client.discovery import Address


@dataclass(frozen=True)
class ServedHall:
    hall: Hall
    process: HallProcess
    serving: asyncio.Task[None]
    address: Address

    async def client(self) -> RemoteHall:
        return RemoteHall(self.address)


@asynccontextmanager
async def serve_hall(home: Home, *, idle: float = 60.0) -> AsyncGenerator[ServedHall]:
    """Serve a hall until the block ends. Its responses must be as the OpenAPI document describes them."""
    hall = Hall(home, environ={}, is_persistent=True)
    process = ConformingProcess(hall, RedactingFormatter({}), idle_timeout_s=idle)
    ready = asyncio.Event()
    serving = asyncio.create_task(process.serve(ready.set))
    try:
        await ready.wait()
        address = find_hall(home)
        assert address is not None
        yield ServedHall(hall, process, serving, address)
    finally:
        process.stop()
        await serving
    assert not process.differences, "\n".join(process.differences)


@dataclass(frozen=True)
class HttpResponse:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, str]:
        """Return the error. Every error is reported as JSON."""
        assert self.headers["content-type"] == "application/json"
        return self.json["error"]


async def send_bytes(port: int, data: bytes, *, end: bool = False) -> HttpResponse:
    """Send bytes, and return the response when it is complete or the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        if end:
            writer.write_eof()
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
            first, *lines = head.decode().splitlines()
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
            }
            length = headers.get("content-length")
            body = await (reader.readexactly(int(length)) if length else reader.read())
    finally:
        writer.close()
    return HttpResponse(int(first.split()[1]), headers, body)


async def send_request(
    address: Address,
    path: str,
    body: Any = None,
    *,
    method: str = "POST",
    headers: Mapping[str, str | None] | None = None,
    raw: bytes | None = None,
) -> HttpResponse:
    """Send a request like a client. `headers` adds and replaces headers; a value of None removes one."""
    data = json.dumps(body if body is not None else {}).encode() if raw is None else raw
    usual: dict[str, str | None] = {
        "Host": f"127.0.0.1:{address.port}",
        "Authorization": f"Bearer {address.token}",
        "Content-Length": str(len(data)),
        **(headers or {}),
    }
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in usual.items() if value is not None)]
    return await send_bytes(address.port, "\r\n".join([*lines, "", ""]).encode("latin-1") + data)
