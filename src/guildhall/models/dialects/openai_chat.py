"""OpenAI's Chat Completions API: `/v1/chat/completions`, which most other providers speak too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from guildhall.models.dialects.model import (
    NOT_PASSED,
    Conversation,
    Trim,
    WireRequest,
    calls_of,
    event,
    kept,
    names_of,
    parameters,
    settings,
    text_of,
    tool_definition,
    tool_name,
)
from guildhall.models.dialects.openai_chat_answers import API, ChatCollector, events_of, response_of
from guildhall.models.dialects.reading import Malformed, content, data_url, flag, mapping, objects, shown, text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic_ai.messages import BinaryContent, ModelResponse, ToolCallPart
    from pydantic_ai.tools import ToolDefinition
    from pydantic_ai.usage import RequestUsage

_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_FINISH_REASONS = {"tool_call": "tool_calls", "length": "length", "content_filter": "content_filter"}


_SYSTEM = ("system", "developer")


class OpenAIChat:
    """OpenAI's Chat Completions API."""

    api: ClassVar[str] = API
    path: ClassVar[str] = "/chat/completions"

    def read(self, body: Mapping[str, Any]) -> WireRequest:
        conversation = Conversation()
        for message, place in objects(body.get("messages"), "messages"):
            _read_message(conversation, message, place)
        limit = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
        options = mapping(body.get("stream_options") or {}, "stream_options")
        return WireRequest(
            model=text(body.get("model"), "model"),
            messages=conversation.messages(),
            settings=settings(body, limit),
            parameters=parameters(list(_tools(body))),
            stream=flag(body.get("stream"), "stream"),
            stream_usage=flag(options.get("include_usage"), "stream_options.include_usage"),
        )

    def whole(self, request: WireRequest, response: ModelResponse, answer_id: str) -> dict[str, Any]:
        if (answer := kept(response, API)) is not None:
            return _renamed(answer, names_of(response))
        calls = calls_of(response)
        message: dict[str, Any] = {"role": "assistant", "content": text_of(response) or None, "refusal": None}
        if calls:
            message["tool_calls"] = [_call(call) for call in calls]
        reason = _FINISH_REASONS.get(response.finish_reason or "", "stop")
        return {
            "id": f"chatcmpl-{answer_id}",
            "object": "chat.completion",
            "created": int(response.timestamp.timestamp()),
            "model": request.model,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
            "usage": _usage(response.usage),
        }

    def stream(self, request: WireRequest, response: ModelResponse, answer_id: str) -> Iterator[str]:
        return events_of(self.whole(request, response, answer_id), usage=request.stream_usage)

    def error(self, status: int, message: str, param: str | None = None) -> dict[str, Any]:
        return openai_error(status, message, param)

    def broken(self, status: int, message: str) -> str:
        return event(self.error(status, message))

    def collector(self, *, usage: bool) -> ChatCollector:
        return ChatCollector(usage=usage)

    def response(self, answer: Mapping[str, Any]) -> ModelResponse:
        return response_of(answer)

    def system(self, body: Mapping[str, Any]) -> str:
        said = objects(body.get("messages"), "messages")
        return "\n".join(shown(m.get("content"), f"{place}.content") for m, place in said if m.get("role") in _SYSTEM)

    def trimmed(self, body: Mapping[str, Any], trim: Trim) -> dict[str, Any]:
        said = [message for message, _ in objects(body.get("messages"), "messages")]
        own: list[dict[str, Any]] = [{"role": "system", "content": trim.prompt}] if trim.prompt else []
        messages = own + [message for message in said if message.get("role") not in _SYSTEM]
        offered = [(tool, _function(tool, place)) for tool, place in objects(body.get("tools"), "tools")]
        tools = [
            {**tool, "function": trim.defined(function, "parameters")}
            for tool, function in offered
            if tool_name(function) in trim.tools
        ]
        without = {*NOT_PASSED, *(() if tools else ("tools", "tool_choice", "parallel_tool_calls"))}
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
    role = text(message.get("role"), f"{place}.role")
    said = message.get("content")
    if role == "user":
        conversation.user(content(said, f"{place}.content", _file))
        return
    words = shown(said, f"{place}.content")
    if role in {"system", "developer"}:
        conversation.system(words)
    elif role == "tool":
        call_id = text(message.get("tool_call_id"), f"{place}.tool_call_id")
        conversation.result(call_id, words, f"{place}.tool_call_id")
    elif role == "assistant":
        conversation.said(words)
        for call, call_place in objects(message.get("tool_calls"), f"{place}.tool_calls"):
            function = mapping(call.get("function"), f"{call_place}.function")
            conversation.called(
                text(call.get("id"), f"{call_place}.id"),
                text(function.get("name"), f"{call_place}.function.name"),
                text(function.get("arguments"), f"{call_place}.function.arguments"),
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
            return data_url(mapping(block.get("image_url"), f"{place}.image_url").get("url"), f"{place}.image_url.url")
        case "file":
            inner = mapping(block.get("file"), f"{place}.file")
            return data_url(inner["file_data"], f"{place}.file.file_data") if "file_data" in inner else None
        case _:
            return None


def _tools(body: Mapping[str, Any]) -> Iterator[ToolDefinition]:
    for tool, place in objects(body.get("tools"), "tools"):
        if text(tool.get("type"), f"{place}.type") == "function":
            function = mapping(tool.get("function"), f"{place}.function")
            yield tool_definition(function, "parameters", f"{place}.function")


def _function(tool: Mapping[str, Any], place: str) -> dict[str, Any]:
    return mapping(tool.get("function") or {}, f"{place}.function")


def _renamed(answer: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """An answer as it was, its calls named as they are shown now."""
    choice = answer["choices"][0]
    calls = [
        {**call, "function": {**call["function"], "name": names.get(call.get("id"), call["function"].get("name"))}}
        for call in choice["message"].get("tool_calls") or ()
    ]
    message = {**choice["message"], **({"tool_calls": calls} if calls else {})}
    return {**answer, "choices": [{**choice, "message": message}]}


def _call(call: ToolCallPart) -> dict[str, Any]:
    function = {"name": call.tool_name, "arguments": call.args_as_json_str()}
    return {"id": call.tool_call_id, "type": "function", "function": function}


def _usage(usage: RequestUsage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.output_reasoning_tokens},
    }
