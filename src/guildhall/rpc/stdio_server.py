"""MCP stdio server: answers a client over standard input and output, with a message on each line.

Requests run concurrently until the input ends. Does not pass calls through a gate, because its tools belong to a
program that the user has started.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from guildhall.rpc.jsonrpc import INVALID_REQUEST, Id, Request, RpcError, read_messages
from guildhall.rpc.mcp_messages import check_era, implied_headers, response_to, result_of
from guildhall.tools.definition import invoke

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from guildhall.tools.model import Tool

MAX_LINE_BYTES = 4 * 1024**2
_DRAIN_TIMEOUT_S = 2.0
_CANCELLED = "notifications/cancelled"


class StdioServer:
    """Answers one client until its input ends. Requests are carried out concurrently."""

    def __init__(self, tools: Sequence[Tool], *, name: str, version: str, write: Callable[[bytes], None]) -> None:
        """`write` writes a line, which ends with its line break."""
        self._tools = {tool.name: tool for tool in tools}
        self._server = {"name": name, "version": version}
        self._write = write
        self._tasks: dict[Id, asyncio.Task[None]] = {}  # by the ids of the requests

    async def serve(self, lines: asyncio.StreamReader) -> None:
        """Read until the end of the input. Running requests then get a moment to finish."""
        try:
            while line := await lines.readline():
                if line.strip():
                    self._receive(line)
            if self._tasks:
                await asyncio.wait(self._tasks.values(), timeout=_DRAIN_TIMEOUT_S)
        except ValueError:  # the line is too long
            self._send(RpcError(INVALID_REQUEST, f"a message has at most {MAX_LINE_BYTES:,} bytes").as_response(None))
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
                task = asyncio.ensure_future(self._answer(message))
                self._tasks[message.id] = task
                task.add_done_callback(partial(self._forget, message.id))

    def _forget(self, id: Id, task: asyncio.Task[None]) -> None:
        self._tasks.pop(id, None)
        if not task.cancelled():
            task.exception()

    def _cancel(self, notification: Request) -> None:
        """Cancel the request that the client does not wait for any longer."""
        id = notification.params.get("requestId")
        if notification.method == _CANCELLED and isinstance(id, str | int) and id in self._tasks:
            self._tasks[id].cancel()

    async def _answer(self, message: Request) -> None:
        try:
            request = check_era(message, implied_headers(message))
            self._send(response_to(request, await result_of(request, self._server, self._tools, invoke)))
        except RpcError as error:
            self._send(error.as_response(message.id))

    def _send(self, response: dict[str, Any]) -> None:
        self._write(json.dumps(response, separators=(",", ":")).encode() + b"\n")
