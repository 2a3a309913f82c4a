"""The tool door over MCP: `POST /mcp/<server>/` with a run's token shows that run's tools, and calls them.

An ASGI application of its own for the few messages that a client of tools needs (ADR 014). It keeps no session: the
token of each request says which run is speaking, and a call has the identity that the client gives it, so that a
request sent twice is one call.
"""

from __future__ import annotations

import asyncio
import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import GuildError, did_you_mean
from guildhall.core.ids import digest
from guildhall.hall.http_guard import bearer, refused
from guildhall.hall.mcp_messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Headers,
    Request,
    Wrong,
    answer,
    called,
    discovered,
    initialized,
    listed,
    read,
)
from guildhall.tools.model import ToolCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from guildhall.runs.tokens import ToolDoor
    from guildhall.tools.model import Tool, ToolResult

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

MAX_BODY = 4 * 1024**2
BODY_SECONDS = 30.0
MOST_CALLS = 256  # of one run at a time
_PATH = re.compile(r"/mcp/([A-Za-z0-9][A-Za-z0-9_.-]{0,63})/?")
_LONGEST_ID = 200
_ENDED = "the run has ended, or was put away: nothing is called any more"


class McpEndpoint:
    """The ASGI application. `door` finds the tool door that a token opens now."""

    def __init__(self, door: Callable[[str], ToolDoor | None], *, version: str) -> None:
        self._door = door
        self._version = version

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            status, body, extra = await self._answer(scope, receive)
        except _Unheard as no:
            status, body, extra = no.status, _told(str(no)), no.headers
        data = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        headers = [(b"content-length", str(len(data)).encode()), (b"cache-control", b"no-store"), *extra]
        if data:
            headers.append((b"content-type", b"application/json"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": data})

    async def _answer(
        self, scope: Message, receive: Receive
    ) -> tuple[int, dict[str, Any] | None, list[tuple[bytes, bytes]]]:
        headers = Headers.of(scope["headers"])
        door, server = self._entered(scope, headers)
        body = await _body(receive)
        try:
            request = read(body, headers)
            if request is None:
                return 202, None, []
            return 200, answer(request, await self._result(request, door, server)), []
        except Wrong as wrong:
            return wrong.status, wrong.as_dict(), []

    def _entered(self, scope: Message, headers: Headers) -> tuple[ToolDoor, str]:
        """The door that a request has come to, and the name of the server there."""
        if no := refused(headers.get("host"), headers.get("origin")):
            raise _Unheard(*no)
        token = bearer(headers.get("authorization"))
        door = self._door(token) if token else None
        if door is None:
            said = "this takes the token of a run that is going on"
            raise _Unheard(401, said, (b"www-authenticate", b"Bearer"))
        path = _PATH.fullmatch(scope["path"])
        name = path[1] if path else ""
        if name not in door.servers:
            raise _Unheard(404, f"the run has no server of that name. {did_you_mean(name, door.servers) or ''}")
        if scope["method"] != "POST":
            raise _Unheard(405, "messages are sent with POST", (b"allow", b"POST"))
        if (headers.get("content-type") or "").partition(";")[0].strip().lower() != "application/json":
            raise _Unheard(415, "messages are application/json")
        return door, name

    async def _result(self, request: Request, door: ToolDoor, server: str) -> dict[str, Any]:
        ours = {"name": f"guildhall-{server}", "version": self._version}
        tools = door.servers[server]
        if request.method == "tools/call":
            return called(await _call(request, door, tools))
        if request.method == "tools/list":
            return listed(request, tools)
        if request.method == "ping":
            return {}
        if request.method == "initialize" and not request.modern:
            return initialized(request, ours)
        if request.method == "server/discover" and request.modern:
            return discovered(ours)
        raise _wrong(request, METHOD_NOT_FOUND, f"there is no method {request.method[:100]!r} here")


async def _call(request: Request, door: ToolDoor, tools: tuple[Tool, ...]) -> ToolResult:
    """Makes a call at the gate of the run; it goes on if the client goes away, and ends with the run."""
    call = _asked(request, door, tools)
    under_way = door.calls.get(call.key)
    if under_way is None:
        if len(door.calls) >= MOST_CALLS:
            raise _wrong(request, INTERNAL_ERROR, f"{MOST_CALLS} calls of this run are under way: wait for one of them")
        task = asyncio.ensure_future(door.call(call))
        door.calls[call.key] = under_way = (call, task)
        task.add_done_callback(partial(_over, door, call.key))
    first, task = under_way
    if first != call:
        raise _wrong(request, INVALID_PARAMS, "this is the id of another call")
    await asyncio.wait([task])  # not cancelled with us
    if task.cancelled():
        raise _wrong(request, INTERNAL_ERROR, _ENDED)
    error = task.exception()
    if isinstance(error, GuildError):
        raise _wrong(request, INTERNAL_ERROR, str(error), error.as_dict())
    if error is not None:
        raise _wrong(request, INTERNAL_ERROR, f"the call broke: {type(error).__name__}")
    return task.result()


def _over(door: ToolDoor, key: str, task: asyncio.Future[ToolResult]) -> None:
    door.calls.pop(key, None)
    if not task.cancelled():
        task.exception()  # seen, also where nobody waits for it any more


def _asked(request: Request, door: ToolDoor, tools: tuple[Tool, ...]) -> ToolCall:
    """The call that a request asks for, of a tool that this server shows."""
    name, arguments = request.params.get("name"), request.params.get("arguments")
    names = [tool.name for tool in tools]
    if not isinstance(name, str) or name not in names:
        said = f"there is no tool {name[:100]!r} here" if isinstance(name, str) else "`name` is the name of a tool"
        hint = did_you_mean(name, names) if isinstance(name, str) else None
        raise _wrong(request, INVALID_PARAMS, f"{said}. {hint}" if hint else said)
    if arguments is not None and not isinstance(arguments, dict):
        raise _wrong(request, INVALID_PARAMS, "`arguments` is an object")
    id = request.call_id or next(door.ids)
    key = f"mcp/{id if len(id) <= _LONGEST_ID and id.isprintable() else digest(id.encode('utf-8', 'surrogatepass'))}"
    return ToolCall(key=key, tool=name, arguments=cast("dict[str, Any]", arguments or {}))


def _wrong(request: Request, code: int, message: str, data: Any = None) -> Wrong:
    return Wrong(code, message, id=request.id, modern=request.modern, data=data)


class _Unheard(Exception):
    """A request that is answered by HTTP alone. Its body may be endless, so nothing more is read."""

    def __init__(self, status: int, message: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(message)
        self.status = status
        self.headers = [*headers, (b"connection", b"close")]


async def _body(receive: Receive) -> bytes:
    """The body of a request, if it is not too large and comes in time."""
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise _Unheard(400, "the body was cut off")
                data += message.get("body", b"")
                if len(data) > MAX_BODY:
                    raise _Unheard(413, f"a message has at most {MAX_BODY:,} bytes")
                if not message.get("more_body", False):
                    return bytes(data)
    except TimeoutError:
        raise _Unheard(408, f"the message was not there after {BODY_SECONDS:g} s") from None


def _told(message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": None, "error": {"code": INTERNAL_ERROR, "message": message.strip()}}
