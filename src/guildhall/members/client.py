"""The JSON-RPC client of a member: sends a call over HTTP, and returns its result.

An answer is limited in size and time, and must be a JSON-RPC response. There are three kinds of error. MemberTimedOut:
no answer in time. MemberUnreachable: no answer over HTTP. MemberRefused: an error, or an answer that is not a response.
Does not start the process (`process.py`) and does not interpret results (`jobs.py`).
"""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import MemberRefused, MemberTimedOut, MemberUnreachable
from guildhall.core.sse import EventReader
from guildhall.tools.mcp.model import HANDSHAKE, MAX_MESSAGE, METHOD_NOT_FOUND, UNSUPPORTED_VERSION, shortened
from guildhall.tools.model import is_shallow

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx2

    from guildhall.members.model import Endpoint

CALL_SECONDS = 30.0
_CONNECT_SECONDS = 5.0
_ABOUT_US = {"name": "guildhall", "version": "1"}


class MemberClient:
    """A client of one member."""

    def __init__(self, endpoint: Endpoint, *, seconds: float = CALL_SECONDS) -> None:
        self.endpoint = endpoint
        self._seconds = seconds
        self._numbers = itertools.count(1)
        self._http: httpx2.AsyncClient | None = None
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        if self._http is not None:
            await self._http.aclose()

    async def initialize(self, seconds: float | None = None) -> None:
        """Perform the MCP handshake. A member that does not know it counts as ready."""
        about = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": _ABOUT_US}
        try:
            await self.call("initialize", about, seconds)
        except MemberRefused as error:
            if error.rpc_code not in (METHOD_NOT_FOUND, UNSUPPORTED_VERSION):
                raise

    async def call(self, method: str, params: Mapping[str, Any], seconds: float | None = None) -> Any:
        """Return the result of a call."""
        import httpx2

        if self._closed:
            raise MemberUnreachable(f"the member {self.endpoint.name} is not running any more")
        seconds = self._seconds if seconds is None else seconds
        number = next(self._numbers)
        body = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()
        name = self.endpoint.name
        try:
            async with asyncio.timeout(seconds):
                status, answer = await self._post(body)
        except TimeoutError:
            raise MemberTimedOut(f"the member {name} did not answer {method} within {seconds:g} s") from None
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise MemberUnreachable(f"the member {name} cannot be reached: {shortened(str(error))}") from None
        except (httpx2.HTTPError, httpx2.StreamError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not self._closed:  # else it ended while it was asked
                raise
            said = shortened(str(error)) or type(error).__name__
            message = f"the member {name} did not answer {method}: {said}"
            raise MemberUnreachable(message, sent=True) from None
        return self._result(method, number, status, answer)

    async def _post(self, body: bytes) -> tuple[int, bytes]:
        import httpx2

        if self._http is None:
            limits = httpx2.Timeout(None, connect=_CONNECT_SECONDS)
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
                if len(data) > MAX_MESSAGE:
                    message = f"the member {self.endpoint.name} sent more than {MAX_MESSAGE:,} bytes for one answer"
                    raise MemberRefused(message)
            whole = bytes(data)
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                whole = _last_event(whole)
            return response.status_code, whole

    def _result(self, method: str, number: int, status: int, answer: bytes) -> Any:
        said = f"the member {self.endpoint.name} answered {method} with"
        try:
            message: Any = json.loads(answer)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict) or not ("result" in message or "error" in message):
            if status != 200:
                raise MemberUnreachable(f"{said} HTTP status {status}", status=status, sent=True)
            raise MemberRefused(f"{said} what is no answer")
        told = cast("dict[str, Any]", message)
        if told.get("error") is not None:
            raise _refusal(self.endpoint.name, method, told["error"])
        if told.get("id") != number:
            raise MemberRefused(f"{said} the answer to something else")
        if not is_shallow(told):
            raise MemberRefused(f"{said} what is nested too deeply")
        return told["result"]


def _refusal(name: str, method: str, error: Any) -> MemberRefused:
    told = cast("dict[str, Any]", error) if isinstance(error, dict) else {}
    code, message, data = told.get("code"), told.get("message"), told.get("data")
    said = shortened(message) if isinstance(message, str) and message else "it gave no reason"
    return MemberRefused(
        f"the member {name} refused {method}: {said}",
        rpc_code=code if isinstance(code, int) else None,
        data=cast("dict[str, Any]", data) if isinstance(data, dict) else None,
    )


def _last_event(data: bytes) -> bytes:
    """Return the last message of a stream of events, which is the answer."""
    events = EventReader(MAX_MESSAGE).feed(data + b"\n\n")
    return next((event.data for event in reversed(list(events)) if event.data), b"")
