"""A server of tools at an address: streamable HTTP, its answers whole or as a stream of events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any, cast

from guildhall.tools.mcp_model import HANDSHAKE, MAX_MESSAGE, META, LinkBroken, refused_request, shortened
from guildhall.tools.sse import EventReader, EventTooLarge

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    import httpx2

    from guildhall.tools.mcp_model import ServerSpec

_CONNECT_SECONDS = 10.0
_TELL_SECONDS = 10.0
_SESSION = "mcp-session-id"
_MAX_EVENTS = 10_000  # before the answer


class HttpLink:
    """The connection to an address. Redirects are not followed: the token is for this address alone."""

    def __init__(self, spec: ServerSpec) -> None:
        import httpx2

        self._url = spec.url
        self._session: str | None = None
        headers = {"accept": "application/json, text/event-stream"}
        if spec.token is not None:
            headers["authorization"] = f"Bearer {spec.token}"
        limits = httpx2.Timeout(None, connect=_CONNECT_SECONDS)
        self._client = httpx2.AsyncClient(headers=headers, timeout=limits, trust_env=False, follow_redirects=False)

    @property
    def gone(self) -> str | None:
        return None  # every request finds out by itself

    async def ask(self, message: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        import httpx2

        try:
            async with asyncio.timeout(seconds):
                return await self._asked(message)
        except TimeoutError:
            raise LinkBroken(f"did not answer within {seconds:g} s") from None
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise LinkBroken(f"cannot be reached: {shortened(str(error))}", sent=False) from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise LinkBroken(f"did not answer: {shortened(str(error)) or type(error).__name__}") from None

    async def _asked(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        async with self._client.stream("POST", self._url, json=message, headers=self._headers(message)) as response:
            self._session = response.headers.get(_SESSION, self._session)
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                answer = await self._in_events(response, message["id"])
            else:
                answer = _read(await _whole(response))
            if answer is not None and ("result" in answer or "error" in answer):
                return answer
        hint = {401: " (it wants another token)", 403: " (it refuses)", 404: " (there is nothing there)"}
        raise LinkBroken(f"answered with HTTP status {response.status_code}{hint.get(response.status_code, '')}")

    def _headers(self, message: Mapping[str, Any]) -> dict[str, str]:
        """What a message says about itself once more in its headers, as its era wants it."""
        headers: dict[str, str] = {}
        if self._session is not None:
            headers[_SESSION] = self._session
        method, params = message.get("method"), cast("dict[str, Any]", message.get("params") or {})
        version = cast("dict[str, Any]", params.get("_meta") or {}).get(f"{META}protocolVersion")
        if version is not None:
            headers |= {"mcp-protocol-version": version, "mcp-method": str(method)}
            if method == "tools/call":
                headers["mcp-name"] = params["name"]
        elif method != "initialize":
            headers["mcp-protocol-version"] = HANDSHAKE
        return headers

    async def _in_events(self, response: httpx2.Response, id: object) -> Mapping[str, Any] | None:
        """The answer among the events of a stream; what the server asks on the way is answered."""
        async for data in _events(response):
            message = _read(data)
            if message is None:
                continue
            if (reply := refused_request(message)) is not None:
                await self.tell(reply)
            elif message.get("id") == id:
                return message
        raise LinkBroken("ended its answer before it was whole")

    async def tell(self, message: Mapping[str, Any]) -> None:
        import httpx2

        with contextlib.suppress(httpx2.HTTPError):
            await self._client.post(self._url, json=message, headers=self._headers(message), timeout=_TELL_SECONDS)

    async def close(self) -> None:
        await asyncio.shield(self._closed())  # whoever closes it may just be cancelled

    async def _closed(self) -> None:
        import httpx2

        if self._session is not None:
            with contextlib.suppress(httpx2.HTTPError, TimeoutError):
                async with asyncio.timeout(1):
                    await self._client.delete(self._url, headers={_SESSION: self._session})
        await self._client.aclose()


async def _whole(response: httpx2.Response) -> bytes:
    data = bytearray()
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > MAX_MESSAGE:
            raise LinkBroken(f"sent a message of more than {MAX_MESSAGE:,} bytes")
    return bytes(data)


async def _events(response: httpx2.Response) -> AsyncIterator[bytes]:
    """Yield the data of each event of a stream."""
    reader, count = EventReader(MAX_MESSAGE), 0
    try:
        async for chunk in response.aiter_bytes():
            for event in reader.feed(chunk):
                if event.data:
                    yield event.data
                    count += 1
            if count > _MAX_EVENTS:
                raise EventTooLarge
    except EventTooLarge:
        text = f"sent more than {MAX_MESSAGE:,} bytes, or {_MAX_EVENTS:,} events, for one answer"
        raise LinkBroken(text) from None


def _read(data: bytes) -> Mapping[str, Any] | None:
    try:
        message: Any = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", message) if isinstance(message, dict) else None
