"""OpenAI's Responses API: `/v1/responses`, which OpenAI's own clients and Codex speak."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import TextPart, ToolCallPart

from guildhall.models.dialects.model import (
    Conversation,
    Malformed,
    WireRequest,
    content,
    data_url,
    event,
    flag,
    objects,
    parameters,
    settings,
    shown,
    text,
    tool_definition,
)
from guildhall.models.dialects.openai_chat import openai_error
from guildhall.models.script import pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic_ai.messages import BinaryContent, ModelResponse
    from pydantic_ai.tools import ToolDefinition
    from pydantic_ai.usage import RequestUsage

_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_RESULTS = {"function_call_output", "custom_tool_call_output"}


class OpenAIResponses:
    """OpenAI's Responses API. The whole conversation comes with each request: nothing is stored here."""

    def read(self, body: Mapping[str, Any]) -> WireRequest:
        for stored in ("previous_response_id", "conversation"):
            if body.get(stored) is not None:
                raise Malformed(f"{stored}: nothing is stored here; send the whole conversation as `input`", stored)
        conversation = Conversation()
        if instructions := shown(body.get("instructions"), "instructions"):
            conversation.system(instructions)
        asked = body.get("input")
        if isinstance(asked, str):
            asked = [{"role": "user", "content": asked}]
        for item, place in objects(asked, "input"):
            _read_item(conversation, item, place)
        tools, namespaces = _read_tools(body)
        return WireRequest(
            model=text(body.get("model"), "model"),
            messages=conversation.messages(),
            settings=settings(body, "max_output_tokens"),
            parameters=parameters(tools),
            stream=flag(body.get("stream"), "stream"),
            namespaces=namespaces,
        )

    def whole(self, request: WireRequest, response: ModelResponse, answer_id: str) -> dict[str, Any]:
        cut = response.finish_reason == "length"
        return {
            **_head(request, response, answer_id),
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": list(_items(request, response, answer_id)),
            "usage": _usage(response.usage),
        }

    def stream(self, request: WireRequest, response: ModelResponse, answer_id: str) -> Iterator[str]:
        numbers = count()
        for data in self._events(request, response, answer_id):
            yield event({**data, "sequence_number": next(numbers)}, data["type"])

    def error(self, status: int, message: str, param: str | None = None) -> dict[str, Any]:
        return openai_error(status, message, param)

    def _events(self, request: WireRequest, response: ModelResponse, answer_id: str) -> Iterator[dict[str, Any]]:
        head = _head(request, response, answer_id)
        yield {"type": "response.created", "response": head}
        yield {"type": "response.in_progress", "response": head}
        for index, item in enumerate(_items(request, response, answer_id)):
            place = {"item_id": item["id"], "output_index": index}
            write = _write_message if item["type"] == "message" else _write_call
            yield from write(item, place)
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        whole = self.whole(request, response, answer_id)
        yield {"type": f"response.{whole['status']}", "response": whole}


def _read_item(conversation: Conversation, item: Mapping[str, Any], place: str) -> None:
    kind = text(item.get("type", "message"), f"{place}.type")
    if kind == "message":
        _read_message(conversation, item, place)
    elif kind in _CALLS:
        name = text(item.get("name"), f"{place}.name")
        space = item.get("namespace")
        conversation.called(
            text(item.get("call_id"), f"{place}.call_id"),
            name if space is None else _joined(text(space, f"{place}.namespace"), name),
            text(item.get(_CALLS[kind]), f"{place}.{_CALLS[kind]}"),
            f"{place}.call_id",
        )
    elif kind in _RESULTS:
        call_id = text(item.get("call_id"), f"{place}.call_id")
        conversation.result(call_id, shown(item.get("output"), f"{place}.output"), f"{place}.call_id")


def _read_message(conversation: Conversation, item: Mapping[str, Any], place: str) -> None:
    role = text(item.get("role"), f"{place}.role")
    said = item.get("content")
    if role in {"system", "developer"}:
        conversation.system(shown(said, f"{place}.content"))
    elif role == "user":
        conversation.user(content(said, f"{place}.content", _file))
    elif role == "assistant":
        conversation.said(shown(said, f"{place}.content"))
        conversation.end_turn()
    else:
        raise Malformed(f"{place}.role: expected system, developer, user or assistant", f"{place}.role")


def _file(block: Mapping[str, Any], place: str) -> BinaryContent | None:
    """The image or the file in a block, where it comes with the request."""
    field = {"input_image": "image_url", "input_file": "file_data"}.get(str(block.get("type")), "")
    return data_url(block[field], f"{place}.{field}") if field in block else None


def _read_tools(body: Mapping[str, Any]) -> tuple[list[ToolDefinition], dict[str, tuple[str, str]]]:
    """The tools that are functions, and for those in a namespace how the client wants them named in a call."""
    tools: list[ToolDefinition] = []
    namespaces: dict[str, tuple[str, str]] = {}
    for tool, place in objects(body.get("tools"), "tools"):
        kind = text(tool.get("type"), f"{place}.type")
        if kind == "function":
            tools.append(tool_definition(tool, "parameters", place))
        elif kind == "namespace":
            space = text(tool.get("name"), f"{place}.name")
            for inner, inner_place in objects(tool.get("tools"), f"{place}.tools"):
                definition = tool_definition(inner, "parameters", inner_place, _joined(space, ""))
                tools.append(definition)
                namespaces[definition.name] = (space, text(inner.get("name"), f"{inner_place}.name"))
    return tools, namespaces


def _joined(space: str, name: str) -> str:
    return f"{space.removesuffix('__')}__{name}"


def _head(request: WireRequest, response: ModelResponse, answer_id: str) -> dict[str, Any]:
    return {
        "id": f"resp_{answer_id}",
        "object": "response",
        "created_at": int(response.timestamp.timestamp()),
        "status": "in_progress",
        "model": request.model,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "temperature": None,
        "top_p": None,
        "usage": None,
    }


def _items(request: WireRequest, response: ModelResponse, answer_id: str) -> Iterator[dict[str, Any]]:
    for index, part in enumerate(response.parts):
        if isinstance(part, TextPart) and part.content:
            content: list[dict[str, Any]] = [
                {"type": "output_text", "text": part.content, "annotations": [], "logprobs": []}
            ]
            yield {
                "id": f"msg_{answer_id}_{index}",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": content,
            }
        elif isinstance(part, ToolCallPart):
            space, name = request.namespaces.get(part.tool_name, (None, part.tool_name))
            yield {
                "id": f"fc_{answer_id}_{index}",
                "type": "function_call",
                "call_id": part.tool_call_id,
                "name": name,
                "arguments": part.args_as_json_str(),
                "status": "completed",
                **({} if space is None else {"namespace": space}),
            }


def _write_message(item: Mapping[str, Any], place: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    whole = item["content"][0]
    part = {**place, "content_index": 0}
    opened: dict[str, Any] = {**item, "status": "in_progress", "content": []}
    yield {"type": "response.output_item.added", "output_index": place["output_index"], "item": opened}
    yield {"type": "response.content_part.added", **part, "part": {**whole, "text": ""}}
    for piece in pieces(whole["text"]):
        yield {"type": "response.output_text.delta", **part, "delta": piece, "logprobs": []}
    yield {"type": "response.output_text.done", **part, "text": whole["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **part, "part": whole}


def _write_call(item: Mapping[str, Any], place: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    opened = {**item, "status": "in_progress", "arguments": ""}
    yield {"type": "response.output_item.added", "output_index": place["output_index"], "item": opened}
    for piece in pieces(item["arguments"]):
        yield {"type": "response.function_call_arguments.delta", **place, "delta": piece}
    done = {**place, "name": item["name"], "arguments": item["arguments"]}
    yield {"type": "response.function_call_arguments.done", **done}


def _usage(usage: RequestUsage) -> dict[str, Any]:
    cached = {"cached_tokens": usage.cache_read_tokens, "cache_write_tokens": usage.cache_write_tokens}
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": cached,
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.output_reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
