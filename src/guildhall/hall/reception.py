"""The doors of runs over HTTP: `/mcp/` and `/llm/`, on the hall's own port and on the sockets of programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guildhall import __version__
from guildhall.hall.llm import LlmEndpoint
from guildhall.hall.mcp import McpEndpoint
from guildhall.rpc.endpoint import send_reply
from guildhall.rpc.http import HttpError
from guildhall.rpc.listener import Listener

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from guildhall.rpc.http import App, Message, Receive, Send
    from guildhall.runs.tokens import RunDoor


class Reception:
    """Serves the doors. `door` finds those that a token opens now."""

    def __init__(self, door: Callable[[str], RunDoor | None]) -> None:
        self.apps: Mapping[str, App] = {
            "/mcp/": McpEndpoint(door, version=__version__),
            "/llm/": LlmEndpoint(lambda token: run.passing if (run := door(token)) is not None else None),
        }

    async def listen(self, listening: socket.socket) -> Listener:
        """Serves the doors, and nothing else, on a socket that listens already."""
        listener = Listener(listening=listening)
        await listener.listen(self)
        return listener

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        for prefix, app in self.apps.items():
            if scope["path"].startswith(prefix):
                await app(scope, receive, send)
                return
        await send_reply(send, _not_found())


async def _not_found() -> tuple[int, Any]:
    raise HttpError(404, "this address has the doors of a run and nothing else")
