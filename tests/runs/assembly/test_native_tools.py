"""Tools that the provider of the model executes: `web_search: {provider: native}`."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from tests.conftest import Guild

FOUND = {"type": "web_search_result", "url": "https://example.org/", "title": "A", "encrypted_content": "x"}
BLOCKS: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
    (
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
        {"type": "input_json_delta", "partial_json": '{"query": "iron"}'},
    ),
    ({"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [FOUND]}, None),
    ({"type": "text", "text": ""}, {"type": "text_delta", "text": "Iron melts at 1538 degrees."}),
]


class Provider(ThreadingHTTPServer):
    """A fake Anthropic server that answers with a web search and records the requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[dict[str, Any]] = []


class _Handler(BaseHTTPRequestHandler):
    server: Provider

    def do_POST(self) -> None:
        self.server.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        body = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in _events()).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def _events() -> list[dict[str, Any]]:
    usage = {"input_tokens": 100, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": [], "usage": usage}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    for index, (block, delta) in enumerate(BLOCKS):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        if delta is not None:
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 20}}
    return [*events, end, {"type": "message_stop"}]


@pytest.fixture
def provider() -> Generator[Provider]:
    provider = Provider()
    thread = threading.Thread(target=provider.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield provider
    provider.shutdown()
    thread.join()
    provider.server_close()


@pytest.fixture
def environment(provider: Provider) -> dict[str, str]:
    return {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{provider.server_port}", "ANTHROPIC_API_KEY": "a-key"}


@pytest.fixture
def scout(project: Path, home: Any) -> Path:
    (project / "workers").mkdir()
    home.path.mkdir()
    home.settings.write_text("web_search: {provider: native}\n")
    path = project / "workers" / "scout.yaml"
    path.write_text("instructions: Look it up.\nmodel: anthropic:claude-sonnet-4-5\ntools: [WebSearch]\nbase: false\n")
    return path


def test_the_provider_searches_and_its_search_is_recorded(
    guild: Guild, scout: Path, provider: Provider, environment: dict[str, str]
) -> None:
    ran = guild("run", "scout", "When does iron melt?", "--output", "json", env=environment)
    assert ran.code == 0, ran.err
    assert ran.json["output"] == "Iron melts at 1538 degrees."
    (request,) = provider.requests
    assert [tool["name"] for tool in request["tools"]] == ["web_search"]
    assert request["tools"][0]["type"].startswith("web_search_")
    run = ran.json["run"]
    assert "srvtoolu_1" in guild("log", run, "--json").out
    replayed = guild("replay", run, env=environment)
    assert replayed.code == 0, replayed.out
    assert len(provider.requests) == 1
    assert "WebSearch" in guild("plan", "scout", env=environment).out


def test_a_rule_that_requires_approval_prevents_native_search(
    guild: Guild, scout: Path, provider: Provider, environment: dict[str, str]
) -> None:
    with scout.open("a") as file:
        file.write("tool_rules: {net: {approval_required: true}}\n")
    ran = guild("run", "scout", "x", env=environment)
    assert ran.code == 1
    assert "cannot be forbidden or wait for approval" in ran.err
    assert provider.requests == []
    assert guild("run", "scout", "x", "--approve-all", env=environment).code == 0
