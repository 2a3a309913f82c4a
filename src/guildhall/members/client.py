"""Member client: sends JSON-RPC calls to a member over HTTP.

A call raises MemberTimedOut without a response in time, MemberUnreachable if the connection fails or the HTTP status is
an error, and MemberRefused for an RPC error or an invalid response.
Does not start the process (`members.process`) and does not interpret results (`members.jobs`).

Invariant: responses are limited in size and time.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import MemberRefused, MemberTimedOut, MemberUnreachable
from guildhall.core.sse import EventReader
from guildhall.tools.mcp.model import (
    HANDSHAKE_PROTOCOL_VERSION,
    MAX_MESSAGE_BYTES,
    METHOD_NOT_FOUND,
    UNSUPPORTED_PROTOCOL_VERSION,
    to_single_line,
)
from guildhall.tools.model import is_shallow

if TYPE_CHECKING:
    import httpx2

    from guildhall.members.model import Endpoint

CALL_TIMEOUT_S = 30.0
_CONNECT_TIMEOUT_S = 5.0
_CLIENT_INFO = {"name": "guildhall", "version": "1"}


class MemberClient:
    """A client of one member, with a connection pool."""

    def __init__(self, endpoint: Endpoint, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self.endpoint = endpoint
        self._timeout_s = timeout_s
        self._request_ids = itertools.count(1)
        self._http: httpx2.AsyncClient | None = None
        self._is_closed = False

    async def close(self) -> None:
        self._is_closed = True
        if self._http is not None:
            await self._http.aclose()

    async def initialize(self, timeout_s: float | None = None) -> None:
        """Perform the MCP handshake. Accept a member without `initialize`."""
        params = {"protocolVersion": HANDSHAKE_PROTOCOL_VERSION, "capabilities": {}, "clientInfo": _CLIENT_INFO}
        try:
            await self.call("initialize", params, timeout_s)
        except MemberRefused as error:
            if error.rpc_code not in (METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION):
                raise

    async def call(self, method: str, params: Mapping[str, Any], timeout_s: float | None = None) -> Any:
        import httpx2

        if self._is_closed:
            hint = "Repeat the call: it starts the member again."
            raise MemberUnreachable(f"cannot call the member {self.endpoint.name}: it was stopped", hint=hint)
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        request_id = next(self._request_ids)
        body = json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}).encode()
        name = self.endpoint.name
        try:
            async with asyncio.timeout(timeout_s):
                status, response = await self._post(body)
        except TimeoutError:
            message = f"the member {name} did not respond to {method} within {timeout_s:g} s"
            hint = "The member may have executed the call. Check the state of its jobs before you repeat it."
            raise MemberTimedOut(message, hint=hint) from None
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise MemberUnreachable(f"cannot reach the member {name}: {to_single_line(str(error))}") from None
        except (httpx2.HTTPError, httpx2.StreamError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not self._is_closed:  # not an effect of `close` during the call
                raise
            reason = to_single_line(str(error)) or type(error).__name__
            raise MemberUnreachable(f"the member {name} did not respond to {method}: {reason}", sent=True) from None
        return self._parse_result(method, request_id, status, response)

    async def _post(self, body: bytes) -> tuple[int, bytes]:
        import httpx2

        if self._http is None:
            limits = httpx2.Timeout(None, connect=_CONNECT_TIMEOUT_S)
            self._http = httpx2.AsyncClient(timeout=limits, trust_env=False, follow_redirects=False, verify=False)
        headers = {
            "authorization": f"Bearer {self.endpoint.secret}",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
        }
        async with self._http.stream("POST", self.endpoint.url, content=body, headers=headers) as response:
            data = bytearray()
            async for chunk in response.aiter_bytes():
                data += chunk
                if len(data) > MAX_MESSAGE_BYTES:
                    message = f"the response of the member {self.endpoint.name} exceeds {MAX_MESSAGE_BYTES:,} bytes"
                    raise MemberRefused(message)
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                return response.status_code, _last_event(bytes(data))
            return response.status_code, bytes(data)

    def _parse_result(self, method: str, request_id: int, status: int, body: bytes) -> Any:
        prefix = f"invalid response of the member {self.endpoint.name} to {method}:"
        try:
            message: Any = json.loads(body)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict) or not ("result" in message or "error" in message):
            if status != 200:
                raise MemberUnreachable(f"{prefix} HTTP status {status}", status=status, sent=True)
            raise MemberRefused(f"{prefix} not a JSON-RPC response")
        response = cast("dict[str, Any]", message)
        if response.get("error") is not None:
            raise _refusal(self.endpoint.name, method, response["error"])
        if response.get("id") != request_id:
            raise MemberRefused(f"{prefix} it has the id of another request")
        if not is_shallow(response):
            raise MemberRefused(f"{prefix} nested too deeply")
        return response["result"]


def _refusal(name: str, method: str, error: Any) -> MemberRefused:
    fields = cast("dict[str, Any]", error) if isinstance(error, dict) else {}
    code, message, data = fields.get("code"), fields.get("message"), fields.get("data")
    reason = to_single_line(message) if isinstance(message, str) and message else "no reason given"
    return MemberRefused(
        f"the member {name} rejected {method}: {reason}",
        rpc_code=code if isinstance(code, int) else None,
        data=cast("dict[str, Any]", data) if isinstance(data, dict) else None,
    )


def _last_event(data: bytes) -> bytes:
    """Return the data of the last event of a stream, which is the response."""
    events = EventReader(MAX_MESSAGE_BYTES).feed(data + b"\n\n")
    return next((event.data for event in reversed(list(events)) if event.data), b"")
