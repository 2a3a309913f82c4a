"""MCP transports: exchange messages with a server over Streamable HTTP or stdio.

An HTTP response is a JSON body or a stream of server-sent events. The program of a stdio server is confined, and is
stopped with the run. Does not interpret results (see `tools.mcp.model`).

Invariant: HTTP redirects are not followed, because the token is only for the configured URL.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.sse import EventReader, EventTooLarge
from guildhall.sandbox.jail import ConfinedProcess, describe_exit, spawn
from guildhall.tools.mcp.model import (
    HANDSHAKE_PROTOCOL_VERSION,
    MAX_MESSAGE_BYTES,
    META_PREFIX,
    ServerSpec,
    TransportError,
    build_reply,
    to_single_line,
)

if TYPE_CHECKING:
    import httpx2


_CONNECT_TIMEOUT_S = 10.0
_SEND_TIMEOUT_S = 10.0
_DELETE_TIMEOUT_S = 1.0  # for the request that ends the session
_SESSION_HEADER = "mcp-session-id"
_MAX_EVENTS = 10_000  # of one response


class HttpTransport:
    """Posts each message to a URL."""

    def __init__(self, spec: ServerSpec) -> None:
        import httpx2

        self._url = spec.url
        self._session_id: str | None = None
        headers = {"accept": "application/json, text/event-stream"}
        if spec.token is not None:
            headers["authorization"] = f"Bearer {spec.token}"
        timeout = httpx2.Timeout(None, connect=_CONNECT_TIMEOUT_S)
        self._client = httpx2.AsyncClient(headers=headers, timeout=timeout, trust_env=False, follow_redirects=False)

    @property
    def end_reason(self) -> str | None:
        return None  # the process of an HTTP server is not observed

    async def request(self, message: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:
        import httpx2

        try:
            async with asyncio.timeout(timeout_s):
                return await self._post(message)
        except TimeoutError:
            raise TransportError(f"did not respond within {timeout_s:g} s") from None
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            reason = f"cannot be reached: {to_single_line(str(error))}"
            raise TransportError(reason, may_have_arrived=False) from None
        except httpx2.HTTPError as error:
            reason = to_single_line(str(error)) or type(error).__name__
            raise TransportError(f"did not respond: {reason}") from None

    async def _post(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        async with self._client.stream("POST", self._url, json=message, headers=self._headers(message)) as response:
            self._session_id = response.headers.get(_SESSION_HEADER, self._session_id)
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                reply = await self._read_events(response, message["id"])
            else:
                reply = _parse_message(await _read_body(response))
            if reply is not None and ("result" in reply or "error" in reply):
                return reply
        meanings = {401: " (missing or invalid token)", 403: " (forbidden)", 404: " (not found)"}
        meaning = meanings.get(response.status_code, "")
        if response.is_redirect:
            meaning = " (redirects are not followed)"
        elif not response.is_error:
            meaning = " and without a JSON-RPC response"
        raise TransportError(f"responded with HTTP status {response.status_code}{meaning}")

    def _headers(self, message: Mapping[str, Any]) -> dict[str, str]:
        """Return the headers that the protocol version requires for a message."""
        headers: dict[str, str] = {}
        if self._session_id is not None:
            headers[_SESSION_HEADER] = self._session_id
        method, params = message.get("method"), cast("dict[str, Any]", message.get("params") or {})
        version = cast("dict[str, Any]", params.get("_meta") or {}).get(f"{META_PREFIX}protocolVersion")
        if version is not None:
            headers |= {"mcp-protocol-version": version, "mcp-method": str(method)}
            if method == "tools/call":
                headers["mcp-name"] = params["name"]
        elif method != "initialize":
            headers["mcp-protocol-version"] = HANDSHAKE_PROTOCOL_VERSION
        return headers

    async def _read_events(self, response: httpx2.Response, request_id: object) -> Mapping[str, Any]:
        """Return the response to a request from a stream of events. Reply to requests of the server until then."""
        async for data in _iterate_events(response):
            message = _parse_message(data)
            if message is None:
                continue
            if (reply := build_reply(message)) is not None:
                await self.send(reply)
            elif message.get("id") == request_id:
                return message
        raise TransportError("closed the stream before responding")

    async def send(self, message: Mapping[str, Any]) -> None:
        import httpx2

        with contextlib.suppress(httpx2.HTTPError):
            await self._client.post(self._url, json=message, headers=self._headers(message), timeout=_SEND_TIMEOUT_S)

    async def close(self) -> None:
        await asyncio.shield(self._close())  # even if the caller is cancelled

    async def _close(self) -> None:
        import httpx2

        if self._session_id is not None:
            with contextlib.suppress(httpx2.HTTPError, TimeoutError):
                async with asyncio.timeout(_DELETE_TIMEOUT_S):
                    await self._client.delete(self._url, headers={_SESSION_HEADER: self._session_id})
        await self._client.aclose()


async def _read_body(response: httpx2.Response) -> bytes:
    data = bytearray()
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > MAX_MESSAGE_BYTES:
            raise TransportError(f"sent a message of more than {MAX_MESSAGE_BYTES:,} bytes")
    return bytes(data)


async def _iterate_events(response: httpx2.Response) -> AsyncIterator[bytes]:
    """Yield the data of each event of a stream."""
    reader, count = EventReader(MAX_MESSAGE_BYTES), 0
    try:
        async for chunk in response.aiter_bytes():
            for event in reader.feed(chunk):
                if event.data:
                    yield event.data
                    count += 1
            if count > _MAX_EVENTS:
                raise TransportError(f"sent more than {_MAX_EVENTS:,} events before responding")
    except EventTooLarge:
        raise TransportError(f"sent an event of more than {MAX_MESSAGE_BYTES:,} bytes") from None


def _parse_message(data: bytes | bytearray) -> Mapping[str, Any] | None:
    try:
        message: Any = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", message) if isinstance(message, dict) else None


_CHUNK_BYTES = 65_536
_STDERR_BYTES = 16_384
_STDERR_LINES = 5  # more than one, because a stack trace can end with `}` or the version of the interpreter
_EXIT_TIMEOUT_S = 1.0  # for a server to exit after its input ends
_DISCARD_TIMEOUT_S = 10.0
_MAX_UNRELATED_LINES = 100_000  # in a row that are not responses


class StdioTransport:
    """Exchanges lines of JSON with a program."""

    def __init__(self, confined: ConfinedProcess) -> None:
        self._confined = confined
        self._pending: dict[int | str, asyncio.Future[Mapping[str, Any]]] = {}
        self._stderr = bytearray()  # its first and last bytes
        self._end_reason: str | None = None
        self._ended = asyncio.Event()
        self._stderr_task = asyncio.create_task(self._read_stderr())
        self._read_task = asyncio.create_task(self._read())

    @staticmethod
    async def start(spec: ServerSpec) -> StdioTransport:
        assert spec.confinement is not None
        pipe = asyncio.subprocess.PIPE
        return StdioTransport(await spawn(spec.command, spec.confinement, stdin=pipe, stdout=pipe, stderr=pipe))

    @property
    def end_reason(self) -> str | None:
        return self._end_reason

    async def request(self, message: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:
        if self._end_reason is not None:
            raise TransportError(self._end_reason, may_have_arrived=False)
        request_id = message["id"]
        future = self._pending[request_id] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self.send(message)
                return await future
        except TimeoutError:
            raise TransportError(f"did not respond within {timeout_s:g} s") from None
        finally:
            self._pending.pop(request_id, None)

    async def send(self, message: Mapping[str, Any]) -> None:
        stream = self._confined.process.stdin
        if stream is None or self._end_reason is not None:
            return
        stream.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        with contextlib.suppress(ConnectionError):  # `_finish` reports the reason
            await stream.drain()

    async def close(self) -> None:
        """Close the input, wait briefly for the program to exit, then kill it."""
        self._end_reason = self._end_reason or "was stopped by the hall"
        await asyncio.shield(self._close())

    async def _close(self) -> None:
        stream = self._confined.process.stdin
        if stream is not None:
            stream.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_TIMEOUT_S):
                await self._ended.wait()
        await self._confined.kill()
        self._stderr_task.cancel()
        await asyncio.wait([self._read_task, self._stderr_task], timeout=1)

    async def _read(self) -> None:
        """Deliver responses to their requests. At the end, fail the remaining requests with the reason."""
        reason: str | None = None
        try:
            reason = await self._read_messages()
        except (OSError, EOFError):
            pass
        finally:
            await self._finish(reason)

    async def _read_messages(self) -> str | None:
        """Handle messages until the output ends. Return why the program must be killed, or None."""
        stream = self._confined.process.stdout
        buffer, unrelated_lines = bytearray(), 0
        while stream is not None and (chunk := await stream.read(_CHUNK_BYTES)):
            buffer += chunk
            if b"\n" in chunk:
                *complete_lines, buffer = buffer.split(b"\n")
                for line in complete_lines:
                    unrelated_lines = 0 if await self._handle_line(line) else unrelated_lines + 1
            if len(buffer) > MAX_MESSAGE_BYTES:
                return f"was killed after a message of more than {MAX_MESSAGE_BYTES:,} bytes"
            if unrelated_lines > _MAX_UNRELATED_LINES:
                lines = f"{_MAX_UNRELATED_LINES:,} consecutive lines that are not responses"
                return f"was killed after more than {lines}"
        return None

    async def _handle_line(self, line: bytes | bytearray) -> bool:
        """Handle a line and return True if it is the response to a pending request.

        A line that is not a message is ignored, because some programs print to their standard output.
        """
        message = _parse_message(line)
        if message is None:
            return False
        if (reply := build_reply(message)) is not None:
            await self.send(reply)
            return False
        request_id = message.get("id")
        future = self._pending.get(request_id) if isinstance(request_id, int | str) else None
        if future is None or future.done():
            return False
        future.set_result(message)
        return True

    async def _finish(self, reason: str | None) -> None:
        if reason is None:
            try:
                async with asyncio.timeout(_EXIT_TIMEOUT_S):
                    await self._confined.process.wait()
            except TimeoutError:
                reason = "was killed because it closed its output and did not exit"
        if reason is not None:
            await asyncio.gather(self._confined.kill(), self._discard_output())
        code = await self._confined.wait()
        await asyncio.wait([self._stderr_task], timeout=0.2)
        self._end_reason = self._end_reason or f"{reason or describe_exit(code)}{self._describe_stderr()}"
        for future in self._pending.values():
            if not future.done():
                future.set_exception(TransportError(self._end_reason))
        self._ended.set()

    async def _discard_output(self) -> None:
        """Read the rest of the output, so that the pipe can close and the process can exit."""
        stream = self._confined.process.stdout
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(_DISCARD_TIMEOUT_S):
                while stream is not None and await stream.read(_CHUNK_BYTES):
                    pass

    async def _read_stderr(self) -> None:
        stream = self._confined.process.stderr
        while stream is not None and (chunk := await stream.read(_CHUNK_BYTES)):
            self._stderr += chunk
            del self._stderr[_STDERR_BYTES:-_STDERR_BYTES]

    def _describe_stderr(self) -> str:
        """Return the last lines, and before them the first line about an error, which a long stack trace can follow."""
        text = self._stderr.decode("utf-8", "replace")
        lines = [to_single_line(line.strip()) for line in text.splitlines() if line.strip()]
        last, earlier = lines[-_STDERR_LINES:], lines[:-_STDERR_LINES]
        first = [f"{line} | ..." for line in earlier if "error" in line.lower()][:1]
        return f"; its last output: {' | '.join([*first, *last])}" if last else ""
