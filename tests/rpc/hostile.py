"""Hostile JSON-RPC bodies, and the reply that every endpoint gives to each."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

MODERN = "2026-07-28"
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}
NEW = {"mcp-protocol-version": MODERN, "mcp-method": "tools/list"}
CALL = {"name": "note", "arguments": {"number": 1}, "_meta": ENVELOPE}
OK = 0


def message(method: str = "tools/list", **more: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, **more}).encode()


@dataclass(frozen=True)
class Case:
    """A body, its headers, and the HTTP status and error code of the reply."""

    body: bytes
    status: int
    code: int
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    with_batches: tuple[int, int] | None = None  # status and code of a server that accepts any JSON-RPC; OK: a result

    def expected_reply(self, *, batches: bool) -> tuple[int, int]:
        return self.with_batches if batches and self.with_batches is not None else (self.status, self.code)


UNREADABLE = [
    b"",
    b"{",
    b"[",
    b"\xff\xfe",
    b"\x00",
    b'{"jsonrpc":"2.0","id":NaN,"method":"tools/list"}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"a":NaN}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"a":-Infinity}}',
    b'{"jsonrpc":"2.0","id":1e999,"method":"tools/list"}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"a":-1e999}}',
    b'{"a":' + b"9" * 5_000 + b"}",
    b"[" * 100_000,
    b'[{"jsonrpc":"2.0","method":"x","id":1},{"jsonrpc":"2.0","method"',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/list","method":"tools/call"}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"a":"a","a":"b"}}',
]
NOT_REQUESTS = [
    b"[]",
    b"null",
    b'"text"',
    b"5",
    b"{}",
    b'{"jsonrpc":"2.0"}',
    b'{"jsonrpc":2.0,"id":1,"method":"tools/list"}',
    b'{"jsonrpc":"1.0","id":1,"method":"tools/list"}',
    b'{"id":"a","method":"tools/list"}',
    b'{"jsonrpc":"2.0","method":1,"params":"bar"}',
    b'{"jsonrpc":"2.0","method":"tools/list","params":"bar"}',
    b'{"jsonrpc":"2.0","id":1}',
    message(id=True),
    message(id={}),
    message(id=[1]),
    message(method=7),
    message(method=None),
    message(params="x"),
    message(params=None),
    message(params=5),
    message(params={"deep": json.loads("[" * 80 + "]" * 80)}),
]
_NAMED = {**NEW, "mcp-method": "tools/call"}
CASES = [
    *(Case(body, 400, -32700) for body in UNREADABLE),
    *(Case(body, 400, -32600) for body in NOT_REQUESTS),
    Case(b"[" + message() + b"," + message() + b"]", 400, -32600, with_batches=(200, OK)),
    Case(b"[" + message() + b"]", 400, -32600, NEW),
    Case(message(id=None), 400, -32600, with_batches=(200, OK)),
    Case(message(id=1.5), 400, -32600, with_batches=(200, OK)),
    Case(message(params=[]), 400, -32600, with_batches=(200, -32602)),
    Case(message("resources/list"), 200, -32601),
    Case(message("x" * 10_000), 200, -32601),
    Case(message("tools/list", params={"cursor": "2"}), 200, -32602),
    Case(message("tools/call"), 200, -32602),
    Case(message("tools/call", params={"name": 5}), 200, -32602),
    Case(message("tools/call", params={"name": ["note"]}), 200, -32602),
    Case(message("tools/call", params={"name": "note", "arguments": [1]}), 200, -32602),
    Case(message("tools/call", params={"name": "../note", "arguments": {}}), 200, -32602),
    Case(message("tools/call", params={"name": "x" * 100_000}), 200, -32602),
    Case(message(), 400, -32022, {"mcp-protocol-version": "2024-11-05"}),
    Case(message(), 400, -32022, {"mcp-protocol-version": "2099-01-01"}),
    Case(message(), 400, -32022, {"mcp-protocol-version": "x" * 3000}),
    Case(message(), 400, -32602, NEW),
    Case(message(params={"_meta": 5}), 400, -32602, NEW),
    Case(message(params={"_meta": {**ENVELOPE, "io.modelcontextprotocol/protocolVersion": None}}), 400, -32020, NEW),
    Case(message(params={"_meta": ENVELOPE}), 400, -32020, {**NEW, "mcp-method": "ping"}),
    Case(message(params={"_meta": ENVELOPE}), 400, -32020, {"mcp-protocol-version": MODERN}),
    Case(message("tools/call", params=CALL), 400, -32020, {**_NAMED, "mcp-name": "add"}),
    Case(message("tools/call", params=CALL), 400, -32020, _NAMED),
    Case(message("tools/call", params=CALL), 400, -32020, {**_NAMED, "mcp-name": "=?base64?%%%?="}),
    Case(message("resources/list", params={"_meta": ENVELOPE}), 404, -32601, {**NEW, "mcp-method": "resources/list"}),
]
UNANSWERED = [
    b'{"jsonrpc":"2.0","method":"x/y"}',
    b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"note","arguments":{"number":9}}}',
    b'{"jsonrpc":"2.0","id":9,"result":{}}',
    b'{"jsonrpc":"2.0","id":9,"error":{"code":1,"message":"x"}}',
]
