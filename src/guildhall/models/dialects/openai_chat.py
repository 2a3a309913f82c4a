"""OpenAI's Chat Completions API: `/v1/chat/completions`, which most other providers speak too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guildhall.models.dialects.model import (
    Conversation,
    Malformed,
    WireRequest,
    calls_of,
    content,
    data_url,
    event,
    flag,
    mapping,
    objects,
    parameters,
    settings,
    shown,
    text,
    text_of,
    tool_definition,
)
from guildhall.models.script import pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic_ai.messages import BinaryContent, ModelResponse, ToolCallPart
    from pydantic_ai.tools import ToolDefinition
    from pydantic_ai.usage import RequestUsage

_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_FINISH_REASONS = {"tool_call": "tool_calls", "length": "length", "content_filter": "content_filter"}


class OpenAIChat:
    """OpenAI's Chat Completions API."""

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
        calls = calls_of(response)
        message: dict[str, Any] = {"role": "assistant", "content": text_of(response) or None, "refusal": None}
        if calls:
            message["tool_calls"] = [_call(call) for call in calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(response)}
        head = _head(request, response, answer_id, "chat.completion")
        return {**head, "choices": [choice], "usage": _usage(response.usage)}

    def stream(self, request: WireRequest, response: ModelResponse, answer_id: str) -> Iterator[str]:
        head = _head(request, response, answer_id, "chat.completion.chunk")
        for delta in _deltas(response):
            yield event({**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]})
        yield event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish_reason(response)}]})
        if request.stream_usage:
            yield event({**head, "choices": [], "usage": _usage(response.usage)})
        yield "data: [DONE]\n\n"

    def error(self, status: int, message: str, param: str | None = None) -> dict[str, Any]:
        return openai_error(status, message, param)


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


def _head(request: WireRequest, response: ModelResponse, answer_id: str, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answer_id}",
        "object": kind,
        "created": int(response.timestamp.timestamp()),
        "model": request.model,
    }


def _call(call: ToolCallPart) -> dict[str, Any]:
    function = {"name": call.tool_name, "arguments": call.args_as_json_str()}
    return {"id": call.tool_call_id, "type": "function", "function": function}


def _deltas(response: ModelResponse) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for piece in pieces(text_of(response)):
        yield {"content": piece}
    for index, call in enumerate(calls_of(response)):
        opened = _call(call)
        arguments = opened["function"]["arguments"]
        yield {"tool_calls": [{"index": index, **opened, "function": {**opened["function"], "arguments": ""}}]}
        for piece in pieces(arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _finish_reason(response: ModelResponse) -> str:
    return _FINISH_REASONS.get(response.finish_reason or "", "stop")


def _usage(usage: RequestUsage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.output_reasoning_tokens},
    }
