"""The listening end of a hall: uvicorn's protocol on a socket of our own, and time limits for those who dawdle.

Not uvicorn's server: that looks ten times a second whether it is to end, and takes the signals of the process.
"""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
from uvicorn.server import ServerState

from guildhall.core.errors import HallUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FIRST_PORT = 7420
_PORTS = 100
_HEAD_WITHIN = 10.0  # seconds from the first byte, or from the connection, to a whole head
_KEEP_ALIVE = 600.0  # seconds that a client may think between two requests


class _Hurried(H11Protocol):
    """Cuts off whoever connects or begins a request and then dawdles."""

    _late: asyncio.TimerHandle | None = None
    lost: Callable[[], None]
    head_within: float

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._hurry()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def _look(self) -> None:
        """Whoever has begun a request and not brought its head to an end is to hurry."""
        if self.cycle is not None and not self.cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison]
            self._at_ease()
        elif self._late is None and self.conn.trailing_data[0]:
            self._hurry()

    def connection_lost(self, exc: Exception | None) -> None:
        self._at_ease()
        super().connection_lost(exc)
        self.lost()

    def send_400_response(self, msg: str) -> None:
        """As uvicorn does it, but in JSON like every other error."""
        body = json.dumps({"error": {"code": "usage", "message": "this is not HTTP/1.1"}}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        response = h11.Response(
            status_code=400, headers=[*headers, (b"connection", b"close")], reason=STATUS_PHRASES[400]
        )
        with suppress(h11.LocalProtocolError):  # an answer is already on its way
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _hurry(self) -> None:
        self._late = self.loop.call_later(self.head_within, self.transport.close)

    def _at_ease(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class Listener:
    """Takes connections on loopback and hands what they ask to an ASGI application."""

    def __init__(self, head_within: float = _HEAD_WITHIN, *, port: int | None = None) -> None:
        """`port`: this one and no other, 0: any that is free; None: the one that people know, or the next free one."""
        self._head_within = head_within
        self._socket = _bound(range(FIRST_PORT, FIRST_PORT + _PORTS) if port is None else (port,))
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self._empty = asyncio.Event()

    @property
    def port(self) -> int:
        return self._socket.getsockname()[1]

    @property
    def clients(self) -> int:
        return len(self._state.connections)

    async def listen(self, app: Callable[..., Any]) -> None:
        config = Config(
            app,
            http=_Hurried,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=int(_KEEP_ALIVE),
        )
        config.load()
        loop = asyncio.get_running_loop()

        def connection() -> _Hurried:
            made = _Hurried(config=config, server_state=self._state, app_state={}, _loop=loop)
            made.lost, made.head_within = self._lost, self._head_within
            return made

        self._server = await loop.create_server(connection, sock=self._socket)

    def _lost(self) -> None:
        if not self._state.connections:
            self._empty.set()

    def refuse(self) -> None:
        """No new connections from now on."""
        if self._server is not None:
            self._server.close()

    async def close(self, patience: float) -> None:
        """Ends when the clients have left, or when they had time enough to."""
        self.refuse()
        for connection in list(self._state.connections):
            if connection.cycle is not None and not connection.cycle.response_complete:  # pyright: ignore
                connection.shutdown()  # as soon as the answer is complete
        if self._state.connections:
            self._empty.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), patience)
        for connection in list(self._state.connections):
            connection.transport.abort()  # pyright: ignore
        tasks = [task for task in self._state.tasks if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _bound(ports: Sequence[int]) -> socket.socket:
    """A socket on loopback: on the first of these ports that is free, of several else on any."""
    for port in (*ports, 0) if len(ports) > 1 else ports:
        # The protocol is named, or asyncio would not know that answers in two pieces must not wait for each other.
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
            listening.listen(1024)
        except OSError:
            listening.close()
            continue
        listening.setblocking(False)
        return listening
    one = f"the port {ports[0]} of this machine is not free" if len(ports) == 1 else "no port on loopback is free"
    raise HallUnavailable(one, hint="Name another one, or 0 for any.")
