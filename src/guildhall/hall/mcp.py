"""The tool door over MCP: `POST /mcp/<server>/` with a run's token shows that run's tools, and calls them.

An ASGI application of its own for the few messages that a client of tools needs (ADR 014). It keeps no session: the
token of each request says which run is speaking, and a call has the identity that the client gives it, so that a
request sent twice is one call.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import GuildError
from guildhall.core.nearest import did_you_mean
from guildhall.runs.tokens import shown_at
from guildhall.tools.http_guard import bearer
from guildhall.tools.http_messages import Unheard, demand_here, demand_message, read_body, send_json
from guildhall.tools.mcp_messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    Headers,
    Request,
    Wrong,
    answer,
    read,
    result_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from guildhall.runs.tokens import RunDoor
    from guildhall.tools.http_messages import Message, Receive, Send
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
        try:
            status, told = await self._answer(scope, receive)
        except Unheard as no:
            await send_json(send, no.status, no.as_dict(), no.headers)
        else:
            await send_json(send, status, told)

    async def _answer(self, scope: Message, receive: Receive) -> tuple[int, dict[str, Any] | None]:
        headers = Headers.of(scope["headers"])
        self._entered(scope, headers)
        body = await read_body(receive)
        door, server = self._entered(scope, headers)  # while it came the run may have ended
        try:
            request = read(body, headers)
            if request is None:
                return 202, None
            return 200, answer(request, await self._result(request, door, server))
        except Wrong as wrong:
            return wrong.status, wrong.as_dict()

    def _entered(self, scope: Message, headers: Headers) -> tuple[RunDoor, str]:
        """The door that a request has come to, and the name of the server there."""
        demand_here(headers)
        token = bearer(headers.get("authorization"))
        door = self._door(token) if token else None
        if door is None:
            said = "this takes the token of a run that is going on"
            raise Unheard(401, said, (b"www-authenticate", b"Bearer"))
        path = _PATH.fullmatch(scope["path"])
        name = path[1] if path else ""
        if name not in door.servers:
            raise Unheard(404, f"the run has no server of that name. {did_you_mean(name, door.servers) or ''}")
        demand_message(scope["method"], headers)
        return door, name

    async def _result(self, request: Request, door: RunDoor, server: str) -> dict[str, Any]:
        ours = {"name": f"guildhall-{server}", "version": self._version}
        tools = {shown_at(server, tool.name): tool for tool in door.servers[server]}
        shown = [replace(tool, name=name) for name, tool in tools.items()] if request.method == "tools/list" else ()
        result = await result_of(request, ours, shown, lambda request: _call(request, door, server, tools))
        if shown and door.passing is not None:
            result["tools"] = [{**tool, **_TO_GUESTS} for tool in result["tools"]]
        return result


async def _call(request: Request, door: RunDoor, server: str, tools: Mapping[str, Tool]) -> ToolResult:
    """Makes a call at the gate of the run; it goes on if the client goes away, and ends with the run."""
    call = _asked(request, door, tools)
    under_way = door.calls.get(call.key)
    if under_way is None:
        if door.behind.is_another(call):
            raise _wrong(request, INVALID_PARAMS, _ANOTHER)
        if len(door.calls) >= MOST_CALLS:
            raise _wrong(request, INTERNAL_ERROR, f"{MOST_CALLS} calls of this run are under way: wait for one of them")
        task = asyncio.ensure_future(door.call(server, call))
        door.calls[call.key] = under_way = (call, task)
        task.add_done_callback(partial(_over, door, call))
    first, task = under_way
    if first != call:
        raise _wrong(request, INVALID_PARAMS, _ANOTHER)
    await asyncio.wait([task])  # not cancelled with us
    if task.cancelled():
        raise _wrong(request, INTERNAL_ERROR, _ENDED)
    error = task.exception()
    if isinstance(error, GuildError):
        raise _wrong(request, INTERNAL_ERROR, str(error), error.as_dict())
    if error is not None:
        raise _wrong(request, INTERNAL_ERROR, f"the call broke: {type(error).__name__}")
    return task.result()


def _over(door: RunDoor, call: ToolCall, task: asyncio.Future[ToolResult]) -> None:
    door.calls.pop(call.key, None)
    error = None if task.cancelled() else task.exception()
    if isinstance(error, Exception):  # whoever waits is told; and no call of a run fails like that and lets it go on
        door.behind.breaks(error)
    elif not task.cancelled():
        door.done(call, task.result())


def _asked(request: Request, door: RunDoor, tools: Mapping[str, Tool]) -> ToolCall:
    """The call that a request asks for, of a tool that this server shows."""
    name, arguments = request.params.get("name"), request.params.get("arguments")
    if not isinstance(name, str) or name not in tools:
        said = f"there is no tool {name[:100]!r} here" if isinstance(name, str) else "`name` is the name of a tool"
        hint = did_you_mean(name, tools) if isinstance(name, str) else None
        raise _wrong(request, INVALID_PARAMS, f"{said}. {hint}" if hint else said)
    if arguments is not None and not isinstance(arguments, dict):
        raise _wrong(request, INVALID_PARAMS, "`arguments` is an object")
    return door.identified(request.call_id, tools[name].name, cast("dict[str, Any]", arguments or {}))


def _wrong(request: Request, code: int, message: str, data: Any = None) -> Wrong:
    return Wrong(code, message, id=request.id, modern=request.modern, data=data)
