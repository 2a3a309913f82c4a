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

HANDSHAKE = "2025-11-25"  # what we begin with
MODERN = "2026-07-28"  # what we speak with a server that knows no handshake
META = "io.modelcontextprotocol/"
METHOD_NOT_FOUND = -32601
UNSUPPORTED_VERSION = -32022

MAX_MESSAGE = 16 * 1024**2  # bytes
MOST_TOOLS = 500
MAX_LISTING = 2_000_000  # characters of all descriptions and schemas
MAX_NAME = 64  # characters of a tool's name, as models take it
_LONGEST = 1000  # characters of a server's words in an error
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, kw_only=True)
class ServerSpec:
    """How one server is reached, and what its tools can do to the world."""

    name: str
    command: tuple[str, ...] = ()
    confinement: Confinement | None = None  # of the command: what it sees
    url: str = ""
    token: str | None = field(default=None, repr=False)  # for the address
    tools: tuple[str, ...] | None = None  # only these
    capabilities: frozenset[str] = frozenset()
    where: str | None = None  # the worker's file, for errors
    field: str = "mcp_servers"  # of that file, in which it is named

    def wrong(self, message: str, hint: str | None = None) -> ToolUnavailable:
        return ToolUnavailable(f"{self.field}: {self.name} {message}", where=self.where, hint=hint)


class Link(Protocol):
    """A way to a server: its standard input and output, or HTTP."""

    async def ask(self, message: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """The answer to a request; LinkBroken: there is none and there will be none."""
        ...

    async def tell(self, message: Mapping[str, Any]) -> None:
        """Sends what nobody answers."""
        ...

    async def close(self) -> None: ...

    @property
    def gone(self) -> str | None:
        """Why the server is there no more; None: it is, as far as is known."""
        ...


class LinkBroken(Exception):
    """A request was not answered. `sent`: it may have reached the server."""

    def __init__(self, why: str, *, sent: bool = True) -> None:
        super().__init__(why)
        self.why = why
        self.sent = sent


def tool_name(server: str, tool: str) -> str:
    """The name under which a run has a tool of a server, made of what every model takes."""
    name = _NOT_IN_NAMES.sub("_", f"{server}_{tool}")
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 9]}_{digest(name.encode())[:8]}"


@dataclass(frozen=True, kw_only=True)
class Offered:
    """A tool as its server lists it."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    repeatable: bool  # by the server's own word

    def as_shown(self) -> dict[str, Any]:
        return {"name": self.name, "description": self.description, "input_schema": dict(self.input_schema)}


def offered(spec: ServerSpec, listed: Iterable[Any]) -> list[Offered]:
    """The tools of a listing that the worker is to have; ToolUnavailable says what is wrong with it."""
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
    if len(found) > MOST_TOOLS or size > MAX_LISTING:
        said = f"lists {len(found)} tools in {size:,} characters, which is too much to show to a model"
        raise spec.wrong(said, f"Name those that are needed under `tools:`, at most {MOST_TOOLS}.")
    return [_offered(spec, name, entry) for name, entry in found.items()]


def _offered(spec: ServerSpec, name: str, entry: Mapping[str, Any]) -> Offered:
    schema, said = entry.get("inputSchema"), entry.get("description")
    if not isinstance(schema, dict) or not is_shallow(schema):
        raise spec.wrong(f"lists the tool {name!r} with an input schema that cannot be used")
    schema = cast("dict[str, Any]", schema)
    is_object = schema.get("type", "object") == "object"
    if problem := _schema_problem(schema) if is_object else "it is not about an object":
        raise spec.wrong(f"lists the tool {name!r} with an input schema that cannot be used: {problem}")
    hints = entry.get("annotations")
    told = cast("dict[str, Any]", hints) if isinstance(hints, dict) else {}
    return Offered(
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
        return shortened(error.message)
    except Exception as error:  # noqa: BLE001 - references that lead nowhere, endless nesting
        return type(error).__name__
    return None


def shortened(text: str) -> str:
    """A server's words on one line, every character of them visible, and not too many."""
    shown = "".join(char if char.isprintable() else " " for char in clean(text))
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."


def result_of(answer: Any) -> ToolResult:
    """What a server answered to a call, as the model reads it."""
    if not isinstance(answer, dict):
        return ToolResult.error("The server answered with something that is no result.")
    result = cast("dict[str, Any]", answer)
    if result.get("resultType", "complete") != "complete":
        return ToolResult.error("The server wants to ask something before it answers, which is not possible here.")
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
            return Text(f"[a resource of the server: {shortened(uri)}]")
        case _:
            return Text("[a part of the result that cannot be shown]")


def _bytes(data: str, kind: str) -> Block:
    try:
        return Blob(base64.b64decode(data, validate=True), shortened(kind)[:100])
    except ValueError:
        return Text("[a part of the result that is not base64]")


def refused_request(message: Mapping[str, Any]) -> dict[str, Any] | None:
    """Our answer to what a server asks of us: that we are there, and nothing else. None: it asks nothing."""
    id = message.get("id")
    if not isinstance(message.get("method"), str) or not isinstance(id, str | int):
        return None
    if message["method"] == "ping":
        return {"jsonrpc": "2.0", "id": id, "result": {}}
    return {"jsonrpc": "2.0", "id": id, "error": {"code": METHOD_NOT_FOUND, "message": "this client only calls tools"}}


def installation(program: Path) -> tuple[Path, ...]:
    """What a program needs to see of where it is installed: the folder around its `bin`, else its own."""
    found: list[Path] = []
    for path in dict.fromkeys((program, program.resolve())):
        folder = path.parent.parent if path.parent.name == "bin" else path.parent
        found.append(folder if len(folder.parts) > 2 else path)
    return tuple(dict.fromkeys(found))
