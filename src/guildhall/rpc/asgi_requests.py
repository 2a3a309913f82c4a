"""HTTP requests of an ASGI application: reads headers and bodies, refuses callers, and sends JSON responses.

Does not interpret a body. The token alone identifies a caller. Any web page can make a browser send requests to
loopback, also under a name that resolves to it (DNS rebinding). The headers Host and Origin show both cases, and such
requests are refused.

Invariant: a body is read only up to a size limit and a time limit.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, MutableMapping

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Message, Receive, Send], Awaitable[None]]

MAX_BODY_BYTES = 4 * 1024**2
BODY_TIMEOUT_S = 30.0
_TOO_LARGE_TIMEOUT_S = 1.0
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class HttpError(Exception):
    """A request that is answered with an HTTP status and not carried out.

    The connection is closed, because an unread body may follow. It is kept if `has_body` is False: a client that sends
    its next request at once would lose it.
    """

    def __init__(self, status: int, message: str, *headers: tuple[bytes, bytes], has_body: bool = True) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = [*headers, (b"connection", b"close")] if has_body else list(headers)


@dataclass(frozen=True)
class Headers:
    """The headers of a request, their names in lower case. `repeated` has the names that came more than once."""

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
        """Return the token of `Authorization: Bearer TOKEN`, or None unless there is exactly one."""
        scheme, _, token = self.values.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or "authorization" in self.repeated:
            return None
        return token.strip() or None


def is_token(shown: str | None, expected: str) -> bool:
    """Return True if a caller shows the expected token. The comparison takes the same time for every wrong token."""
    return hmac.compare_digest((shown or "").encode("utf-8", "replace"), expected.encode()) and bool(shown)


def check_local(headers: Headers, names: Collection[str] = _LOOPBACK) -> None:
    """Raise HttpError if a request was sent to another host name, or by a page of another site."""
    host, origin = headers.get("host"), headers.get("origin")
    if host is None or _host_name(f"//{host}") not in names:
        raise HttpError(421, "the Host header names another machine")
    if origin is not None and (not origin.startswith(("http://", "https://")) or _host_name(origin) not in names):
        raise HttpError(403, "the request comes from a page of another site")


def _host_name(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        return parts.hostname if parts.port is None or parts.port >= 0 else None
    except ValueError:
        return None


def check_json_post(method: str, headers: Headers) -> None:
    if method != "POST":
        has_body = headers.get("content-length") is not None or headers.get("transfer-encoding") is not None
        raise HttpError(405, "messages are sent with POST", (b"allow", b"POST"), has_body=has_body)
    if (headers.get("content-type") or "").partition(";")[0].strip().lower() != "application/json":
        raise HttpError(415, "messages are application/json")


async def read_body(
    receive: Receive, headers: Headers, *, max_bytes: int = MAX_BODY_BYTES, timeout_s: float = BODY_TIMEOUT_S
) -> bytes:
    """Return the body of a request. Raise HttpError if it is too large, too slow or incomplete.

    A body that is too large by its own header is read for a moment all the same: its sender would not see the answer if
    the connection was closed while it writes.
    """
    too_large = HttpError(413, f"request too large: at most {max_bytes:,} bytes are accepted")
    length = headers.get("content-length") or ""
    is_too_large = length.isdecimal() and int(length[:20]) > max_bytes
    data = bytearray()
    try:
        async with asyncio.timeout(min(timeout_s, _TOO_LARGE_TIMEOUT_S) if is_too_large else timeout_s):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise HttpError(400, "the request ended before its body was complete")
                data += message.get("body", b"")
                if len(data) > max_bytes:
                    raise too_large
                if not message.get("more_body", False):
                    return bytes(data)
    except TimeoutError:
        if is_too_large:
            raise too_large from None
        raise HttpError(408, f"the request was not complete after {timeout_s:g} s") from None


async def send_json(send: Send, status: int, payload: Any, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Send a response. Without a payload it has no body. A body ends with a line break, as lines of a stream do."""
    data = b"" if payload is None else json.dumps(payload, separators=(",", ":")).encode() + b"\n"
    head = [(b"content-length", str(len(data)).encode()), (b"cache-control", b"no-store"), *headers]
    if data:
        head.append((b"content-type", b"application/json"))
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": data})
