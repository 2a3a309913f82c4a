"""Providers, called by their real clients over loopback HTTP."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelAuthenticationError,
    ModelOverloadedError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelServerError,
    ModelTimeoutError,
)
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from guildhall.core.errors import ModelFailed, ModelUnusable
from guildhall.models.provider_source import ProviderSource, _call_model, create_provider_source
from guildhall.testing.scripted_server import ScriptedServer
from tests.models.scripts import query, start_conversation, write_script
from tests.servers import close_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator
    from pathlib import Path

SCRIPT = """
workers:
  talker:
    - - {say: "a long enough answer", usage: {input: 1000, output: 100}}
  caller:
    - - {call: Read, with: {path: a.md}}
      - {expect: alpha, say: read}
  judge:
    - - output: {grade: 5}
  overloaded: [[{fail: 529}]]
  limited: [[{fail: 429}]]
  broken: [[{fail: 500}]]
  forbidden: [[{fail: 403}]]
  unknown: [[{fail: 404}]]
  poor: [[{fail: 402}]]
  wrong: [[{fail: 422}]]
"""
KEYS = {"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k", "DEEPSEEK_API_KEY": "k", "OPENROUTER_API_KEY": "k"}
SERVERS = {"OLLAMA_BASE_URL": "http://127.0.0.1:1/v1", "VLLM_BASE_URL": "http://127.0.0.1:1/v1"}
NAMES = ["anthropic:claude-sonnet-5", "openai:gpt-5", "openai-chat:gpt-5"]


@pytest.fixture
def server(tmp_path: Path) -> Generator[ScriptedServer]:
    with ScriptedServer(write_script(tmp_path, SCRIPT)) as running:
        yield running


def environ(server: ScriptedServer, worker: str) -> dict[str, str]:
    key = f"script-{worker}"
    return {
        "ANTHROPIC_API_KEY": key,
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": server.anthropic_url,
        "OPENAI_BASE_URL": server.openai_url,
    }


def ask(source: ProviderSource, question: Any = None, pieces: list[str] | None = None) -> ModelResponse:
    return asyncio.run(source.answer(question or query(), (pieces if pieces is not None else []).append))


def catch_failure(source: ProviderSource) -> ModelFailed:
    with pytest.raises(ModelFailed) as failed:
        ask(source)
    return failed.value


@pytest.mark.parametrize("name", NAMES)
def test_text_is_streamed_and_the_answer_is_complete(server: ScriptedServer, name: str) -> None:
    pieces: list[str] = []
    source = create_provider_source(name, environ(server, "talker"))
    response = ask(source, pieces=pieces)
    assert response.text == "".join(pieces) == "a long enough answer"
    assert len(pieces) > 1
    assert response.state == "complete"
    assert (response.usage.input_tokens, response.usage.output_tokens) == (1000, 100)
    assert source.cost(response.usage) == pytest.approx(0.003 if name.startswith("anthropic") else 0.00225)


@pytest.mark.parametrize("name", NAMES)
def test_tools_are_offered_and_called_and_their_results_are_sent(server: ScriptedServer, name: str) -> None:
    tools = ModelRequestParameters(function_tools=[ToolDefinition(name="Read", description="reads a file")])
    source = create_provider_source(name, environ(server, "caller"))
    first = ask(source, query(parameters=tools, settings=ModelSettings(max_tokens=50)))
    (call,) = first.tool_calls
    assert (call.tool_name, call.args_as_dict()) == ("Read", {"path": "a.md"})
    result = ModelRequest(parts=[ToolReturnPart("Read", "alpha", call.tool_call_id)], instructions="be brief")
    assert ask(source, query([*start_conversation(), first, result], parameters=tools)).text == "read"
    assert server.answered_twice == []


def test_the_model_gets_the_instructions_and_the_input_and_nothing_else(server: ScriptedServer) -> None:
    tools = ModelRequestParameters(function_tools=[ToolDefinition(name="Read", description="reads a file")])
    question = query(start_conversation("see <system>x</system>"), parameters=tools)
    for name in NAMES:
        ask(create_provider_source(name, environ(server, "caller")), question)
    claude, gpt, chat = (exchange.body or {} for exchange in server.requests)
    message = "see <system>x</system>"
    assert claude["system"] == [{"type": "text", "text": "be brief"}]
    assert claude["messages"] == [{"role": "user", "content": [{"type": "text", "text": message}]}]
    assert (gpt["instructions"], gpt["input"]) == ("be brief", [{"role": "user", "content": message}])
    assert [message["content"] for message in chat["messages"]] == ["be brief", message]
    assert [tool["name"] for tool in claude["tools"]] == [tool["name"] for tool in gpt["tools"]] == ["Read"]
    assert [tool["function"]["description"] for tool in chat["tools"]] == ["reads a file"]


@pytest.mark.parametrize("name", NAMES)
def test_the_tool_for_a_structured_output_is_offered(server: ScriptedServer, name: str) -> None:
    tool = ToolDefinition(name="final_result", parameters_json_schema={"type": "object"}, kind="output")
    shown = ModelRequestParameters(output_tools=[tool], output_mode="tool", allow_text_output=False)
    (call,) = ask(create_provider_source(name, environ(server, "judge")), query(parameters=shown)).tool_calls
    assert (call.tool_name, call.args_as_dict()) == ("final_result", {"grade": 5})


@pytest.mark.parametrize("name", NAMES)
def test_a_source_works_in_sequential_and_parallel_event_loops(server: ScriptedServer, name: str) -> None:
    source = create_provider_source(name, environ(server, "talker"))
    texts: list[str | None] = [ask(source).text for _ in range(3)]

    async def ask_in_parallel() -> list[ModelResponse]:
        return await asyncio.gather(*(source.answer(query(), lambda piece: None) for _ in range(3)))

    threads = [
        threading.Thread(target=lambda: texts.extend(answer.text for answer in asyncio.run(ask_in_parallel())))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert texts == ["a long enough answer"] * 9


# Failures


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("worker", "status", "transient", "code", "message"),
    [
        ("overloaded", 529, True, "model_overloaded", "is overloaded: "),
        ("limited", 429, True, "rate_limited", "rejected the request: rate limit: "),
        ("broken", 500, True, "model_failed", "failed: "),
        ("forbidden", 403, False, "key_refused", "rejected the key"),
        ("unknown", 404, False, "unknown_model", "the provider does not know"),
        ("poor", 402, False, "no_credit", "no credit or quota left"),
        ("wrong", 422, False, "model_failed", "failed: "),
    ],
)
def test_a_failure_is_classified_and_not_retried(
    server: ScriptedServer, name: str, worker: str, status: int, transient: bool, code: str, message: str
) -> None:
    failed = catch_failure(create_provider_source(name, environ(server, worker)))
    assert (failed.status, failed.transient, failed.code) == (status, transient, code)
    assert message in failed.message
    assert f"HTTP {status}" in failed.message
    assert len(server.requests) == 1, "the door retries, not the client"
    assert failed.retry_after == pytest.approx(0.05)


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_key_is_named_by_its_variable_and_never_shown(server: ScriptedServer, name: str) -> None:
    secret = "sk-something-that-must-stay-hidden"
    keys = {**environ(server, "talker"), "ANTHROPIC_API_KEY": secret, "OPENAI_API_KEY": secret}
    failed = catch_failure(create_provider_source(name, keys))
    variable = "ANTHROPIC_API_KEY" if name.startswith("anthropic") else "OPENAI_API_KEY"
    assert variable in str(failed)
    assert secret not in str(failed)
    assert not failed.transient
    assert failed.__cause__ is None


def test_a_key_in_a_message_of_the_provider_is_redacted() -> None:
    source = ProviderSource("openai", "gpt-5", {"OPENAI_API_KEY": "sk-secret"})
    assert source._clean("Incorrect key:\n sk-secret") == "Incorrect key: [OPENAI_API_KEY]"
    assert len(source._clean("x" * 5000)) < 600


def test_an_unknown_model_is_reported_with_the_nearest_name(server: ScriptedServer) -> None:
    failed = catch_failure(create_provider_source("anthropic:claude-sonet-5", environ(server, "unknown")))
    assert failed.hint == "Did you mean 'anthropic:claude-sonnet-5'?"


def test_a_known_model_that_the_account_lacks_is_not_suggested(server: ScriptedServer) -> None:
    failed = catch_failure(create_provider_source("anthropic:claude-sonnet-5", environ(server, "unknown")))
    assert failed.hint is not None
    assert "'anthropic:claude-sonnet-5'" not in failed.hint


@pytest.mark.parametrize(("name", "variable"), [("anthropic:claude-sonnet-5", "ANTHROPIC"), ("openai:gpt-5", "OPENAI")])
def test_a_server_that_requires_a_missing_key_is_reported(server: ScriptedServer, name: str, variable: str) -> None:
    address = {f"{variable}_BASE_URL": environ(server, "talker")[f"{variable}_BASE_URL"]}
    failed = catch_failure(create_provider_source(name, address))
    assert failed.code == "key_refused"
    assert failed.message.startswith(f"{name} needs a key, and no key is set: ")
    assert failed.hint == f"Set {variable}_API_KEY: the server of {variable}_BASE_URL requires a key."


@pytest.mark.parametrize("name", NAMES)
def test_an_unreachable_provider_is_a_transient_failure(name: str) -> None:
    nowhere = "http://127.0.0.1:9/v1"
    keys = {"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k", "ANTHROPIC_BASE_URL": nowhere, "OPENAI_BASE_URL": nowhere}
    failed = catch_failure(create_provider_source(name, keys))
    assert failed.transient
    assert (failed.code, "cannot be reached" in failed.message) == ("model_not_reachable", True)


@asynccontextmanager
async def raw_server(answer: bytes) -> AsyncIterator[str]:
    """Serve these bytes to every request, and close the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
            await reader.readexactly(int(length.split(b":")[1]))
            writer.write(answer)
            await writer.drain()
        finally:
            writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        await close_server(server)


def http_answer(status: str, body: bytes, kind: str = "application/json") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n".encode() + body


def failure_from(answer: bytes, name: str = "anthropic:claude-sonnet-5") -> ModelFailed:
    """Return the failure if the provider answers with these bytes."""

    async def run() -> None:
        async with raw_server(answer) as url:
            keys = {
                "ANTHROPIC_API_KEY": "k",
                "OPENAI_API_KEY": "k",
                "ANTHROPIC_BASE_URL": url,
                "OPENAI_BASE_URL": url,
            }
            await create_provider_source(name, keys).answer(query(), lambda piece: None)

    with pytest.raises(ModelFailed) as failed:
        asyncio.run(run())
    return failed.value


def test_a_conversation_that_is_too_long_is_classified() -> None:
    problem = b'{"type":"invalid_request_error","message":"prompt is too long: 9 tokens > 8 maximum"}'
    body = b'{"type":"error","error":' + problem + b"}"
    failed = failure_from(http_answer("400 Bad Request", body))
    assert "the conversation is too long" in failed.message
    assert "prompt is too long: 9 tokens > 8 maximum" in failed.message
    assert not failed.transient
    body = b'{"error":{"message":"too many","type":"invalid_request_error","code":"context_length_exceeded"}}'
    assert "the conversation is too long" in failure_from(http_answer("400 Bad Request", body), "openai:gpt-5").message


def test_an_incomplete_answer_is_a_transient_failure() -> None:
    start = (
        b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","type":"message","role":"assistant",'
        b'"model":"m","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":1}}}\n\n'
    )
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 99999\r\n\r\n"
    assert failure_from(head + start).transient


def test_a_stream_without_its_end_event_is_a_transient_failure() -> None:
    created = (
        b'event: response.created\ndata: {"type":"response.created","sequence_number":0,"response":{"id":"r",'
        b'"object":"response","created_at":1,"model":"m","output":[],"status":"in_progress","tools":[],'
        b'"tool_choice":"auto","parallel_tool_calls":true}}\n\n'
    )
    failed = failure_from(http_answer("200 OK", created, "text/event-stream"), "openai:gpt-5")
    assert failed.transient
    assert "ended before it was complete" in failed.message


@pytest.mark.parametrize(
    ("kind", "transient", "code"),
    [
        (ModelRateLimitError, True, "rate_limited"),
        (ModelRequestRejectedError, False, "model_failed"),
        (ModelServerError, True, "model_failed"),
        (ModelOverloadedError, True, "model_overloaded"),
        (ModelQuotaExceededError, False, "no_credit"),
        (ModelAuthenticationError, False, "key_refused"),
        (ModelTimeoutError, True, "model_not_reachable"),
    ],
)
def test_a_failure_without_a_status_is_classified_by_its_type(
    kind: type[ModelAPIError], transient: bool, code: str
) -> None:
    failed = ProviderSource("bedrock", "m", {})._convert_error(kind("m", "it is so"), has_response=False)
    assert (failed.transient, failed.code) == (transient, code)
    assert failed.message.endswith(": it is so")
    assert "bedrock:m" in failed.message


@pytest.mark.parametrize(
    "answer",
    [
        http_answer("200 OK", b"<html>a proxy</html>", "text/html"),
        http_answer("500 Oops", b"<html>", "text/html"),
        http_answer("503 Unavailable", b""),
        http_answer("400 Bad Request", b'{"error": {"message": {"error": ["deep"]}}}'),
        b"nonsense",
        b"",
    ],
    ids=["html", "html-500", "empty-503", "odd-json", "not-http", "hung-up"],
)
@pytest.mark.parametrize("name", NAMES)
def test_an_invalid_answer_is_a_readable_failure(answer: bytes, name: str) -> None:
    failed = failure_from(answer, name)
    assert failed.message.startswith(name)
    assert "\n" not in failed.message


# Unusable models


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("anthropic:claude-sonnet-5", {}, "ANTHROPIC_API_KEY, which is not set\nSet ANTHROPIC_API_KEY"),
        ("anthropic:claude-sonnet-5", {"ANTHROPIC_API_KEY": " "}, "ANTHROPIC_API_KEY, which is not set"),
        ("openai:gpt-5", {}, "OPENAI_API_KEY, which is not set"),
        ("deepseek:deepseek-chat", {"OPENAI_API_KEY": "k"}, "DEEPSEEK_API_KEY, which is not set"),
        ("ollama:llama3", {}, "OLLAMA_BASE_URL, which is not set"),
        ("gateway/openai:gpt-5", {}, "PYDANTIC_AI_GATEWAY_API_KEY, which is not set"),
        ("azure:gpt-5", {"AZURE_OPENAI_API_KEY": "k"}, "AZURE_OPENAI_ENDPOINT, which is not set"),
        ("sentence-transformers:x", {}, "cannot use sentence-transformers:x: Unknown model"),
        ("bedrock-mantle:openai.gpt-oss-120b", {}, "AWS_DEFAULT_REGION, which is not set"),
        ("antropic:claude", {}, "unknown provider 'antropic'\nDid you mean 'anthropic'?"),
        ("nobody/claude", {}, "unknown provider 'nobody'"),
        ("anthropic:", {}, "invalid model 'anthropic:': the model is missing\nWrite `provider:model`"),
        ("scripts/a.yaml", {}, "the provider is missing\nFor a script, write script:scripts/a.yaml."),
        ("claude-sonnet-5", {}, "the provider is missing\nWrite 'anthropic:claude-sonnet-5'."),
        ("gpt-4", {}, "Write 'openai:gpt-4'."),
        ("something", {}, "Write `provider:model`"),
        ("", {}, "the provider is missing"),
        ("cohere:command-r", {"CO_API_KEY": "k"}, "pip install 'pydantic-ai-slim[cohere]'"),
        ("google-cloud:gemini-2.5-pro", {}, "pip install 'pydantic-ai-slim[google]'"),
    ],
)
def test_an_unusable_model_names_the_missing_setting(name: str, keys: dict[str, str], message: str) -> None:
    with pytest.raises(ModelUnusable) as failed:
        create_provider_source(name, keys)
    assert message in str(failed.value)


@pytest.mark.parametrize(
    ("name", "keys", "shown"),
    [
        ("ollama/llama3:8b", {"OLLAMA_BASE_URL": "http://127.0.0.1:1/v1"}, "ollama:llama3:8b"),
        ("openrouter:anthropic/claude", {"OPENROUTER_API_KEY": "k"}, "openrouter:anthropic/claude"),
        ("openrouter/anthropic/claude", {"OPENROUTER_API_KEY": "k"}, "openrouter:anthropic/claude"),
        ("openai:local", {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, "openai:local"),
    ],
)
def test_other_providers_and_local_servers_can_be_named(name: str, keys: dict[str, str], shown: str) -> None:
    assert create_provider_source(name, keys).name == shown


def test_a_local_server_needs_no_key(server: ScriptedServer) -> None:
    source = create_provider_source("openai:gpt-5", {"OPENAI_BASE_URL": server.openai_url})
    assert not catch_failure(source).transient
    assert server.requests[0].key == "api-key-not-set"


# A model that cannot be streamed


class UnstreamedModel(Model[Any]):
    """A model that answers in one piece."""

    @property
    def model_name(self) -> str:
        return "whole"

    @property
    def system(self) -> str:
        return "test"

    async def request(self, messages: Any, model_settings: Any, model_request_parameters: Any) -> ModelResponse:
        assert model_settings["max_retries"] == 0
        return ModelResponse(parts=[TextPart(self.text)])

    text = "all at once"


@pytest.mark.parametrize("text", ["all at once", ""])
def test_the_text_of_an_unstreamed_model_arrives_at_the_end(text: str) -> None:
    model = UnstreamedModel()
    model.text = text
    pieces: list[str] = []
    conversation: list[Any] = [ModelRequest(parts=[UserPromptPart("hello")])]
    asked = query(conversation)
    settings = ProviderSource("openai-chat", "m", {})._call_settings(model, asked)
    assert asyncio.run(_call_model(model, asked, settings, pieces.append, lambda: None)).text == text
    assert pieces == ([text] if text else [])


@pytest.mark.parametrize(
    ("name", "images", "pdfs"),
    [
        ("anthropic:claude-sonnet-5", True, True),
        ("openai:gpt-5", True, True),
        ("openai-chat:gpt-5", True, True),
        ("openrouter:anthropic/claude-sonnet-5", True, True),
        ("vllm:some-model", True, False),  # its adapter cannot send documents
        ("ollama:llava", True, False),
        ("ollama:gpt-oss:20b", False, False),
        ("openai:o3-mini", False, False),
        ("deepseek:deepseek-chat", False, False),
        ("openrouter:deepseek/deepseek-chat", False, False),
    ],
)
def test_a_model_accepts_images_and_documents_if_its_provider_does(name: str, images: bool, pdfs: bool) -> None:
    source = create_provider_source(name, {**KEYS, **SERVERS})
    assert (source.accepts("image/png"), source.accepts("application/pdf")) == (images, pdfs)
