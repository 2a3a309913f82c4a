"""Timeouts of provider calls: servers that accept a connection and never answer, or stop in the middle."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
import yaml

from guildhall.core.config import ModelTimeouts
from guildhall.core.errors import ModelFailed, NotReachable
from guildhall.models.provider_source import create_provider_source
from tests.models.scripts import query

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import Guild

NAMES = ["anthropic:claude-sonnet-5-5", "openai:gpt-6.1-terra", "openai-chat:gpt-4.1"]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
STARTED = {
    "anthropic": b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","type":"message","role":'
    b'"assistant","model":"x","content":[],"stop_reason":null,"stop_sequence":null,'
    b'"usage":{"input_tokens":5,"output_tokens":1}}}\n\n',
    "openai": b'event: response.created\ndata: {"type":"response.created","sequence_number":0,"response":{"id":"r",'
    b'"object":"response","created_at":1,"status":"in_progress","model":"x","output":[]}}\n\n',
    "openai-chat": b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"x",'
    b'"choices":[{"index":0,"delta":{"role":"assistant","content":"hel"},"finish_reason":null}]}\n\n',
}


class SilentServer:
    """Accepts connections, sends the given bytes after each request, and then nothing."""

    def __init__(self, sent: bytes) -> None:
        self.requests = 0
        self._sent = sent
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._clients: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            self._clients.append(client)
            with suppress(OSError):
                if client.recv(100_000):
                    self.requests += 1
                    client.sendall(self._sent)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        for client in list(self._clients):
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        for one in (self._socket, *self._clients):
            one.close()


@contextmanager
def silent_server(sent: bytes = b"") -> Generator[SilentServer]:
    server = SilentServer(sent)
    try:
        yield server
    finally:
        server.close()


def provider_env(server: SilentServer) -> dict[str, str]:
    urls = {"ANTHROPIC_BASE_URL": server.url, "OPENAI_BASE_URL": f"{server.url}/v1"}
    return {**urls, "ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k"}


def fail(name: str, server: SilentServer, **timeouts: float) -> ModelFailed:
    source = create_provider_source(name, provider_env(server), timeouts=ModelTimeouts(**timeouts))
    with pytest.raises(ModelFailed) as failed:
        asyncio.run(source.answer(query(), lambda text: None))
    return failed.value


@pytest.mark.parametrize("name", NAMES)
def test_a_provider_that_never_answers_is_an_outage_with_the_address(name: str) -> None:
    with silent_server() as server:
        failure = fail(name, server, first_byte=0.1, between_bytes=60)
        assert isinstance(failure, NotReachable)
        assert failure.transient
        assert not failure.charged
        assert f"{name} cannot be reached at {server.url}" in failure.message
        assert "no response within 0.1 s" in failure.message


@pytest.mark.parametrize("name", NAMES)
def test_a_provider_that_stops_in_the_middle_is_an_outage(name: str) -> None:
    with silent_server(HEAD + STARTED[name.partition(":")[0]]) as server:
        failure = fail(name, server, first_byte=60, between_bytes=0.1)
        assert failure.transient
        assert "no data for 0.1 s" in failure.message


def test_timeouts_of_the_settings_end_a_call_which_is_then_retried(guild: Guild, home: Home, project: Path) -> None:
    home.settings.parent.mkdir(parents=True, exist_ok=True)
    home.settings.write_text("model_timeouts: {connect: 1s, first_byte: 0.05s, between_bytes: 1s}\n")
    limits = {"timeout": "0.5s"}  # ends the run during the pause before the second attempt
    worker = {"name": "talker", "instructions": "Talk.", "model": NAMES[0], "base": False, "limits": limits}
    (project / "workers").mkdir()
    (project / "workers" / "talker.yaml").write_text(yaml.safe_dump(worker))
    with silent_server() as server:
        ran = guild("run", "talker", "go", env=provider_env(server))
    assert "retrying in 1 s (2 of 4)" in ran.err
    assert f"{NAMES[0]} cannot be reached at {server.url}: no response within 0.05 s" in ran.err
    assert server.requests == 1


def test_a_project_cannot_set_timeouts(guild: Guild, project: Path) -> None:
    (project / "guildhall.yaml").write_text("model_timeouts: {first_byte: 1s}\n")
    assert "model_timeouts: a project cannot set this field" in guild("plan", "guide").err


def test_an_openai_server_without_the_responses_api_leads_to_openai_chat() -> None:
    with silent_server(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}") as server:
        failure = fail("openai:qwen", server)
        assert "write 'openai-chat:qwen'" in (failure.hint or "")
        assert "Responses API" not in (fail("openai-chat:qwen", server).hint or "")


def test_an_unreachable_server_is_named_without_its_password() -> None:
    with silent_server() as server:
        address = server.url
    env = {"OPENAI_BASE_URL": address.replace("//", "//user:secret@") + "/v1?token=secret", "OPENAI_API_KEY": "k"}
    source = create_provider_source("openai-chat:qwen", env)
    with pytest.raises(NotReachable, match=f"openai-chat:qwen cannot be reached at {address}/v1") as failed:
        asyncio.run(source.answer(query(), lambda text: None))
    assert "secret" not in str(failed.value)


def test_a_misspelt_model_under_a_budget_gets_a_suggestion(guild: Guild, project: Path) -> None:
    (project / "workers").mkdir()
    (project / "workers" / "talker.yaml").write_text("instructions: Talk.\nmodel: anthropic:claude-sonet-5-5\n")
    ran = guild("run", "talker", "go", "--budget", "1", env={"ANTHROPIC_API_KEY": "k"})
    assert ran.code == 2
    assert "Did you mean 'anthropic:claude-sonnet-5-5'?" in ran.err
    assert "Did you mean 'anthropic:claude-sonnet-5-5'?" in guild("plan", "talker", "--budget", "1").out
