"""WebSearch against fake search engines on loopback."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from guildhall.core.errors import ToolUnavailable
from guildhall.tools.builtin import web_search
from guildhall.tools.builtin.web_search import MAX_BYTES, search_tool
from guildhall.tools.definition import invoke

if TYPE_CHECKING:
    from collections.abc import Generator

FOUND = [
    {"title": "One\n page", "url": "https://one.example/", "content": "About  one.", "description": "About  one."},
    {"title": "", "url": "https://two.example/"},
    {"title": "No address"},
    {"title": "Odd", "url": "javascript:x()"},
    "not an object",
    {"title": "Three", "url": "https://three.example/", "content": "x" * 5_000, "description": "x" * 5_000},
]
EXPECTED_TEXT = "1. One page\nhttps://one.example/\nAbout one.\n\n2. https://two.example/\nhttps://two.example/"


class Engine(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer(None)

    def do_POST(self) -> None:
        self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def answer(self, body: Any) -> None:
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        self.server.seen.append((self.command, parts.path, query, body, dict(self.headers)))  # type: ignore[attr-defined]
        status, data = self.server.reply  # type: ignore[attr-defined]
        if data is None:
            self.server.stopping.wait(5)  # type: ignore[attr-defined]
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        try:
            self.wfile.write(data)
        except OSError:
            return

    def log_message(self, *_: Any) -> None:
        return


@contextmanager
def start_engine(reply: Any, status: int = 200) -> Generator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    server.seen = []  # type: ignore[attr-defined]
    server.stopping = threading.Event()  # type: ignore[attr-defined]
    server.reply = (status, reply if isinstance(reply, bytes | None) else json.dumps(reply).encode())  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.stopping.set()  # type: ignore[attr-defined]
        server.shutdown()
        thread.join()
        server.server_close()


def url(server: Any) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def search(tool: Any, **arguments: Any) -> Any:
    return asyncio.run(invoke(tool, {"query": "guilds", **arguments}))


def test_searxng_is_queried_without_a_key():
    with start_engine({"results": FOUND}) as server:
        result = search(search_tool({"searxng": f"{url(server)}/", "provider": None}, {}), max_results=2)
    assert result.text == EXPECTED_TEXT
    method, path, query, _, _ = server.seen[0]
    assert (method, path, query) == ("GET", "/search", {"q": "guilds", "format": "json"})


def test_tavily_is_queried_with_its_key():
    with start_engine({"results": FOUND}) as server:
        tool = search_tool({"provider": "tavily"}, {"TAVILY_API_KEY": "tvly-key"}, base_url=url(server))
        result = search(tool, max_results=2)
    assert result.text == EXPECTED_TEXT
    method, path, _, body, headers = server.seen[0]
    assert (method, path, body) == ("POST", "/search", {"query": "guilds", "max_results": 2})
    assert headers["Authorization"] == "Bearer tvly-key"


def test_brave_is_queried_with_its_key():
    with start_engine({"web": {"results": FOUND}}) as server:
        tool = search_tool({"provider": "brave"}, {"BRAVE_API_KEY": "brave-key"}, base_url=url(server))
        result = search(tool, max_results=2)
    assert result.text == EXPECTED_TEXT
    method, path, query, _, headers = server.seen[0]
    assert (method, path, query) == ("GET", "/res/v1/web/search", {"q": "guilds", "count": "2"})
    assert {name.lower(): value for name, value in headers.items()}["x-subscription-token"] == "brave-key"


def test_extracts_are_short():
    with start_engine({"results": FOUND}) as server:
        text = search(search_tool({"searxng": url(server)}, {})).text
    assert "3. Three" in text
    assert len(text) < 1_500


@pytest.mark.parametrize("reply", [{}, {"results": None}, {"results": {"a": 1}}, [], "text", {"results": []}])
def test_an_answer_without_results_is_reported(reply):
    with start_engine(reply) as server:
        assert search(search_tool({"searxng": url(server)}, {})).text == "No results for 'guilds'."


@pytest.mark.parametrize(
    ("reply", "status", "expected"),
    [
        (b"<html>", 200, "did not respond with JSON"),
        (b"[" * 100_000, 200, "did not respond with JSON"),
        (b"x" * (MAX_BYTES + 1), 200, "more than"),
        (b"", 401, "status 401\nContinue without WebSearch. The user must check the key of the search engine."),
        (b"", 429, "status 429\nWait"),
        (b"", 500, "status 500"),
        (b"", 302, "status 302"),
    ],
)
def test_an_engine_error_is_reported_without_the_key(reply, status, expected):
    with start_engine(reply, status) as server:
        tool = search_tool({"provider": "tavily"}, {"TAVILY_API_KEY": "tvly-key"}, base_url=url(server))
        result = search(tool)
    assert result.is_error
    assert expected in result.text
    assert "tvly-key" not in result.text


def test_an_engine_that_does_not_answer_times_out(monkeypatch):
    monkeypatch.setattr(web_search, "TIMEOUT_S", 0.1)
    with start_engine(None) as server:
        assert "did not respond within 0.1 s" in search(search_tool({"searxng": url(server)}, {})).text


def test_an_unreachable_engine_is_reported():
    with start_engine({}) as server:
        tool = search_tool({"searxng": url(server)}, {})
    assert "cannot reach SearXNG: ConnectError" in search(tool).text


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (None, "has no search engine"),
        ({}, "has no search engine"),
        ({"searxng": None, "provider": None}, "has no search engine"),
        ({"provider": "tavly"}, "Did you mean 'tavily'?"),
        ({"provider": "tavily"}, "Set TAVILY_API_KEY"),
        ({"provider": "brave"}, "Set BRAVE_API_KEY"),
        ({"searxng": "file:///etc/passwd"}, "invalid URL"),
    ],
)
def test_settings_without_a_usable_engine_are_rejected_with_a_hint(settings, expected):
    with pytest.raises(ToolUnavailable) as raised:
        search_tool(settings, {})
    assert expected in str(raised.value)


@pytest.mark.parametrize(
    "arguments",
    [{"query": " "}, {"query": "x" * 1_001}, {"max_results": 0}, {"max_results": 21}, {"query": None}, {"q": 1}],
)
def test_invalid_arguments_are_errors(arguments):
    assert search(search_tool({"searxng": "http://127.0.0.1:9"}, {}), **arguments).is_error


def test_the_tool_declares_its_capabilities():
    tool = search_tool({"searxng": "http://127.0.0.1:9"}, {})
    assert (tool.name, tool.capabilities, tool.repeatable, tool.runs_in) == ("WebSearch", {"net"}, True, "hall")
