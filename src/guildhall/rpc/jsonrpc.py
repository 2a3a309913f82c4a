"""JSON-RPC 2.0: parses a body into requests, and builds error responses. Does no I/O.

Does not implement methods (see `rpc.mcp_messages` and `rpc.mcp_http_server`).

Invariant: input that two parsers could read differently is rejected. Every accepted number can be encoded as JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from guildhall.tools.model import is_shallow

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
SERVER_ERROR = -32000  # the state of the server or of the object does not permit the request

MAX_BATCH = 100  # messages

Id = int | float | str | None


@dataclass(frozen=True, kw_only=True)
class Request:
    """A valid request or notification."""

    id: Id
    method: str
    params: Mapping[str, Any]
    is_notification: bool = False  # has no response


class RpcError(Exception):
    """The error of a response. `id`: the id of an invalid message."""

    def __init__(self, code: int, message: str, data: Any = None, *, id: Id = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.id = id

    def as_response(self, id: Id) -> dict[str, Any]:
        error = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        return {"jsonrpc": "2.0", "id": id, "error": error}


def read_messages(body: bytes, *, batches: bool) -> tuple[list[Request | RpcError], bool]:
    """Return the messages of a body, and True for a batch. Raise RpcError if the body is not valid as a whole.

    Responses are left out, because this side sends no requests. With `batches` a body is any JSON-RPC 2.0. Without, it
    is the subset of MCP: one message, whose id is a string or an integer and whose parameters are an object.
    """
    parsed = parse_json(body)
    if not isinstance(parsed, list):
        return _read_message(parsed, batches=batches), False
    batch = cast("list[Any]", parsed)
    if not batches:
        raise RpcError(INVALID_REQUEST, "batches are not supported: send one message at a time")
    if not batch:
        raise RpcError(INVALID_REQUEST, "invalid batch: empty")
    if len(batch) > MAX_BATCH:
        raise RpcError(INVALID_REQUEST, f"invalid batch: more than {MAX_BATCH} messages")
    return [message for value in batch for message in _read_message(value, batches=True)], True


def parse_json(body: bytes) -> Any:
    """Return the value of a JSON text. Raise RpcError if it is invalid, ambiguous or nested too deeply."""
    try:
        value = json.loads(
            body, parse_constant=_reject_constant, parse_float=_parse_float, object_pairs_hook=_build_object
        )
    except (ValueError, RecursionError):  # also bytes that are not UTF-8, and numbers with too many digits
        raise RpcError(PARSE_ERROR, "invalid body: not JSON") from None
    if not is_shallow(value):
        raise RpcError(INVALID_REQUEST, "invalid body: nested too deeply")
    return value


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raise RpcError for a repeated name, because parsers differ in the value that they use."""
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise RpcError(PARSE_ERROR, f"invalid body: an object repeats the name {name[:60]!r}")
        members[name] = value
    return members


def _parse_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):  # such as 1e999
        raise RpcError(PARSE_ERROR, f"invalid body: the number {text[:60]} is too large")
    return value


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _read_message(value: Any, *, batches: bool) -> list[Request | RpcError]:
    message = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    method, params, raw_id = message.get("method"), message.get("params", {}), message.get("id")
    is_id = isinstance(raw_id, str | int | float if batches else str | int) and not isinstance(raw_id, bool)
    id: Id = raw_id if is_id else None
    is_notification = "id" not in message

    def reject(code: int, text: str) -> list[Request | RpcError]:
        return [RpcError(code, text, id=id)]

    if message.get("jsonrpc") != "2.0":
        return reject(INVALID_REQUEST, 'not a JSON-RPC 2.0 message: `jsonrpc` must be "2.0"')
    if method is None and ("result" in message or "error" in message):
        return []
    is_null_id = batches and raw_id is None
    if not isinstance(method, str) or not (is_id or is_null_id or is_notification):
        return reject(INVALID_REQUEST, "not a JSON-RPC 2.0 request: invalid `method` or `id`")
    if isinstance(params, list) and batches:
        return [] if is_notification else reject(INVALID_PARAMS, "`params` must be an object, not an array")
    if not isinstance(params, dict):
        return reject(INVALID_REQUEST, "not a JSON-RPC 2.0 request: `params` must be an object")
    named = cast("dict[str, Any]", params)
    return [Request(id=id, method=method, params=named, is_notification=is_notification)]
