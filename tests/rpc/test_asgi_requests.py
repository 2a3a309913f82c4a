"""HTTP requests of ASGI applications: refused callers, tokens, and bodies that are too large, slow or incomplete."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.hall.doors import LlmEndpoint, McpEndpoint
from guildhall.rpc.asgi_requests import Headers, HttpError, check_local, is_token, read_body, send_json
from guildhall.rpc.mcp_http_server import Endpoint, Offer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SECRET = "the-secret-of-the-test"


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost", None, None),
        ("[::1]:7420", None, None),
        ("LOCALHOST:1", None, None),
        (None, None, 421),
        ("", None, 421),
        ("127.0.0.1@evil.example", None, 421),
        ("evil.example#127.0.0.1", None, 421),
        ("127.0.0.1:7420", "http://127.0.0.1:7420", None),
        ("127.0.0.1:7420", "http://[::1]:1", None),
        ("127.0.0.1:7420", "", 403),
        ("127.0.0.1:7420", "//127.0.0.1", 403),
        ("127.0.0.1:7420", "http://127.0.0.1.evil.example", 403),
        ("127.0.0.1:7420", "http://[::1", 403),
        ("127.0.0.1:7420", "file://localhost", 403),
    ],
)
def test_requests_from_elsewhere_are_refused(host: str | None, origin: str | None, status: int | None) -> None:
    headers = Headers({name: value for name, value in (("host", host), ("origin", origin)) if value is not None})
    if status is None:
        check_local(headers)
        return
    with pytest.raises(HttpError) as raised:
        check_local(headers)
    assert raised.value.status == status


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("Bearer ", None),
        ("abc", None),
        (None, None),
        ("Basic abc", None),
    ],
)
def test_a_token_is_a_bearer_token(header: str | None, token: str | None) -> None:
    headers = Headers.of([] if header is None else [(b"Authorization", header.encode())])
    assert headers.bearer == token


def test_two_tokens_count_as_no_token() -> None:
    headers = Headers.of([(b"authorization", b"Bearer a"), (b"Authorization", b"Bearer b")])
    assert headers.bearer is None


@pytest.mark.parametrize("shown", [None, "", "a", f"{SECRET}x", SECRET[:-1], "\xe4\xf6", "\ud800", SECRET.upper()])
def test_a_wrong_token_is_refused(shown: str | None) -> None:
    assert not is_token(shown, SECRET)
    assert not is_token(shown, "")
    assert is_token(SECRET, SECRET)


# Bodies


def make_receive(*messages: dict[str, Any]) -> Callable[[], Awaitable[dict[str, Any]]]:
    """Return an ASGI receive function that gives these messages and then blocks."""
    waiting = list(messages)

    async def receive() -> dict[str, Any]:
        if not waiting:
            await asyncio.Event().wait()
        return waiting.pop(0)

    return receive


def piece(data: bytes, *, last: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": not last}


BAD_BODIES = {
    "too large by its header": ({"content-length": "101"}, [], 413),
    "far too large by its header": ({"content-length": "9" * 400}, [], 413),
    "too large without a header": ({}, [piece(b"x" * 60), piece(b"x" * 60)], 413),
    "larger than its header": ({"content-length": "1"}, [piece(b"x" * 101, last=True)], 413),
    "cut off": ({}, [piece(b"{"), {"type": "http.disconnect"}], 400),
    "never complete": ({}, [piece(b"{")], 408),
}


@pytest.mark.parametrize("case", BAD_BODIES)
def test_a_bad_body_is_refused(case: str) -> None:
    headers, messages, status = BAD_BODIES[case]
    with pytest.raises(HttpError) as raised:
        asyncio.run(read_body(make_receive(*messages), Headers(headers), max_bytes=100, timeout_s=0.05))
    assert raised.value.status == status
    assert (b"connection", b"close") in raised.value.headers


@pytest.mark.parametrize("length", ["100", "-1", "0", "\xb2", "nonsense", ""])
def test_a_body_is_read_with_any_length_header(length: str) -> None:
    read = read_body(make_receive(piece(b"x" * 60), piece(b"x" * 40, last=True)), Headers({"content-length": length}))
    assert asyncio.run(read) == b"x" * 100


def member_endpoint() -> Any:
    return Endpoint.for_offer(Offer(name="clerk", version="1"), SECRET), "/mcp"


def tool_door() -> Any:
    door: Any = SimpleNamespace(servers={"tools": ()}, passthrough=None)
    return McpEndpoint(lambda token: door if token == SECRET else None, version="1"), "/mcp/tools/"


def model_door() -> Any:
    passing: Any = SimpleNamespace()
    return LlmEndpoint(lambda token: passing if token == SECRET else None), "/llm/anthropic/v1/messages"


@pytest.mark.parametrize("app", [member_endpoint, tool_door, model_door])
@pytest.mark.parametrize(
    ("more", "messages", "status"),
    [
        ({"content-length": str(10**9)}, [], 413),
        ({}, [*[piece(b"x" * 8_000_000)] * 5, {"type": "http.disconnect"}], 413),
        ({}, [piece(b"{"), {"type": "http.disconnect"}], 400),
        ({"authorization": "Bearer x"}, [piece(b"{}", last=True)], 401),
        ({"host": "evil.example"}, [piece(b"{}", last=True)], 421),
        ({"origin": "null"}, [piece(b"{}", last=True)], 403),
        ({"content-type": "text/plain"}, [piece(b"{}", last=True)], 415),
    ],
)
def test_every_endpoint_refuses_bad_bodies_and_callers(
    app: Any, more: dict[str, str], messages: list[dict[str, Any]], status: int
) -> None:
    application, path = app()
    own = {"host": "127.0.0.1", "authorization": f"Bearer {SECRET}", "content-type": "application/json"}
    headers = [(name.encode(), value.encode()) for name, value in {**own, **more}.items()]
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
    asyncio.run(application(scope, make_receive(*messages), send))
    assert sent[0]["status"] == status
    assert (b"connection", b"close") in sent[0]["headers"]


@pytest.mark.parametrize(("payload", "body"), [({"a": "x\ny"}, b'{"a":"x\\ny"}\n'), ([], b"[]\n"), (None, b"")])
def test_a_json_response_is_one_line(payload: Any, body: bytes) -> None:
    """Clients that expect a stream read lines, and get this response if the stream did not start."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(send_json(send, 404, payload))
    assert sent[1]["body"] == body
    assert (b"content-length", str(len(body)).encode()) in sent[0]["headers"]
