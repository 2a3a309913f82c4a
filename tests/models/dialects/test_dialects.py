"""Wire formats: a real client receives every answer completely, and invalid requests do not break the server."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import (
    BinaryContent,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import RequestUsage

from guildhall.core.errors import InvalidFile
from guildhall.models.dialects.anthropic import Anthropic
from guildhall.models.dialects.openai_chat import OpenAIChat
from guildhall.models.dialects.openai_responses import OpenAIResponses
from guildhall.testing.scripted_server import Exchange, ScriptedApp, ScriptedServer, scripted_caller
from tests.models.scripts import write_script

if TYPE_CHECKING:
    from collections.abc import Generator

    from pydantic_ai.models import Model

    from guildhall.models.dialects.base import Dialect
    from guildhall.models.model import OnText, Query

# Answers, received by the real clients

json_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | json_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(json_text, inner, max_size=3),
    max_leaves=8,
)
# Clients drop text that is only white space, so each text has a letter.
texts = st.builds(lambda before, after: f"{before}a{after}", json_text, json_text)
calls = st.lists(
    st.tuples(
        st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,20}", fullmatch=True),
        st.dictionaries(json_text, json_values, max_size=3),
    ),
    max_size=3,
)


class FixedSource:
    """A source with one answer."""

    name = "fixed"

    def __init__(self) -> None:
        self.response = ModelResponse(parts=[])

    def cost(self, usage: RequestUsage, service_tier: str | None = None) -> float | None:
        return None

    def accepts(self, media_type: str) -> bool:
        return True

    async def answer(self, query: Query, on_text: OnText) -> ModelResponse:
        return self.response


def local_models(app: ScriptedApp, http: httpx2.AsyncClient) -> list[Model[Any]]:
    provider = OpenAIProvider(base_url="http://localhost/openai/v1", api_key="script-x", http_client=http)
    messages = AnthropicProvider(base_url="http://localhost/anthropic", api_key="script-x", http_client=http)
    return [
        AnthropicModel("m", provider=messages),
        OpenAIChatModel("m", provider=provider),
        OpenAIResponsesModel("m", provider=provider),
    ]


async def request_with_clients(source: FixedSource) -> list[ModelResponse]:
    """Return the answer as each client receives it, whole and streamed."""
    app = ScriptedApp(lambda worker: source)
    responses: list[ModelResponse] = []
    conversation: list[Any] = [ModelRequest(parts=[UserPromptPart("hello")])]
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app)) as http:
        for model in local_models(app, http):
            responses.append(await model_request(model, conversation))
            async with model_request_stream(model, conversation) as stream:
                async for _ in stream:
                    pass
                responses.append(stream.get())
    return responses


@given(text=st.none() | texts, made_calls=calls)
@settings(max_examples=40, deadline=None)
def test_any_answer_arrives_with_the_same_text_and_calls(
    text: str | None, made_calls: list[tuple[str, dict[str, Any]]]
) -> None:
    source = FixedSource()
    if text is None and not made_calls:
        text = "a"
    source.response = ModelResponse(
        parts=[
            *([] if text is None else [TextPart(text)]),
            *(ToolCallPart(name, arguments, f"call_0_{index}") for index, (name, arguments) in enumerate(made_calls)),
        ],
        usage=RequestUsage(input_tokens=70, output_tokens=7, cache_read_tokens=30),
        finish_reason="tool_call" if made_calls else "stop",
    )
    for response in asyncio.run(request_with_clients(source)):
        assert response.text == text
        assert [(call.tool_name, call.args_as_dict(), call.tool_call_id) for call in response.tool_calls] == [
            (name, arguments, f"call_0_{index}") for index, (name, arguments) in enumerate(made_calls)
        ]
        assert (response.usage.input_tokens, response.usage.output_tokens) == (70, 7)
        assert response.usage.cache_read_tokens == 30


def test_a_truncated_answer_has_the_finish_reason_length() -> None:
    source = FixedSource()
    source.response = ModelResponse(parts=[TextPart("so far")], finish_reason="length")
    for response in asyncio.run(request_with_clients(source)):
        assert (response.text, response.finish_reason) == ("so far", "length")


def test_signed_thinking_reaches_clients_of_anthropic() -> None:
    source = FixedSource()
    source.response = ModelResponse(
        parts=[ThinkingPart("hm", signature="sig"), ThinkingPart("unsigned"), TextPart("so")], finish_reason="stop"
    )
    whole, streamed = asyncio.run(request_with_clients(source))[:2]
    for response in (whole, streamed):
        thoughts = [(part.content, part.signature) for part in response.parts if isinstance(part, ThinkingPart)]
        assert thoughts == [("hm", "sig")]


# Parsed requests


def test_a_claude_conversation_is_parsed_into_messages() -> None:
    request = Anthropic().parse_request(
        {
            "model": "m",
            "max_tokens": 5,
            "temperature": 1,
            "system": [{"type": "text", "text": "be good"}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "look"}, {"type": "image", "source": {}}]},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]},
                {"role": "system", "content": "a reminder"},
                {"role": "user", "content": "again"},
            ],
            "tools": [
                {"name": "Read", "description": "reads", "input_schema": {"type": "object"}},
                {"type": "web_search_20250305", "name": "web_search"},
                {"name": "StructuredOutput", "input_schema": {}},
            ],
        }
    )
    assert [message.kind for message in request.messages] == ["request", "response", "request"]
    assert [part.content for part in request.messages[0].parts] == ["be good", "look", "[image]"]
    assert request.settings == {"max_tokens": 5, "temperature": 1.0}
    assert [tool.name for tool in request.parameters.function_tools] == ["Read", "web_search"]
    assert [tool.name for tool in request.parameters.output_tools] == ["StructuredOutput"]
    assert not request.stream


def test_a_chat_is_parsed_into_messages() -> None:
    request = OpenAIChat().parse_request(
        {
            "model": "m",
            "max_completion_tokens": 9,
            "messages": [
                {"role": "developer", "content": "be good"},
                {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
                {"role": "assistant", "content": None},
                {"role": "user", "content": "again"},
            ],
            "tools": [{"type": "custom", "custom": {"name": "grammar"}}],
        }
    )
    assert [message.kind for message in request.messages] == ["request", "response", "request"]
    assert request.settings == {"max_tokens": 9}
    assert request.parameters == ModelRequestParameters()


def test_a_custom_tool_of_codex_is_parsed_into_a_call() -> None:
    request = OpenAIResponses().parse_request(
        {
            "model": "m",
            "input": [
                {"role": "user", "content": "patch it"},
                {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** Begin"},
                {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
                {"role": "assistant", "content": [{"type": "output_text", "text": "patched"}]},
                {"role": "user", "content": "thanks"},
            ],
        }
    )
    assert [message.kind for message in request.messages] == ["request", "response", "request", "response", "request"]


IMAGE = b"\x89PNG\r\n\x1a\n"
ENCODED_IMAGE = base64.b64encode(IMAGE).decode()


@pytest.mark.parametrize(
    ("dialect", "blocks"),
    [
        (
            Anthropic(),
            [
                {"type": "text", "text": "look"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ENCODED_IMAGE}},
                {
                    "type": "document",
                    "source": {"type": "base64", "media_type": "application/pdf", "data": ENCODED_IMAGE},
                },
                {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
            ],
        ),
        (
            OpenAIChat(),
            [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{ENCODED_IMAGE}"}},
                {
                    "type": "file",
                    "file": {"file_data": f"data:application/pdf;base64,{ENCODED_IMAGE}", "filename": "a.pdf"},
                },
                {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
            ],
        ),
        (
            OpenAIResponses(),
            [
                {"type": "input_text", "text": "look"},
                {"type": "input_image", "image_url": f"data:image/png;base64,{ENCODED_IMAGE}"},
                {"type": "input_file", "file_data": f"data:application/pdf;base64,{ENCODED_IMAGE}"},
                {"type": "input_image", "image_url": "https://example.org/a.png"},
            ],
        ),
    ],
)
def test_files_in_a_request_are_parsed(dialect: Dialect, blocks: list[dict[str, Any]]) -> None:
    conversation = [{"role": "user", "content": blocks}]
    request = dialect.parse_request({"model": "m", "max_tokens": 5, "messages": conversation, "input": conversation})
    contents = [part.content for message in request.messages for part in message.parts]
    read = [item for content in contents for item in ([content] if isinstance(content, str) else content)]
    assert read[0] == "look"
    assert [(item.data, item.media_type) for item in read if isinstance(item, BinaryContent)] == [
        (IMAGE, "image/png"),
        (IMAGE, "application/pdf"),
    ]
    assert read[3] == f"[{blocks[3]['type']}]"  # other addresses are not fetched


# Invalid requests

MESSAGES = "/anthropic/v1/messages"
COUNT = "/anthropic/v1/messages/count_tokens"
CHAT = "/openai/v1/chat/completions"
RESPONSES = "/openai/v1/responses"
ROUTES = [MESSAGES, COUNT, CHAT, RESPONSES]
KEY = {"x-api-key": "script-coder"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ScriptedServer]:
    path = write_script(tmp_path_factory.mktemp("wire"), "workers: {coder: [[{say: hi}]]}\nrepeat: true")
    with ScriptedServer(path, max_body=200_000) as running:
        yield running


CLIENT = httpx2.Client(timeout=5, limits=httpx2.Limits(max_keepalive_connections=0))


def post(server: ScriptedServer, route: str, body: Any, headers: dict[str, str] = KEY) -> httpx2.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    all_headers = {"content-type": "application/json", **headers}
    return CLIENT.post(f"{server.url}{route}", content=content, headers=all_headers)


def error_message(response: httpx2.Response) -> str:
    """Check that an error has the format of the API, and return its message."""
    body = response.json()
    if "/anthropic/" in str(response.url):
        assert body["type"] == "error"
        assert set(body["error"]) == {"type", "message"}
    else:
        assert set(body["error"]) == {"message", "type", "param", "code"}
    assert isinstance(body["error"]["message"], str)
    return body["error"]["message"]


def valid_request(route: str) -> dict[str, Any]:
    """Return a valid request for a route."""
    if route == RESPONSES:
        return {"model": "m", "input": "hello"}
    return {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}


def with_turns(route: str, *turns: dict[str, Any]) -> dict[str, Any]:
    return {**valid_request(route), "input" if route == RESPONSES else "messages": list(turns)}


@pytest.mark.parametrize("route", ROUTES)
def test_a_valid_request_is_answered(server: ScriptedServer, route: str) -> None:
    assert post(server, route, valid_request(route)).status_code == 200
    assert post(server, route, valid_request(route), {"authorization": "Bearer script-coder"}).status_code == 200


BASE64 = {"type": "base64", "media_type": "image/png"}


@pytest.mark.parametrize(
    ("route", "block"),
    [
        (MESSAGES, {"type": "image"}),
        (MESSAGES, {"type": "image", "source": BASE64}),
        (MESSAGES, {"type": "image", "source": {**BASE64, "data": "no base64!"}}),
        (MESSAGES, {"type": "document", "source": {**BASE64, "data": "YQ==", "media_type": 5}}),
        (CHAT, {"type": "image_url"}),
        (CHAT, {"type": "image_url", "image_url": {"url": 5}}),
        (CHAT, {"type": "image_url", "image_url": {"url": "data:image/png,plain"}}),
        (CHAT, {"type": "file", "file": {"file_data": "data:application/pdf;base64,ä"}}),
        (RESPONSES, {"type": "input_image", "image_url": ["data:"]}),
        (RESPONSES, {"type": "input_file", "file_data": "data:"}),
    ],
)
def test_an_invalid_file_in_a_request_is_refused(server: ScriptedServer, route: str, block: dict[str, Any]) -> None:
    response = post(server, route, with_turns(route, {"role": "user", "content": [block]}))
    assert response.status_code == 400
    assert "content[0]" in error_message(response)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"null",
        b'"text"',
        b"[" * 100_000,
        b'{"model":' * 20_000,
        b'{"a":' * 500 + b"1" + b"}" * 500,
        b'{"model": NaN}',
        b'{"model": "\\ud800"}',
        b'{"\\udfff": 1}',
        b'{"max_tokens": ' + b"9" * 5000 + b"}",
        b"{}",
    ],
    ids=lambda body: body[:12].decode("latin-1"),
)
def test_a_body_that_is_not_a_request_is_refused(server: ScriptedServer, route: str, body: bytes) -> None:
    response = post(server, route, body)
    assert response.status_code == 400
    assert error_message(response)


@pytest.mark.parametrize("route", ROUTES)
def test_a_request_that_is_too_large_is_refused(server: ScriptedServer, route: str) -> None:
    response = post(server, route, b'{"model": "' + b"x" * 250_000 + b'"}')
    assert response.status_code == 413
    assert "exceeds 200,000 bytes" in error_message(response)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-api-key": ""},
        {"x-api-key": "sk-real-looking"},
        {"x-api-key": "script-"},
        {"x-api-key": "script-../etc"},
        {"authorization": "Basic script-coder"},
        {"authorization": "Bearer"},
    ],
    ids=str,
)
def test_a_request_without_a_known_key_is_refused(server: ScriptedServer, route: str, headers: dict[str, str]) -> None:
    response = post(server, route, valid_request(route), headers)
    assert response.status_code == 401
    assert "key" in error_message(response)
    assert server.requests[-1] == Exchange(
        path=route, key=headers.get("x-api-key") or None, body=valid_request(route), status=401, answered=False
    )


_USE = {"type": "tool_use", "id": "a", "name": "Read", "input": {}}
_TOOL_CALL = {"id": "a", "type": "function", "function": {"name": "Read", "arguments": "{}"}}
_FUNCTION_CALL = {"type": "function_call", "call_id": "a", "name": "Read", "arguments": "{}"}
_HELLO = {"role": "user", "content": "hello"}

WRONG: list[tuple[str, dict[str, Any], str]] = [
    (MESSAGES, {"model": "m", "messages": [_HELLO]}, "max_tokens: Field required"),
    (MESSAGES, {**valid_request(MESSAGES), "max_tokens": "5"}, "max_tokens: expected a positive integer"),
    (MESSAGES, {**valid_request(MESSAGES), "max_tokens": True}, "max_tokens: expected a positive integer"),
    (MESSAGES, {**valid_request(MESSAGES), "temperature": "warm"}, "temperature: expected a number"),
    (MESSAGES, {**valid_request(MESSAGES), "stream": "yes"}, "stream: expected true or false"),
    (MESSAGES, {**valid_request(MESSAGES), "model": 4}, "model: expected a string"),
    (MESSAGES, {**valid_request(MESSAGES), "messages": {}}, "messages: expected an array"),
    (MESSAGES, {**valid_request(MESSAGES), "messages": []}, "at least one message"),
    (MESSAGES, {**valid_request(MESSAGES), "system": 4}, "system: expected an array"),
    (MESSAGES, {**valid_request(MESSAGES), "tools": [4]}, "tools[0]: expected an object"),
    (MESSAGES, {**valid_request(MESSAGES), "tools": [{"name": 4}]}, "tools[0].name: expected a string"),
    (MESSAGES, {**valid_request(MESSAGES), "tools": [{"name": "a", "input_schema": [1]}]}, "tools[0].input_schema"),
    (MESSAGES, with_turns(MESSAGES, {"role": "robot", "content": "a"}), "messages[0].role: expected user or assistant"),
    (MESSAGES, with_turns(MESSAGES, {"role": "user"}), "messages[0].content: Field required"),
    (MESSAGES, with_turns(MESSAGES, {"role": "user", "content": [{}]}), "messages[0].content[0].type"),
    (MESSAGES, with_turns(MESSAGES, {"role": "user", "content": [{"type": "text"}]}), "content[0].text"),
    (
        MESSAGES,
        with_turns(MESSAGES, _HELLO, {"role": "assistant", "content": [{**_USE, "input": "x"}]}),
        "input: expected an object",
    ),
    (MESSAGES, with_turns(MESSAGES, _HELLO, {"role": "assistant", "content": [_USE]}), "no result for the call 'a'"),
    (MESSAGES, with_turns(MESSAGES, _HELLO, {"role": "assistant", "content": [_USE, _USE]}), "used twice"),
    (
        MESSAGES,
        with_turns(MESSAGES, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "z"}]}),
        "no open call 'z'",
    ),
    (COUNT, {"messages": [_HELLO]}, "model: expected a string"),
    (CHAT, {"model": "m"}, "at least one message"),
    (CHAT, {**valid_request(CHAT), "stream_options": 4}, "stream_options: expected an object"),
    (CHAT, {**valid_request(CHAT), "tools": [{"type": "function"}]}, "tools[0].function: expected an object"),
    (CHAT, {**valid_request(CHAT), "tools": [{}]}, "tools[0].type: expected a string"),
    (CHAT, with_turns(CHAT, {"role": "function", "content": "a"}), "messages[0].role: expected system"),
    (CHAT, with_turns(CHAT, {"content": "a"}), "messages[0].role: expected a string"),
    (CHAT, with_turns(CHAT, {"role": "user", "content": [4]}), "messages[0].content[0]: expected an object"),
    (CHAT, with_turns(CHAT, {"role": "tool", "tool_call_id": "z", "content": "a"}), "no open call 'z'"),
    (
        CHAT,
        with_turns(
            CHAT,
            _HELLO,
            {"role": "assistant", "tool_calls": [_TOOL_CALL]},
            _HELLO,
            {"role": "assistant", "content": "a"},
        ),
        "no result for the call 'a'",
    ),
    (CHAT, with_turns(CHAT, _HELLO, {"role": "assistant", "tool_calls": [{"id": "a"}]}), "tool_calls[0].function"),
    (RESPONSES, {"model": "m"}, "at least one message"),
    (RESPONSES, {**valid_request(RESPONSES), "input": 4}, "input: expected an array"),
    (RESPONSES, {**valid_request(RESPONSES), "previous_response_id": "resp_1"}, "send the whole conversation"),
    (RESPONSES, {**valid_request(RESPONSES), "conversation": "conv_1"}, "send the whole conversation"),
    (RESPONSES, {**valid_request(RESPONSES), "max_output_tokens": 0}, "max_output_tokens: expected a positive integer"),
    (
        RESPONSES,
        {**valid_request(RESPONSES), "tools": [{"type": "namespace", "name": "n", "tools": {}}]},
        "tools[0].tools",
    ),
    (RESPONSES, {**valid_request(RESPONSES), "tools": [{"type": "namespace", "tools": []}]}, "tools[0].name"),
    (RESPONSES, with_turns(RESPONSES, {"role": "robot", "content": "a"}), "input[0].role: expected system"),
    (RESPONSES, with_turns(RESPONSES, _HELLO, _FUNCTION_CALL), "no result for the call 'a'"),
    (RESPONSES, with_turns(RESPONSES, _HELLO, {**_FUNCTION_CALL, "arguments": {}}), "arguments: expected a string"),
    (
        RESPONSES,
        with_turns(RESPONSES, {"type": "function_call_output", "call_id": "z", "output": "a"}),
        "no open call 'z'",
    ),
]


@pytest.mark.parametrize(("route", "body", "message"), WRONG)
def test_an_invalid_field_is_named(server: ScriptedServer, route: str, body: dict[str, Any], message: str) -> None:
    response = post(server, route, body)
    assert response.status_code == 400
    assert message in error_message(response)


@given(
    route=st.sampled_from(ROUTES),
    name=st.sampled_from(
        ["model", "messages", "input", "tools", "system", "stream", "max_tokens", "instructions", "stream_options"]
    ),
    value=json_values,
)
@settings(max_examples=120, deadline=None)
def test_no_value_in_any_field_breaks_the_server(server: ScriptedServer, route: str, name: str, value: Any) -> None:
    response = post(server, route, {**valid_request(route), name: value})
    assert response.status_code in {200, 400}
    if response.status_code == 400:
        assert error_message(response)


@given(
    route=st.sampled_from(ROUTES),
    turn=st.dictionaries(
        st.sampled_from(["role", "content", "type", "tool_calls", "call_id", "output", "name"]),
        json_values | st.sampled_from(["user", "assistant", "tool", "function_call"]),
        max_size=4,
    ),
)
@settings(max_examples=120, deadline=None)
def test_no_turn_breaks_the_server(server: ScriptedServer, route: str, turn: dict[str, Any]) -> None:
    response = post(server, route, with_turns(route, _HELLO, turn, _HELLO))
    assert response.status_code in {200, 400}
    if response.status_code == 400:
        assert error_message(response)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", MESSAGES, 405), ("GET", RESPONSES, 405), ("POST", "/anthropic/v1/complete", 404), ("POST", "/", 404)],
)
def test_an_unknown_route_is_refused_in_the_format_of_its_api(
    server: ScriptedServer, method: str, path: str, status: int
) -> None:
    response = CLIENT.request(method, f"{server.url}{path}", headers=KEY)
    assert response.status_code == status
    assert {404: "unknown route", 405: "use POST"}[status] in error_message(response)


@pytest.mark.parametrize(
    ("key", "worker", "ordinal"),
    [
        ("script-coder", "coder", 0),
        ("script-coder.12", "coder", 12),
        ("script-v1.2-coder", "v1.2-coder", 0),
        ("script-v1.2-coder.3", "v1.2-coder", 3),
    ],
)
def test_a_key_is_parsed_into_worker_and_run(key: str, worker: str, ordinal: int) -> None:
    caller = scripted_caller(key)
    assert caller is not None
    assert (caller.worker, caller.ordinal) == (worker, ordinal)


def test_other_errors_are_returned_to_the_client() -> None:
    def raise_invalid_file(worker: str) -> FixedSource:
        raise InvalidFile("the script is gone", where="answers.yaml")

    async def ask() -> httpx2.Response:
        transport = httpx2.ASGITransport(app=ScriptedApp(raise_invalid_file))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post(CHAT, json=valid_request(CHAT), headers=KEY)

    response = asyncio.run(ask())
    assert response.status_code == 400
    assert "the script is gone" in error_message(response)
