"""Dialect of Anthropic's Messages API: parses and builds the requests, responses and events of `/v1/messages`.

This module also trims the requests of Claude Code to the prompt, tools and results of the run. With a Claude login, the
lines that the provider requires stay before the system prompt.
Does not send requests: `models.passthrough.relay` does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic_ai.messages import BinaryContent, ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.usage import RequestUsage

from guildhall.models.dialects import base
from guildhall.models.dialects.base import CollectedEvent, Conversation, IncompleteAnswer, InvalidMessage, WireRequest
from guildhall.models.dialects.canonical import sort_result_blocks
from guildhall.models.model import split_text

if TYPE_CHECKING:
    from pydantic_ai.messages import FinishReason, ModelResponsePart


API = "anthropic"
_DELTA_FIELDS: Mapping[str, Any] = {"text": "", "input": {}, "thinking": "", "signature": "", "citations": []}
_FINISH_REASONS: Mapping[str, FinishReason] = {
    "tool_use": "tool_call",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
_FORWARD, _HOLD = CollectedEvent(), CollectedEvent(action="hold")


class AnthropicCollector:
    """Builds a message from its events."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._chunks: dict[tuple[int, str], list[str]] = {}  # by block and field
        self._is_holding = False

    def add(self, data: Mapping[str, Any] | str) -> CollectedEvent:
        if isinstance(data, str):
            raise InvalidMessage("an event is not a JSON object")
        kind = data.get("type")
        if kind == "content_block_delta":
            text = self._add_delta(data)
            return CollectedEvent(text, "hold") if self._is_holding else CollectedEvent(text) if text else _FORWARD
        if kind == "error":
            raise IncompleteAnswer(data)
        if kind == "ping":
            return _FORWARD
        if kind == "message_start":
            self._message = dict(base.mapping(data, "message"))
            self._message["content"] = [block for block, _ in base.objects(self._message, "content", "message")]
            base.optional_mapping(self._message, "usage", "message")
        elif kind == "content_block_start":
            self._blocks[_block_index(data)] = dict(base.mapping(data, "content_block"))
        elif kind == "content_block_stop":
            # The program acts on these blocks. The provider has already executed calls of its own tools.
            self._is_holding = self._is_holding or self._blocks.get(_block_index(data), {}).get("type") == "tool_use"
        elif kind == "message_delta":
            self._merge_message_delta(data)
        return _HOLD if self._is_holding else _FORWARD

    def answer(self) -> dict[str, Any]:
        for (index, field), chunks in self._chunks.items():
            block, value = self._blocks[index], "".join(chunks)
            block[field] = _parse_input(value) if field == "input" else block.get(field, "") + value
        self._chunks.clear()
        blocks = [block for _, block in sorted(self._blocks.items())]
        return {**self._message, "content": [*self._message.get("content", ()), *blocks]} if self._message else {}

    def _add_delta(self, data: Mapping[str, Any]) -> str:
        """Add a delta to its block and return the new text. The strings of a delta continue the fields of the block."""
        index, delta = _block_index(data), base.mapping(data, "delta")
        block = self._blocks.get(index)
        if block is None:
            raise InvalidMessage(f"index: the delta of block {index} is before its content_block_start")
        for name, value in delta.items():
            if name == "partial_json":
                self._chunks.setdefault((index, "input"), []).append(base.text(delta, name))
            elif name == "citation":
                block["citations"] = [*(block.get("citations") or ()), value]
            elif name != "type" and isinstance(value, str) and isinstance(block.get(name, ""), str):
                self._chunks.setdefault((index, name), []).append(value)
            elif name != "type":
                block[name] = value
        return delta["text"] if delta.get("type") == "text_delta" and isinstance(delta.get("text"), str) else ""

    def _merge_message_delta(self, data: Mapping[str, Any]) -> None:
        usage = dict(self._message.get("usage") or {})
        new = base.optional_mapping(data, "usage")  # repeats some counts and leaves others empty
        usage.update({name: value for name, value in new.items() if value is not None})
        others = {name: value for name, value in data.items() if name not in ("type", "delta", "usage")}
        self._message = {**self._message, **base.mapping(data, "delta"), **others, "usage": usage}
        self._is_holding = True


def _block_index(data: Mapping[str, Any]) -> int:
    index = data.get("index")
    if not isinstance(index, int):
        raise InvalidMessage("index: expected an integer")
    return index


def _parse_input(text: str) -> Any:
    """Return the arguments of a call, or the text if it is not a JSON object (a truncated call)."""
    try:
        value: Any = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return cast("dict[str, Any]", value) if isinstance(value, dict) else text


def _response_part(block: Mapping[str, Any], path: str) -> ModelResponsePart | None:
    match block.get("type"):
        case "text":
            return TextPart(base.text(block, "text", path))
        case "tool_use":
            name, id = base.text(block, "name", path), base.text(block, "id", path)
            if not isinstance(arguments := block.get("input"), str):
                arguments = base.as_mapping(arguments, path)
            return ToolCallPart(name, arguments, id)
        case "thinking":
            signature = str(block.get("signature") or "") or None
            return ThinkingPart(str(block.get("thinking") or ""), signature=signature, provider_name=API)
        case "redacted_thinking":
            return ThinkingPart("", id="redacted_thinking", signature=str(block.get("data")), provider_name=API)
        case _:
            return None


def _parse_usage(usage: Mapping[str, Any]) -> RequestUsage:
    """Convert the usage. Anthropic does not count cached tokens among the input tokens, but RequestUsage does."""
    read = base.token_count(usage.get("cache_read_input_tokens"))
    written = base.token_count(usage.get("cache_creation_input_tokens"))
    split = usage.get("cache_creation")
    hour = cast("Mapping[str, Any]", split).get("ephemeral_1h_input_tokens") if isinstance(split, dict) else 0
    return RequestUsage(
        input_tokens=base.token_count(usage.get("input_tokens")) + read + written,
        cache_read_tokens=read,
        cache_write_tokens=written,
        cache_write_1h_tokens=min(base.token_count(hour), written),
        output_tokens=base.token_count(usage.get("output_tokens")),
    )


def _block_deltas(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the deltas of a block. Blocks without deltas, and all unknown kinds, are sent in one event."""
    match block.get("type"):
        case "text":
            for chunk in split_text(block["text"]):
                yield {"type": "text_delta", "text": chunk}
            for citation in block.get("citations") or ():
                yield {"type": "citations_delta", "citation": citation}
        case "tool_use":
            arguments = block["input"]
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            for chunk in ("", *split_text(text)):
                yield {"type": "input_json_delta", "partial_json": chunk}
        case "thinking":
            for chunk in split_text(block["thinking"]):
                yield {"type": "thinking_delta", "thinking": chunk}
            yield {"type": "signature_delta", "signature": block.get("signature") or ""}
        case _:
            return


def _encode_event(kind: str, **data: Any) -> str:
    return base.encode_event({"type": kind, **data}, kind)


_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_STOP_REASONS = {"tool_call": "tool_use", "length": "max_tokens", "content_filter": "refusal"}
_MIN_THINKING_TOKENS = 1024  # the API rejects a smaller budget
_LOGIN_LINES = re.compile(r"x-anthropic-billing-header:|You are Claude Code\b|You are a Claude agent\b")


class Anthropic:
    api: ClassVar[str] = API
    path: ClassVar[str] = "/v1/messages"

    def parse_request(self, body: Mapping[str, Any]) -> WireRequest:
        if body.get("max_tokens") is None:
            raise InvalidMessage("max_tokens: Field required", "max_tokens")
        conversation = Conversation()
        if system := base.text_content(body, "system"):
            conversation.add_system(system)
        for message, path in base.objects(body, "messages"):
            _append_message(conversation, message, path)
        tools = [base.tool_definition(tool, "input_schema", path) for tool, path in base.objects(body, "tools")]
        return WireRequest(
            model=base.text(body, "model"),
            messages=conversation.finish(),
            settings=base.request_settings(body, "max_tokens"),
            parameters=base.request_parameters(tools),
            stream=base.flag(body, "stream"),
        )

    def build_answer(self, request: WireRequest, response: ModelResponse, answer_id: str) -> dict[str, Any]:
        answer = self._wire_answer(request, response, answer_id)
        for block in answer["content"]:
            if isinstance(block.get("input"), str):  # its arguments were truncated
                block["input"] = {"INVALID_JSON": block["input"]}
        return answer

    def stream_answer(self, request: WireRequest, response: ModelResponse, answer_id: str) -> Iterator[str]:
        answer = self._wire_answer(request, response, answer_id)
        usage: dict[str, Any] = answer.get("usage") or {}
        opening: dict[str, Any] = {**answer, "content": [], "stop_reason": None, "stop_sequence": None}
        others = {name: opening.pop(name) for name in ("context_management",) if name in opening}
        yield _encode_event("message_start", message={**opening, "usage": {**usage, "output_tokens": 1}})
        yield _encode_event("ping")
        for index, block in enumerate(answer["content"]):
            deltas = list(_block_deltas(block))
            initial = {name: value for name, value in _DELTA_FIELDS.items() if deltas and name in block}
            yield _encode_event("content_block_start", index=index, content_block={**block, **initial})
            for delta in deltas:
                yield _encode_event("content_block_delta", index=index, delta=delta)
            yield _encode_event("content_block_stop", index=index)
        ended = {"stop_reason": answer["stop_reason"], "stop_sequence": answer.get("stop_sequence")}
        yield _encode_event("message_delta", delta=ended, usage=usage, **others)
        yield _encode_event("message_stop")

    def error_body(self, status: int, message: str, param: str | None = None) -> dict[str, Any]:
        kind = _ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": message}}

    def error_event(self, status: int, message: str) -> str:
        return base.encode_event(self.error_body(status, message), "error")

    def create_collector(self, *, wants_usage: bool) -> AnthropicCollector:
        return AnthropicCollector()

    def parse_answer(self, answer: Mapping[str, Any]) -> ModelResponse:
        if answer.get("type") == "error":
            raise IncompleteAnswer(answer)
        if not isinstance(reason := answer.get("stop_reason"), str):
            raise IncompleteAnswer
        blocks = base.objects(answer, "content")
        parts = [part for block, path in blocks if (part := _response_part(block, path)) is not None]
        usage = _parse_usage(base.optional_mapping(answer, "usage"))
        finish = _FINISH_REASONS.get(reason, "stop")
        return base.build_response(answer, parts, API, API, usage, finish)

    def system_prompt(self, body: Mapping[str, Any]) -> str:
        return base.text_content(body, "system")

    def trim(self, body: Mapping[str, Any], rules: base.TrimRules) -> dict[str, Any]:
        messages = [kept for message, _ in base.objects(body, "messages") if (kept := _remove_reminders(message))]
        messages = [_restore_results(message, rules) for message in sort_result_blocks(messages)]
        offered = [tool for tool, _ in base.objects(body, "tools")]
        tools = [rules.define_tool(tool, "input_schema") for tool in offered if base.tool_name(tool) in rules.tools]
        system = _trim_system(body.get("system"), rules)
        trimmed = {**body, "system": system, "messages": messages, "tools": tools}
        empty = [name for name in ("system", "tools") if not trimmed[name]]
        removed_fields = {*empty, *base.FORBIDDEN_FIELDS, *(() if tools else ("tool_choice",))}
        return {name: value for name, value in trimmed.items() if name not in removed_fields}

    def upstream_body(self, body: Mapping[str, Any], model: str, max_tokens: int | None) -> dict[str, Any]:
        sent = {**body, "model": model}
        if max_tokens is not None:
            sent["max_tokens"] = limit = min(max_tokens, body["max_tokens"])
            thinking = body.get("thinking")
            if isinstance(thinking, dict) and "budget_tokens" in thinking:
                budget = min(base.token_count(cast("Any", thinking)["budget_tokens"]), limit - 1)
                sent["thinking"] = {**thinking, "budget_tokens": budget}
                if budget < _MIN_THINKING_TOKENS:
                    del sent["thinking"]
        return sent

    def _wire_answer(self, request: WireRequest, response: ModelResponse, answer_id: str) -> dict[str, Any]:
        """Return the answer. Truncated arguments of a call stay text."""
        if (answer := base.recorded_answer(response, API)) is not None:
            names = base.call_names(response)
            calls = [
                {**block, "name": names.get(block.get("id"), block.get("name"))}
                if block.get("type") == "tool_use"
                else dict(block)
                for block in answer["content"]
            ]
            return {**answer, "content": calls}
        usage = response.usage
        return {
            "id": f"msg_{answer_id}",
            "type": "message",
            "role": "assistant",
            "model": request.model,
            "content": list(_response_blocks(response)),
            "stop_reason": _STOP_REASONS.get(response.finish_reason or "", "end_turn"),
            "stop_sequence": None,
            "usage": {  # input_tokens excludes cached tokens here
                "input_tokens": usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens,
                "cache_creation_input_tokens": usage.cache_write_tokens,
                "cache_read_input_tokens": usage.cache_read_tokens,
                "output_tokens": usage.output_tokens,
            },
        }


def _restore_results(message: Mapping[str, Any], rules: base.TrimRules) -> Mapping[str, Any]:
    """Replace the tool results of a user message by the recorded results, if they are known."""
    content = message.get("content")
    if not rules.results or message.get("role") != "user" or not isinstance(content, list):
        return message
    return {**message, "content": [_restore_result(block, rules) for block in cast("list[Any]", content)]}


def _restore_result(block: Any, rules: base.TrimRules) -> Any:
    result = cast("dict[str, Any]", block) if isinstance(block, dict) else {}
    known = rules.results.get(str(result.get("tool_use_id"))) if result.get("type") == "tool_result" else None
    if known is None:
        return cast("Any", block)
    content: Any = known.content
    blocks = [_content_block(item) for item in (cast("list[Any]", content) if isinstance(content, list) else [content])]
    return {**result, "content": blocks, "is_error": known.outcome == "failed"}


def _content_block(item: Any) -> dict[str, Any]:
    if not isinstance(item, BinaryContent):
        return {"type": "text", "text": str(item)}
    source = {"type": "base64", "media_type": item.media_type, "data": item.base64}
    return {"type": "document" if item.media_type == "application/pdf" else "image", "source": source}


def _trim_system(system: Any, rules: base.TrimRules) -> list[dict[str, Any]]:
    """Return the run's prompt with the cache mark of the program's prompt.

    With a Claude login, the provider requires the lines in which the program identifies itself. They stay first.
    """
    blocks: list[dict[str, Any]] = [{"type": "text", "text": system}] if isinstance(system, str) else system or []
    marked = {"cache_control": last["cache_control"]} if blocks and "cache_control" in (last := blocks[-1]) else {}
    own = [{"type": "text", "text": rules.prompt, **marked}] if rules.prompt else []
    return [*(block for block in blocks if rules.has_login and _LOGIN_LINES.match(str(block.get("text")))), *own]


def _remove_reminders(message: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a message without the reminders of the program, or None if nothing else is left."""
    if message.get("role") == "system":
        return None
    content = message.get("content")
    if message.get("role") != "user" or not isinstance(content, list) or len(cast("list[Any]", content)) < 2:
        return message
    blocks = [block for block in cast("list[Any]", content) if not _is_reminder(block)]
    return {**message, "content": blocks} if blocks else None


def _is_reminder(block: Any) -> bool:
    return (
        isinstance(block, dict)
        and isinstance(text := cast("dict[str, Any]", block).get("text"), str)
        and text.startswith("<system-reminder>")
        and text.rstrip().endswith("</system-reminder>")
    )


def _append_message(conversation: Conversation, message: Mapping[str, Any], path: str) -> None:
    role = base.text(message, "role", path)
    if role == "system":
        conversation.add_system(base.text_content(message, "content", path))
        return
    if role not in {"user", "assistant"}:
        raise InvalidMessage(f"{path}.role: expected user or assistant", f"{path}.role")
    if (content := message.get("content")) is None:
        raise InvalidMessage(f"{path}.content: Field required", f"{path}.content")
    if isinstance(content, str):
        message = {"content": [{"type": "text", "text": content}]}
    append_block = _append_assistant_block if role == "assistant" else _append_user_block
    for block, block_path in base.objects(message, "content", path):
        append_block(conversation, block, block_path)
    if role == "assistant":
        conversation.end_turn()


def _append_user_block(conversation: Conversation, block: Mapping[str, Any], path: str) -> None:
    kind = base.text(block, "type", path)
    if kind == "tool_result":
        call_id = base.text(block, "tool_use_id", path)
        result = base.text_content(block, "content", path)
        is_error = base.flag(block, "is_error", path)
        conversation.add_result(call_id, result, f"{path}.tool_use_id", is_error=is_error)
    else:
        text = base.text(block, "text", path) if kind == "text" else f"[{kind}]"
        file = _decode_file(block, path)
        conversation.add_user(text if file is None else [file])


def _decode_file(block: Mapping[str, Any], path: str) -> BinaryContent | None:
    """Return the image or document of a block, or None if the block does not contain its data."""
    if block.get("type") not in ("image", "document"):
        return None
    source = base.mapping(block, "source", path)
    if source.get("type") != "base64":
        return None
    source_path = f"{path}.source"
    return base.decode_file(
        base.text(source, "media_type", source_path), base.text(source, "data", source_path), f"{source_path}.data"
    )


def _append_assistant_block(conversation: Conversation, block: Mapping[str, Any], path: str) -> None:
    kind = base.text(block, "type", path)
    if kind == "tool_use":
        call_id = base.text(block, "id", path)
        tool = base.text(block, "name", path)
        conversation.add_call(call_id, tool, base.mapping(block, "input", path), f"{path}.id")
    elif kind == "text":
        conversation.add_text(base.text(block, "text", path))


def _response_blocks(response: ModelResponse) -> Iterator[dict[str, Any]]:
    for part in response.parts:
        if isinstance(part, TextPart) and part.content:
            yield {"type": "text", "text": part.content}
        elif isinstance(part, ToolCallPart):
            yield {"type": "tool_use", "id": part.tool_call_id, "name": part.tool_name, "input": _call_arguments(part)}
        elif isinstance(part, ThinkingPart) and part.signature:
            yield {"type": "thinking", "thinking": part.content, "signature": part.signature}


def _call_arguments(part: ToolCallPart) -> dict[str, Any] | str:
    """Return the arguments of a call as an object, or as text if they are invalid."""
    try:
        return part.args_as_dict(raise_if_invalid=True)
    except (ValueError, AssertionError):
        return part.args_as_json_str()
