"""MCP stdio server: serves one client over standard input and output, with one message per line.

Does not check tool calls against rules, because the user starts the program that calls them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from guildhall.rpc.jsonrpc import INVALID_REQUEST, Id, Request, RpcError, read_messages
from guildhall.rpc.mcp_messages import ServerInfo, build_response, check_version, handle_request, implied_headers
from guildhall.tools.definition import invoke

if TYPE_CHECKING:
    from guildhall.tools.model import Tool

MAX_LINE_BYTES = 4 * 1024**2
_DRAIN_TIMEOUT_S = 60.0  # for running requests after the end of the input: the hall may have to start
_CANCELLED = "notifications/cancelled"


class StdioServer:
    """Serves one client until the input ends. Requests run concurrently."""

    def __init__(self, tools: Sequence[Tool], server: ServerInfo, *, write: Callable[[bytes], None]) -> None:
        """`write` receives each line with its line break."""
        self._tools = {tool.name: tool for tool in tools}
        self._server = server
        self._write = write
        self._tasks: dict[Id, asyncio.Task[None]] = {}  # by the ids of the requests

    async def serve(self, lines: asyncio.StreamReader) -> None:
        """Read until the end of the input. Then wait up to a minute for running requests."""
        try:
            while line := await lines.readline():
                if line.strip():
                    self._receive(line)
            if self._tasks:
                await asyncio.wait(self._tasks.values(), timeout=_DRAIN_TIMEOUT_S)
        except ValueError:  # the line is too long
            self._send(RpcError(INVALID_REQUEST, f"a message exceeds {MAX_LINE_BYTES:,} bytes").as_response(None))
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _receive(self, line: bytes) -> None:
        try:
            messages, _ = read_messages(line, batches=False)
        except RpcError as error:
            self._send(error.as_response(None))
            return
        for message in messages:
            if isinstance(message, RpcError):
                self._send(message.as_response(message.id))
            elif message.is_notification:
                self._cancel(message)
            elif message.id in self._tasks:
                self._send(RpcError(INVALID_REQUEST, "a request with this id is running").as_response(message.id))
            else:
                task = asyncio.ensure_future(self._respond(message))
                self._tasks[message.id] = task
                task.add_done_callback(partial(self._forget, message.id))

    def _forget(self, id: Id, task: asyncio.Task[None]) -> None:
        self._tasks.pop(id, None)
        if not task.cancelled():
            task.exception()

    def _cancel(self, notification: Request) -> None:
        """Cancel the request that a cancellation names. Ignore other notifications."""
        id = notification.params.get("requestId")
        if notification.method == _CANCELLED and isinstance(id, str | int) and id in self._tasks:
            self._tasks[id].cancel()

    async def _respond(self, message: Request) -> None:
        try:
            request = check_version(message, implied_headers(message))
            self._send(build_response(request, await handle_request(request, self._server, self._tools, invoke)))
        except RpcError as error:
            self._send(error.as_response(message.id))

    def _send(self, response: dict[str, Any]) -> None:
        self._write(json.dumps(response, separators=(",", ":")).encode() + b"\n")
