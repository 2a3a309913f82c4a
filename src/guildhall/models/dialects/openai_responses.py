"""Dialect of OpenAI's Responses API: parses and builds the requests, responses and events of `/v1/responses`.

OpenAI's own clients and Codex use this format. This module also removes the context that Codex adds to requests.
Does not store responses: each request contains the whole conversation.
Does not send requests: `models.passthrough.relay` does.
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
_ARGUMENTS_FIELDS = {"function_call": "arguments", "custom_tool_call": "input"}  # by type of the call item
_FINAL_EVENTS = ("response.completed", "response.incomplete")
_FORWARD, _HOLD = CollectedEvent(), CollectedEvent(action="hold")
_INITIAL_FIELDS: Mapping[str, Mapping[str, Any]] = {"message": {"content": []}, "function_call": {"arguments": ""}}
_RESULT_TYPES = {"function_call_output", "custom_tool_call_output"}
# Text that Codex adds to user messages and before tool results.
_CONTEXT = re.compile(r"(?s)<(environment_context|user_instructions|permissions instructions|skills_instructions)>.*")
_WALL_TIME = re.compile(r"Wall time: [0-9.]+ seconds\n(?:Output:\n?)?")


class ResponsesCollector:
    """Builds a response from its events. The last event has the whole response, but some servers omit its items."""

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
            raise InvalidMessage("output_index: expected an integer")
        item = dict(base.mapping(data, "item"))
        self._items[index] = item
        self._is_holding = self._is_holding or item.get("type") in _ARGUMENTS_FIELDS


def _response_parts(item: Mapping[str, Any], path: str) -> Iterator[ModelResponsePart]:
    kind = str(item.get("type"))
    if kind == "message":
        for block, block_path in base.objects(item, "content", path):
            if text := base.text(block, "text" if "text" in block else "refusal", block_path, default=""):
                yield TextPart(text)
    elif kind in _ARGUMENTS_FIELDS:
        id = base.text(item, "call_id", path)
        yield ToolCallPart(_tool_name(item, path), base.text(item, _ARGUMENTS_FIELDS[kind], path, default="{}"), id)
    elif kind == "reasoning":
        summary = [str(block.get("text") or "") for block, _ in base.objects(item, "summary", path)]
        encrypted = item.get("encrypted_content")
        yield ThinkingPart(
            "\n".join(summary),
            id=str(item.get("id") or ""),
            signature=encrypted if isinstance(encrypted, str) else None,
            provider_name="openai",
        )


def _tool_name(item: Mapping[str, Any], path: str) -> str:
    name = base.text(item, "name", path)
    return name if item.get("namespace") is None else qualified_name(base.text(item, "namespace", path), name)


def qualified_name(namespace: str, name: str) -> str:
    return f"{namespace.removesuffix('__')}__{name}"


def _answer_events(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    initial_fields: dict[str, Any] = {"status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    initial_response = {**answer, **initial_fields}
    yield {"type": "response.created", "response": initial_response}
    yield {"type": "response.in_progress", "response": initial_response}
    for index, item in enumerate(answer["output"]):
        position = {"item_id": item.get("id"), "output_index": index}
        kind = item.get("type")
        initial_item = {**item, "status": "in_progress", **_INITIAL_FIELDS[kind]} if kind in _INITIAL_FIELDS else item
        yield {"type": "response.output_item.added", "output_index": index, "item": initial_item}
        if kind == "message":
            yield from _message_events(item, position)
        elif kind == "function_call":
            for chunk in split_text(item["arguments"]):
                yield {"type": "response.function_call_arguments.delta", **position, "delta": chunk}
            done = {**position, "name": item["name"], "arguments": item["arguments"]}
            yield {"type": "response.function_call_arguments.done", **done}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{answer['status']}", "response": dict(answer)}


def _message_events(item: Mapping[str, Any], item_position: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for index, block in enumerate(item["content"]):
        position = {**item_position, "content_index": index}
        if block.get("type") == "output_text":
            yield {"type": "response.content_part.added", **position, "part": {**block, "text": ""}}
            for chunk in split_text(block["text"]):
                yield {"type": "response.output_text.delta", **position, "delta": chunk, "logprobs": []}
            yield {"type": "response.output_text.done", **position, "text": block["text"], "logprobs": []}
        else:
            yield {"type": "response.content_part.added", **position, "part": block}
        yield {"type": "response.content_part.done", **position, "part": block}


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
        for item, path in base.objects(body, "input"):
            _append_item(conversation, item, path)
        tools, namespaces = _parse_tools(body)
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
        is_truncated, usage = response.finish_reason == "length", response.usage
        return {
            "id": f"resp_{answer_id}",
            "object": "response",
            "created_at": int(response.timestamp.timestamp()),
            "status": "incomplete" if is_truncated else "completed",
            "model": request.model,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_truncated else None,
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
        parts = [part for item, path in items for part in _response_parts(item, path)]
        incomplete_reason = base.optional_mapping(answer, "incomplete_details").get("reason")
        incomplete_finish = "content_filter" if incomplete_reason == "content_filter" else "length"
        has_tool_calls = any(isinstance(part, ToolCallPart) for part in parts)
        usage = openai_usage(base.optional_mapping(answer, "usage"), "input_tokens", "output_tokens")
        finish = incomplete_finish if status == "incomplete" else "tool_call" if has_tool_calls else "stop"
        return base.build_response(answer, parts, API, "openai", usage, finish)

    def system_prompt(self, body: Mapping[str, Any]) -> str:
        items = base.objects(body, "input") if isinstance(body.get("input"), list) else ()
        prompts = [base.text_content(item, "content", path) for item, path in items if item.get("role") in SYSTEM_ROLES]
        return "\n".join([base.text_content(body, "instructions"), *prompts])

    def trim(self, body: Mapping[str, Any], rules: base.TrimRules) -> dict[str, Any]:
        tools = [kept for tool, path in base.objects(body, "tools") if (kept := _trim_tool(tool, path, rules))]
        trimmed = {**body, "instructions": rules.prompt, "tools": tools}
        if isinstance(body.get("input"), list):
            trimmed["input"] = _remove_context([item for item, _ in base.objects(body, "input")])
        removed_fields = {*base.FORBIDDEN_FIELDS, *(() if tools else ("tools", "tool_choice", "parallel_tool_calls"))}
        removed_fields |= set() if rules.prompt else {"instructions"}
        removed_fields |= {"client_metadata"}  # identifies the program's session
        removed_fields |= {"reasoning"} if body.get("reasoning") == {} else set()
        return {name: value for name, value in trimmed.items() if name not in removed_fields}

    def upstream_body(self, body: Mapping[str, Any], model: str, max_tokens: int | None) -> dict[str, Any]:
        sent = {**body, "model": model}
        if max_tokens is not None:
            sent["max_output_tokens"] = min(max_tokens, body.get("max_output_tokens") or max_tokens)
        return sent


def _trim_tool(tool: Mapping[str, Any], path: str, rules: base.TrimRules) -> dict[str, Any] | None:
    """Return a tool of the run, or a namespace with only its tools of the run. Return None if no tool remains."""
    if tool.get("type") == "function":
        return rules.define_tool(tool, "parameters") if base.tool_name(tool) in rules.tools else None
    if tool.get("type") != "namespace":
        return None
    namespace = base.text(tool, "name", path)
    inner_tools = [
        rules.define_tool(inner, "parameters", name)
        for inner, _ in base.objects(tool, "tools", path)
        if (name := qualified_name(namespace, base.tool_name(inner))) in rules.tools
    ]
    return {**tool, "tools": inner_tools} if inner_tools else None


def _remove_context(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items without the context that Codex adds. The last user message is never context."""
    last = max((index for index, item in enumerate(items) if item.get("role") == "user"), default=-1)
    kept: list[dict[str, Any]] = []
    for index, item in enumerate(items):
        is_earlier = item.get("role") == "user" and index < last
        is_context = is_earlier and _CONTEXT.fullmatch(base.text_content(item, "content").strip())
        if item.get("role") in SYSTEM_ROLES or is_context:
            continue
        kept.append(_remove_wall_time(item) if str(item.get("type")) in _RESULT_TYPES else item)
    return kept


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
    """Return a call item with the tool name from `names`, by its call id. Return other items unchanged."""
    if item.get("type") not in _ARGUMENTS_FIELDS or (name := names.get(str(item.get("call_id")))) is None:
        return item
    namespace, short_name = request.namespaces.get(name, (None, name))
    others = {field: value for field, value in item.items() if field != "namespace"}
    return {**others, "name": short_name, **({} if namespace is None else {"namespace": namespace})}


def _append_item(conversation: Conversation, item: Mapping[str, Any], path: str) -> None:
    kind = base.text({"type": "message", **item}, "type", path)
    if kind == "message":
        _append_message(conversation, item, path)
    elif kind in _ARGUMENTS_FIELDS:
        conversation.add_call(
            base.text(item, "call_id", path),
            _tool_name(item, path),
            base.text(item, _ARGUMENTS_FIELDS[kind], path),
            f"{path}.call_id",
        )
    elif kind in _RESULT_TYPES:
        call_id = base.text(item, "call_id", path)
        conversation.add_result(call_id, base.text_content(item, "output", path), f"{path}.call_id")


def _append_message(conversation: Conversation, item: Mapping[str, Any], path: str) -> None:
    role = base.text(item, "role", path)
    if role in SYSTEM_ROLES:
        conversation.add_system(base.text_content(item, "content", path))
    elif role == "user":
        conversation.add_user(base.user_content(item, path, _decode_file))
    elif role == "assistant":
        conversation.add_text(base.text_content(item, "content", path))
        conversation.end_turn()
    else:
        raise InvalidMessage(f"{path}.role: expected system, developer, user or assistant", f"{path}.role")


def _decode_file(block: Mapping[str, Any], path: str) -> BinaryContent | None:
    """Return the image or file of a block, or None if the block does not contain its data."""
    field = {"input_image": "image_url", "input_file": "file_data"}.get(str(block.get("type")), "")
    return base.decode_data_url(block, field, path) if field in block else None


def _parse_tools(body: Mapping[str, Any]) -> tuple[list[ToolDefinition], dict[str, tuple[str, str]]]:
    """Return the function tools, and the namespace and short name of each tool in a namespace."""
    tools: list[ToolDefinition] = []
    namespaces: dict[str, tuple[str, str]] = {}
    for tool, path in base.objects(body, "tools"):
        kind = base.text(tool, "type", path)
        if kind == "function":
            tools.append(base.tool_definition(tool, "parameters", path))
        elif kind == "namespace":
            namespace = base.text(tool, "name", path)
            for inner, inner_path in base.objects(tool, "tools", path):
                definition = base.tool_definition(inner, "parameters", inner_path, qualified_name(namespace, ""))
                tools.append(definition)
                namespaces[definition.name] = (namespace, base.text(inner, "name", inner_path))
    return tools, namespaces


def _response_items(request: WireRequest, response: ModelResponse, answer_id: str) -> Iterator[dict[str, Any]]:
    for index, part in enumerate(response.parts):
        if isinstance(part, TextPart) and part.content:
            block: dict[str, Any] = {"type": "output_text", "text": part.content, "annotations": [], "logprobs": []}
            id = f"msg_{answer_id}_{index}"
            yield {"id": id, "type": "message", "role": "assistant", "status": "completed", "content": [block]}
        elif isinstance(part, ToolCallPart):
            namespace, name = request.namespaces.get(part.tool_name, (None, part.tool_name))
            yield {
                "id": f"fc_{answer_id}_{index}",
                "type": "function_call",
                "call_id": part.tool_call_id,
                "name": name,
                "arguments": part.args_as_json_str(),
                "status": "completed",
                **({} if namespace is None else {"namespace": namespace}),
            }
