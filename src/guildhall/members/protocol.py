"""JSON-RPC 2.0 as a member hears it: bytes in, requests and refusals out, answers put together. Pure.

It takes more than the tool door (tools/mcp_messages.py), as `worker/*` is JSON-RPC and not MCP: batches, ids of every
kind, notifications that are carried out. It takes nothing that two readers could read in two ways.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from guildhall.tools.mcp_messages import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    Request,
    Wrong,
    check_envelope,
    check_version,
    is_modern,
    no_number,
)
from guildhall.tools.model import is_shallow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from guildhall.tools.mcp_messages import Headers, Id

SERVER_ERROR = -32000  # the job, or the member, is not in a state that permits it
MOST_AT_ONCE = 100  # messages in a batch

DISPATCH = "worker/dispatch"
LIST = "worker/list"
STATUS = "worker/status"
RESULT = "worker/result"
CANCEL = "worker/cancel"
DELETE = "worker/delete"
ANSWER = "worker/answer"  # beyond the six that every member with a worker has
METHODS = (DISPATCH, LIST, STATUS, RESULT, CANCEL, DELETE, ANSWER)


@dataclass(frozen=True)
class Heard:
    """What a body says: requests, and what is answered with an error without being carried out."""

    messages: tuple[Request | Wrong, ...]
    batch: bool = False


def hear(body: bytes, headers: Headers) -> Heard:
    """The messages in a body; Wrong, where the body as a whole is none. Answers to what we never ask are left out."""
    modern = is_modern(headers)
    said = _parsed(body, modern=modern)
    if not isinstance(said, list):
        return Heard(tuple(_heard(said, headers, modern=modern)))
    batch = cast("list[Any]", said)
    if modern:
        raise Wrong(INVALID_REQUEST, "the version that is spoken here has no batches", modern=True)
    if not batch:
        raise Wrong(INVALID_REQUEST, "the batch is empty")
    if len(batch) > MOST_AT_ONCE:
        raise Wrong(INVALID_REQUEST, f"a batch has at most {MOST_AT_ONCE} messages, and this one {len(batch):,}")
    return Heard(tuple(one for said in batch for one in _heard(said, headers, modern=False)), batch=True)


def reply(heard: Heard, answers: Iterable[dict[str, Any] | Wrong | None]) -> tuple[int, Any]:
    """The status and the body that a body is answered with. The answers are in the order of the messages."""
    told = [one for one in answers if one is not None]
    if not told:
        return 202, None
    if heard.batch:
        return 200, [one.as_dict() if isinstance(one, Wrong) else one for one in told]
    one = told[0]
    return (one.status, one.as_dict()) if isinstance(one, Wrong) else (200, one)


def _parsed(body: bytes, *, modern: bool) -> Any:
    try:
        said = json.loads(body, parse_constant=no_number, parse_float=_number, object_pairs_hook=_object)
    except _Twice as twice:
        raise Wrong(PARSE_ERROR, f"the body has two values named {twice.name!r}", modern=modern) from None
    except (ValueError, RecursionError):  # also what is not UTF-8, and numbers with too many digits
        raise Wrong(PARSE_ERROR, "the body is not JSON", modern=modern) from None
    if not is_shallow(said):
        raise Wrong(INVALID_REQUEST, "the body is nested too deep", modern=modern)
    return said


class _Twice(ValueError):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name[:60]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are different: of two values of one name, one reader takes the first, another the last."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _Twice(name)
        found[name] = value
    return found


def _number(text: str) -> float:
    """A number that can be sent back: 1e999 is not."""
    value = float(text)
    if math.isinf(value):
        raise ValueError("the number is too large")
    return value


def _heard(said: Any, headers: Headers, *, modern: bool) -> list[Request | Wrong]:
    """The message, or why it is none; nothing, where it is an answer."""
    try:
        found = _request(said, headers, modern=modern)
    except Wrong as wrong:
        return [wrong]
    return [] if found is None else [found]


def _request(said: Any, headers: Headers, *, modern: bool) -> Request | None:
    message = cast("dict[str, Any]", said) if isinstance(said, dict) else {}
    given = message.get("id")
    id: Id = given if isinstance(given, str | int | float) and not isinstance(given, bool) else None
    check_version(headers, id)
    if message.get("jsonrpc") != "2.0":
        raise Wrong(INVALID_REQUEST, "this is no message of JSON-RPC 2.0", id=id, modern=modern)
    method, params = message.get("method"), message.get("params", {})
    if method is None and ("result" in message or "error" in message):
        return None
    if not isinstance(method, str) or not isinstance(params, dict | list) or id != given:
        raise Wrong(INVALID_REQUEST, "this is no request of JSON-RPC 2.0", id=id, modern=modern)
    quiet = "id" not in message
    if isinstance(params, list):
        if quiet:
            return None
        raise Wrong(INVALID_PARAMS, "parameters are given by name: `params` is an object", id=id, modern=modern)
    request = Request(id=id, method=method, params=cast("dict[str, Any]", params), modern=modern, quiet=quiet)
    if modern and not quiet:
        check_envelope(request, headers)
    return request
