"""Base of the dialects: the `Dialect` protocol, request validation, conversation rules and server-sent events.

A body is parsed as plain JSON with limits on its depth and size.
`Conversation` checks that each tool call has a result.
`Trim` describes the prompt, tools and results that a request may show.
Does not contain the format of a provider: `anthropic`, `openai_chat` and `openai_responses` do.
"""

from __future__ import annotations

import base64
import binascii
import json
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

from guildhall.core.text import is_unicode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pydantic_ai.usage import RequestUsage

    FileOf = Callable[[Mapping[str, Any], str], BinaryContent | None]


_MAX_DEPTH = 200
_MAX_PARTS = 2_000_000  # no model reads as many commas and brackets; reading them stops the hall for that long


class Malformed(Exception):
    """A request that is not what the API describes; `param` is the field that is wrong."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


def parse(data: bytes) -> Mapping[str, Any]:
    """A body as an object that is safe to go through: plain JSON, not too deep or manifold, only real characters."""
    if sum(map(data.count, (b",", b"[", b"{"))) > _MAX_PARTS:
        raise Malformed("the body has too many parts")
    try:
        body: Any = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Malformed("the body is not valid JSON") from None
    if not isinstance(body, dict):
        raise Malformed("the body is not a JSON object")
    _check(cast("dict[str, Any]", body))
    return cast("dict[str, Any]", body)


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _check(body: Any) -> None:
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
                raise Malformed("the body has characters that are not valid Unicode")
        if not below:
            return
        level = below
    raise Malformed("the body is nested too deeply")


def mapping(value: Any, param: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"{param}: expected an object", param)
    return cast("dict[str, Any]", value)


def sequence(value: Any, param: str) -> list[Any]:
    if not isinstance(value, list):
        raise Malformed(f"{param}: expected an array", param)
    return cast("list[Any]", value)


def text(value: Any, param: str) -> str:
    if not isinstance(value, str):
        raise Malformed(f"{param}: expected a string", param)
    return value


def flag(value: Any, param: str) -> bool:
    if value is None:
        return False
    if not isinstance(value, bool):
        raise Malformed(f"{param}: expected true or false", param)
    return value


def objects(value: Any, param: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the objects of an array, each with the name of its place. A missing array is an empty one."""
    for index, item in enumerate(sequence([] if value is None else value, param)):
        yield mapping(item, place := f"{param}[{index}]"), place


def shown(value: Any, param: str) -> str:
    """Content that is a string, or blocks of it: their text, and a mark for each block of another kind."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return "\n".join(_words(block, place) for block, place in objects(value, param))


def _words(block: Mapping[str, Any], place: str) -> str:
    return text(block["text"], f"{place}.text") if "text" in block else f"[{text(block.get('type'), f'{place}.type')}]"


def content(value: Any, param: str, file_of: FileOf) -> str | list[str | BinaryContent]:
    """What a user's message holds: its text, or, where there are files in it, the text and the files in their order.

    `file_of` gives the file in a block, where there is one; any other block that is not text is a mark.
    """
    if value is None or isinstance(value, str):
        return shown(value, param)
    items = [file_of(block, place) or _words(block, place) for block, place in objects(value, param)]
    return items if any(isinstance(item, BinaryContent) for item in items) else shown(value, param)


def data_url(value: Any, param: str) -> BinaryContent | None:
    """The file in a `data:` URL; None where there is none, or another URL, which is not fetched."""
    if value is None:
        return None
    head, comma, data = text(value, param).partition(",")
    if not head.startswith("data:"):
        return None
    media_type, marked, _ = head.removeprefix("data:").partition(";base64")
    if not comma or not marked:
        raise Malformed(f"{param}: expected data:TYPE;base64,DATA", param)
    return file(media_type, data, param)


def file(media_type: str, data: str, param: str) -> BinaryContent:
    """A file that is sent as base64."""
    try:
        return BinaryContent(data=base64.b64decode(data, validate=True), media_type=media_type)
    except (binascii.Error, ValueError):
        raise Malformed(f"{param}: the data is not base64", param) from None


# Clients offer the tool for a structured result among the others; these are its names in pydantic-ai and Claude Code.
_OUTPUT_TOOLS = ("final_result", "StructuredOutput")


@dataclass(frozen=True, kw_only=True)
class WireRequest:
    """A request of a client, read."""

    model: str
    messages: list[ModelMessage]
    settings: ModelSettings
    parameters: ModelRequestParameters
    stream: bool
    stream_usage: bool = False
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])


class BrokenOff(Exception):
    """An answer that did not come to its end. `body` is what the provider said about it, where it said something."""

    def __init__(self, body: Mapping[str, Any] | None = None) -> None:
        super().__init__("the answer broke off before it was complete")
        self.body = body


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event of an answer is: the text that it brings, and what becomes of it.

    What a program could act on, a complete call or the end, is held, and all that follows, until the answer is on
    record. `dropped`: the door itself has asked for it.
    """

    text: str = ""
    fate: Literal["on", "held", "dropped"] = "on"


class Collector(Protocol):
    """Puts a whole answer together from its events."""

    def take(self, data: Mapping[str, Any] | str) -> Piece:
        """Hears one event. Raises BrokenOff where it is an error, Malformed where it is nothing of this API."""
        ...

    def answer(self) -> dict[str, Any]:
        """All of it, as the API gives it in one piece; it may not be complete."""
        ...


# What a program cannot ask of a provider: that it reaches other servers, runs programs, or is paid otherwise.
NOT_PASSED = frozenset(
    {"mcp_servers", "container", "service_tier", "speed", "inference_geo", "background", "prompt", "web_search_options"}
)


@dataclass(frozen=True, kw_only=True)
class Trim:
    """What a request is to show of a run, and nothing else: its prompt, and its tools by the names they are shown."""

    prompt: str
    tools: frozenset[str]
    definitions: Mapping[str, ToolDefinition] = field(default_factory=dict[str, "ToolDefinition"])  # as they are ours
    results: Mapping[str, ToolReturnPart] = field(default_factory=dict[str, ToolReturnPart])  # what calls gave, by ids
    login: bool = False  # the provider demands the program's own first lines of the prompt

    def defined(self, tool: Mapping[str, Any], schema: str, name: str | None = None) -> dict[str, Any]:
        """A tool as the run defines it, where that is known: programs cut what is long. `schema` is its field."""
        ours = self.definitions.get(name or tool_name(tool))
        known = {"description": ours.description or "", schema: ours.parameters_json_schema} if ours else {}
        return {**tool, **known}


class Dialect(Protocol):
    """One provider's API."""

    api: ClassVar[str]  # its name here
    path: ClassVar[str]  # of what is asked, below the address of the provider

    def collector(self, *, usage: bool) -> Collector:
        """For the events of one answer. `usage`: whoever asked wants to be told the tokens."""
        ...

    def response(self, answer: Mapping[str, Any]) -> ModelResponse:
        """A whole answer of a provider, with all of it kept beside. Raises BrokenOff, Malformed."""
        ...

    def trimmed(self, body: Mapping[str, Any], trim: Trim) -> dict[str, Any]:
        """The request without what a program has put in beside the run's own."""
        ...

    def system(self, body: Mapping[str, Any]) -> str:
        """All that the request tells the model as its system prompt."""
        ...

    def sent(self, body: Mapping[str, Any], model: str, max_tokens: int | None) -> dict[str, Any]:
        """The request as it is passed on: to this model, for an answer of at most so many tokens."""
        ...

    def broken(self, status: int, message: str) -> str:
        """A failure in the midst of an answer, as an event."""
        ...

    def read(self, body: Mapping[str, Any]) -> WireRequest:
        """The request; raises Malformed."""
        ...

    def whole(self, request: WireRequest, response: ModelResponse, answer_id: str) -> dict[str, Any]:
        """The answer as one JSON object."""
        ...

    def stream(self, request: WireRequest, response: ModelResponse, answer_id: str) -> Iterator[str]:
        """The answer as server-sent events."""
        ...

    def error(self, status: int, message: str, param: str | None = None) -> dict[str, Any]:
        """A failure, in this API's shape."""
        ...


class Conversation:
    """Collects what a request says into messages, and holds it to the rules that providers have about calls."""

    def __init__(self) -> None:
        self._messages: list[ModelMessage] = []
        self._asked: list[ModelRequestPart] = []
        self._answered: list[ModelResponsePart] = []
        self._open: dict[str, str] = {}

    def system(self, text: str) -> None:
        self._ask(SystemPromptPart(text))

    def user(self, content: str | list[str | BinaryContent]) -> None:
        self._ask(UserPromptPart(content))

    def result(self, call_id: str, text: str, param: str, *, failed: bool = False) -> None:
        """The result of a call that was made in the answer before."""
        self._end_answer()
        tool = self._open.pop(call_id, None)
        if tool is None:
            raise Malformed(f"{param}: no call {call_id!r} in the answer before waits for a result", param)
        self._ask(ToolReturnPart(tool, text, call_id, outcome="failed" if failed else "success"))

    def said(self, text: str) -> None:
        if text:
            self._answer(TextPart(text))

    def called(self, call_id: str, tool: str, arguments: str | dict[str, Any], param: str) -> None:
        self._answer(ToolCallPart(tool, arguments, call_id))
        if call_id in self._open:
            raise Malformed(f"{param}: the call id {call_id!r} is used twice", param)
        self._open[call_id] = tool

    def end_turn(self) -> None:
        """An assistant's turn was there, even if it said nothing that is kept."""
        if not self._answered:
            self._answer(TextPart(""))

    def messages(self) -> list[ModelMessage]:
        """All of it. A call without a result, or nothing to answer to, is a malformed request."""
        self._end_answer()
        self._end_asking()
        if not self._messages:
            raise Malformed("messages: at least one message is required", "messages")
        return self._messages

    def _ask(self, part: ModelRequestPart) -> None:
        self._end_answer()
        self._asked.append(part)

    def _answer(self, part: ModelResponsePart) -> None:
        self._end_asking()
        self._answered.append(part)

    def _end_answer(self) -> None:
        if self._answered:
            self._messages.append(ModelResponse(parts=self._answered))
            self._answered = []

    def _end_asking(self) -> None:
        if self._open and not self._answered:
            raise Malformed(f"messages: no result for the call {next(iter(self._open))!r}", "messages")
        if self._asked:
            self._messages.append(ModelRequest(parts=self._asked))
            self._asked = []


def parameters(tools: list[ToolDefinition]) -> ModelRequestParameters:
    """The tools as a model is offered them, with the one for a structured result told apart."""
    output = [tool for tool in tools if tool.name.startswith(_OUTPUT_TOOLS)]
    return ModelRequestParameters(
        function_tools=[tool for tool in tools if tool not in output],
        output_tools=output,
        output_mode="tool" if output else "text",
    )


def tool_name(tool: Mapping[str, Any]) -> str:
    """The name of an offered tool; empty where there is none."""
    name = tool.get("name")
    return name if isinstance(name, str) else ""


def tool_definition(tool: Mapping[str, Any], schema: str, param: str, prefix: str = "") -> ToolDefinition:
    """One offered tool; `schema` names the field that its input schema is in."""
    description = tool.get("description")
    return ToolDefinition(
        name=prefix + text(tool.get("name"), f"{param}.name"),
        description=None if description is None else text(description, f"{param}.description"),
        parameters_json_schema=mapping(tool.get(schema) or {}, f"{param}.{schema}"),
    )


def settings(body: Mapping[str, Any], limit: str) -> ModelSettings:
    """The settings that say something to a model; `limit` names the field with the most tokens of an answer."""
    read = ModelSettings()
    if (most := body.get(limit)) is not None:
        if not isinstance(most, int) or isinstance(most, bool) or most < 1:
            raise Malformed(f"{limit}: expected a positive integer", limit)
        read["max_tokens"] = most
    if (temperature := body.get("temperature")) is not None:
        if not isinstance(temperature, int | float) or isinstance(temperature, bool) or not 0 <= temperature <= 2:
            raise Malformed("temperature: expected a number from 0 to 2", "temperature")
        read["temperature"] = float(temperature)
    return read


# Writing answers

WIRE = "wire"  # in an answer's details: the whole of it as its provider gave it


def kept(response: ModelResponse, api: str) -> dict[str, Any] | None:
    """The answer as this API gave it, if it came from there."""
    wire = (response.provider_details or {}).get(WIRE)
    return dict(wire["answer"]) if isinstance(wire, dict) and wire.get("api") == api else None  # pyright: ignore


def whole_response(
    answer: Mapping[str, Any],
    parts: list[ModelResponsePart],
    api: str,
    provider: str,
    usage: RequestUsage,
    finish: FinishReason,
) -> ModelResponse:
    """Return a response that keeps the whole answer of the provider in its details."""
    return ModelResponse(
        parts=parts,
        usage=usage,
        model_name=str(answer.get("model") or ""),
        provider_name=provider,
        provider_response_id=str(answer.get("id") or ""),
        provider_details={WIRE: {"api": api, "answer": dict(answer)}},
        finish_reason=finish,
    )


def names_of(response: ModelResponse) -> dict[str, str]:
    """The tools that an answer calls, by the ids of the calls."""
    return {call.tool_call_id: call.tool_name for call in calls_of(response)}


def count_of(value: Any) -> int:
    """A number of tokens; whatever is none counts nothing."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def event(data: Mapping[str, Any], name: str | None = None) -> str:
    """One server-sent event. ASCII only, so that no character in it can look like the end of a line."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n"


def calls_of(response: ModelResponse) -> list[ToolCallPart]:
    return [part for part in response.parts if isinstance(part, ToolCallPart)]


MAX_EVENT_BYTES = 16_000_000
DONE = "[DONE]"  # ends the events of OpenAI's Chat Completions, and is not JSON


def read_event(data: bytes) -> dict[str, Any] | str | None:
    """Return the object of an event, DONE, or None if the event has no data. Raise Malformed for anything else."""
    if not data:
        return None
    if data.strip() == DONE.encode():
        return DONE
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise Malformed("an event of the answer is not JSON") from None
    if not isinstance(value, dict):
        raise Malformed("an event of the answer is not an object")
    return cast("dict[str, Any]", value)
