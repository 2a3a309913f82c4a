"""Dialect of OpenAI's Chat Completions API: reads and writes `/v1/chat/completions` and its stream of chunks.

Most other providers support this format too. Of several choices, only the first is read.
Does not send requests: `models.passthrough.request` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic_ai.messages import (
    BinaryContent,
    FinishReason,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from pydantic_ai.usage import RequestUsage

from guildhall.models.dialects import base
from guildhall.models.dialects.base import BrokenOff, Conversation, Malformed, Piece, Trim, WireRequest
from guildhall.models.model import pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


API = "openai-chat"
_FINISH: Mapping[str, FinishReason] = {
    "tool_calls": "tool_call",
    "function_call": "tool_call",
    "length": "length",
    "content_filter": "content_filter",
}
_THOUGHTS = ("reasoning_content", "reasoning")  # what servers of one's own call them
_STREAMED = ("content", *_THOUGHTS)
_FINISH_REASONS = {"tool_call": "tool_calls", "length": "length", "content_filter": "content_filter"}
_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
SYSTEM_ROLES = ("system", "developer")


class ChatCollector:
    """Hears the chunks of one completion. Of several choices the first one is the answer."""

    def __init__(self, *, usage: bool) -> None:
        self._wants_usage = usage
        self._head: dict[str, Any] = {}
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self._choice: dict[str, Any] = {"index": 0, "finish_reason": None}
        self._written: dict[str, list[str]] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._arguments: dict[int, list[str]] = {}
        self._held = False

    def take(self, data: Mapping[str, Any] | str) -> Piece:
        if data == base.DONE or isinstance(data, str):
            self._held = True
            return Piece(fate="held")
        if data.get("error"):
            raise BrokenOff(data)
        heard = ""
        for choice, place in base.objects(data.get("choices"), "choices"):
            if not choice.get("index"):
                heard += self._delta(base.mapping(choice.get("delta") or {}, f"{place}.delta"))
                self._choice.update({k: v for k, v in choice.items() if k != "delta" and v is not None})
                self._held = self._held or choice.get("finish_reason") is not None
        self._head.update({k: v for k, v in data.items() if k != "choices" and v is not None})
        if not data.get("choices") and data.get("usage") and not self._wants_usage:
            return Piece(heard, "dropped")
        return Piece(heard, "held" if self._held else "on")

    def answer(self) -> dict[str, Any]:
        message = {**self._message, **{name: "".join(written) for name, written in self._written.items()}}
        if self._calls:
            message["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": "".join(self._arguments[index])}}
                for index, call in sorted(self._calls.items())
            ]
        return {**self._head, "object": "chat.completion", "choices": [{**self._choice, "message": message}]}

    def _delta(self, delta: Mapping[str, Any]) -> str:
        for call, place in base.objects(delta.get("tool_calls"), "tool_calls"):
            self._held = True  # programs make a call as soon as its arguments could be complete
            self._call(call, place)
        for name, value in delta.items():
            if name == "role" or (isinstance(value, str) and name not in self._written and name not in _STREAMED):
                self._message[name] = value
            elif isinstance(value, str):
                self._written.setdefault(name, []).append(value)
            elif value is not None and name != "tool_calls":
                self._message[name] = value
        content = delta.get("content")
        return content if isinstance(content, str) else ""

    def _call(self, call: Mapping[str, Any], place: str) -> None:
        index = call.get("index", len(self._calls))
        if not isinstance(index, int):
            raise Malformed(f"{place}.index: expected a number")
        function = base.mapping(call.get("function") or {}, f"{place}.function")
        known = self._calls.setdefault(index, {"type": "function", "function": {}})
        written = function.get("arguments")
        self._arguments.setdefault(index, []).append(
            "" if written is None else base.text(written, f"{place}.arguments")
        )
        known.update({k: v for k, v in call.items() if k not in ("index", "function") and v})
        known["function"].update({k: v for k, v in function.items() if k != "arguments" and v})


def _parts(message: Mapping[str, Any]) -> Iterator[ModelResponsePart]:
    for name in _THOUGHTS:
        if isinstance(thought := message.get(name), str) and thought:
            yield ThinkingPart(thought, id=name, provider_name="openai")
            break
    said = message.get("content") or message.get("refusal")
    if said:
        yield TextPart(base.text(said, "content"))
    for call, place in base.objects(message.get("tool_calls"), "tool_calls"):
        function = base.mapping(call.get("function"), f"{place}.function")
        name, id = base.text(function.get("name"), f"{place}.name"), base.text(call.get("id"), f"{place}.id")
        yield ToolCallPart(name, base.text(function.get("arguments") or "{}", f"{place}.arguments"), id)


def _usage(usage: Mapping[str, Any]) -> RequestUsage:
    cached = base.mapping(usage.get("prompt_tokens_details") or {}, "prompt_tokens_details")
    thought = base.mapping(usage.get("completion_tokens_details") or {}, "completion_tokens_details")
    sent = base.count_of(usage.get("prompt_tokens"))
    return RequestUsage(
        input_tokens=sent,
        cache_read_tokens=min(sent, base.count_of(cached.get("cached_tokens"))),
        output_tokens=base.count_of(usage.get("completion_tokens")),
        output_reasoning_tokens=base.count_of(thought.get("reasoning_tokens")),
    )


def _deltas(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    beside = {k: v for k, v in message.items() if k not in ("content", "tool_calls", *_THOUGHTS) and v is not None}
    yield {**beside, "content": ""}
    for name in (*_THOUGHTS, "content"):
        for piece in pieces(message.get(name) or ""):
            yield {name: piece}
    for index, call in enumerate(message.get("tool_calls") or ()):
        arguments = call["function"]["arguments"]
        yield {"tool_calls": [{"index": index, **call, "function": {**call["function"], "arguments": ""}}]}
        for piece in pieces(arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


class OpenAIChat:
    """OpenAI's Chat Completions API."""

    api: ClassVar[str] = API
    path: ClassVar[str] = "/chat/completions"

    def read(self, body: Mapping[str, Any]) -> WireRequest:
        conversation = Conversation()
        for message, place in base.objects(body.get("messages"), "messages"):
            _read_message(conversation, message, place)
        limit = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
        options = base.mapping(body.get("stream_options") or {}, "stream_options")
        tools = [
            base.tool_definition(base.mapping(tool.get("function"), param), "parameters", param)
            for tool, place in base.objects(body.get("tools"), "tools")
            if base.text(tool.get("type"), f"{place}.type") == "function" and (param := f"{place}.function")
        ]
        return WireRequest(
            model=base.text(body.get("model"), "model"),
            messages=conversation.messages(),
            settings=base.settings(body, limit),
            parameters=base.parameters(tools),
            stream=base.flag(body.get("stream"), "stream"),
            stream_usage=base.flag(options.get("include_usage"), "stream_options.include_usage"),
        )

    def whole(self, request: WireRequest, response: ModelResponse, answer_id: str) -> dict[str, Any]:
        if (answer := base.kept(response, API)) is not None:
            return _renamed(answer, base.names_of(response))
        calls, usage = base.calls_of(response), response.usage
        said = "".join(part.content for part in response.parts if isinstance(part, TextPart))
        message: dict[str, Any] = {"role": "assistant", "content": said or None, "refusal": None}
        if calls:
            functions = [{"name": call.tool_name, "arguments": call.args_as_json_str()} for call in calls]
            message["tool_calls"] = [
                {"id": call.tool_call_id, "type": "function", "function": function}
                for call, function in zip(calls, functions, strict=True)
            ]
        reason = _FINISH_REASONS.get(response.finish_reason or "", "stop")
        return {
            "id": f"chatcmpl-{answer_id}",
            "object": "chat.completion",
            "created": int(response.timestamp.timestamp()),
            "model": request.model,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
            "usage": {
                "prompt_tokens": usage.input_tokens,
                "completion_tokens": usage.output_tokens,
                "total_tokens": usage.input_tokens + usage.output_tokens,
                "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
                "completion_tokens_details": {"reasoning_tokens": usage.output_reasoning_tokens},
            },
        }

    def stream(self, request: WireRequest, response: ModelResponse, answer_id: str) -> Iterator[str]:
        answer = self.whole(request, response, answer_id)
        head = {name: value for name, value in answer.items() if name not in ("choices", "usage")}
        head["object"] = "chat.completion.chunk"
        choice = answer["choices"][0]
        for delta in _deltas(choice["message"]):
            part = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
            yield base.event({**head, "choices": [part]})
        yield base.event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
        if request.stream_usage:
            yield base.event({**head, "choices": [], "usage": answer.get("usage")})
        yield f"data: {base.DONE}\n\n"

    def error(self, status: int, message: str, param: str | None = None) -> dict[str, Any]:
        return openai_error(status, message, param)

    def broken(self, status: int, message: str) -> str:
        return base.event(self.error(status, message))

    def collector(self, *, usage: bool) -> ChatCollector:
        return ChatCollector(usage=usage)

    def response(self, answer: Mapping[str, Any]) -> ModelResponse:
        if answer.get("error"):
            raise BrokenOff(answer)
        choices = [choice for choice, _ in base.objects(answer.get("choices"), "choices")]
        reason = choices[0].get("finish_reason") if choices else None
        if not isinstance(reason, str):
            raise BrokenOff
        parts = list(_parts(base.mapping(choices[0].get("message"), "message")))
        called = any(isinstance(part, ToolCallPart) for part in parts)
        usage = _usage(base.mapping(answer.get("usage") or {}, "usage"))
        finish = _FINISH.get(reason, "tool_call" if called else "stop")
        return base.whole_response(answer, parts, API, "openai", usage, finish)

    def system(self, body: Mapping[str, Any]) -> str:
        said = base.objects(body.get("messages"), "messages")
        return "\n".join(
            base.shown(m.get("content"), f"{place}.content") for m, place in said if m.get("role") in SYSTEM_ROLES
        )

    def trimmed(self, body: Mapping[str, Any], trim: Trim) -> dict[str, Any]:
        said = [message for message, _ in base.objects(body.get("messages"), "messages")]
        own: list[dict[str, Any]] = [{"role": "system", "content": trim.prompt}] if trim.prompt else []
        messages = own + [message for message in said if message.get("role") not in SYSTEM_ROLES]
        tools = [
            {**tool, "function": trim.defined(function, "parameters")}
            for tool, place in base.objects(body.get("tools"), "tools")
            if base.tool_name(function := base.mapping(tool.get("function") or {}, f"{place}.function")) in trim.tools
        ]
        without = {*base.NOT_PASSED, *(() if tools else ("tools", "tool_choice", "parallel_tool_calls"))}
        trimmed = {**body, "messages": messages, "tools": tools}
        return {name: value for name, value in trimmed.items() if name not in without}

    def sent(self, body: Mapping[str, Any], model: str, max_tokens: int | None) -> dict[str, Any]:
        sent = {**body, "model": model}
        if max_tokens is not None:
            limit = "max_tokens" if "max_tokens" in body else "max_completion_tokens"
            sent[limit] = min(max_tokens, body.get(limit) or max_tokens)
        if body.get("stream"):  # the tokens have to be known, whether or not whoever asks wants to know them
            sent["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
        return sent


def openai_error(status: int, message: str, param: str | None) -> dict[str, Any]:
    """A failure as both of OpenAI's APIs tell it."""
    kind = _ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    code = "invalid_api_key" if status == 401 else "rate_limit_exceeded" if status == 429 else None
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _read_message(conversation: Conversation, message: Mapping[str, Any], place: str) -> None:
    role = base.text(message.get("role"), f"{place}.role")
    said = message.get("content")
    if role == "user":
        conversation.user(base.content(said, f"{place}.content", _file))
        return
    words = base.shown(said, f"{place}.content")
    if role in SYSTEM_ROLES:
        conversation.system(words)
    elif role == "tool":
        call_id = base.text(message.get("tool_call_id"), f"{place}.tool_call_id")
        conversation.result(call_id, words, f"{place}.tool_call_id")
    elif role == "assistant":
        conversation.said(words)
        for call, call_place in base.objects(message.get("tool_calls"), f"{place}.tool_calls"):
            function = base.mapping(call.get("function"), f"{call_place}.function")
            conversation.called(
                base.text(call.get("id"), f"{call_place}.id"),
                base.text(function.get("name"), f"{call_place}.function.name"),
                base.text(function.get("arguments"), f"{call_place}.function.arguments"),
                f"{call_place}.id",
            )
        conversation.end_turn()
    else:
        expected = "system, developer, user, assistant or tool"
        raise Malformed(f"{place}.role: expected {expected}", f"{place}.role")


def _file(block: Mapping[str, Any], place: str) -> BinaryContent | None:
    """The image or the file in a block, where it comes with the request."""
    match block.get("type"):
        case "image_url":
            return base.data_url(
                base.mapping(block.get("image_url"), f"{place}.image_url").get("url"), f"{place}.image_url.url"
            )
        case "file":
            inner = base.mapping(block.get("file"), f"{place}.file")
            return base.data_url(inner["file_data"], f"{place}.file.file_data") if "file_data" in inner else None
        case _:
            return None


def _renamed(answer: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """An answer as it was, its calls named as they are shown now."""
    choice = answer["choices"][0]
    calls = [
        {**call, "function": {**call["function"], "name": names.get(call.get("id"), call["function"].get("name"))}}
        for call in choice["message"].get("tool_calls") or ()
    ]
    message = {**choice["message"], **({"tool_calls": calls} if calls else {})}
    return {**answer, "choices": [{**choice, "message": message}]}
