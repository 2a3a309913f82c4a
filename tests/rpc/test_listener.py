"""Listener: slow clients are disconnected, and uvicorn has the internals that it uses."""

from __future__ import annotations

import asyncio
import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from guildhall.rpc import listener as module
from guildhall.rpc.listener import Listener

_LONG_HEAD = b"GET / HTTP/1.1\r\nHost: " + b"x" * 100_000


def test_slow_clients_are_disconnected() -> None:
    """Try an endless head, a silent connection, both after a first request, and a head that is too long."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def go() -> None:
        listener = Listener(head_timeout_s=0.1)
        await listener.listen(app)
        whole = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
        for beginning, answers in ((b"", 0), (b"GET / HTTP/1.1\r\nHo", 0), (whole + b"GET / HT", 1), (_LONG_HEAD, 0)):
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(beginning)
            async with asyncio.timeout(5):
                received = await reader.read()
            assert received.count(b"HTTP/1.1 200") == answers
            writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        for _ in range(3):  # a client that sends requests in time may pause between them
            writer.write(whole)
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.12)
        assert not reader.at_eof()
        writer.close()
        await listener.close(1)

    asyncio.run(go())


ADAPT = f"uvicorn {version('uvicorn')} differs: adapt rpc/listener.py, then the range in pyproject.toml"


def test_uvicorn_is_of_the_version_whose_internals_are_used() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (needed,) = [one for text in project["dependencies"] if (one := Requirement(text)).name == "uvicorn"]
    assert {part.operator for part in needed.specifier} == {">=", "<"}, "the range has both ends"
    assert needed.specifier.contains(version("uvicorn")), ADAPT


@pytest.mark.parametrize(
    "name",
    [
        "connection_made",
        "data_received",
        "on_message_begin",
        "on_headers_complete",
        "connection_lost",
        "send_400_response",
        "shutdown",
    ],
)
def test_uvicorn_s_protocol_has_the_methods_that_are_overridden_or_called(name: str) -> None:
    assert callable(getattr(HttpToolsProtocol, name, None)), f"HttpToolsProtocol.{name} is missing. {ADAPT}"


def test_uvicorn_has_the_other_internals_that_are_used() -> None:
    assert {"config", "server_state", "app_state", "_loop"} <= set(inspect.signature(HttpToolsProtocol).parameters), (
        ADAPT
    )
    protocol = set(inspect.getsource(HttpToolsProtocol.__init__).split())
    assert {"self.transport:", "self.cycle:", "self.loop"} <= protocol, ADAPT
    cycle = inspect.getsource(RequestResponseCycle.__init__)
    assert "self.response_started" in cycle, ADAPT
    assert "self.response_complete" in cycle, ADAPT
    state = ServerState()
    assert (state.connections, state.tasks) == (set(), set()), ADAPT
    assert httptools_impl.STATUS_LINE[400].startswith(b"HTTP/1.1 400"), ADAPT
    assert module._INVALID_REQUEST in inspect.getsource(HttpToolsProtocol), ADAPT
