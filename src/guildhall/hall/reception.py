"""The doors of runs over HTTP: `/mcp/` and `/llm/`, on the hall's own port and on the sockets of programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall import __version__
from guildhall.hall.http import Listener
from guildhall.hall.llm import LlmEndpoint
from guildhall.hall.mcp import McpEndpoint
from guildhall.tools.http_messages import Unheard, send_json

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from guildhall.hall.api import App
    from guildhall.runs.tokens import RunDoor
    from guildhall.tools.http_messages import Message, Receive, Send


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
        no = Unheard(404, "here are the doors of a run, and nothing else")
        await send_json(send, no.status, no.as_dict(), no.headers)
