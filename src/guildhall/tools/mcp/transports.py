"""MCP transports: exchange messages with a server over streamable HTTP or the standard streams of a program.

An HTTP answer is a JSON body or a stream of events. A program is started confined and ended at the end of the run. Does
not interpret results (see `tools.mcp.model`).

Invariant: HTTP redirects are not followed, because the token is for a single address.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.sse import EventReader, EventTooLarge
from guildhall.sandbox.jail import ConfinedProcess, describe_exit, spawn
from guildhall.tools.mcp.model import (
    HANDSHAKE,
    MAX_MESSAGE_BYTES,
    META,
    LinkBroken,
    ServerSpec,
    refused_request,
    to_short_line,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    import httpx2


_CONNECT_TIMEOUT_S = 10.0
_TELL_TIMEOUT_S = 10.0
_SESSION = "mcp-session-id"
_MAX_EVENTS = 10_000  # before the answer


class HttpLink:
    """The connection to an address. Redirects are not followed, because the token is for this address only."""

    def __init__(self, spec: ServerSpec) -> None:
        import httpx2

        self._url = spec.url
        self._session: str | None = None
        headers = {"accept": "application/json, text/event-stream"}
        if spec.token is not None:
            headers["authorization"] = f"Bearer {spec.token}"
        limits = httpx2.Timeout(None, connect=_CONNECT_TIMEOUT_S)
        self._client = httpx2.AsyncClient(headers=headers, timeout=limits, trust_env=False, follow_redirects=False)

    @property
    def end_reason(self) -> str | None:
        return None  # each request reports failures itself

    async def ask(self, message: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        import httpx2

        try:
            async with asyncio.timeout(seconds):
                return await self._request(message)
        except TimeoutError:
            raise LinkBroken(f"did not answer within {seconds:g} s") from None
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise LinkBroken(f"cannot be reached: {to_short_line(str(error))}", sent=False) from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise LinkBroken(f"did not answer: {to_short_line(str(error)) or type(error).__name__}") from None

    async def _request(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        async with self._client.stream("POST", self._url, json=message, headers=self._headers(message)) as response:
            self._session = response.headers.get(_SESSION, self._session)
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                answer = await self._in_events(response, message["id"])
            else:
                answer = _read(await _whole(response))
            if answer is not None and ("result" in answer or "error" in answer):
                return answer
        hint = {401: " (invalid token)", 403: " (refused)", 404: " (not found)"}
        raise LinkBroken(f"answered with HTTP status {response.status_code}{hint.get(response.status_code, '')}")

    def _headers(self, message: Mapping[str, Any]) -> dict[str, str]:
        """Return the headers that the protocol version requires for a message."""
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
        """Return the answer from a stream of events. Answer requests of the server meanwhile."""
        async for data in _events(response):
            message = _read(data)
            if message is None:
                continue
            if (reply := refused_request(message)) is not None:
                await self.tell(reply)
            elif message.get("id") == id:
                return message
        raise LinkBroken("ended its answer early")

    async def tell(self, message: Mapping[str, Any]) -> None:
        import httpx2

        with contextlib.suppress(httpx2.HTTPError):
            await self._client.post(self._url, json=message, headers=self._headers(message), timeout=_TELL_TIMEOUT_S)

    async def close(self) -> None:
        await asyncio.shield(self._close())  # the caller may be cancelled

    async def _close(self) -> None:
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
        if len(data) > MAX_MESSAGE_BYTES:
            raise LinkBroken(f"sent a message of more than {MAX_MESSAGE_BYTES:,} bytes")
    return bytes(data)


async def _events(response: httpx2.Response) -> AsyncIterator[bytes]:
    """Yield the data of each event of a stream."""
    reader, count = EventReader(MAX_MESSAGE_BYTES), 0
    try:
        async for chunk in response.aiter_bytes():
            for event in reader.feed(chunk):
                if event.data:
                    yield event.data
                    count += 1
            if count > _MAX_EVENTS:
                raise EventTooLarge
    except EventTooLarge:
        text = f"sent more than {MAX_MESSAGE_BYTES:,} bytes, or {_MAX_EVENTS:,} events, for one answer"
        raise LinkBroken(text) from None


def _read(data: bytes | bytearray) -> Mapping[str, Any] | None:
    try:
        message: Any = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", message) if isinstance(message, dict) else None


_CHUNK = 65_536
_LOG_BYTES = 16_384
_EXIT_TIMEOUT_S = 1.0  # for a server to exit after its input ends
_DRAIN_TIMEOUT_S = 10.0
_MAX_IDLE_LINES = 100_000  # lines in a row without an answer


class StdioLink:
    """The connection to a program."""

    def __init__(self, confined: ConfinedProcess) -> None:
        self._confined = confined
        self._waiting: dict[int | str, asyncio.Future[Mapping[str, Any]]] = {}
        self._log = bytearray()
        self._gone: str | None = None
        self._over = asyncio.Event()
        self._logging = asyncio.create_task(self._keep_log())
        self._reading = asyncio.create_task(self._read())

    @staticmethod
    async def start(spec: ServerSpec) -> StdioLink:
        assert spec.confinement is not None
        pipe = asyncio.subprocess.PIPE
        return StdioLink(await spawn(spec.command, spec.confinement, stdin=pipe, stdout=pipe, stderr=pipe))

    @property
    def end_reason(self) -> str | None:
        return self._gone

    async def ask(self, message: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        if self._gone is not None:
            raise LinkBroken(self._gone, sent=False)
        number = message["id"]
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await self.tell(message)
                return await future
        except TimeoutError:
            raise LinkBroken(f"did not answer within {seconds:g} s") from None
        finally:
            self._waiting.pop(number, None)

    async def tell(self, message: Mapping[str, Any]) -> None:
        stream = self._confined.process.stdin
        if stream is None or self._gone is not None:
            return
        stream.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        with contextlib.suppress(ConnectionError):  # the reader reports the reason
            await stream.drain()

    async def close(self) -> None:
        """Close the input, wait briefly for the program to exit, then kill it."""
        self._gone = self._gone or "was ended"
        await asyncio.shield(self._close())

    async def _close(self) -> None:
        stream = self._confined.process.stdin
        if stream is not None:
            stream.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_TIMEOUT_S):
                await self._over.wait()
        await self._confined.kill()
        self._logging.cancel()
        await asyncio.wait([self._reading, self._logging], timeout=1)

    async def _read(self) -> None:
        """Deliver answers to their requests. At the end, report the reason to the remaining requests."""
        why: str | None = None
        try:
            why = await self._listen()
        except (OSError, EOFError):
            pass
        finally:
            await self._finish(why)

    async def _listen(self) -> str | None:
        """Read messages until the stream ends. Return the reason if the program must be killed, or None."""
        stream = self._confined.process.stdout
        buffer, idle = bytearray(), 0
        while stream is not None and (chunk := await stream.read(_CHUNK)):
            buffer += chunk
            if b"\n" in chunk:
                *lines, buffer = buffer.split(b"\n")
                for line in lines:
                    idle = 0 if await self._take(line) else idle + 1
            if len(buffer) > MAX_MESSAGE_BYTES:
                return f"wrote a message of more than {MAX_MESSAGE_BYTES:,} bytes and was killed"
            if idle > _MAX_IDLE_LINES:
                return "wrote too many lines that are not answers and was killed"
        return None

    async def _take(self, line: bytes | bytearray) -> bool:
        """Handle a line and return True if it is an expected answer.

        A line that is not a message is ignored, because some programs print to their standard output.
        """
        message = _read(line)
        if message is None:
            return False
        if (reply := refused_request(message)) is not None:
            await self.tell(reply)
            return False
        id = message.get("id")
        future = self._waiting.get(id) if isinstance(id, int | str) else None
        if future is None or future.done():
            return False
        future.set_result(message)
        return True

    async def _finish(self, why: str | None) -> None:
        if why is None:
            try:
                async with asyncio.timeout(_EXIT_TIMEOUT_S):
                    await self._confined.process.wait()
            except TimeoutError:
                why = "closed its output and was killed"
        if why is not None:
            await asyncio.gather(self._confined.kill(), self._drain())
        code = await self._confined.wait()
        await asyncio.wait([self._logging], timeout=0.2)
        self._gone = self._gone or f"{why or describe_exit(code)}{self._last_output()}"
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(LinkBroken(self._gone))
        self._over.set()

    async def _drain(self) -> None:
        """Read the rest of the output, so that the pipe can close and the process can exit."""
        stream = self._confined.process.stdout
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(_DRAIN_TIMEOUT_S):
                while stream is not None and await stream.read(_CHUNK):
                    pass

    async def _keep_log(self) -> None:
        stream = self._confined.process.stderr
        while stream is not None and (chunk := await stream.read(_CHUNK)):
            self._log += chunk
            del self._log[:-_LOG_BYTES]

    def _last_output(self) -> str:
        lines = [line for line in self._log.decode("utf-8", "replace").splitlines() if line.strip()]
        return f"; its last output: {to_short_line(lines[-1])}" if lines else ""
