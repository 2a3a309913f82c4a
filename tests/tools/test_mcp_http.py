"""Servers of tools at an address: those that the official library makes, in every form, and hostile ones."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from mcp.server.mcpserver import Image, MCPServer

from guildhall.core.errors import ServerGone, ToolUnavailable
from guildhall.tools.mcp.client import OnServer, Server
from guildhall.tools.mcp.model import MAX_MESSAGE_BYTES, ServerSpec
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


class Guarded:
    """Wants a token, and counts what it was asked."""

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
    assert isinstance(tool.handler, OnServer)
    return await tool.handler.call(arguments)


def spec(url: str, token: str | None = TOKEN) -> ServerSpec:
    return ServerSpec(name="far", url=url, token=token, capabilities=frozenset({"net"}))


@pytest.mark.parametrize("stateless", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_a_server_of_the_official_library_is_reached(stateless: bool, whole: bool) -> None:
    guarded = Guarded(library_server().streamable_http_app(stateless_http=stateless, json_response=whole))

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
            with pytest.raises(ToolUnavailable, match=r"far answered with HTTP status 401 \(invalid token\)"):
                await Server.connect(spec(f"{url}/mcp", "wrong"))
            with pytest.raises(ToolUnavailable, match="far answered with HTTP status 404"):
                await Server.connect(spec(f"{url}/elsewhere"))

    asyncio.run(main())
    assert ("DELETE" in guarded.methods) is (not stateless)


class Odd:
    """A server by hand. `answers` gives what is sent back for a method: a status, headers and pieces of a body."""

    def __init__(self, answers: Callable[[dict[str, Any]], tuple[int, dict[str, str], list[bytes]]]) -> None:
        self._answers = answers
        self.told: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        asked = json.loads(body or b"{}")
        self.told.append(asked)
        self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        status, headers, pieces = self._answers(asked)
        raw_headers = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw_headers})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream"}
ECHO = {"name": "echo", "inputSchema": {"type": "object"}}


def well(asked: dict[str, Any]) -> dict[str, Any] | None:
    results: dict[str, Any] = {
        "initialize": {"protocolVersion": "2025-11-25", "capabilities": {}},
        "tools/list": {"tools": [ECHO]},
        "tools/call": {"content": [{"type": "text", "text": "echo"}]},
    }
    method = asked.get("method", "")
    return {"jsonrpc": "2.0", "id": asked["id"], "result": results[method]} if method in results else None


def answering(
    of_call: Callable[[dict[str, Any]], tuple[int, dict[str, str], list[bytes]]],
) -> Callable[[dict[str, Any]], tuple[int, dict[str, str], list[bytes]]]:
    def answers(asked: dict[str, Any]) -> tuple[int, dict[str, str], list[bytes]]:
        if asked.get("method") == "tools/call":
            return of_call(asked)
        message = well(asked)
        return (202, {}, []) if message is None else (200, JSON, [json.dumps(message).encode()])

    return answers


@asynccontextmanager
async def odd(server: Odd) -> AsyncGenerator[Server]:
    async with serve_app(server) as url:
        connected = await Server.connect(spec(url), start_seconds=10, call_seconds=2)
        try:
            yield connected
        finally:
            await connected.close()


def event(message: Any) -> bytes:
    return b"event: message\r\ndata: " + json.dumps(message).encode() + b"\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda asked: (500, {}, [b"oops"]), "answered with HTTP status 500"),
        (lambda asked: (302, {"location": "http://127.0.0.1:1/"}, []), "answered with HTTP status 302"),
        (lambda asked: (200, JSON, [b"{"]), "answered with HTTP status 200"),
        (lambda asked: (200, JSON, [b"[" * 100_000]), "answered with HTTP status 200"),
        (lambda asked: (202, {}, []), "answered with HTTP status 202"),
        (lambda asked: (200, EVENTS, [b": nothing\n\n"]), "ended its answer early"),
        (lambda asked: (200, EVENTS, [event({"jsonrpc": "2.0", "id": 99, "result": {}})]), "ended its answer early"),
        (lambda asked: (200, EVENTS, [b"data: {\n\n"]), "ended its answer early"),
        (
            lambda asked: (200, JSON, [b" " * 1_000_000] * 17),
            f"message of more than {MAX_MESSAGE_BYTES:,} bytes",
        ),
        (lambda asked: (200, EVENTS, [b"data: " + b"x" * 1_000_000 + b"\n"] * 17), "sent more than"),
        (lambda asked: (200, EVENTS, [b"data: {}\n\n" * 1000] * 11), "or 10,000 events"),
    ],
)
def test_an_answer_that_is_none_is_an_error_that_says_so(answer: Any, said: str) -> None:
    async def main() -> None:
        async with odd(Odd(answering(answer))) as server:
            for _ in range(2):  # it may have reached the server, so it is told again, and the run goes on
                result = await call(server, "echo")
                assert result.is_error
                assert said in result.text
                assert "its effect is unknown" in result.text

    asyncio.run(main())


def test_events_on_the_way_are_passed_over_and_questions_refused() -> None:
    def answer(asked: dict[str, Any]) -> tuple[int, dict[str, str], list[bytes]]:
        question = {"jsonrpc": "2.0", "id": "q", "method": "elicitation/create"}
        note = {"jsonrpc": "2.0", "method": "notifications/message"}
        whole = event(question) + event(note) + event(well(asked))
        return 200, EVENTS, [whole[n : n + 7] for n in range(0, len(whole), 7)]

    there = Odd(answering(answer))

    async def main() -> None:
        async with odd(there) as server:
            assert (await call(server, "echo")).text == "echo"

    asyncio.run(main())
    assert [message["error"]["code"] for message in there.told if message.get("id") == "q"] == [-32601]


def test_a_session_is_kept_and_let_go() -> None:
    def answers(asked: dict[str, Any]) -> tuple[int, dict[str, str], list[bytes]]:
        message = well(asked) if asked else None
        session = {"mcp-session-id": "s-1"} if asked.get("method") == "initialize" else {}
        return (202, {}, []) if message is None else (200, {**JSON, **session}, [json.dumps(message).encode()])

    there = Odd(answers)

    async def main() -> None:
        async with odd(there):
            pass

    asyncio.run(main())
    assert ["mcp-session-id" in headers for headers in there.headers] == [False, True, True, True]
    assert "mcp-protocol-version" not in there.headers[0]
    assert there.headers[1]["mcp-protocol-version"] == "2025-11-25"


def test_a_server_without_a_handshake_is_spoken_to_without_it() -> None:
    def answers(asked: dict[str, Any]) -> tuple[int, dict[str, str], list[bytes]]:
        if asked["method"] == "initialize":
            error = {"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "no"}}
            return 404, JSON, [json.dumps(error).encode()]
        return 200, JSON, [json.dumps(well(asked)).encode()]

    there = Odd(answers)

    async def main() -> None:
        async with odd(there) as server:
            assert (await call(server, "echo")).text == "echo"

    asyncio.run(main())
    assert there.headers[-1]["mcp-protocol-version"] == "2026-07-28"
    assert (there.headers[-1]["mcp-method"], there.headers[-1]["mcp-name"]) == ("tools/call", "echo")
    assert there.told[-1]["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"


def test_an_address_where_nobody_is_fails_at_once_and_one_that_goes_away_at_the_second_call() -> None:
    with pytest.raises(ToolUnavailable, match="mcp_servers: far cannot be reached"):
        asyncio.run(Server.connect(spec("http://127.0.0.1:9/mcp")))

    async def main() -> None:
        async with serve_app(Odd(answering(lambda asked: (500, {}, [])))) as url:
            server = await Server.connect(spec(url))
        first = await call(server, "echo")
        assert first.is_error
        assert "cannot be reached" in first.text
        assert "the call was not made" in first.text
        with pytest.raises(ServerGone, match="mcp_servers: far cannot be reached"):
            await call(server, "echo")
        await server.close()

    asyncio.run(main())


def test_the_token_is_not_shown() -> None:
    assert TOKEN not in repr(spec("http://127.0.0.1:9"))


def test_one_that_never_answers_is_given_up() -> None:
    class Silent:
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

    async def main() -> None:
        async with serve_app(Silent()) as url:
            with pytest.raises(ToolUnavailable, match=r"was not ready after 0\.2 s"):
                await Server.connect(spec(url), start_seconds=0.2)

    asyncio.run(main())
