"""Messages that come by POST and are answered in JSON: how large and how late they may be, and who is not heard.

What the tool door and a member have in common where they meet HTTP. What a message says is nothing to them here.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from guildhall.tools.http_guard import refused
from guildhall.tools.mcp_messages import INTERNAL_ERROR

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, MutableMapping

    from guildhall.tools.mcp_messages import Headers

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

MAX_BODY = 4 * 1024**2
BODY_SECONDS = 30.0


class Unheard(Exception):
    """A request that is answered by HTTP alone. Its body may be endless, so nothing more is read.

    `whole`: it has none. Then more may come on the connection: a client that sends the next request before it has seen
    that the connection is closed would lose it.
    """

    def __init__(self, status: int, message: str, *headers: tuple[bytes, bytes], whole: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.headers = list(headers) if whole else [*headers, (b"connection", b"close")]

    def as_dict(self) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": None, "error": {"code": INTERNAL_ERROR, "message": str(self).strip()}}


def demand_here(headers: Headers) -> None:
    """Only programs of this machine are heard."""
    if no := refused(headers.get("host"), headers.get("origin")):
        raise Unheard(*no)


def demand_message(method: str, headers: Headers) -> None:
    """Only what can hold a message is read."""
    if method != "POST":
        whole = headers.get("content-length") is None and headers.get("transfer-encoding") is None
        raise Unheard(405, "messages are sent with POST", (b"allow", b"POST"), whole=whole)
    if (headers.get("content-type") or "").partition(";")[0].strip().lower() != "application/json":
        raise Unheard(415, "messages are application/json")


async def read_body(receive: Receive, most: int = MAX_BODY) -> bytes:
    """The body of a request, if it is not too large and comes in time."""
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise Unheard(400, "the body was cut off")
                data += message.get("body", b"")
                if len(data) > most:
                    raise Unheard(413, f"a message has at most {most:,} bytes")
                if not message.get("more_body", False):
                    return bytes(data)
    except TimeoutError:
        raise Unheard(408, f"the message was not there after {BODY_SECONDS:g} s") from None


async def send_json(send: Send, status: int, told: Any, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Answers with `told`; None: with nothing at all."""
    data = b"" if told is None else json.dumps(told, separators=(",", ":")).encode()
    head = [(b"content-length", str(len(data)).encode()), (b"cache-control", b"no-store"), *headers]
    if data:
        head.append((b"content-type", b"application/json"))
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": data})
