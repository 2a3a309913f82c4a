"""Doors of live runs over HTTP: serve the tool door as MCP and the model door in the providers' formats.

    POST /mcp/<server>/                                        lists and calls the tools of a run
    POST /llm/anthropic/v1/messages, .../count_tokens          asks the model of a run
    POST /llm/openai/v1/chat/completions, /llm/openai/v1/responses
    GET  /llm/anthropic/v1/models, /llm/openai/v1/models

The MCP endpoint keeps no session (ADR 014). The client's call id identifies a call, so that a repeated request is a
single call. A call continues if its client disconnects, and ends with its run.
Does not decide if a call is allowed: `tools.gate` and `models.door` do. Does not parse model requests:
`models.passthrough` and `models.dialects` do.

Invariant: a request reaches only the run whose token it carries, and only while that run is live.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from guildhall import __version__
from guildhall.core.errors import GuildError
from guildhall.core.text import did_you_mean
from guildhall.models.dialects.anthropic import Anthropic
from guildhall.models.dialects.openai_chat import OpenAIChat
from guildhall.models.dialects.openai_responses import OpenAIResponses
from guildhall.models.passthrough.session import Passing, Reply, failure
from guildhall.rpc.endpoint import send_reply
from guildhall.rpc.http import Headers, HttpError, check_json_post, check_local, read_body, send_json
from guildhall.rpc.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, RpcError
from guildhall.rpc.listener import Listener
from guildhall.rpc.mcp_messages import Request, reply_to, response_to, result_of
from guildhall.runs.execution.tokens import RunDoor, server_tool_name

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, Callable, Mapping

    from guildhall.models.dialects.base import Dialect
    from guildhall.rpc.http import App, Message, Receive, Send
    from guildhall.tools.model import Tool, ToolCall, ToolResult


# For programs that execute runs: they call only such tools in parallel, and truncate long results otherwise. The gate
# decides which calls are allowed.
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
        tools = {server_tool_name(server, tool.name): tool for tool in door.servers[server]}

        async def call(tool: Tool, arguments: dict[str, Any]) -> ToolResult:
            return await _call(door, server, door.identify(request.call_id, tool.name, arguments))

        result = await result_of(request, about, tools, call)
        if "tools" in result and door.passing is not None:
            result["tools"] = [{**tool, **_TO_GUESTS} for tool in result["tools"]]
        return response_to(request, result)


async def _call(door: RunDoor, server: str, call: ToolCall) -> ToolResult:
    """Make a call at the gate of the run. It goes on if the client disconnects, and ends with the run."""
    under_way = door.calls.get(call.key)
    if under_way is None:
        if door.handle.is_other_call(call):
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
        door.handle.fail(error)
    elif not task.cancelled():
        door.on_result(call, task.result())


MAX_BODY = 32_000_000
PREFIX = "/llm"
_DRAINED = 4_000_000  # bytes of a request that is not heard
_DRAIN_SECONDS = 2.0
_COUNT = "/anthropic/v1/messages/count_tokens"


class LlmEndpoint:
    """The ASGI application. `passing` finds the model door that a token opens now."""

    def __init__(
        self, passing: Callable[[str], Passing | None], *, prefix: str = PREFIX, max_body: int = MAX_BODY
    ) -> None:
        self._passing = passing
        self._prefix = prefix
        self._max_body = max_body
        self._anthropic = Anthropic()
        self._chat = OpenAIChat()
        self._asked: dict[str, Dialect] = {
            f"{prefix}/anthropic/v1/messages": self._anthropic,
            f"{prefix}{_COUNT}": self._anthropic,
            f"{prefix}/openai/v1/chat/completions": self._chat,
            f"{prefix}/openai/v1/responses": OpenAIResponses(),
        }
        self._listed: dict[str, Dialect] = {
            f"{prefix}/anthropic/v1/models": self._anthropic,
            f"{prefix}/openai/v1/models": self._chat,
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        try:
            reply, last = await self._reply(scope, path, receive), False
        except HttpError as error:
            dialect = self._asked.get(path) or (self._anthropic if "/anthropic" in path else self._chat)
            reply, last = failure(dialect, error.status, error.message), True
            await _drained(receive)
        await _send(send, reply, last=last)

    async def _reply(self, scope: Message, path: str, receive: Receive) -> Reply:
        headers = Headers.of(scope["headers"])
        check_local(headers)
        passing = self._entered(headers)
        if (listed := self._listed.get(path)) is not None and scope["method"] == "GET":
            return passing.models(listed)
        if (dialect := self._asked.get(path)) is None:
            raise HttpError(404, f"{scope['method']} {path[:200]} is not served here")
        check_json_post(scope["method"], headers)
        body = await read_body(receive, headers, max_bytes=self._max_body)
        passing = self._entered(headers)  # while it came the run may have ended
        query = "?" + scope["query_string"].decode("latin-1") if scope.get("query_string") else ""
        count = path == f"{self._prefix}{_COUNT}"
        return await passing.answer(dialect, body, headers.values, query=query, count=count)

    def _entered(self, headers: Headers) -> Passing:
        token = key_of(headers)
        if not token or (passing := self._passing(token)) is None:
            raise HttpError(401, "this takes the token of a run that is going on, in the place of a key")
        return passing


def key_of(headers: Headers) -> str | None:
    """Return the token that a client sends in place of an API key."""
    return headers.get("x-api-key") or headers.bearer


async def _drained(receive: Receive) -> None:
    """Read the rest of a rejected request, up to a limit: most clients send all before they read the answer."""
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            while size < _DRAINED:
                message = await receive()
                size += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return


async def _send(send: Send, reply: Reply, *, last: bool) -> None:
    """Send an answer piece by piece. The call continues if the client disconnects."""
    head = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in reply.headers.items()]
    head += [(b"connection", b"close")] if last else []
    await send({"type": "http.response.start", "status": reply.status, "headers": head})
    async with aclosing(cast("AsyncGenerator[bytes, Any]", reply.body)) as pieces:
        async for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


class Reception:
    """Serves the doors. `door` returns the live run that a token opens."""

    def __init__(self, door: Callable[[str], RunDoor | None]) -> None:
        self.apps: Mapping[str, App] = {
            "/mcp/": McpEndpoint(door, version=__version__),
            "/llm/": LlmEndpoint(lambda token: run.passing if (run := door(token)) is not None else None),
        }

    async def listen(self, listening: socket.socket) -> Listener:
        """Serve the doors on a listening socket."""
        listener = Listener(listening=listening)
        await listener.listen(self)
        return listener

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        for prefix, app in self.apps.items():
            if scope["path"].startswith(prefix):
                await app(scope, receive, send)
                return
        error = RpcError(INTERNAL_ERROR, "this address has the doors of a run and nothing else")
        await send_json(send, 404, error.as_response(None))
