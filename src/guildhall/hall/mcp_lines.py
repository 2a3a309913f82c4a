"""MCP over lines: a message of JSON-RPC on each line of standard input, an answer on each line of standard output."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.nearest import did_you_mean
from guildhall.tools.define import invoke
from guildhall.tools.mcp_messages import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_HEADER,
    NAME_HEADER,
    VERSION_HEADER,
    VERSION_KEY,
    Headers,
    Wrong,
    answer,
    read,
    result_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from guildhall.tools.mcp_messages import Request
    from guildhall.tools.model import Tool, ToolResult

LONGEST = 4 * 1024**2  # bytes of a line
_FAREWELL = 2.0  # seconds
_CANCELLED = "notifications/cancelled"


class Lines:
    """Answers one client until it hangs up. Requests are carried out side by side."""

    def __init__(self, tools: Sequence[Tool], *, name: str, version: str, say: Callable[[bytes], None]) -> None:
        """`say` writes a line, which ends with its break."""
        self._tools = {tool.name: tool for tool in tools}
        self._server = {"name": name, "version": version}
        self._say = say
        self._at_work: dict[Any, asyncio.Task[None]] = {}  # by the ids of the requests

    async def serve(self, lines: asyncio.StreamReader) -> None:
        """Reads until the end of the input. What is under way then has a moment, and is cut off."""
        try:
            while line := await lines.readline():
                self._heard(line)
            if self._at_work:
                await asyncio.wait(self._at_work.values(), timeout=_FAREWELL)
        except ValueError:  # the line is too long
            self._send(Wrong(INVALID_REQUEST, f"a message has at most {LONGEST:,} bytes").as_dict())
        finally:
            tasks = list(self._at_work.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _heard(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            request = read(line, _headers(line))
        except Wrong as wrong:
            self._send(wrong.as_dict())
            return
        if request is None:
            self._cancel(line)
        elif request.id in self._at_work:
            self._send(Wrong(INVALID_REQUEST, "this id is of a request that is under way", id=request.id).as_dict())
        else:
            task = asyncio.ensure_future(self._answer(request))
            self._at_work[request.id] = task
            task.add_done_callback(partial(self._over, request.id))

    def _over(self, id: Any, task: asyncio.Task[None]) -> None:
        self._at_work.pop(id, None)
        if not task.cancelled():
            task.exception()

    def _cancel(self, line: bytes) -> None:
        """A client does not wait any longer for what it has asked."""
        message = json.loads(line)
        params = message.get("params")
        if message.get("method") == _CANCELLED and isinstance(params, dict):
            id = cast("dict[str, Any]", params).get("requestId")
            if isinstance(id, str | int) and (task := self._at_work.get(id)) is not None:
                task.cancel()

    async def _answer(self, request: Request) -> None:
        try:
            told = answer(request, await result_of(request, self._server, self._tools.values(), self._call))
        except Wrong as wrong:
            told = wrong.as_dict()
        self._send(told)

    async def _call(self, request: Request) -> ToolResult:
        name, arguments = request.params.get("name"), request.params.get("arguments", {})
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None or not isinstance(arguments, dict):
            nearest = did_you_mean(name, self._tools) if isinstance(name, str) else None
            said = f"`name` is the name of a tool, `arguments` an object. {nearest or ''}".strip()
            raise Wrong(INVALID_PARAMS, said, id=request.id, modern=request.modern)
        return await invoke(tool, cast("dict[str, Any]", arguments))

    def _send(self, message: dict[str, Any]) -> None:
        self._say(json.dumps(message, separators=(",", ":")).encode() + b"\n")


def _headers(line: bytes) -> Headers:
    """What a request of the newest era says in its headers, over HTTP. Here it says it only once."""
    try:
        params = json.loads(line)["params"]
        version, named = params["_meta"][VERSION_KEY], params.get("name")
        method = json.loads(line)["method"]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return Headers({})
    values = {VERSION_HEADER: version, METHOD_HEADER: method, NAME_HEADER: named}
    return Headers({key: value for key, value in values.items() if isinstance(value, str)})
