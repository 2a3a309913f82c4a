"""HTTP listener: serves an ASGI application on loopback and limits the time and size of request heads.

The listener uses uvicorn's protocol without uvicorn's server, which polls ten times a second for its shutdown and
handles the signals of the process.
Does not check tokens (see `rpc.asgi_requests`).
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from guildhall.core.errors import HallUnavailable

FIRST_PORT = 7420
_MAX_PORTS = 100
_HEAD_TIMEOUT_S = 10.0  # from the connection or the first byte to the end of the head
_MAX_HEAD_BYTES = 64 * 1024
_INVALID_REQUEST = "Invalid HTTP request received."  # uvicorn's message
_KEEP_ALIVE_S = 600.0  # between two requests


class _TimedProtocol(HttpToolsProtocol):
    """An HTTP connection that is closed if the head of a request is too slow or too long."""

    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0  # received so far
    on_lost: Callable[[], None]
    head_timeout_s: float

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._timer is not None and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES:
                self.send_400_response(f"the request head exceeds {_MAX_HEAD_BYTES:,} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._start_timer()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)
        self.on_lost()

    def send_400_response(self, msg: str) -> None:
        """Send an error as JSON. uvicorn would send plain text."""
        self._stop_timer()
        message = "invalid HTTP/1.1 request" if msg == _INVALID_REQUEST else msg
        body = json.dumps({"error": {"code": "usage", "message": message}}).encode()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:  # pyright: ignore
            self.transport.write(STATUS_LINE[400] + head + body)
        self.transport.close()

    def _start_timer(self) -> None:
        self._head_bytes = 0
        if self._timer is None:
            self._timer = self.loop.call_later(self.head_timeout_s, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Listener:
    """Serves an ASGI application on loopback."""

    def __init__(
        self,
        head_timeout_s: float = _HEAD_TIMEOUT_S,
        *,
        port: int | None = None,
        listening: socket.socket | None = None,
    ) -> None:
        """`port`: 0 is any free port, None the first free port from 7420 on. `listening`: a bound socket."""
        self._head_timeout_s = head_timeout_s
        ports = range(FIRST_PORT, FIRST_PORT + _MAX_PORTS) if port is None else (port,)
        self._socket = listening or _bind(ports)
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self._empty = asyncio.Event()
        self._last_lost_at = time.monotonic()

    @property
    def port(self) -> int:
        return self._socket.getsockname()[1]

    @property
    def client_count(self) -> int:
        return len(self._state.connections)

    @property
    def idle_s(self) -> float:
        """Return the seconds since the last connection was closed, or 0 while a connection is open."""
        return 0.0 if self._state.connections else time.monotonic() - self._last_lost_at

    async def listen(self, app: Callable[..., Any]) -> None:
        config = Config(
            app,
            http=_TimedProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=int(_KEEP_ALIVE_S),
        )
        config.load()
        loop = asyncio.get_running_loop()

        def on_lost() -> None:
            self._last_lost_at = time.monotonic()
            if not self._state.connections:
                self._empty.set()

        def create_protocol() -> _TimedProtocol:
            protocol = _TimedProtocol(config=config, server_state=self._state, app_state={}, _loop=loop)
            protocol.on_lost, protocol.head_timeout_s = on_lost, self._head_timeout_s
            return protocol

        self._server = await loop.create_server(create_protocol, sock=self._socket)

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()

    async def close(self, timeout_s: float) -> None:
        """Finish running responses within `timeout_s`, then close all connections."""
        self.stop_accepting()
        for connection in list(self._state.connections):
            if connection.cycle is not None and not connection.cycle.response_complete:  # pyright: ignore
                connection.shutdown()  # after the response
        if self._state.connections:
            self._empty.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), timeout_s)
        for connection in list(self._state.connections):
            connection.transport.abort()  # pyright: ignore
        tasks = [task for task in self._state.tasks if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _bind(ports: Sequence[int]) -> socket.socket:
    """Return a socket on the first free port. If several ports are given and all are in use, use any free port."""
    reason = None
    for port in (*ports, 0) if len(ports) > 1 else ports:
        # asyncio sets TCP_NODELAY only if the protocol is explicit. Without it, a response in two parts is delayed.
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
            listening.listen(1024)
        except OSError as error:
            listening.close()
            reason = error.strerror
            continue
        listening.setblocking(False)
        return listening
    target = f"port {ports[0]}" if len(ports) == 1 else "loopback"
    raise HallUnavailable(f"cannot listen on {target}: {reason}", hint="Choose another port, or 0 for any free port.")
