"""MCP client types: describe how a server is reached, and validate its tool listing and its results.

Does not connect (see `tools.mcp.client`). The server side of the protocol is in `rpc.mcp_messages`.

Invariant: data from a server is validated before use.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from guildhall.core.errors import ToolUnavailable
from guildhall.core.ids import digest
from guildhall.tools.definition import clean
from guildhall.tools.model import Blob, Block, Text, ToolResult, is_shallow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from guildhall.sandbox.jail import Confinement

HANDSHAKE = "2025-11-25"  # the first version to try
MODERN = "2026-07-28"  # for servers without a handshake
META = "io.modelcontextprotocol/"
METHOD_NOT_FOUND = -32601
UNSUPPORTED_VERSION = -32022

MAX_MESSAGE_BYTES = 16 * 1024**2  # bytes
MAX_TOOLS = 500
MAX_LISTING_CHARS = 2_000_000  # characters of all descriptions and schemas
MAX_NAME_CHARS = 64  # characters of a tool's name, as models take it
_MAX_TEXT_CHARS = 1000  # characters of a server's words in an error
_INVALID_NAME_CHARS = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, kw_only=True)
class ServerSpec:
    """The address or command of a server, and the capabilities of its tools."""

    name: str
    command: tuple[str, ...] = ()
    confinement: Confinement | None = None  # of the command: what it sees
    url: str = ""
    token: str | None = field(default=None, repr=False)  # for the address
    tools: tuple[str, ...] | None = None  # only these
    capabilities: frozenset[str] = frozenset()
    where: str | None = None  # the worker's file, for errors
    field: str = "mcp_servers"  # the field of that file

    def wrong(self, message: str, hint: str | None = None) -> ToolUnavailable:
        return ToolUnavailable(f"{self.field}: {self.name} {message}", where=self.where, hint=hint)


class Link(Protocol):
    """A way to a server: its standard input and output, or HTTP."""

    async def ask(self, message: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """Send a request and return the answer. Raise LinkBroken if there is no answer."""
        ...

    async def tell(self, message: Mapping[str, Any]) -> None:
        """Send a notification or response."""
        ...

    async def close(self) -> None: ...

    @property
    def end_reason(self) -> str | None:
        """Return the reason why the server has ended, or None."""
        ...


class LinkBroken(Exception):
    """A request was not answered. `sent`: it may have reached the server."""

    def __init__(self, why: str, *, sent: bool = True) -> None:
        super().__init__(why)
        self.why = why
        self.sent = sent


def tool_name(server: str, tool: str) -> str:
    """Return the name of a server's tool in a run, with characters that every model accepts."""
    name = _INVALID_NAME_CHARS.sub("_", f"{server}_{tool}")
    return name if len(name) <= MAX_NAME_CHARS else f"{name[: MAX_NAME_CHARS - 9]}_{digest(name.encode())[:8]}"


@dataclass(frozen=True, kw_only=True)
class ListedTool:
    """A tool as its server lists it."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    repeatable: bool  # as the server declares

    def as_shown(self) -> dict[str, Any]:
        return {"name": self.name, "description": self.description, "input_schema": dict(self.input_schema)}


def read_listing(spec: ServerSpec, listed: Iterable[Any]) -> list[ListedTool]:
    """Return the tools of a listing that the worker uses. Raise ToolUnavailable if the listing is invalid."""
    found: dict[str, Any] = {}
    for entry in listed:
        name = cast("dict[str, Any]", entry).get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not name or len(name) > 200 or not name.isprintable():
            raise spec.wrong("lists a tool without a usable name")
        if name in found:
            raise spec.wrong(f"lists two tools named {name!r}")
        found[name] = entry
    if spec.tools is not None:
        for name in spec.tools:
            if name not in found:
                shown = ", ".join(sorted(found)[:12]) or "none"
                raise spec.wrong(f"has no tool {name!r}", f"It has: {shown}.")
        found = {name: entry for name, entry in found.items() if name in spec.tools}
    size = len(json.dumps(list(found.values())))
    if len(found) > MAX_TOOLS or size > MAX_LISTING_CHARS:
        said = f"lists {len(found)} tools in {size:,} characters, which is too much for a model"
        raise spec.wrong(said, f"List the needed tools under `tools:`, at most {MAX_TOOLS}.")
    return [_read_tool(spec, name, entry) for name, entry in found.items()]


def _read_tool(spec: ServerSpec, name: str, entry: Mapping[str, Any]) -> ListedTool:
    schema, said = entry.get("inputSchema"), entry.get("description")
    if not isinstance(schema, dict) or not is_shallow(schema):
        raise spec.wrong(f"lists the tool {name!r} with an input schema that cannot be used")
    schema = cast("dict[str, Any]", schema)
    is_object = schema.get("type", "object") == "object"
    if problem := _schema_problem(schema) if is_object else "it is not about an object":
        raise spec.wrong(f"lists the tool {name!r} with an input schema that cannot be used: {problem}")
    hints = entry.get("annotations")
    told = cast("dict[str, Any]", hints) if isinstance(hints, dict) else {}
    return ListedTool(
        name=name,
        description=clean(said) if isinstance(said, str) and said.strip() else f"The tool {name} of {spec.name}.",
        input_schema=json.loads(clean(json.dumps({"type": "object", **schema}))),
        repeatable=told.get("readOnlyHint") is True or told.get("idempotentHint") is True,
    )


def _schema_problem(schema: Mapping[str, Any]) -> str | None:
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for

    kind: Any = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        return to_short_line(error.message)
    except Exception as error:  # noqa: BLE001 - references that lead nowhere, endless nesting
        return type(error).__name__
    return None


def to_short_line(text: str) -> str:
    """Return a text of a server as one short line with visible characters."""
    shown = "".join(char if char.isprintable() else " " for char in clean(text))
    return shown if len(shown) <= _MAX_TEXT_CHARS else f"{shown[:_MAX_TEXT_CHARS]}..."


def result_of(answer: Any) -> ToolResult:
    """Return the answer of a server to a call as a result."""
    if not isinstance(answer, dict):
        return ToolResult.error("The server answered with an invalid result.")
    result = cast("dict[str, Any]", answer)
    if result.get("resultType", "complete") != "complete":
        return ToolResult.error("The server requested input, which is not supported.")
    content = result.get("content")
    blocks = [_block(item) for item in cast("list[Any]", content)] if isinstance(content, list) else []
    if not blocks and result.get("structuredContent") is not None:
        blocks = [Text(clean(json.dumps(result["structuredContent"], ensure_ascii=False)))]
    return ToolResult(content=tuple(blocks) or (Text("done"),), is_error=result.get("isError") is True)


def _block(item: Any) -> Block:
    match item:
        case {"type": "text", "text": str(text)}:
            return Text(clean(text))
        case {"type": "image" | "audio", "data": str(data), "mimeType": str(kind)}:
            return _bytes(data, kind)
        case {"type": "resource", "resource": {"text": str(text)}}:
            return Text(clean(text))
        case {"type": "resource", "resource": {"blob": str(data), **more}}:
            kind = cast("dict[str, Any]", more).get("mimeType")
            return _bytes(data, kind if isinstance(kind, str) else "application/octet-stream")
        case {"type": "resource_link", "uri": str(uri)}:
            return Text(f"[a resource of the server: {to_short_line(uri)}]")
        case _:
            return Text("[a part of the result that cannot be shown]")


def _bytes(data: str, kind: str) -> Block:
    try:
        return Blob(base64.b64decode(data, validate=True), to_short_line(kind)[:100])
    except ValueError:
        return Text("[a part of the result that is not base64]")


def refused_request(message: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the response to a request of a server, or None if the message is not a request."""
    id = message.get("id")
    if not isinstance(message.get("method"), str) or not isinstance(id, str | int):
        return None
    if message["method"] == "ping":
        return {"jsonrpc": "2.0", "id": id, "result": {}}
    return {"jsonrpc": "2.0", "id": id, "error": {"code": METHOD_NOT_FOUND, "message": "this client only calls tools"}}


def installation(program: Path) -> tuple[Path, ...]:
    """Return the folders of an installed program: the parent of its `bin`, or its own folder."""
    found: list[Path] = []
    for path in dict.fromkeys((program, program.resolve())):
        folder = path.parent.parent if path.parent.name == "bin" else path.parent
        found.append(folder if len(folder.parts) > 2 else path)
    return tuple(dict.fromkeys(found))
