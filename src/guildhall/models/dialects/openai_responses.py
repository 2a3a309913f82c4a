"""Dialect of OpenAI's Responses API: reads and writes `/v1/responses` and its event stream.

OpenAI's own clients and Codex use this format. It also removes the context that Codex adds to requests by itself.
Does not store responses: each request contains the whole conversation.
Does not send requests: `models.passthrough.request` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic_ai.messages import BinaryContent, ModelResponse, ModelResponsePart, TextPart, ThinkingPart, ToolCallPart

from guildhall.models.dialects import base
from guildhall.models.dialects.base import CollectedEvent, Conversation, IncompleteAnswer, InvalidMessage, WireRequest
from guildhall.models.dialects.openai_chat import SYSTEM_ROLES, openai_error, openai_usage
from guildhall.models.model import split_text

if TYPE_CHECKING:
    from pydantic_ai.tools import ToolDefinition


API = "openai-responses"
CALL_FIELDS = {"function_call": "arguments", "custom_tool_call": "input"}
_FINAL_EVENTS = ("response.completed", "response.incomplete")
_FORWARD, _HOLD = CollectedEvent(), CollectedEvent(action="hold")
_INITIAL_FIELDS: Mapping[str, Mapping[str, Any]] = {"message": {"content": []}, "function_call": {"arguments": ""}}
_RESULT_TYPES = {"function_call_output", "custom_tool_call_output"}
# Text that Codex adds to user messages and before tool results.
_CONTEXT = re.compile(r"(?s)<(environment_context|user_instructions|permissions instructions|skills_instructions)>.*")
_WALL_TIME = re.compile(r"Wall time: [0-9.]+ seconds\n(?:Output:\n?)?")


class ResponsesCollector:
    """Builds a response from its events. The last event has the whole response; some servers omit the items in it."""

    def __init__(self) -> None:
        self._response: dict[str, Any] = {}
        self._items: dict[int, dict[str, Any]] = {}
        self._is_holding = False

    def add(self, data: Mapping[str, Any] | str) -> CollectedEvent:
        if isinstance(data, str):
            return _HOLD
        kind = data.get("type")
        if kind == "response.output_text.delta":
            return CollectedEvent(base.text(data, "delta"), "hold" if self._is_holding else "forward")
        if kind in ("error", "response.failed") or (kind is None and data.get("error")):
            raise IncompleteAnswer(base.optional_mapping(data, "response") or data)
        if kind in ("response.created", "response.in_progress", "response.queued", *_FINAL_EVENTS):
            self._response = dict(base.mapping(data, "response"))
            self._is_holding = self._is_holding or kind in _FINAL_EVENTS
        elif kind == "response.output_item.done":
            self._add_item(data)
        elif kind in ("response.function_call_arguments.done", "response.custom_tool_call_input.done"):
            self._is_holding = True
        return _HOLD if self._is_holding else _FORWARD

    def answer(self) -> dict[str, Any]:
        items = self._response.get("output") or [item for _, item in sorted(self._items.items())]
        return {**self._response, "output": items} if self._response else {}

    def _add_item(self, data: Mapping[str, Any]) -> None:
        index = data.get("output_index", len(self._items))
        if not isinstance(index, int):
            raise InvalidMessage("output_index: expected a number")
        item = dict(base.mapping(data, "item"))
        self._items[index] = item
        self._is_holding = self._is_holding or item.get("type") in CALL_FIELDS


def _response_parts(item: Mapping[str, Any], place: str) -> Iterator[ModelResponsePart]:
    kind = str(item.get("type"))
    if kind == "message":
        for block, inner in base.objects(item, "content", place):
            if text := base.text(block, "text" if "text" in block else "refusal", inner, default=""):
                yield TextPart(text)
    elif kind in CALL_FIELDS:
        id = base.text(item, "call_id", place)
        yield ToolCallPart(_tool_name(item, place), base.text(item, CALL_FIELDS[kind], place, default="{}"), id)
    elif kind == "reasoning":
        summary = [str(block.get("text") or "") for block, _ in base.objects(item, "summary", place)]
        sealed = item.get("encrypted_content")
        yield ThinkingPart(
            "\n".join(summary),
            id=str(item.get("id") or ""),
            signature=sealed if isinstance(sealed, str) else None,
            provider_name="openai",
        )


def _tool_name(item: Mapping[str, Any], place: str) -> str:
    name = base.text(item, "name", place)
    return name if item.get("namespace") is None else qualified_name(base.text(item, "namespace", place), name)


def qualified_name(space: str, name: str) -> str:
    return f"{space.removesuffix('__')}__{name}"


def _answer_events(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    head: dict[str, Any] = {**answer, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    yield {"type": "response.created", "response": head}
    yield {"type": "response.in_progress", "response": head}
    for index, item in enumerate(answer["output"]):
        place = {"item_id": item.get("id"), "output_index": index}
        kind = item.get("type")
        opened = {**item, "status": "in_progress", **_INITIAL_FIELDS[kind]} if kind in _INITIAL_FIELDS else item
        yield {"type": "response.output_item.added", "output_index": index, "item": opened}
        if kind == "message":
            yield from _message_events(item, place)
        elif kind == "function_call":
            for chunk in split_text(item["arguments"]):
                yield {"type": "response.function_call_arguments.delta", **place, "delta": chunk}
            done = {**place, "name": item["name"], "arguments": item["arguments"]}
            yield {"type": "response.function_call_arguments.done", **done}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{answer['status']}", "response": dict(answer)}


def _message_events(item: Mapping[str, Any], place: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for index, whole in enumerate(item["content"]):
        part = {**place, "content_index": index}
        if whole.get("type") == "output_text":
            yield {"type": "response.content_part.added", **part, "part": {**whole, "text": ""}}
            for chunk in split_text(whole["text"]):
                yield {"type": "response.output_text.delta", **part, "delta": chunk, "logprobs": []}
            yield {"type": "response.output_text.done", **part, "text": whole["text"], "logprobs": []}
        else:
            yield {"type": "response.content_part.added", **part, "part": whole}
        yield {"type": "response.content_part.done", **part, "part": whole}


class OpenAIResponses:
    api: ClassVar[str] = API
    path: ClassVar[str] = "/responses"

    def parse_request(self, body: Mapping[str, Any]) -> WireRequest:
        for stored in ("previous_response_id", "conversation"):
            if body.get(stored) is not None:
                raise InvalidMessage(f"{stored}: not supported; send the whole conversation as `input`", stored)
        conversation = Conversation()
        if instructions := base.text_content(body, "instructions"):
            conversation.add_system(instructions)
        if isinstance(text := body.get("input"), str):
            body = {**body, "input": [{"role": "user", "content": text}]}
        for item, place in base.objects(body, "input"):
            _read_item(conversation, item, place)
        tools, namespaces = _read_tools(body)
        return WireRequest(
            model=base.text(body, "model"),
            messages=conversation.finish(),
            settings=base.request_settings(body, "max_output_tokens"),
            parameters=base.request_parameters(tools),
            stream=base.flag(body, "stream"),
            namespaces=namespaces,
        )

    def build_answer(self, request: WireRequest, response: ModelResponse, answer_id: str) -> dict[str, Any]:
        if (answer := base.recorded_answer(response, API)) is not None:
            names = base.call_names(response)
            return {**answer, "output": [_rename_call(item, names, request) for item in answer["output"]]}
        cut, usage = response.finish_reason == "length", response.usage
        return {
            "id": f"resp_{answer_id}",
            "object": "response",
            "created_at": int(response.timestamp.timestamp()),
            "status": "incomplete" if cut else "completed",
            "model": request.model,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": None,
            "metadata": {},
            "output": list(_response_items(request, response, answer_id)),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "temperature": None,
            "top_p": None,
            "usage": {
                "input_tokens": usage.input_tokens,
                "input_tokens_details": {
                    "cached_tokens": usage.cache_read_tokens,
                    "cache_write_tokens": usage.cache_write_tokens,
                },
                "output_tokens": usage.output_tokens,
                "output_tokens_details": {"reasoning_tokens": usage.output_reasoning_tokens},
                "total_tokens": usage.input_tokens + usage.output_tokens,
            },
        }

    def stream_answer(self, request: WireRequest, response: ModelResponse, answer_id: str) -> Iterator[str]:
        for number, data in enumerate(_answer_events(self.build_answer(request, response, answer_id))):
            yield base.encode_event({**data, "sequence_number": number}, data["type"])

    def error_body(self, status: int, message: str, param: str | None = None) -> dict[str, Any]:
        return openai_error(status, message, param)

    def error_event(self, status: int, message: str) -> str:
        return base.encode_event({"type": "error", **self.error_body(status, message)["error"]}, "error")

    def create_collector(self, *, wants_usage: bool) -> ResponsesCollector:
        return ResponsesCollector()

    def parse_answer(self, answer: Mapping[str, Any]) -> ModelResponse:
        status = answer.get("status")
        if answer.get("error") or status == "failed":
            raise IncompleteAnswer(answer)
        if status not in ("completed", "incomplete"):
            raise IncompleteAnswer
        items = base.objects(answer, "output")
        parts = [part for item, place in items for part in _response_parts(item, place)]
        why = base.optional_mapping(answer, "incomplete_details").get("reason")
        called = any(isinstance(part, ToolCallPart) for part in parts)
        cut = "content_filter" if why == "content_filter" else "length"
        usage = openai_usage(base.optional_mapping(answer, "usage"), "input_tokens", "output_tokens")
        finish = cut if status == "incomplete" else "tool_call" if called else "stop"
        return base.build_response(answer, parts, API, "openai", usage, finish)

    def system_prompt(self, body: Mapping[str, Any]) -> str:
        items = base.objects(body, "input") if isinstance(body.get("input"), list) else ()
        prompts = [base.text_content(i, "content", place) for i, place in items if i.get("role") in SYSTEM_ROLES]
        return "\n".join([base.text_content(body, "instructions"), *prompts])

    def trim(self, body: Mapping[str, Any], rules: base.TrimRules) -> dict[str, Any]:
        tools = [left for tool, place in base.objects(body, "tools") if (left := _trim_tool(tool, place, rules))]
        trimmed = {**body, "instructions": rules.prompt, "tools": tools}
        if isinstance(body.get("input"), list):
            trimmed["input"] = _remove_context([item for item, _ in base.objects(body, "input")])
        without = {*base.FORBIDDEN_FIELDS, *(() if tools else ("tools", "tool_choice", "parallel_tool_calls"))}
        without |= set() if rules.prompt else {"instructions"}
        without |= {"client_metadata"}  # identifies the program's session
        without |= {"reasoning"} if body.get("reasoning") == {} else set()
        return {name: value for name, value in trimmed.items() if name not in without}

    def upstream_body(self, body: Mapping[str, Any], model: str, max_tokens: int | None) -> dict[str, Any]:
        sent = {**body, "model": model}
        if max_tokens is not None:
            sent["max_output_tokens"] = min(max_tokens, body.get("max_output_tokens") or max_tokens)
        return sent


def _trim_tool(tool: Mapping[str, Any], place: str, rules: base.TrimRules) -> dict[str, Any] | None:
    """Return a tool or a namespace with only the run's tools, or None if it has none of them."""
    if tool.get("type") == "function":
        return rules.define_tool(tool, "parameters") if base.tool_name(tool) in rules.tools else None
    if tool.get("type") != "namespace":
        return None
    space = base.text(tool, "name", place)
    inner = [
        rules.define_tool(one, "parameters", name)
        for one, _ in base.objects(tool, "tools", place)
        if (name := qualified_name(space, base.tool_name(one))) in rules.tools
    ]
    return {**tool, "tools": inner} if inner else None


def _remove_context(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items without the context that Codex adds. The last user message is never context."""
    last = max((index for index, item in enumerate(items) if item.get("role") == "user"), default=-1)
    left: list[dict[str, Any]] = []
    for index, item in enumerate(items):
        is_earlier = item.get("role") == "user" and index < last
        is_context = is_earlier and _CONTEXT.fullmatch(base.text_content(item, "content").strip())
        if item.get("role") in SYSTEM_ROLES or is_context:
            continue
        left.append(_remove_wall_time(item) if str(item.get("type")) in _RESULT_TYPES else item)
    return left


def _remove_wall_time(item: dict[str, Any]) -> dict[str, Any]:
    """Return a result without the line with its duration, which differs each time."""
    if isinstance(output := item.get("output"), str):
        return {**item, "output": _WALL_TIME.sub("", output, count=1)}
    blocks = [dict(block) for block, _ in base.objects(item, "output")]
    if blocks and isinstance(text := blocks[0].get("text"), str) and _WALL_TIME.match(text):
        blocks[0]["text"] = _WALL_TIME.sub("", text, count=1)
        blocks = blocks if blocks[0]["text"] else blocks[1:]
    return {**item, "output": blocks}


def _rename_call(item: dict[str, Any], names: Mapping[str, str], request: WireRequest) -> dict[str, Any]:
    """Return a call with the given name of its tool. Other items stay unchanged."""
    if item.get("type") not in CALL_FIELDS or (name := names.get(str(item.get("call_id")))) is None:
        return item
    space, short = request.namespaces.get(name, (None, name))
    bare = {field: value for field, value in item.items() if field != "namespace"}
    return {**bare, "name": short, **({} if space is None else {"namespace": space})}


def _read_item(conversation: Conversation, item: Mapping[str, Any], place: str) -> None:
    kind = base.text({"type": "message", **item}, "type", place)
    if kind == "message":
        _read_message(conversation, item, place)
    elif kind in CALL_FIELDS:
        conversation.add_call(
            base.text(item, "call_id", place),
            _tool_name(item, place),
            base.text(item, CALL_FIELDS[kind], place),
            f"{place}.call_id",
        )
    elif kind in _RESULT_TYPES:
        call_id = base.text(item, "call_id", place)
        conversation.add_result(call_id, base.text_content(item, "output", place), f"{place}.call_id")


def _read_message(conversation: Conversation, item: Mapping[str, Any], place: str) -> None:
    role = base.text(item, "role", place)
    if role in SYSTEM_ROLES:
        conversation.add_system(base.text_content(item, "content", place))
    elif role == "user":
        conversation.add_user(base.user_content(item, place, _decode_file))
    elif role == "assistant":
        conversation.add_text(base.text_content(item, "content", place))
        conversation.end_turn()
    else:
        raise InvalidMessage(f"{place}.role: expected system, developer, user or assistant", f"{place}.role")


def _decode_file(block: Mapping[str, Any], place: str) -> BinaryContent | None:
    """Return the image or file of a block, or None if the block does not contain its data."""
    field = {"input_image": "image_url", "input_file": "file_data"}.get(str(block.get("type")), "")
    return base.decode_data_url(block, field, place) if field in block else None


def _read_tools(body: Mapping[str, Any]) -> tuple[list[ToolDefinition], dict[str, tuple[str, str]]]:
    """Return the function tools, and the namespace and short name of each tool in a namespace."""
    tools: list[ToolDefinition] = []
    namespaces: dict[str, tuple[str, str]] = {}
    for tool, place in base.objects(body, "tools"):
        kind = base.text(tool, "type", place)
        if kind == "function":
            tools.append(base.tool_definition(tool, "parameters", place))
        elif kind == "namespace":
            space = base.text(tool, "name", place)
            for inner, inner_place in base.objects(tool, "tools", place):
                definition = base.tool_definition(inner, "parameters", inner_place, qualified_name(space, ""))
                tools.append(definition)
                namespaces[definition.name] = (space, base.text(inner, "name", inner_place))
    return tools, namespaces


def _response_items(request: WireRequest, response: ModelResponse, answer_id: str) -> Iterator[dict[str, Any]]:
    for index, part in enumerate(response.parts):
        if isinstance(part, TextPart) and part.content:
            block: dict[str, Any] = {"type": "output_text", "text": part.content, "annotations": [], "logprobs": []}
            head = {"id": f"msg_{answer_id}_{index}", "type": "message", "role": "assistant"}
            yield {**head, "status": "completed", "content": [block]}
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
