"""MCP client types: server specifications, the transport protocol, and the validation of tool lists and results.

Connections are made in `tools.mcp.client`. The server side of the protocol is in `rpc.mcp_messages`.

Invariant: data from a server is validated before use.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from guildhall.core.errors import ToolUnavailable
from guildhall.core.ids import digest
from guildhall.tools.definition import clean
from guildhall.tools.model import Blob, Block, Text, ToolResult, is_shallow

if TYPE_CHECKING:
    from guildhall.sandbox.jail import Confinement

HANDSHAKE_PROTOCOL_VERSION = "2025-11-25"  # tried first
STATELESS_PROTOCOL_VERSION = "2026-07-28"  # for servers without `initialize`
META_PREFIX = "io.modelcontextprotocol/"  # of the keys in `_meta`
METHOD_NOT_FOUND = -32601
UNSUPPORTED_PROTOCOL_VERSION = -32022
HEADER_MISMATCH = -32020  # a stateless server requires headers that `initialize` does not have

MAX_MESSAGE_BYTES = 16 * 1024**2
MAX_TOOLS = 500
_MAX_TOOL_LIST_CHARS = 2_000_000  # all descriptions and schemas as JSON
_MAX_TOOL_NAME_CHARS = 64  # the limit of the model providers
_MAX_SERVER_TOOL_NAME_CHARS = 200
_MAX_LISTED_NAMES = 12
_MAX_MEDIA_TYPE_CHARS = 100
_MAX_LINE_CHARS = 1000
_INVALID_NAME_CHARS = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, kw_only=True)
class ServerSpec:
    """The URL or command of a server, and the capabilities of its tools."""

    name: str
    command: tuple[str, ...] = ()
    confinement: Confinement | None = None  # the confinement of the command
    url: str = ""
    token: str | None = field(default=None, repr=False)  # sent to the URL as a bearer token
    tools: tuple[str, ...] | None = None  # the tools that the worker uses; None means all
    capabilities: frozenset[str] = frozenset()
    worker_file: str | None = None  # named in errors
    field: str = "mcp_servers"  # the field of the worker file, named in errors

    def error(self, problem: str, hint: str | None = None) -> ToolUnavailable:
        return ToolUnavailable(f"{self.field}: {self.name}: {problem}", where=self.worker_file, hint=hint)


class Transport(Protocol):
    """Exchanges JSON-RPC messages with a server over stdio or Streamable HTTP."""

    async def request(self, message: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:
        """Send a request and return the response. Raise TransportError if there is no response."""
        ...

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send a notification or response."""
        ...

    async def close(self) -> None: ...

    @property
    def end_reason(self) -> str | None:
        """Return why the server has ended, or None while it runs."""
        ...


class TransportError(Exception):
    """A request without a response. `may_have_arrived` is False if the server certainly did not receive the request."""

    def __init__(self, reason: str, *, may_have_arrived: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.may_have_arrived = may_have_arrived


def tool_name(server: str, tool: str) -> str:
    """Return the name of a server's tool in a run, with characters that every model accepts."""
    name = _INVALID_NAME_CHARS.sub("_", f"{server}_{tool}")
    if len(name) <= _MAX_TOOL_NAME_CHARS:
        return name
    return f"{name[: _MAX_TOOL_NAME_CHARS - 9]}_{digest(name.encode())[:8]}"


@dataclass(frozen=True, kw_only=True)
class ListedTool:
    """A tool in the tool list of a server."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    repeatable: bool  # declared by the server: read-only or idempotent

    def as_shown(self) -> dict[str, Any]:
        return {"name": self.name, "description": self.description, "input_schema": dict(self.input_schema)}


def parse_tool_list(spec: ServerSpec, tools: Iterable[Any]) -> list[ListedTool]:
    """Return the listed tools that the worker uses. Raise ToolUnavailable if the list is invalid."""
    entries: dict[str, Any] = {}
    for entry in tools:
        name = cast("dict[str, Any]", entry).get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_SERVER_TOOL_NAME_CHARS or not name.isprintable():
            limit = f"a tool name has 1 to {_MAX_SERVER_TOOL_NAME_CHARS} printable characters"
            raise spec.error(f"invalid tool list: {limit}")
        if name in entries:
            raise spec.error(f"invalid tool list: two tools are named {name!r}")
        entries[name] = entry
    if spec.tools is not None:
        for name in spec.tools:
            if name not in entries:
                known = ", ".join(sorted(entries)[:_MAX_LISTED_NAMES]) or "none"
                raise spec.error(f"unknown tool {name!r}", f"Tools of the server: {known}.")
        entries = {name: entry for name, entry in entries.items() if name in spec.tools}
    size = len(json.dumps(list(entries.values())))
    if len(entries) > MAX_TOOLS or size > _MAX_TOOL_LIST_CHARS:
        limits = f"at most {MAX_TOOLS} tools with {_MAX_TOOL_LIST_CHARS:,} characters are allowed"
        problem = f"tool list too large: {len(entries)} tools with {size:,} characters; {limits}"
        raise spec.error(problem, "List the needed tools under `tools:`.")
    return [_parse_tool(spec, name, entry) for name, entry in entries.items()]


def _parse_tool(spec: ServerSpec, name: str, entry: Mapping[str, Any]) -> ListedTool:
    schema, description = entry.get("inputSchema"), entry.get("description")
    if not isinstance(schema, dict):
        raise spec.error(f"invalid input schema of the tool {name!r}: not a JSON object")
    schema = cast("dict[str, Any]", schema)
    if problem := _schema_problem(schema):
        raise spec.error(f"invalid input schema of the tool {name!r}: {problem}")
    given = entry.get("annotations")
    annotations = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    if not isinstance(description, str) or not description.strip():
        description = f"The tool {name} of {spec.name}."
    return ListedTool(
        name=name,
        description=clean(description),
        input_schema=json.loads(clean(json.dumps({"type": "object", **schema}))),
        repeatable=annotations.get("readOnlyHint") is True or annotations.get("idempotentHint") is True,
    )


def _schema_problem(schema: Mapping[str, Any]) -> str | None:
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for

    if schema.get("type", "object") != "object":
        return 'its type is not "object"'
    if not is_shallow(schema):
        return "nested too deeply"
    validator: Any = validator_for(schema, default=Draft202012Validator)
    try:
        validator.check_schema(schema)
    except SchemaError as error:
        return to_single_line(error.message)
    except Exception as error:  # noqa: BLE001 - unresolvable references, endless nesting
        return type(error).__name__
    return None


def to_single_line(text: str) -> str:
    """Return a text as a single line of printable characters, truncated if it is long."""
    line = "".join(char if char.isprintable() else " " for char in clean(text))
    return line if len(line) <= _MAX_LINE_CHARS else f"{line[:_MAX_LINE_CHARS]}..."


def parse_result(result: Mapping[str, Any]) -> ToolResult:
    """Convert the result of `tools/call`."""
    if result.get("resultType", "complete") != "complete":
        return ToolResult.error("The server requested further input, which is not supported.")
    content = result.get("content")
    blocks = [_parse_block(block) for block in cast("list[Any]", content)] if isinstance(content, list) else []
    if not blocks and result.get("structuredContent") is not None:
        blocks = [Text(clean(json.dumps(result["structuredContent"], ensure_ascii=False)))]
    return ToolResult(content=tuple(blocks) or (Text("done"),), is_error=result.get("isError") is True)


def _parse_block(block: Any) -> Block:
    match block:
        case {"type": "text", "text": str(text)} | {"type": "resource", "resource": {"text": str(text)}}:
            return Text(clean(text))
        case {"type": "image" | "audio", "data": str(data), "mimeType": str(media_type)}:
            return _decode_blob(data, media_type)
        case {"type": "resource", "resource": {"blob": str(data), **fields}}:
            media_type = cast("dict[str, Any]", fields).get("mimeType")
            return _decode_blob(data, media_type if isinstance(media_type, str) else "application/octet-stream")
        case {"type": "resource_link", "uri": str(uri)}:
            return Text(f"[resource link: {to_single_line(uri)}]")
        case _:
            return Text("[unsupported content block]")


def _decode_blob(data: str, media_type: str) -> Block:
    try:
        return Blob(base64.b64decode(data, validate=True), to_single_line(media_type)[:_MAX_MEDIA_TYPE_CHARS])
    except ValueError:
        return Text("[invalid content block: the data is not base64]")


def build_reply(message: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the reply to a request of a server, or None if the message is not a request.

    Only `ping` is supported. Every other request gets an error.
    """
    request_id = message.get("id")
    if not isinstance(message.get("method"), str) or not isinstance(request_id, str | int):
        return None
    error = {"code": METHOD_NOT_FOUND, "message": "this client only calls tools"}
    body: dict[str, Any] = {"result": {}} if message["method"] == "ping" else {"error": error}
    return {"jsonrpc": "2.0", "id": request_id, **body}
