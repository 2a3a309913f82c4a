"""Doors of live runs over HTTP: serve the tool door as MCP and the model door in the providers' formats.

    POST /mcp/<server>/                                        lists and calls the tools of a run
    POST /llm/anthropic/v1/messages, .../count_tokens          calls the model of a run
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
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from guildhall import __version__
from guildhall.core.errors import GuildError
from guildhall.core.text_checks import did_you_mean
from guildhall.models.dialects.anthropic import Anthropic
from guildhall.models.dialects.openai_chat import OpenAIChat
from guildhall.models.dialects.openai_responses import OpenAIResponses
from guildhall.models.passthrough.session import PassthroughSession, Reply, error_reply
from guildhall.rpc.asgi_requests import Headers, HttpError, check_json_post, check_local, read_body, send_json
from guildhall.rpc.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, RpcError
from guildhall.rpc.listener import Listener
from guildhall.rpc.mcp_http_server import send_reply
from guildhall.rpc.mcp_messages import Request, ServerInfo, build_response, handle_request, reply_to
from guildhall.runs.execution.tokens import RunDoor, server_tool_name

if TYPE_CHECKING:
    import socket

    from guildhall.models.dialects.base import Dialect
    from guildhall.rpc.asgi_requests import App, Message, Receive, Send
    from guildhall.tools.model import Tool, ToolCall, ToolResult


# Without these fields, programs of other vendors call tools one by one and truncate long results. They grant nothing:
# the gate decides which calls are allowed.
_PROGRAM_TOOL_FIELDS = {"annotations": {"readOnlyHint": True}, "_meta": {"anthropic/maxResultSizeChars": 500_000}}
MAX_CALLS = 256  # concurrent calls of one run
_PATH = re.compile(r"/mcp/([A-Za-z0-9][A-Za-z0-9_.-]{0,63})/?")
_DUPLICATE_ID = "invalid call id: the run has another call with this id"


class McpEndpoint:
    """The ASGI application of the tool doors. `find_door` returns the door of the live run with a token."""

    def __init__(self, find_door: Callable[[str], RunDoor | None], *, version: str) -> None:
        self._find_door = find_door
        self._version = version

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        await send_reply(send, self._reply(scope, receive))

    async def _reply(self, scope: Message, receive: Receive) -> tuple[int, Any]:
        headers = Headers.of(scope["headers"])
        self._authorize(scope, headers)
        body = await read_body(receive, headers)
        door, server = self._authorize(scope, headers)  # again, because the run may have ended meanwhile
        return await reply_to(body, headers, lambda request: self._respond(request, door, server), batches=False)

    def _authorize(self, scope: Message, headers: Headers) -> tuple[RunDoor, str]:
        """Return the door of a request and the name of the addressed server. Raise HttpError if it is not allowed."""
        check_local(headers)
        token = headers.bearer
        door = self._find_door(token) if token else None
        if door is None:
            raise HttpError(401, "invalid token: not the token of a live run", (b"www-authenticate", b"Bearer"))
        path = _PATH.fullmatch(scope["path"])
        name = path[1] if path else ""
        if name not in door.servers:
            hint = did_you_mean(name, door.servers) or ""
            raise HttpError(404, f"unknown server {name!r}. {hint}".strip())
        check_json_post(scope["method"], headers)
        return door, name

    async def _respond(self, request: Request, door: RunDoor, server: str) -> dict[str, Any]:
        server_info = ServerInfo(name=f"guildhall-{server}", version=self._version)
        tools = {server_tool_name(server, tool.name): tool for tool in door.servers[server]}

        async def call(tool: Tool, arguments: dict[str, Any]) -> ToolResult:
            return await _call(door, server, door.identify(request.call_id, tool.name, arguments))

        result = await handle_request(request, server_info, tools, call)
        if "tools" in result and door.passthrough is not None:
            result["tools"] = [{**tool, **_PROGRAM_TOOL_FIELDS} for tool in result["tools"]]
        return build_response(request, result)


async def _call(door: RunDoor, server: str, call: ToolCall) -> ToolResult:
    """Call a tool at the gate of the run. The call continues if the client disconnects, and ends with the run."""
    active = door.calls.get(call.key)
    if active is None:
        if door.handle.is_other_call(call):
            raise RpcError(INVALID_PARAMS, _DUPLICATE_ID)
        if len(door.calls) >= MAX_CALLS:
            raise RpcError(INTERNAL_ERROR, f"too many concurrent calls: a run may have at most {MAX_CALLS}")
        task = asyncio.ensure_future(door.call(server, call))
        door.calls[call.key] = active = (call, task)
        task.add_done_callback(partial(_finish_call, door, call))
    active_call, task = active
    if active_call != call:
        raise RpcError(INVALID_PARAMS, _DUPLICATE_ID)
    await asyncio.wait([task])  # a cancellation of the request does not cancel the call
    if task.cancelled():
        raise RpcError(INTERNAL_ERROR, f"cannot call {call.tool}: the run has ended or is paused")
    error = task.exception()
    if isinstance(error, GuildError):
        raise RpcError(INTERNAL_ERROR, str(error), error.as_dict())
    if error is not None:
        raise RpcError(INTERNAL_ERROR, f"internal error: {type(error).__name__}")
    return task.result()


def _finish_call(door: RunDoor, call: ToolCall, task: asyncio.Future[ToolResult]) -> None:
    door.calls.pop(call.key, None)
    error = None if task.cancelled() else task.exception()
    if isinstance(error, Exception):  # an error of the door itself ends the run
        door.handle.fail(error)
    elif not task.cancelled():
        door.on_result(call, task.result())


MAX_BODY_BYTES = 32_000_000
PREFIX = "/llm"
_MAX_DRAINED_BYTES = 4_000_000
_DRAIN_TIMEOUT_S = 2.0
_COUNT = "/anthropic/v1/messages/count_tokens"


class LlmEndpoint:
    """The ASGI application of the model doors. `find_session` returns the session of the live run with a token."""

    def __init__(
        self,
        find_session: Callable[[str], PassthroughSession | None],
        *,
        prefix: str = PREFIX,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._find_session = find_session
        self._prefix = prefix
        self._max_body_bytes = max_body_bytes
        self._anthropic = Anthropic()
        self._chat = OpenAIChat()
        self._dialects: dict[str, Dialect] = {
            f"{prefix}/anthropic/v1/messages": self._anthropic,
            f"{prefix}{_COUNT}": self._anthropic,
            f"{prefix}/openai/v1/chat/completions": self._chat,
            f"{prefix}/openai/v1/responses": OpenAIResponses(),
        }
        self._model_lists: dict[str, Dialect] = {
            f"{prefix}/anthropic/v1/models": self._anthropic,
            f"{prefix}/openai/v1/models": self._chat,
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        try:
            reply, is_rejected = await self._reply(scope, path, receive), False
        except HttpError as error:
            dialect = self._dialects.get(path) or (self._anthropic if "/anthropic" in path else self._chat)
            reply, is_rejected = error_reply(dialect, error.status, error.message), True
            await _drain(receive)
        await _send(send, reply, close_connection=is_rejected)

    async def _reply(self, scope: Message, path: str, receive: Receive) -> Reply:
        headers = Headers.of(scope["headers"])
        check_local(headers)
        session = self._authorize(headers)
        if (dialect := self._model_lists.get(path)) is not None and scope["method"] == "GET":
            return session.list_models(dialect)
        if (dialect := self._dialects.get(path)) is None:
            raise HttpError(404, f"unknown route {scope['method']} {path[:200]}")
        check_json_post(scope["method"], headers)
        body = await read_body(receive, headers, max_bytes=self._max_body_bytes)
        session = self._authorize(headers)  # again, because the run may have ended meanwhile
        query = "?" + scope["query_string"].decode("latin-1") if scope.get("query_string") else ""
        count = path == f"{self._prefix}{_COUNT}"
        return await session.answer(dialect, body, headers.values, query=query, count=count)

    def _authorize(self, headers: Headers) -> PassthroughSession:
        token = request_token(headers)
        if not token or (session := self._find_session(token)) is None:
            raise HttpError(401, "invalid API key: expected the token of a live run")
        return session


def request_token(headers: Headers) -> str | None:
    """Return the token that a client sends instead of an API key."""
    return headers.get("x-api-key") or headers.bearer


async def _drain(receive: Receive) -> None:
    """Read the rest of a rejected request, up to a limit: most clients send all of it before they read a response."""
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_TIMEOUT_S):
            while size < _MAX_DRAINED_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return


async def _send(send: Send, reply: Reply, *, close_connection: bool) -> None:
    """Stream a response, and close the connection afterwards if `close_connection` is set."""
    headers = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in reply.headers.items()]
    headers += [(b"connection", b"close")] if close_connection else []
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    async with aclosing(cast("AsyncGenerator[bytes, Any]", reply.body)) as pieces:
        async for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


class DoorApp:
    """The ASGI application of both doors. `find_door` returns the door of the live run with a token."""

    def __init__(self, find_door: Callable[[str], RunDoor | None]) -> None:
        self.apps: Mapping[str, App] = {
            "/mcp/": McpEndpoint(find_door, version=__version__),
            "/llm/": LlmEndpoint(lambda token: door.passthrough if (door := find_door(token)) is not None else None),
        }

    async def listen(self, listening: socket.socket) -> Listener:
        listener = Listener(listening=listening)
        await listener.listen(self)
        return listener

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        for prefix, app in self.apps.items():
            if scope["path"].startswith(prefix):
                await app(scope, receive, send)
                return
        error = RpcError(INTERNAL_ERROR, "unknown path: this address serves only the doors of a run")
        await send_json(send, 404, error.as_response(None))
