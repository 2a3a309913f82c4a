"""Base of the dialects: the `Dialect` protocol, request validation, conversation rules and server-sent events.

A body is parsed as plain JSON with limits on its depth and size.
`Conversation` checks that each tool call has a result.
`TrimRules` describes the prompt, tools and results that a request may show.
Does not contain the format of a provider: `anthropic`, `openai_chat` and `openai_responses` do.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, cast

from pydantic_ai.messages import (
    BinaryContent,
    FinishReason,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from guildhall.core.text_checks import is_unicode

if TYPE_CHECKING:
    from pydantic_ai.usage import RequestUsage


_MAX_DEPTH = 200
_MAX_PARTS = 2_000_000  # commas, `[` and `{`: parsing more would block the hall, and no model reads as many


class InvalidMessage(Exception):
    """A request or an answer that violates the format of its API. `param` is the invalid field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


def parse_body(data: bytes) -> Mapping[str, Any]:
    """Return the JSON object of a body. Raise InvalidMessage if it is invalid, too deep, too large or not Unicode."""
    if sum(map(data.count, (b",", b"[", b"{"))) > _MAX_PARTS:
        raise InvalidMessage(f"the body has more than {_MAX_PARTS:,} commas and brackets")
    try:
        body: Any = json.loads(data, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        raise InvalidMessage("the body is not valid JSON") from None
    if not isinstance(body, dict):
        raise InvalidMessage("the body is not a JSON object")
    _check_body(body := cast("dict[str, Any]", body))
    return body


def _reject_constant(name: str) -> None:
    raise ValueError(name)


def _check_body(body: Any) -> None:
    level: list[Any] = [body]
    for _ in range(_MAX_DEPTH):
        below: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                below.extend(cast("dict[str, Any]", node))
                below.extend(cast("dict[str, Any]", node).values())
            elif isinstance(node, list):
                below.extend(cast("list[Any]", node))
            elif isinstance(node, str) and not is_unicode(node):
                raise InvalidMessage("the body has characters that are not valid Unicode")
        if not below:
            return
        level = below
    raise InvalidMessage("the body is nested too deeply")


# Fields of a request or an answer. Each function names the path of an invalid value: `messages[2].content`.


def mapping(block: Mapping[str, Any], field: str, path: str = "") -> dict[str, Any]:
    return as_mapping(block.get(field), _path(path, field))


def optional_mapping(block: Mapping[str, Any], field: str, path: str = "") -> dict[str, Any]:
    return as_mapping(block.get(field) or {}, _path(path, field))


def as_mapping(value: Any, param: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidMessage(f"{param}: expected an object", param)
    return cast("dict[str, Any]", value)


def text(block: Mapping[str, Any], field: str, path: str = "", *, default: str | None = None) -> str:
    """Return a string. `default` replaces a missing or empty one."""
    value = block.get(field) or default if default is not None else block.get(field)
    if not isinstance(value, str):
        raise InvalidMessage(f"{_path(path, field)}: expected a string", _path(path, field))
    return value


def flag(block: Mapping[str, Any], field: str, path: str = "") -> bool:
    value = block.get(field)
    if value is not None and not isinstance(value, bool):
        raise InvalidMessage(f"{_path(path, field)}: expected true or false", _path(path, field))
    return value or False


def objects(block: Mapping[str, Any], field: str, path: str = "") -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the objects of an array with their paths. A missing array counts as empty."""
    value, param = block.get(field), _path(path, field)
    if value is not None and not isinstance(value, list):
        raise InvalidMessage(f"{param}: expected an array", param)
    for index, item in enumerate(cast("list[Any]", value or [])):
        yield as_mapping(item, item_path := f"{param}[{index}]"), item_path


def _path(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field


def text_content(block: Mapping[str, Any], field: str, path: str = "") -> str:
    """Return the text of a string or of content blocks. Each block without text becomes a mark such as `[image]`."""
    value = block.get(field)
    if value is None or isinstance(value, str):
        return value or ""
    return "\n".join(_block_text(inner, inner_path) for inner, inner_path in objects(block, field, path))


def _block_text(block: Mapping[str, Any], path: str) -> str:
    return text(block, "text", path) if "text" in block else f"[{text(block, 'type', path)}]"


def user_content(
    block: Mapping[str, Any], path: str, decode: Callable[[Mapping[str, Any], str], BinaryContent | None]
) -> str | list[str | BinaryContent]:
    """Return the text of a user message, or its texts and files in order if it has files.

    `decode` returns the file of a content block, or None if the block has no file.
    """
    if not isinstance(block.get("content"), list):
        return text_content(block, "content", path)
    inner_blocks = objects(block, "content", path)
    items = [decode(inner, inner_path) or _block_text(inner, inner_path) for inner, inner_path in inner_blocks]
    has_files = any(isinstance(item, BinaryContent) for item in items)
    return items if has_files else "\n".join(cast("list[str]", items))


def decode_data_url(block: Mapping[str, Any], field: str, path: str) -> BinaryContent | None:
    """Return the file of a `data:` URL, or None if the field is missing or has another URL, which is never fetched."""
    if block.get(field) is None:
        return None
    prefix, comma, data = text(block, field, path).partition(",")
    if not prefix.startswith("data:"):
        return None
    media_type, base64_mark, _ = prefix.removeprefix("data:").partition(";base64")
    param = _path(path, field)
    if not comma or not base64_mark:
        raise InvalidMessage(f"{param}: expected data:TYPE;base64,DATA", param)
    return decode_file(media_type, data, param)


def decode_file(media_type: str, data: str, param: str) -> BinaryContent:
    try:
        return BinaryContent(data=base64.b64decode(data, validate=True), media_type=media_type)
    except (binascii.Error, ValueError):
        raise InvalidMessage(f"{param}: the data is not base64", param) from None


# Names of the tool for structured output in pydantic-ai and Claude Code. Clients list it among the other tools.
_OUTPUT_TOOLS = ("final_result", "StructuredOutput")


@dataclass(frozen=True, kw_only=True)
class WireRequest:
    """A parsed request of a client."""

    model: str
    messages: list[ModelMessage]
    settings: ModelSettings
    parameters: ModelRequestParameters
    stream: bool
    stream_usage: bool = False
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])


class IncompleteAnswer(Exception):
    """A response that ended before it was complete. `body` is the error message of the provider, if it sent one."""

    def __init__(self, body: Mapping[str, Any] | None = None, reason: str | None = None) -> None:
        super().__init__("the response ended before it was complete")
        self.body = body
        self.reason = reason  # why the connection ended


@dataclass(frozen=True, slots=True)
class CollectedEvent:
    """A streamed event: its text, and the action that the hall takes.

    `hold`: a program could act on the event (a complete tool call, the end of the answer), so the event and all later
    events wait until the answer is recorded. `drop`: only the hall had requested the event.
    """

    text: str = ""
    action: Literal["forward", "hold", "drop"] = "forward"


class Collector(Protocol):
    """Builds the complete answer from its events."""

    def add(self, data: Mapping[str, Any] | str) -> CollectedEvent:
        """Add an event. Raise IncompleteAnswer for an error event, InvalidMessage for an event of another API."""
        ...

    def answer(self) -> dict[str, Any]:
        """Return the answer so far, in the format of an answer that is not streamed."""
        ...


# With these fields, a provider would contact other servers, run programs, or charge another price.
FORBIDDEN_FIELDS = frozenset(
    {"mcp_servers", "container", "service_tier", "speed", "inference_geo", "background", "prompt", "web_search_options"}
)


@dataclass(frozen=True, kw_only=True)
class TrimRules:
    """The content that may stay in a request: the prompt, tools and results of the run."""

    prompt: str
    tools: frozenset[str]
    definitions: Mapping[str, ToolDefinition] = field(default_factory=dict[str, "ToolDefinition"])  # by shown name
    results: Mapping[str, ToolReturnPart] = field(default_factory=dict[str, ToolReturnPart])  # by call id
    has_login: bool = False  # the provider requires the program's own first lines of the prompt

    def define_tool(self, tool: Mapping[str, Any], schema_field: str, name: str | None = None) -> dict[str, Any]:
        """Return a tool with the description and schema of the run, because programs shorten them."""
        if (definition := self.definitions.get(name or tool_name(tool))) is None:
            return dict(tool)
        return {**tool, "description": definition.description or "", schema_field: definition.parameters_json_schema}


class Dialect(Protocol):
    """The wire format of a provider's API."""

    api: ClassVar[str]
    path: ClassVar[str]  # below the URL of the provider

    def create_collector(self, *, wants_usage: bool) -> Collector:
        """Return a collector for the events of one answer. `wants_usage`: the client requested token counts."""
        ...

    def parse_answer(self, answer: Mapping[str, Any]) -> ModelResponse:
        """Convert a complete answer and keep its original. Raise IncompleteAnswer or InvalidMessage."""
        ...

    def trim(self, body: Mapping[str, Any], rules: TrimRules) -> dict[str, Any]:
        """Return the request without the prompt, tools and messages that the program added."""
        ...

    def system_prompt(self, body: Mapping[str, Any]) -> str: ...

    def upstream_body(self, body: Mapping[str, Any], model: str, max_tokens: int | None) -> dict[str, Any]:
        """Return the request for this model, with at most `max_tokens` for the answer."""
        ...

    def error_event(self, status: int, message: str) -> str:
        """Return the event that reports a failure within a stream."""
        ...

    def parse_request(self, body: Mapping[str, Any]) -> WireRequest:
        """Raise InvalidMessage if the request is invalid."""
        ...

    def build_answer(self, request: WireRequest, response: ModelResponse, answer_id: str) -> dict[str, Any]: ...

    def stream_answer(self, request: WireRequest, response: ModelResponse, answer_id: str) -> Iterator[str]: ...

    def error_body(self, status: int, message: str, param: str | None = None) -> dict[str, Any]: ...


class Conversation:
    """Collects the messages of a request and checks that calls and results match."""

    def __init__(self) -> None:
        self._messages: list[ModelMessage] = []
        self._request_parts: list[ModelRequestPart] = []
        self._response_parts: list[ModelResponsePart] = []
        self._open_calls: dict[str, str] = {}

    def add_system(self, text: str) -> None:
        self._add_request_part(SystemPromptPart(text))

    def add_user(self, content: str | list[str | BinaryContent]) -> None:
        self._add_request_part(UserPromptPart(content))

    def add_result(self, call_id: str, text: str, param: str, *, is_error: bool = False) -> None:
        self._flush_response()
        tool = self._open_calls.pop(call_id, None)
        if tool is None:
            raise InvalidMessage(f"{param}: no open call {call_id!r} before this result", param)
        self._add_request_part(ToolReturnPart(tool, text, call_id, outcome="failed" if is_error else "success"))

    def add_text(self, text: str) -> None:
        if text:
            self._add_response_part(TextPart(text))

    def add_call(self, call_id: str, tool: str, arguments: str | dict[str, Any], param: str) -> None:
        self._add_response_part(ToolCallPart(tool, arguments, call_id))
        if call_id in self._open_calls:
            raise InvalidMessage(f"{param}: the call id {call_id!r} is used twice", param)
        self._open_calls[call_id] = tool

    def end_turn(self) -> None:
        """Make sure that an assistant message exists, even if nothing of it was kept."""
        if not self._response_parts:
            self._add_response_part(TextPart(""))

    def finish(self) -> list[ModelMessage]:
        """Return the messages. Raise InvalidMessage if the list is empty or a call has no result."""
        self._flush_response()
        self._flush_request()
        if not self._messages:
            raise InvalidMessage("messages: at least one message is required", "messages")
        return self._messages

    def _add_request_part(self, part: ModelRequestPart) -> None:
        self._flush_response()
        self._request_parts.append(part)

    def _add_response_part(self, part: ModelResponsePart) -> None:
        self._flush_request()
        self._response_parts.append(part)

    def _flush_response(self) -> None:
        if self._response_parts:
            self._messages.append(ModelResponse(parts=self._response_parts))
            self._response_parts = []

    def _flush_request(self) -> None:
        if self._open_calls and not self._response_parts:
            raise InvalidMessage(f"messages: no result for the call {next(iter(self._open_calls))!r}", "messages")
        if self._request_parts:
            self._messages.append(ModelRequest(parts=self._request_parts))
            self._request_parts = []


def request_parameters(tools: list[ToolDefinition]) -> ModelRequestParameters:
    """Return the parameters for these tools, with the tool for structured output separate."""
    output = [tool for tool in tools if tool.name.startswith(_OUTPUT_TOOLS)]
    return ModelRequestParameters(
        function_tools=[tool for tool in tools if tool not in output],
        output_tools=output,
        output_mode="tool" if output else "text",
    )


def tool_name(tool: Mapping[str, Any]) -> str:
    """Return the name of a tool, or an empty string if it is invalid."""
    name = tool.get("name")
    return name if isinstance(name, str) else ""


def tool_definition(tool: Mapping[str, Any], schema_field: str, path: str, prefix: str = "") -> ToolDefinition:
    return ToolDefinition(
        name=prefix + text(tool, "name", path),
        description=None if tool.get("description") is None else text(tool, "description", path),
        parameters_json_schema=optional_mapping(tool, schema_field, path),
    )


def request_settings(body: Mapping[str, Any], limit_field: str) -> ModelSettings:
    """Return the settings of a request. `limit_field` is the field of the maximum number of answer tokens."""
    settings = ModelSettings()
    if (max_tokens := body.get(limit_field)) is not None:
        if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1:
            raise InvalidMessage(f"{limit_field}: expected a positive integer", limit_field)
        settings["max_tokens"] = max_tokens
    if (temperature := body.get("temperature")) is not None:
        if not isinstance(temperature, int | float) or isinstance(temperature, bool) or not 0 <= temperature <= 2:
            raise InvalidMessage("temperature: expected a number from 0 to 2", "temperature")
        settings["temperature"] = float(temperature)
    return settings


WIRE = "wire"  # the key of the original answer in the details of a response


def recorded_answer(response: ModelResponse, api: str) -> dict[str, Any] | None:
    """Return the provider's original answer, or None if the response has no original in the format of this API."""
    wire = (response.provider_details or {}).get(WIRE)
    return dict(wire["answer"]) if isinstance(wire, dict) and wire.get("api") == api else None  # pyright: ignore


def build_response(
    answer: Mapping[str, Any],
    parts: list[ModelResponsePart],
    api: str,
    provider: str,
    usage: RequestUsage,
    finish: FinishReason,
) -> ModelResponse:
    """Return a response that keeps the original answer in its details."""
    return ModelResponse(
        parts=parts,
        usage=usage,
        model_name=str(answer.get("model") or ""),
        provider_name=provider,
        provider_response_id=str(answer.get("id") or ""),
        provider_details={WIRE: {"api": api, "answer": dict(answer)}},
        finish_reason=finish,
    )


def call_names(response: ModelResponse) -> dict[str, str]:
    return {call.tool_call_id: call.tool_name for call in tool_calls(response)}


def token_count(value: Any) -> int:
    """Return a number of tokens, or 0 for an invalid value."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def encode_event(data: Mapping[str, Any], name: str | None = None) -> str:
    """Return a server-sent event. It is ASCII, so that no character can look like a line break."""
    name_line = f"event: {name}\n" if name else ""
    return f"{name_line}data: {json.dumps(data)}\n\n"


def tool_calls(response: ModelResponse) -> list[ToolCallPart]:
    return [part for part in response.parts if isinstance(part, ToolCallPart)]


MAX_EVENT_BYTES = 16_000_000
DONE = "[DONE]"  # the last event of Chat Completions, which is not JSON


def decode_event(data: bytes) -> dict[str, Any] | str | None:
    """Return the object of an event, DONE, or None if the event has no data. Raise InvalidMessage for other data."""
    if not data:
        return None
    if data.strip() == DONE.encode():
        return DONE
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidMessage("an event is not JSON") from None
    if not isinstance(value, dict):
        raise InvalidMessage("an event is not a JSON object")
    return cast("dict[str, Any]", value)
