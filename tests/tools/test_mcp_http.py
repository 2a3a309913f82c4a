"""MCP servers over HTTP: those of the official library in every mode, and hostile servers."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from mcp.server.mcpserver import Image, MCPServer

from guildhall.core.errors import ServerGone, ToolUnavailable
from guildhall.tools.mcp.client import Server, ServerHandler
from guildhall.tools.mcp.model import MAX_MESSAGE_BYTES, ServerSpec, TransportError
from guildhall.tools.mcp.transports import HttpTransport
from guildhall.tools.model import Blob
from tests.hall.doors import serve_app

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

TOKEN = "t-0123456789"


def library_server() -> MCPServer:
    server = MCPServer("library")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    @server.tool()
    def picture() -> Image:
        """Shows a picture."""
        return Image(data=b"png", format="png")

    @server.tool()
    def fail() -> str:
        """Fails."""
        raise ValueError("no ink")

    return server


class TokenGuard:
    """An ASGI app that requires a token and records the methods of its requests."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.methods: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self.methods.append(scope["method"])
            if (b"authorization", f"Bearer {TOKEN}".encode()) not in scope["headers"]:
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        await self._app(scope, receive, send)


async def call(server: Server, name: str, **arguments: Any) -> Any:
    tool = next(tool for tool in server.tools if tool.name == f"far_{name}")
    assert isinstance(tool.handler, ServerHandler)
    return await tool.handler.call(arguments)


def spec(url: str, token: str | None = TOKEN) -> ServerSpec:
    return ServerSpec(name="far", url=url, token=token, capabilities=frozenset({"net"}))


@pytest.mark.parametrize("stateless", [False, True])
@pytest.mark.parametrize("is_json", [False, True])
def test_a_server_of_the_official_library_is_called(stateless: bool, is_json: bool) -> None:
    guarded = TokenGuard(library_server().streamable_http_app(stateless_http=stateless, json_response=is_json))

    async def main() -> None:
        async with serve_app(guarded, lifespan="on") as url:
            server = await Server.connect(spec(f"{url}/mcp"))
            assert [tool.name for tool in server.tools] == ["far_add", "far_picture", "far_fail"]
            assert server.tools[0].input_schema["required"] == ["a", "b"]
            results = await asyncio.gather(*(call(server, "add", a=n, b=1) for n in range(5)))
            assert [result.text for result in results] == ["1", "2", "3", "4", "5"]
            shown = await call(server, "picture")
            assert shown.content == (Blob(b"png", "image/png"),)
            failed = await call(server, "fail")
            assert failed.is_error
            assert "fail" in failed.text
            await server.close()
            with pytest.raises(ToolUnavailable, match=r"far: the server responded .* 401 \(missing or invalid token\)"):
                await Server.connect(spec(f"{url}/mcp", "wrong"))
            with pytest.raises(ToolUnavailable, match="far: the server responded with HTTP status 404"):
                await Server.connect(spec(f"{url}/elsewhere"))

    asyncio.run(main())
    assert ("DELETE" in guarded.methods) is (not stateless)


class FakeServer:
    """An ASGI app whose function `answers` returns status, headers and body pieces for each request."""

    def __init__(self, answers: Callable[[dict[str, Any]], tuple[int, dict[str, str], list[bytes]]]) -> None:
        self._answers = answers
        self.messages: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        request = json.loads(body or b"{}")
        self.messages.append(request)
        self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        status, headers, pieces = self._answers(request)
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream"}
ECHO = {"name": "echo", "inputSchema": {"type": "object"}}


def answer_correctly(request: dict[str, Any]) -> dict[str, Any] | None:
    results: dict[str, Any] = {
        "initialize": {"protocolVersion": "2025-11-25", "capabilities": {}},
        "tools/list": {"tools": [ECHO]},
        "tools/call": {"content": [{"type": "text", "text": "echo"}]},
    }
    method = request.get("method", "")
    return {"jsonrpc": "2.0", "id": request["id"], "result": results[method]} if method in results else None


def answer_calls_with(
    of_call: Callable[[dict[str, Any]], tuple[int, dict[str, str], list[bytes]]],
) -> Callable[[dict[str, Any]], tuple[int, dict[str, str], list[bytes]]]:
    def answers(request: dict[str, Any]) -> tuple[int, dict[str, str], list[bytes]]:
        if request.get("method") == "tools/call":
            return of_call(request)
        message = answer_correctly(request)
        return (202, {}, []) if message is None else (200, JSON, [json.dumps(message).encode()])

    return answers


@asynccontextmanager
async def connect_to(server: FakeServer) -> AsyncGenerator[Server]:
    async with serve_app(server) as url:
        connected = await Server.connect(spec(url), start_timeout_s=10, call_timeout_s=2)
        try:
            yield connected
        finally:
            await connected.close()


def event(message: Any) -> bytes:
    return b"event: message\r\ndata: " + json.dumps(message).encode() + b"\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda request: (500, {}, [b"oops"]), "responded with HTTP status 500"),
        (
            lambda request: (302, {"location": "http://127.0.0.1:1/"}, []),
            "responded with HTTP status 302 (redirects are not followed)",
        ),
        (lambda request: (200, JSON, [b"{"]), "responded with HTTP status 200 and without a JSON-RPC response"),
        (lambda request: (200, JSON, [b"[" * 100_000]), "responded with HTTP status 200"),
        (lambda request: (202, {}, []), "responded with HTTP status 202"),
        (lambda request: (200, EVENTS, [b": nothing\n\n"]), "closed the stream before responding"),
        (
            lambda request: (200, EVENTS, [event({"jsonrpc": "2.0", "id": 99, "result": {}})]),
            "closed the stream before responding",
        ),
        (lambda request: (200, EVENTS, [b"data: {\n\n"]), "closed the stream before responding"),
        (
            lambda request: (200, JSON, [b" " * 1_000_000] * 17),
            f"message of more than {MAX_MESSAGE_BYTES:,} bytes",
        ),
        (
            lambda request: (200, EVENTS, [b"data: " + b"x" * 1_000_000 + b"\n"] * 17),
            "sent an event of more than 16,777,216 bytes",
        ),
        (lambda request: (200, EVENTS, [b"data: {}\n\n" * 1000] * 11), "sent more than 10,000 events"),
    ],
)
def test_an_invalid_http_answer_is_an_error_with_the_reason(answer: Any, expected: str) -> None:
    async def main() -> None:
        async with connect_to(FakeServer(answer_calls_with(answer))) as server:
            for _ in range(2):  # the call may have reached the server, so a second call is tried
                result = await call(server, "echo")
                assert result.is_error
                assert expected in result.text
                assert "the effect of the call is unknown" in result.text

    asyncio.run(main())


@pytest.mark.parametrize("url", ["http://[::1/mcp", "ftp://127.0.0.1/mcp"])
def test_a_request_to_an_invalid_url_has_not_arrived(url: str) -> None:
    async def main() -> None:
        transport = HttpTransport(spec(url))
        with pytest.raises(TransportError, match="cannot be reached") as caught:
            await transport.request({"id": 1, "method": "ping"}, 5)
        assert not caught.value.may_have_arrived
        await transport.close()

    asyncio.run(main())


def test_other_events_are_ignored_and_requests_refused() -> None:
    def answer(request: dict[str, Any]) -> tuple[int, dict[str, str], list[bytes]]:
        question = {"jsonrpc": "2.0", "id": "q", "method": "elicitation/create"}
        note = {"jsonrpc": "2.0", "method": "notifications/message"}
        is_json = event(question) + event(note) + event(answer_correctly(request))
        return 200, EVENTS, [is_json[n : n + 7] for n in range(0, len(is_json), 7)]

    fake = FakeServer(answer_calls_with(answer))

    async def main() -> None:
        async with connect_to(fake) as server:
            assert (await call(server, "echo")).text == "echo"

    asyncio.run(main())
    assert [message["error"]["code"] for message in fake.messages if message.get("id") == "q"] == [-32601]


def test_the_session_id_is_sent_until_the_session_is_closed() -> None:
    def answers(request: dict[str, Any]) -> tuple[int, dict[str, str], list[bytes]]:
        message = answer_correctly(request) if request else None
        session = {"mcp-session-id": "s-1"} if request.get("method") == "initialize" else {}
        return (202, {}, []) if message is None else (200, {**JSON, **session}, [json.dumps(message).encode()])

    fake = FakeServer(answers)

    async def main() -> None:
        async with connect_to(fake):
            pass

    asyncio.run(main())
    assert ["mcp-session-id" in headers for headers in fake.headers] == [False, True, True, True]
    assert "mcp-protocol-version" not in fake.headers[0]
    assert fake.headers[1]["mcp-protocol-version"] == "2025-11-25"


@pytest.mark.parametrize(("status", "code"), [(404, -32601), (400, -32022), (400, -32020)])
def test_a_server_without_a_handshake_is_called_without_it(status: int, code: int) -> None:
    def answers(request: dict[str, Any]) -> tuple[int, dict[str, str], list[bytes]]:
        if request["method"] == "initialize":
            error = {"jsonrpc": "2.0", "id": request["id"], "error": {"code": code, "message": "no"}}
            return status, JSON, [json.dumps(error).encode()]
        return 200, JSON, [json.dumps(answer_correctly(request)).encode()]

    fake = FakeServer(answers)

    async def main() -> None:
        async with connect_to(fake) as server:
            assert (await call(server, "echo")).text == "echo"

    asyncio.run(main())
    assert fake.headers[-1]["mcp-protocol-version"] == "2026-07-28"
    assert (fake.headers[-1]["mcp-method"], fake.headers[-1]["mcp-name"]) == ("tools/call", "echo")
    assert fake.messages[-1]["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"


def test_an_unreachable_server_fails_at_once_and_a_vanished_server_at_the_second_call() -> None:
    with pytest.raises(ToolUnavailable, match="mcp_servers: far: the server cannot be reached"):
        asyncio.run(Server.connect(spec("http://127.0.0.1:9/mcp")))

    async def main() -> None:
        async with serve_app(FakeServer(answer_calls_with(lambda request: (500, {}, [])))) as url:
            server = await Server.connect(spec(url))
        first = await call(server, "echo")
        assert first.is_error
        assert "cannot be reached" in first.text
        assert "the call was not made" in first.text
        with pytest.raises(ServerGone, match="mcp_servers: far: the server cannot be reached"):
            await call(server, "echo")
        await server.close()

    asyncio.run(main())


def test_the_token_is_not_shown() -> None:
    assert TOKEN not in repr(spec("http://127.0.0.1:9"))


def test_a_server_that_never_answers_times_out() -> None:
    class Silent:
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

    async def main() -> None:
        async with serve_app(Silent()) as url:
            with pytest.raises(ToolUnavailable, match=r"was not ready after 0\.2 s"):
                await Server.connect(spec(url), start_timeout_s=0.2)

    asyncio.run(main())
