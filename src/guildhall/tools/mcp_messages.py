"""The few messages of MCP that the tool door and members speak, for clients of three eras. Pure: bytes in, values out.

2025-06-18 and 2025-11-25 begin with `initialize`; 2026-07-28 has no handshake: each request says its version and what
its client can do. None of them has batches. No session is kept for anybody: each request shows its token.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, cast

from guildhall.tools.model import Text, is_shallow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from guildhall.tools.model import Block, Tool, ToolResult

MODERN = ("2026-07-28",)
HANDSHAKE = ("2025-11-25", "2025-06-18")  # the newest first

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
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
# Under these names clients say which call of their model it is: Claude Code, Codex.
_CALL_IDS = ("claudecode/toolUseId", "callId")

# What HTTP says to an error. In the older eras only what could not be read at all is an error of HTTP.
_MODERN_STATUS = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    UNSUPPORTED_VERSION: 400,
    METHOD_NOT_FOUND: 404,
}
_STATUS = {PARSE_ERROR: 400, INVALID_REQUEST: 400, UNSUPPORTED_VERSION: 400}


Id = int | float | str | None  # in MCP a text or a whole number; JSON-RPC alone knows all of these


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request that was understood."""

    id: Id
    method: str
    params: Mapping[str, Any]
    modern: bool
    quiet: bool = False  # a notification: it is not answered

    @property
    def meta(self) -> Mapping[str, Any]:
        meta = self.params.get("_meta")
        return cast("dict[str, Any]", meta) if isinstance(meta, dict) else {}

    @property
    def call_id(self) -> str | None:
        """What the client calls the call that it makes; None: nothing."""
        return next((one for one in map(self.meta.get, _CALL_IDS) if isinstance(one, str) and one), None)


class Wrong(Exception):
    """A message that is answered with an error of JSON-RPC."""

    def __init__(self, code: int, message: str, *, id: Id = None, modern: bool = False, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.id = id
        self.modern = modern
        self.data = data

    @property
    def status(self) -> int:
        return (_MODERN_STATUS if self.modern else _STATUS).get(self.code, 200)

    def as_dict(self) -> dict[str, Any]:
        error = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        return {"jsonrpc": "2.0", "id": self.id, "error": error}


@dataclass(frozen=True)
class Headers:
    """The headers of a request, their names in lower case; one that came twice is known as such."""

    values: Mapping[str, str]
    twice: frozenset[str] = field(default_factory=frozenset[str])

    @staticmethod
    def of(raw: Iterable[tuple[bytes, bytes]]) -> Headers:
        values: dict[str, str] = {}
        twice: set[str] = set()
        for name, value in raw:
            key = name.decode("latin-1").lower()
            if key in values:
                twice.add(key)
            values[key] = value.decode("latin-1")
        return Headers(values, frozenset(twice))

    def get(self, name: str) -> str | None:
        return self.values.get(name)


def read(body: bytes, headers: Headers) -> Request | None:
    """The request in a body; None: a notification, or an answer to a question that we never ask."""
    modern = is_modern(headers)
    message = _message(body, modern=modern)
    given = message.get("id")
    id = given if isinstance(given, str | int) and not isinstance(given, bool) else None
    check_version(headers, id)
    method = message.get("method")
    if "id" not in message and isinstance(method, str):
        return None
    if method is None and not modern and ("result" in message or "error" in message):
        return None
    params = message.get("params", {})
    if id is None or not isinstance(method, str) or not isinstance(params, dict):
        raise Wrong(INVALID_REQUEST, "this is no request of JSON-RPC 2.0", id=id, modern=modern)
    request = Request(id=id, method=method, params=cast("dict[str, Any]", params), modern=modern)
    if modern:
        check_envelope(request, headers)
    return request


def is_modern(headers: Headers) -> bool:
    """Whether a request says that it is of the newest era, or of one that is not known."""
    version = headers.get(VERSION_HEADER)
    return version is not None and version not in HANDSHAKE


def check_version(headers: Headers, id: Id) -> None:
    """A request that names a version names one that is spoken here."""
    version = headers.get(VERSION_HEADER)
    if version is not None and version not in (*MODERN, *HANDSHAKE):
        data = {"supported": [*MODERN], "requested": version}
        raise Wrong(UNSUPPORTED_VERSION, "this protocol version is not spoken here", id=id, modern=True, data=data)


def _message(body: bytes, *, modern: bool) -> dict[str, Any]:
    try:
        message: Any = json.loads(body, parse_constant=no_number)
    except (ValueError, RecursionError):  # also what is not UTF-8, and numbers with too many digits
        raise Wrong(PARSE_ERROR, "the body is not JSON", modern=modern) from None
    if isinstance(message, list):
        raise Wrong(INVALID_REQUEST, "no version that is spoken here has batches: one message at a time", modern=modern)
    if not isinstance(message, dict) or cast("dict[str, Any]", message).get("jsonrpc") != "2.0":
        raise Wrong(INVALID_REQUEST, "the body is no message of JSON-RPC 2.0", modern=modern)
    if not is_shallow(message):
        raise Wrong(INVALID_REQUEST, "the message is nested too deep", modern=modern)
    return cast("dict[str, Any]", message)


def no_number(name: str) -> NoReturn:
    """What is no number of JSON: NaN, Infinity."""
    raise ValueError(f"{name} is not JSON")


def check_envelope(request: Request, headers: Headers) -> None:
    """What a request of the newest era says about itself, in its body and once more in its headers."""

    def wrong(code: int, message: str) -> Wrong:
        return Wrong(code, message, id=request.id, modern=True)

    for name in _ROUTING:
        if name in headers.twice:
            raise wrong(HEADER_MISMATCH, f"the header {name} came more than once")
    missing = [key for key in (VERSION_KEY, CAPABILITIES_KEY) if key not in request.meta]
    if missing:
        raise wrong(INVALID_PARAMS, f"params._meta lacks {', '.join(missing)}")
    if request.meta[VERSION_KEY] != headers.get(VERSION_HEADER):
        raise wrong(HEADER_MISMATCH, f"{VERSION_HEADER} is not the version of the request")
    if headers.get(METHOD_HEADER) != request.method:
        raise wrong(HEADER_MISMATCH, f"{METHOD_HEADER} is not the method of the request")
    name = request.params.get("name")
    if request.method == "tools/call" and name is not None and _decoded(headers.get(NAME_HEADER)) != name:
        raise wrong(HEADER_MISMATCH, f"{NAME_HEADER} is not the tool of the request")


def _decoded(value: str | None) -> str | None:
    """A header's value; what no header can hold is in base64 there."""
    if value is None or not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[9:-2], validate=True).decode()
    except ValueError:
        return None


# Answers


def answer(request: Request, result: Mapping[str, Any]) -> dict[str, Any]:
    """A result as it is sent; in the newest era it says that it is whole."""
    told = {**result, "resultType": "complete"} if request.modern else dict(result)
    return {"jsonrpc": "2.0", "id": request.id, "result": told}


async def result_of(
    request: Request,
    server: Mapping[str, str],
    tools: Iterable[Tool],
    call: Callable[[Request], Awaitable[ToolResult]],
) -> dict[str, Any]:
    """What a server of tools says to a request."""
    if request.method == "tools/call":
        return called(await call(request))
    if request.method == "tools/list":
        return listed(request, tools)
    if request.method == "ping":
        return {}
    if request.method == "initialize" and not request.modern:
        return initialized(request, server)
    if request.method == "server/discover" and request.modern:
        return discovered(server)
    said = f"there is no method {request.method[:100]!r} here"
    raise Wrong(METHOD_NOT_FOUND, said, id=request.id, modern=request.modern)


def initialized(request: Request, server: Mapping[str, str]) -> dict[str, Any]:
    """The answer to `initialize`: the version that was asked for, or the newest that begins like this."""
    asked = request.params.get("protocolVersion")
    return {
        "protocolVersion": asked if asked in HANDSHAKE else HANDSHAKE[0],
        "capabilities": {"tools": {"listChanged": False}},
        "serverInfo": dict(server),
    }


def discovered(server: Mapping[str, str]) -> dict[str, Any]:
    """The answer to `server/discover`."""
    return {
        "supportedVersions": [*MODERN],
        "capabilities": {"tools": {}},
        "_meta": {SERVER_KEY: dict(server)},
        **_not_kept(),
    }


def listed(request: Request, tools: Iterable[Tool]) -> dict[str, Any]:
    """The answer to `tools/list`: all of them at once."""
    if request.params.get("cursor") is not None:
        raise Wrong(INVALID_PARAMS, "there is no such page", id=request.id, modern=request.modern)
    shown = [
        {"name": tool.name, "description": tool.description, "inputSchema": _object(tool.input_schema)}
        for tool in tools
    ]
    return {"tools": shown, **(_not_kept() if request.modern else {})}


def _object(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", **schema}


def _not_kept() -> dict[str, Any]:
    """Nobody keeps it for another: what is shown depends on the token."""
    return {"ttlMs": 0, "cacheScope": "private"}


def called(result: ToolResult) -> dict[str, Any]:
    """The answer to `tools/call`. What went wrong inside a tool is content too: the model reads it."""
    content = [_block(place, block) for place, block in enumerate(result.content)]
    return {"content": content, "isError": result.is_error}


def _block(place: int, block: Block) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    data, kind = base64.b64encode(block.data).decode(), block.media_type
    if kind.startswith(("image/", "audio/")):
        return {"type": kind.partition("/")[0], "data": data, "mimeType": kind}
    return {"type": "resource", "resource": {"uri": f"result://{place}", "mimeType": kind, "blob": data}}
