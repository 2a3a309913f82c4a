"""The tool door over MCP: `POST /mcp/<server>/` with a run's token shows that run's tools, and calls them.

An ASGI application of its own for the few messages that a client of tools needs (ADR 014). It keeps no session: the
token of each request says which run is speaking, and a call has the identity that the client gives it, so that a
request sent twice is one call.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError
from guildhall.core.nearest import did_you_mean
from guildhall.rpc.endpoint import send_reply
from guildhall.rpc.http import Headers, HttpError, check_json_post, check_local, read_body
from guildhall.rpc.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, RpcError
from guildhall.rpc.mcp_messages import Request, reply_to, response_to, result_of
from guildhall.runs.tokens import shown_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildhall.rpc.http import Message, Receive, Send
    from guildhall.runs.tokens import RunDoor
    from guildhall.tools.model import Tool, ToolCall, ToolResult

# What programs that execute runs are told of every tool: they make only such calls side by side, and cut long results
# otherwise. What may be called is for the gate to say.
_TO_GUESTS = {"annotations": {"readOnlyHint": True}, "_meta": {"anthropic/maxResultSizeChars": 500_000}}
MOST_CALLS = 256  # of one run at a time
_PATH = re.compile(r"/mcp/([A-Za-z0-9][A-Za-z0-9_.-]{0,63})/?")
_ANOTHER = "this is the id of another call"
_ENDED = "the run has ended, or was put away: nothing is called any more"


class McpEndpoint:
    """The ASGI application. `door` finds the tool door that a token opens now."""

    def __init__(self, door: Callable[[str], RunDoor | None], *, version: str) -> None:
        self._door = door
        self._version = version

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        await send_reply(send, self._reply(scope, receive))

    async def _reply(self, scope: Message, receive: Receive) -> tuple[int, Any]:
        headers = Headers.of(scope["headers"])
        self._enter(scope, headers)
        body = await read_body(receive, headers)
        door, server = self._enter(scope, headers)  # while the body came the run may have ended
        return await reply_to(body, headers, lambda request: self._respond(request, door, server), batches=False)

    def _enter(self, scope: Message, headers: Headers) -> tuple[RunDoor, str]:
        """Return the door that a request addresses and the name of the server there. Raise HttpError if none is."""
        check_local(headers)
        token = headers.bearer
        door = self._door(token) if token else None
        if door is None:
            raise HttpError(401, "this takes the token of a run that is going on", (b"www-authenticate", b"Bearer"))
        path = _PATH.fullmatch(scope["path"])
        name = path[1] if path else ""
        if name not in door.servers:
            hint = did_you_mean(name, door.servers) or ""
            raise HttpError(404, f"the run has no server of that name. {hint}".strip())
        check_json_post(scope["method"], headers)
        return door, name

    async def _respond(self, request: Request, door: RunDoor, server: str) -> dict[str, Any]:
        about = {"name": f"guildhall-{server}", "version": self._version}
        tools = {shown_at(server, tool.name): tool for tool in door.servers[server]}

        async def call(tool: Tool, arguments: dict[str, Any]) -> ToolResult:
            return await _call(door, server, door.identified(request.call_id, tool.name, arguments))

        result = await result_of(request, about, tools, call)
        if "tools" in result and door.passing is not None:
            result["tools"] = [{**tool, **_TO_GUESTS} for tool in result["tools"]]
        return response_to(request, result)


async def _call(door: RunDoor, server: str, call: ToolCall) -> ToolResult:
    """Make a call at the gate of the run. It goes on if the client disconnects, and ends with the run."""
    under_way = door.calls.get(call.key)
    if under_way is None:
        if door.behind.is_another(call):
            raise RpcError(INVALID_PARAMS, _ANOTHER)
        if len(door.calls) >= MOST_CALLS:
            raise RpcError(INTERNAL_ERROR, f"{MOST_CALLS} calls of this run are under way: wait for one of them")
        task = asyncio.ensure_future(door.call(server, call))
        door.calls[call.key] = under_way = (call, task)
        task.add_done_callback(partial(_over, door, call))
    first, task = under_way
    if first != call:
        raise RpcError(INVALID_PARAMS, _ANOTHER)
    await asyncio.wait([task])  # not cancelled with us
    if task.cancelled():
        raise RpcError(INTERNAL_ERROR, _ENDED)
    error = task.exception()
    if isinstance(error, GuildError):
        raise RpcError(INTERNAL_ERROR, str(error), error.as_dict())
    if error is not None:
        raise RpcError(INTERNAL_ERROR, f"the call broke: {type(error).__name__}")
    return task.result()


def _over(door: RunDoor, call: ToolCall, task: asyncio.Future[ToolResult]) -> None:
    door.calls.pop(call.key, None)
    error = None if task.cancelled() else task.exception()
    if isinstance(error, Exception):  # whoever waits is told; and no call of a run fails like that and lets it go on
        door.behind.breaks(error)
    elif not task.cancelled():
        door.done(call, task.result())
