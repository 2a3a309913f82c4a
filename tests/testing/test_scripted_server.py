"""The scripted server with the clients of Anthropic, OpenAI and pydantic-ai."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import anthropic
import httpx2
import openai
import pytest
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from guildhall.testing.scripted_server import ScriptedServer
from tests.models.scripts import write_script

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

SCRIPT = """
price: {input: 3, output: 15}
workers:
  talker:
    - - {say: "Good morning, ü\\u2028!", usage: {input: 120, output: 30, cache_read: 100}}
    - - say: second run
  caller:
    - - {say: I look., calls: [{call: Read, with: {path: a.md}}, {call: Grep, with: {pattern: "x\\ny"}}]}
      - {expect: "(?s)alpha.*beta", say: all read}
  lone:
    - - call: Ping
  shaky:
    - - fail: 529
      - say: at last
  picky:
    - - {expect: magic, say: "yes"}
  judge:
    - - output: {grade: 5}
"""
TOOLS = ["Read", "Grep"]


class Verdict(BaseModel):
    """An output schema."""

    grade: int


@pytest.fixture
def server(tmp_path: Path) -> Generator[ScriptedServer]:
    with ScriptedServer(write_script(tmp_path, SCRIPT)) as running:
        yield running


def anthropic_client(server: ScriptedServer, worker: str, retries: int = 0) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.anthropic_url, api_key=f"script-{worker}", max_retries=retries)


def openai_client(server: ScriptedServer, worker: str, retries: int = 0) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.openai_url, api_key=f"script-{worker}", max_retries=retries)


MESSAGE: Any = {"model": "claude-test", "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}]}
CHAT: Any = {"model": "gpt-test", "messages": [{"role": "user", "content": "hello"}]}
RESPONSE: Any = {"model": "gpt-test", "input": "hello"}
TEXT = "Good morning, ü\u2028!"


# Anthropic


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic_returns_text_and_usage(server: ScriptedServer, stream: bool) -> None:
    with anthropic_client(server, "talker") as client:
        if stream:
            with client.messages.stream(**MESSAGE) as events:
                pieces = list(events.text_stream)
                message = events.get_final_message()
            assert "".join(pieces) == TEXT
            assert len(pieces) > 1
        else:
            message = client.messages.create(**MESSAGE)
    assert [block.text for block in message.content if block.type == "text"] == [TEXT]
    assert (message.stop_reason, message.model) == ("end_turn", "claude-test")
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens, message.usage.output_tokens) == (
        20,
        100,
        30,
    )


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic_returns_several_calls_and_accepts_their_results(server: ScriptedServer, stream: bool) -> None:
    tools: Any = [{"name": name, "input_schema": {"type": "object"}} for name in TOOLS]

    def ask(client: anthropic.Anthropic, messages: list[Any]) -> anthropic.types.Message:
        request: Any = {**MESSAGE, "tools": tools, "messages": messages, "system": "be good"}
        if not stream:
            return client.messages.create(**request)
        with client.messages.stream(**request) as events:
            return events.get_final_message()

    with anthropic_client(server, "caller") as client:
        first = ask(client, MESSAGE["messages"])
        calls = [block for block in first.content if block.type == "tool_use"]
        assert [(call.name, call.input) for call in calls] == [
            ("Read", {"path": "a.md"}),
            ("Grep", {"pattern": "x\ny"}),
        ]
        assert first.stop_reason == "tool_use"
        results = [
            {"type": "tool_result", "tool_use_id": calls[0].id, "content": [{"type": "text", "text": "alpha"}]},
            {"type": "tool_result", "tool_use_id": calls[1].id, "content": "beta", "is_error": True},
        ]
        answered = {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]}
        second = ask(client, [*MESSAGE["messages"], answered, {"role": "user", "content": results}])
    assert [block.text for block in second.content if block.type == "text"] == ["all read"]
    assert [exchange.status for exchange in server.requests] == [200, 200]
    assert server.answered_twice == []


def test_anthropic_errors_have_the_form_of_the_provider(server: ScriptedServer) -> None:
    with anthropic_client(server, "shaky") as client:
        with pytest.raises(anthropic.APIStatusError) as failed:
            client.messages.create(**MESSAGE)
        assert failed.value.status_code == 529
        assert failed.value.body["error"]["type"] == "overloaded_error"
        assert client.messages.create(**MESSAGE).content[0].text == "at last"
    assert [(exchange.status, exchange.answered) for exchange in server.requests] == [(529, False), (200, True)]


def test_a_retrying_client_is_answered_after_a_short_delay(server: ScriptedServer) -> None:
    with anthropic_client(server, "shaky", retries=1) as client:
        assert client.messages.create(**MESSAGE).content[0].text == "at last"


def test_anthropic_tokens_are_counted(server: ScriptedServer) -> None:
    with anthropic_client(server, "talker") as client:
        counted = client.messages.count_tokens(model="claude-test", messages=[{"role": "user", "content": "x" * 41}])
    assert counted.input_tokens == 11
    assert not server.requests[0].answered


# OpenAI


@pytest.mark.parametrize("stream", [False, True])
def test_chat_returns_text_and_usage(server: ScriptedServer, stream: bool) -> None:
    with openai_client(server, "talker") as client:
        if stream:
            with client.chat.completions.stream(**CHAT, stream_options={"include_usage": True}) as events:
                for _ in events:
                    pass
                completion: Any = events.get_final_completion()
        else:
            completion = client.chat.completions.create(**CHAT)
    assert completion.choices[0].message.content == TEXT
    assert completion.choices[0].finish_reason == "stop"
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (120, 30)
    assert completion.usage.prompt_tokens_details.cached_tokens == 100


@pytest.mark.parametrize("stream", [False, True])
def test_chat_returns_several_calls_and_accepts_their_results(server: ScriptedServer, stream: bool) -> None:
    tools: Any = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in TOOLS]

    def ask(client: openai.OpenAI, messages: list[Any]) -> Any:
        request: Any = {**CHAT, "tools": tools, "messages": messages}
        if not stream:
            return client.chat.completions.create(**request).choices[0]
        with client.chat.completions.stream(**request) as events:
            for _ in events:
                pass
            return events.get_final_completion().choices[0]

    with openai_client(server, "caller") as client:
        first = ask(client, CHAT["messages"])
        calls = first.message.tool_calls
        assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [
            ("Read", {"path": "a.md"}),
            ("Grep", {"pattern": "x\ny"}),
        ]
        assert (first.message.content, first.finish_reason) == ("I look.", "tool_calls")
        answered = {
            "role": "assistant",
            "content": first.message.content,
            "tool_calls": [
                call.model_dump(include={"id": True, "type": True, "function": {"name", "arguments"}}) for call in calls
            ],
        }
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": text}
            for call, text in zip(calls, ["alpha", [{"type": "text", "text": "beta"}]], strict=True)
        ]
        second = ask(client, [{"role": "system", "content": "be good"}, *CHAT["messages"], answered, *results])
    assert second.message.content == "all read"
    assert [exchange.status for exchange in server.requests] == [200, 200]


@pytest.mark.parametrize("stream", [False, True])
def test_responses_returns_text_and_usage(server: ScriptedServer, stream: bool) -> None:
    with openai_client(server, "talker") as client:
        if stream:
            with client.responses.stream(**RESPONSE) as events:
                pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
                response: Any = events.get_final_response()
            assert "".join(pieces) == TEXT
        else:
            response = client.responses.create(**RESPONSE)
    assert (response.output_text, response.status) == (TEXT, "completed")
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (120, 30, 150)
    assert response.usage.input_tokens_details.cached_tokens == 100


@pytest.mark.parametrize("stream", [False, True])
def test_responses_returns_several_calls_and_accepts_their_results(server: ScriptedServer, stream: bool) -> None:
    tools: Any = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in TOOLS]

    def ask(client: openai.OpenAI, items: list[Any]) -> Any:
        request: Any = {**RESPONSE, "tools": tools, "input": items, "instructions": "be good"}
        if not stream:
            return client.responses.create(**request)
        with client.responses.stream(**request) as events:
            for _ in events:
                pass
            return events.get_final_response()

    asked = {"role": "user", "content": [{"type": "input_text", "text": "hello"}]}
    with openai_client(server, "caller") as client:
        first = ask(client, [asked])
        calls = [item for item in first.output if item.type == "function_call"]
        assert [(call.name, json.loads(call.arguments)) for call in calls] == [
            ("Read", {"path": "a.md"}),
            ("Grep", {"pattern": "x\ny"}),
        ]
        assert first.output_text == "I look."
        answered = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in first.output]
        results = [
            {"type": "function_call_output", "call_id": calls[0].call_id, "output": "alpha"},
            {
                "type": "function_call_output",
                "call_id": calls[1].call_id,
                "output": [{"type": "input_text", "text": "beta"}],
            },
        ]
        assert (
            ask(client, [asked, {"type": "reasoning", "id": "rs", "summary": []}, *answered, *results]).output_text
            == "all read"
        )
    assert [exchange.status for exchange in server.requests] == [200, 200]


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_openai_errors_have_the_form_of_the_provider(server: ScriptedServer, api: str) -> None:
    with openai_client(server, "shaky") as client:

        def ask() -> Any:
            if api == "chat":
                return client.chat.completions.create(**CHAT).choices[0].message.content
            return client.responses.create(**RESPONSE).output_text

        with pytest.raises(openai.InternalServerError) as failed:
            ask()
        assert failed.value.status_code == 529
        assert failed.value.type == "server_error"
        assert ask() == "at last"


def test_a_call_of_a_namespaced_tool_has_its_namespace(server: ScriptedServer) -> None:
    tools: Any = [
        {"type": "namespace", "name": "mcp__wf", "tools": [{"type": "function", "name": "Ping", "parameters": {}}]},
        {"type": "web_search"},
    ]
    body: Any = {**RESPONSE, "tools": tools}
    with openai_client(server, "lone") as client:
        call: Any = client.responses.create(**body).output[0]
        assert (call.namespace, call.name, call.arguments) == ("mcp__wf", "Ping", "{}")
        items: Any = [
            {"role": "developer", "content": "be good"},
            {"type": "message", "role": "user", "content": "hello"},
            {
                "type": "function_call",
                "namespace": "mcp__wf",
                "name": "Ping",
                "call_id": call.call_id,
                "arguments": "{}",
            },
            {"type": "function_call_output", "call_id": call.call_id, "output": "pong"},
        ]
        with pytest.raises(openai.BadRequestError, match="script exhausted: it has 1 answers"):
            client.responses.create(**{**body, "input": items})


@pytest.mark.parametrize(
    ("offered", "called"),
    [
        (["Ping"], "Ping"),
        (["mcp__tools__Ping", "mcp__room__send"], "mcp__tools__Ping"),
        (["mcp__tools__Ping", "Ping"], "Ping"),
        (["tools_Ping", "room_send"], "tools_Ping"),
        (["meeting_Ping"], "meeting_Ping"),
        (["memory_Ping"], "Ping"),
        (["mcp__a__Ping", "mcp__b__Ping"], "Ping"),
        (["sandbox_Ping"], "Ping"),
        ([], "Ping"),
    ],
)
def test_a_call_uses_the_name_that_the_program_offers(server: ScriptedServer, offered: list[str], called: str) -> None:
    tools: Any = [{"name": name, "input_schema": {"type": "object"}} for name in offered]
    with anthropic_client(server, "lone") as client:
        (call,) = client.messages.create(**MESSAGE, tools=tools).content
    assert (call.type, call.name) == ("tool_use", called)


# Mismatches and exhausted scripts


def test_a_mismatch_and_an_exhausted_script_are_reported_and_not_retried(server: ScriptedServer) -> None:
    with (
        anthropic_client(server, "picky", retries=2) as client,
        pytest.raises(anthropic.BadRequestError, match="magic"),
    ):
        client.messages.create(**MESSAGE)
    with openai_client(server, "nobody", retries=2) as client, pytest.raises(openai.BadRequestError, match="nobody"):
        client.responses.create(**RESPONSE)
    assert [exchange.status for exchange in server.requests] == [400, 400]


def test_the_key_names_the_worker_and_the_run(server: ScriptedServer) -> None:
    with openai_client(server, "talker.1") as client:
        assert client.responses.create(**RESPONSE).output_text == "second run"
    assert server.requests[0].key == "script-talker.1"
    assert server.requests[0].body == {"input": "hello", "model": "gpt-test"}


def test_a_request_that_is_answered_twice_is_recorded(server: ScriptedServer) -> None:
    with openai_client(server, "talker") as client:
        for _ in range(2):
            client.responses.create(**RESPONSE)
    assert server.answered_twice == [server.requests[1]]


# pydantic-ai


def models(server: ScriptedServer, worker: str, http: httpx2.AsyncClient) -> dict[str, Any]:
    key = f"script-{worker}"
    provider = OpenAIProvider(base_url=server.openai_url, api_key=key, http_client=http)
    messages = AnthropicProvider(base_url=server.anthropic_url, api_key=key, http_client=http)
    return {
        "anthropic": AnthropicModel("claude-test", provider=messages),
        "chat": OpenAIChatModel("gpt-test", provider=provider),
        "responses": OpenAIResponsesModel("gpt-test", provider=provider),
    }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ["anthropic", "chat", "responses"])
def test_an_agent_of_pydantic_ai_executes_a_script(server: ScriptedServer, api: str, stream: bool) -> None:
    called: list[tuple[str, str]] = []

    async def drain_events(context: Any, events: Any) -> None:
        async for _ in events:
            pass

    async def run() -> tuple[str, Any]:
        async with httpx2.AsyncClient() as http:
            agent = Agent(models(server, "caller", http)[api], instructions="be good")

            @agent.tool_plain(name="Read")
            def read(path: str) -> str:
                called.append(("Read", path))
                return "alpha"

            @agent.tool_plain(name="Grep")
            def grep(pattern: str) -> str:
                called.append(("Grep", pattern))
                return "beta"

            result = await agent.run("hello", event_stream_handler=drain_events if stream else None)
            return result.output, result.usage

    output, usage = asyncio.run(run())
    assert output == "all read"
    assert sorted(called) == [("Grep", "x\ny"), ("Read", "a.md")]
    assert usage.requests == 2
    assert usage.input_tokens > 0
    assert server.answered_twice == []


@pytest.mark.parametrize("api", ["anthropic", "chat", "responses"])
def test_a_structured_output_is_returned(server: ScriptedServer, api: str) -> None:
    async def run() -> Any:
        async with httpx2.AsyncClient() as http:
            agent = Agent(models(server, "judge", http)[api], output_type=Verdict)
            return (await agent.run("hello")).output

    assert asyncio.run(run()) == Verdict(grade=5)
