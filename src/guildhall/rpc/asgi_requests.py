"""HTTP requests of an ASGI application: reads headers and bodies, checks callers, and sends JSON responses.

Does not parse a body. Any web page can make a browser send requests to loopback, even under a name that resolves to
loopback (DNS rebinding). The headers Host and Origin show both cases, and such requests are rejected.

Invariant: the size of a body and the time to receive it are limited.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Message, Receive, Send], Awaitable[None]]

MAX_BODY_BYTES = 4 * 1024**2
BODY_TIMEOUT_S = 30.0
_TOO_LARGE_TIMEOUT_S = 1.0  # to receive a body that is rejected for its size
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class HttpError(Exception):
    """A request that is rejected with an HTTP status.

    The connection is closed, because an unread body may follow. Without a body it stays open, because a client that
    has already sent its next request would lose that request.
    """

    def __init__(self, status: int, message: str, *headers: tuple[bytes, bytes], has_body: bool = True) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = [*headers, (b"connection", b"close")] if has_body else list(headers)


@dataclass(frozen=True)
class Headers:
    """The headers of a request by their names in lower case. `repeated`: names that occur more than once."""

    values: Mapping[str, str]
    repeated: frozenset[str] = field(default_factory=frozenset[str])

    @staticmethod
    def of(raw: Iterable[tuple[bytes, bytes]]) -> Headers:
        values: dict[str, str] = {}
        repeated: set[str] = set()
        for name, value in raw:
            key = name.decode("latin-1").lower()
            if key in values:
                repeated.add(key)
            values[key] = value.decode("latin-1")
        return Headers(values, frozenset(repeated))

    def get(self, name: str) -> str | None:
        return self.values.get(name)

    @property
    def bearer(self) -> str | None:
        """Return the token of `Authorization: Bearer TOKEN`, or None if the header is missing or repeated."""
        scheme, _, token = self.values.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or "authorization" in self.repeated:
            return None
        return token.strip() or None


def is_token(candidate: str | None, expected: str) -> bool:
    """Return True if the candidate is the expected token. The time of the comparison does not reveal the token."""
    return hmac.compare_digest((candidate or "").encode("utf-8", "replace"), expected.encode()) and bool(candidate)


def check_local(headers: Headers, names: Collection[str] = _LOOPBACK) -> None:
    """Raise HttpError if a request addresses another host, or if a page of another site sent it."""
    if headers.repeated & {"host", "origin"}:
        raise HttpError(400, "repeated Host or Origin header")
    host, origin = headers.get("host"), headers.get("origin")
    if host is None or _host_name(f"//{host}") not in names:
        raise HttpError(421, "invalid Host header: not a loopback address")
    if origin is not None and (not origin.startswith(("http://", "https://")) or _host_name(origin) not in names):
        raise HttpError(403, "invalid Origin header: not a loopback address")


def _host_name(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        return parts.hostname if parts.port is None or parts.port >= 0 else None
    except ValueError:
        return None


def check_json_post(method: str, headers: Headers) -> None:
    if method != "POST":
        has_body = headers.get("content-length") is not None or headers.get("transfer-encoding") is not None
        raise HttpError(405, "method not allowed: use POST", (b"allow", b"POST"), has_body=has_body)
    if (headers.get("content-type") or "").partition(";")[0].strip().lower() != "application/json":
        raise HttpError(415, "unsupported content type: use application/json")


async def read_body(
    receive: Receive, headers: Headers, *, max_bytes: int = MAX_BODY_BYTES, timeout_s: float = BODY_TIMEOUT_S
) -> bytes:
    """Return the body of a request. Raise HttpError if it is too large, too slow or incomplete.

    If Content-Length exceeds the limit, the body is read for a moment all the same. A client would not see the response
    if the connection was closed while the client still sends.
    """
    too_large = HttpError(413, f"the request body exceeds {max_bytes:,} bytes")
    length = headers.get("content-length") or ""
    is_too_large = length.isdecimal() and int(length[:20]) > max_bytes
    data = bytearray()
    try:
        async with asyncio.timeout(min(timeout_s, _TOO_LARGE_TIMEOUT_S) if is_too_large else timeout_s):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise HttpError(400, "incomplete request body: the client disconnected")
                data += message.get("body", b"")
                if len(data) > max_bytes:
                    raise too_large
                if not message.get("more_body", False):
                    return bytes(data)
    except TimeoutError:
        if is_too_large:
            raise too_large from None
        raise HttpError(408, f"incomplete request body after {timeout_s:g} s") from None


async def send_json(send: Send, status: int, payload: Any, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Send a JSON response that ends with a line break, or a response without a body if the payload is None."""
    data = b"" if payload is None else json.dumps(payload, separators=(",", ":")).encode() + b"\n"
    head = [(b"content-length", str(len(data)).encode()), (b"cache-control", b"no-store"), *headers]
    if data:
        head.append((b"content-type", b"application/json"))
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": data})
