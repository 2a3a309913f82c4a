"""MCP messages: parses requests to a tool server and builds the replies, for three protocol versions. Pure.

Versions 2025-06-18 and 2025-11-25 begin with `initialize`. Version 2026-07-28 has no handshake. Each of its requests
names its version and the capabilities of its client. None of the versions has batches.

Does not keep a session, because each request shows its token. Does not call tools. The client side is in `tools.mcp`.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.text import did_you_mean
from guildhall.rpc import jsonrpc
from guildhall.rpc.asgi_requests import Headers
from guildhall.rpc.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, RpcError
from guildhall.tools.model import Block, Text, Tool, ToolResult

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping


MODERN = ("2026-07-28",)
HANDSHAKE = ("2025-11-25", "2025-06-18")  # the newest first

HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022

VERSION_HEADER = "mcp-protocol-version"
METHOD_HEADER = "mcp-method"
NAME_HEADER = "mcp-name"
_ROUTING = (VERSION_HEADER, METHOD_HEADER, NAME_HEADER)
_META = "io.modelcontextprotocol/"
VERSION_KEY = f"{_META}protocolVersion"
CAPABILITIES_KEY = f"{_META}clientCapabilities"
SERVER_KEY = f"{_META}serverInfo"
# The fields in which Claude Code and Codex send the id of the model's tool call.
_CALL_IDS = ("claudecode/toolUseId", "callId")

# The HTTP status of an error. In older versions only an invalid body is an error of HTTP.
_STATUS = {PARSE_ERROR: 400, INVALID_REQUEST: 400, UNSUPPORTED_VERSION: 400}
_MODERN_STATUS = {**_STATUS, INVALID_PARAMS: 400, HEADER_MISMATCH: 400, METHOD_NOT_FOUND: 404}
_NOT_CACHED: dict[str, Any] = {"ttlMs": 0, "cacheScope": "private"}  # the tools depend on the token


@dataclass(frozen=True, kw_only=True)
class Request(jsonrpc.Request):
    """A request of an MCP client."""

    is_modern: bool

    @property
    def call_id(self) -> str | None:
        return next((one for one in map(_meta(self).get, _CALL_IDS) if isinstance(one, str) and one), None)


def _meta(request: jsonrpc.Request) -> Mapping[str, Any]:
    meta = request.params.get("_meta")
    return cast("dict[str, Any]", meta) if isinstance(meta, dict) else {}


async def reply_to(
    body: bytes, headers: Headers, respond: Callable[[Request], Awaitable[dict[str, Any]]], *, batches: bool
) -> tuple[int, Any]:
    """Return the HTTP status and the payload for a body; None for a body that has nothing to answer.

    `respond` returns the response to a request, or raises RpcError. With `batches` a body may be any JSON-RPC 2.0, but
    not in the newest version.
    """
    modern = is_modern(headers)
    try:
        messages, is_batch = jsonrpc.read_messages(body, batches=batches and not modern)
    except RpcError as error:
        return _status(error, modern=modern), error.as_response(None)
    replies: list[tuple[int, Any]] = []
    for message in messages:
        status, payload = await _reply(message, headers, respond)
        if payload is not None:
            replies.append((status, payload))
    if not replies:
        return 202, None
    return (200, [payload for _, payload in replies]) if is_batch else replies[0]


async def _reply(
    message: jsonrpc.Request | RpcError, headers: Headers, respond: Callable[[Request], Awaitable[dict[str, Any]]]
) -> tuple[int, Any]:
    is_notification = isinstance(message, jsonrpc.Request) and message.is_notification
    try:
        if isinstance(message, RpcError):
            raise message
        response = await respond(check_era(message, headers))
        return 200, None if is_notification else response
    except RpcError as error:
        status = _status(error, modern=is_modern(headers))
        return status, None if is_notification else error.as_response(message.id)


def _status(error: RpcError, *, modern: bool) -> int:
    return (_MODERN_STATUS if modern else _STATUS).get(error.code, 200)


def is_modern(headers: Headers) -> bool:
    """Return True if a request names the newest version, or an unknown one."""
    version = headers.get(VERSION_HEADER)
    return version is not None and version not in HANDSHAKE


def check_era(request: jsonrpc.Request, headers: Headers) -> Request:
    """Return a request with its version. Raise RpcError if it is unknown or the headers contradict the request."""
    version = headers.get(VERSION_HEADER)
    if version is not None and version not in (*MODERN, *HANDSHAKE):
        data = {"supported": [*MODERN], "requested": version}
        raise RpcError(UNSUPPORTED_VERSION, "unsupported protocol version", data)
    modern = is_modern(headers)
    if modern and not request.is_notification:
        _check_envelope(request, headers)
    return Request(**vars(request), is_modern=modern)


def _check_envelope(request: jsonrpc.Request, headers: Headers) -> None:
    """Raise RpcError if the headers of a request of the newest version contradict the request."""
    for name in _ROUTING:
        if name in headers.repeated:
            raise RpcError(HEADER_MISMATCH, f"the header {name} is repeated")
    meta = _meta(request)
    missing = [key for key in (VERSION_KEY, CAPABILITIES_KEY) if key not in meta]
    if missing:
        raise RpcError(INVALID_PARAMS, f"params._meta has no {', '.join(missing)}")
    if meta[VERSION_KEY] != headers.get(VERSION_HEADER):
        raise RpcError(HEADER_MISMATCH, f"{VERSION_HEADER} is not the version of the request")
    if headers.get(METHOD_HEADER) != request.method:
        raise RpcError(HEADER_MISMATCH, f"{METHOD_HEADER} is not the method of the request")
    name = request.params.get("name")
    if request.method == "tools/call" and name is not None and _decode(headers.get(NAME_HEADER)) != name:
        raise RpcError(HEADER_MISMATCH, f"{NAME_HEADER} is not the tool of the request")


def _decode(value: str | None) -> str | None:
    """Return the value of a header. Text that a header cannot hold is sent in base64."""
    if value is None or not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[9:-2], validate=True).decode()
    except ValueError:
        return None


def implied_headers(request: jsonrpc.Request) -> Headers:
    """Return the headers that a request would have over HTTP. Over lines it names its version only in itself."""
    version = _meta(request).get(VERSION_KEY)
    if not isinstance(version, str):
        return Headers({})
    values = {VERSION_HEADER: version, METHOD_HEADER: request.method, NAME_HEADER: request.params.get("name")}
    return Headers({key: value for key, value in values.items() if isinstance(value, str)})


def response_to(request: Request, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the response with a result. In the newest version a result says that it is complete."""
    sent = {**result, "resultType": "complete"} if request.is_modern else dict(result)
    return {"jsonrpc": "2.0", "id": request.id, "result": sent}


async def result_of(
    request: Request,
    server: Mapping[str, str],
    tools: Mapping[str, Tool],
    call: Callable[[Tool, dict[str, Any]], Awaitable[ToolResult]],
) -> dict[str, Any]:
    """Return the result of a request to a server of tools. Raise RpcError if it has none.

    `tools`: by the names that the client sees. A notification has no effect, because its caller gets no result.
    """
    if request.is_notification:
        return {}
    if request.method == "tools/call":
        result = await call(*find_tool(request, tools))
        content = [_block(place, block) for place, block in enumerate(result.content)]
        return {"content": content, "isError": result.is_error}  # the model reads an error of the tool as content too
    if request.method == "tools/list":
        return _list_result(request, tools)
    if request.method == "ping":
        return {}
    if request.method == "initialize" and not request.is_modern:
        requested = request.params.get("protocolVersion")
        return {
            "protocolVersion": requested if requested in HANDSHAKE else HANDSHAKE[0],
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": dict(server),
        }
    if request.method == "server/discover" and request.is_modern:
        meta = {SERVER_KEY: dict(server)}
        return {"supportedVersions": [*MODERN], "capabilities": {"tools": {}}, "_meta": meta, **_NOT_CACHED}
    raise RpcError(METHOD_NOT_FOUND, f"unknown method {request.method[:100]!r}")


def find_tool(request: jsonrpc.Request, tools: Mapping[str, Tool]) -> tuple[Tool, dict[str, Any]]:
    """Return the tool that a `tools/call` names, and the arguments. Raise RpcError if there is no such tool.

    Arguments that the tool does not accept are for the tool to refuse, so that the model reads why.
    """
    name, arguments = request.params.get("name"), request.params.get("arguments")
    if not isinstance(name, str):
        raise RpcError(INVALID_PARAMS, "`name` must be the name of a tool")
    if name not in tools:
        hint = did_you_mean(name[:100], tools)
        raise RpcError(INVALID_PARAMS, f"unknown tool {name[:100]!r}. {hint or ''}".strip())
    if arguments is not None and not isinstance(arguments, dict):
        raise RpcError(INVALID_PARAMS, "`arguments` must be an object")
    return tools[name], cast("dict[str, Any]", arguments or {})


def _list_result(request: Request, tools: Mapping[str, Tool]) -> dict[str, Any]:
    if request.params.get("cursor") is not None:  # the first page has all tools
        raise RpcError(INVALID_PARAMS, "unknown cursor")
    shown = [
        {"name": name, "description": tool.description, "inputSchema": {"type": "object", **tool.input_schema}}
        for name, tool in tools.items()
    ]
    return {"tools": shown, **(_NOT_CACHED if request.is_modern else {})}


def _block(place: int, block: Block) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    data, kind = base64.b64encode(block.data).decode(), block.media_type
    if kind.startswith(("image/", "audio/")):
        return {"type": kind.partition("/")[0], "data": data, "mimeType": kind}
    return {"type": "resource", "resource": {"uri": f"result://{place}", "mimeType": kind, "blob": data}}
