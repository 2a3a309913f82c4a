"""MCP messages: parses requests to a tool server and builds the responses, for three protocol versions. Does no I/O.

A client of version 2025-06-18 or 2025-11-25 sends `initialize` first. Version 2026-07-28 is stateless: each request
names its version and the capabilities of the client. No version has batches.

Does not keep sessions, because each request contains its token. Does not call tools: the caller passes in a function.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from guildhall.core.text_checks import did_you_mean
from guildhall.rpc import jsonrpc
from guildhall.rpc.asgi_requests import Headers
from guildhall.rpc.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, RpcError
from guildhall.tools.model import Block, Text, Tool, ToolResult

STATELESS_VERSIONS = ("2026-07-28",)
HANDSHAKE_VERSIONS = ("2025-11-25", "2025-06-18")  # the newest first

HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022

VERSION_HEADER = "mcp-protocol-version"
METHOD_HEADER = "mcp-method"
NAME_HEADER = "mcp-name"
_ROUTING_HEADERS = (VERSION_HEADER, METHOD_HEADER, NAME_HEADER)
_META = "io.modelcontextprotocol/"
VERSION_KEY = f"{_META}protocolVersion"
CAPABILITIES_KEY = f"{_META}clientCapabilities"
SERVER_KEY = f"{_META}serverInfo"
# The fields in which Claude Code and Codex send the id of the model's tool call.
_CALL_ID_KEYS = ("claudecode/toolUseId", "callId")

# The HTTP status of an RPC error. With a handshake, all errors except invalid messages have the status 200.
_STATUS = {PARSE_ERROR: 400, INVALID_REQUEST: 400, UNSUPPORTED_VERSION: 400}
_STATELESS_STATUS = {**_STATUS, INVALID_PARAMS: 400, HEADER_MISMATCH: 400, METHOD_NOT_FOUND: 404}
_NOT_CACHED: dict[str, Any] = {"ttlMs": 0, "cacheScope": "private"}  # the tools depend on the token


@dataclass(frozen=True, kw_only=True)
class ServerInfo:
    """The name of a tool server, and texts for its clients."""

    name: str
    version: str
    instructions: str | None = None  # for the model of the client
    tool_fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Any])  # by tool

    @property
    def as_wire(self) -> dict[str, str]:
        return {"name": self.name, "version": self.version}


@dataclass(frozen=True, kw_only=True)
class Request(jsonrpc.Request):
    """A request from an MCP client."""

    is_stateless: bool

    @property
    def call_id(self) -> str | None:
        """Return the model's id of a tool call, or None if the client does not send it."""
        return next((id for id in map(_meta(self).get, _CALL_ID_KEYS) if isinstance(id, str) and id), None)


def _meta(request: jsonrpc.Request) -> Mapping[str, Any]:
    meta = request.params.get("_meta")
    return cast("dict[str, Any]", meta) if isinstance(meta, dict) else {}


async def reply_to(
    body: bytes, headers: Headers, respond: Callable[[Request], Awaitable[dict[str, Any]]], *, batches: bool
) -> tuple[int, Any]:
    """Return the HTTP status and the payload for a body. The payload is None if the body has no requests.

    `respond` returns the response to a request, or raises RpcError. With `batches` a body may be any JSON-RPC 2.0,
    unless the version is stateless.
    """
    stateless = is_stateless(headers)
    try:
        messages, is_batch = jsonrpc.read_messages(body, batches=batches and not stateless)
    except RpcError as error:
        return _status(error, stateless=stateless), error.as_response(None)
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
        response = await respond(check_version(message, headers))
        return 200, None if is_notification else response
    except RpcError as error:
        status = _status(error, stateless=is_stateless(headers))
        return status, None if is_notification else error.as_response(message.id)


def _status(error: RpcError, *, stateless: bool) -> int:
    return (_STATELESS_STATUS if stateless else _STATUS).get(error.code, 200)


def is_stateless(headers: Headers) -> bool:
    """Return True if the headers name a stateless version or an unknown version."""
    version = headers.get(VERSION_HEADER)
    return version is not None and version not in HANDSHAKE_VERSIONS


def check_version(request: jsonrpc.Request, headers: Headers) -> Request:
    """Return the request as an MCP request. Raise RpcError if its version is unknown or its headers contradict it."""
    version = headers.get(VERSION_HEADER)
    if version is not None and version not in (*STATELESS_VERSIONS, *HANDSHAKE_VERSIONS):
        data = {"supported": [*STATELESS_VERSIONS], "requested": version}
        raise RpcError(UNSUPPORTED_VERSION, f"unsupported protocol version {version[:40]!r}", data)
    stateless = is_stateless(headers)
    if stateless and not request.is_notification:
        _check_envelope(request, headers)
    return Request(**vars(request), is_stateless=stateless)


def _check_envelope(request: jsonrpc.Request, headers: Headers) -> None:
    """Raise RpcError if the headers of a stateless request contradict its body."""
    for name in _ROUTING_HEADERS:
        if name in headers.repeated:
            raise RpcError(HEADER_MISMATCH, f"the header {name} is repeated")
    meta = _meta(request)
    missing = [key for key in (VERSION_KEY, CAPABILITIES_KEY) if key not in meta]
    if missing:
        raise RpcError(INVALID_PARAMS, f"missing in params._meta: {', '.join(missing)}")
    if meta[VERSION_KEY] != headers.get(VERSION_HEADER):
        raise RpcError(HEADER_MISMATCH, f"{VERSION_HEADER} does not match the version in params._meta")
    if headers.get(METHOD_HEADER) != request.method:
        raise RpcError(HEADER_MISMATCH, f"{METHOD_HEADER} does not match the method in the body")
    name = request.params.get("name")
    if request.method == "tools/call" and name is not None and _decode(headers.get(NAME_HEADER)) != name:
        raise RpcError(HEADER_MISMATCH, f"{NAME_HEADER} does not match params.name")


def _decode(value: str | None) -> str | None:
    """Return the decoded value of a header, or None if its base64 is invalid."""
    if value is None or not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[9:-2], validate=True).decode()
    except ValueError:
        return None


def implied_headers(request: jsonrpc.Request) -> Headers:
    """Return the headers that a request would have over HTTP. Over stdio, only its body names the version."""
    version = _meta(request).get(VERSION_KEY)
    if not isinstance(version, str):
        return Headers({})
    values = {VERSION_HEADER: version, METHOD_HEADER: request.method, NAME_HEADER: request.params.get("name")}
    return Headers({key: value for key, value in values.items() if isinstance(value, str)})


def build_response(request: Request, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the response with a result. A stateless version requires `resultType`."""
    sent = {**result, "resultType": "complete"} if request.is_stateless else dict(result)
    return {"jsonrpc": "2.0", "id": request.id, "result": sent}


async def handle_request(
    request: Request,
    server: ServerInfo,
    tools: Mapping[str, Tool],
    call: Callable[[Tool, dict[str, Any]], Awaitable[ToolResult]],
) -> dict[str, Any]:
    """Return the result of a request to a tool server. Raise RpcError if the method or the tool is unknown.

    `tools`: by the names that the client uses. A notification is ignored.
    """
    if request.is_notification:
        return {}
    if request.method == "tools/call":
        tool, arguments = find_tool(request, tools)
        result = await call(tool, arguments)
        content = [_content_block(index, block) for index, block in enumerate(result.content)]
        has_schema = "outputSchema" in server.tool_fields.get(tool.name, {}) and not result.is_error
        structured = {"structuredContent": json.loads(result.text)} if has_schema else {}
        return {"content": content, "isError": result.is_error, **structured}  # the model reads a tool error as content
    if request.method == "tools/list":
        return _list_result(request, tools, server)
    if request.method == "ping" and not request.is_stateless:  # removed in 2026-07-28
        return {}
    instructions = {"instructions": server.instructions} if server.instructions else {}
    if request.method == "initialize" and not request.is_stateless:
        requested = request.params.get("protocolVersion")
        return {
            "protocolVersion": requested if requested in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[0],
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": server.as_wire,
            **instructions,
        }
    if request.method == "server/discover" and request.is_stateless:
        versions, meta = [*STATELESS_VERSIONS], {SERVER_KEY: server.as_wire}
        about: dict[str, Any] = {"supportedVersions": versions, "capabilities": {"tools": {}}, "_meta": meta}
        return {**about, **instructions, **_NOT_CACHED}
    raise RpcError(METHOD_NOT_FOUND, f"unknown method {request.method[:100]!r}")


def find_tool(request: jsonrpc.Request, tools: Mapping[str, Tool]) -> tuple[Tool, dict[str, Any]]:
    """Return the tool and the arguments of a `tools/call`. Raise RpcError if the tool is unknown.

    The tool itself rejects invalid arguments, so that the model reads the reason.
    """
    name, arguments = request.params.get("name"), request.params.get("arguments")
    if not isinstance(name, str):
        raise RpcError(INVALID_PARAMS, "invalid `name`: expected the name of a tool")
    if name not in tools:
        hint = did_you_mean(name[:100], tools)
        raise RpcError(INVALID_PARAMS, f"unknown tool {name[:100]!r}. {hint or ''}".strip())
    if arguments is not None and not isinstance(arguments, dict):
        raise RpcError(INVALID_PARAMS, "invalid `arguments`: expected an object")
    return tools[name], cast("dict[str, Any]", arguments or {})


def _list_result(request: Request, tools: Mapping[str, Tool], server: ServerInfo) -> dict[str, Any]:
    if request.params.get("cursor") is not None:  # the first page lists all tools
        raise RpcError(INVALID_PARAMS, "invalid cursor: the list of tools has one page")
    shown = [
        {
            "name": name,
            "description": tool.description,
            "inputSchema": {"type": "object", **tool.input_schema},
            **server.tool_fields.get(tool.name, {}),
        }
        for name, tool in tools.items()
    ]
    return {"tools": shown, **(_NOT_CACHED if request.is_stateless else {})}


def _content_block(index: int, block: Block) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    data, mime_type = base64.b64encode(block.data).decode(), block.media_type
    if mime_type.startswith(("image/", "audio/")):
        return {"type": mime_type.partition("/")[0], "data": data, "mimeType": mime_type}
    return {"type": "resource", "resource": {"uri": f"result://{index}", "mimeType": mime_type, "blob": data}}
