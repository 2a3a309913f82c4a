"""Dialect of Anthropic's Messages API: reads and writes `/v1/messages`, its event stream and token counting.

It also trims the requests of Claude Code to the prompt, tools and results of the run. With a Claude login, the lines
that the provider demands stay before the system prompt.
Does not send requests: `models.passthrough.request` does.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, ClassVar, cast

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
from guildhall.models.dialects.canonical import blocks_in_order
from guildhall.models.model import pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


API = "anthropic"
_MADE_BY_DELTAS: Mapping[str, Any] = {"text": "", "input": {}, "thinking": "", "signature": "", "citations": []}
_FINISH: Mapping[str, FinishReason] = {
    "tool_use": "tool_call",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
_ON, _HELD = Piece(), Piece(fate="held")


class AnthropicCollector:
    """Hears the events of one message."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._written: dict[tuple[int, str], list[str]] = {}  # by block and field, in pieces
        self._held = False

    def take(self, data: Mapping[str, Any] | str) -> Piece:
        if isinstance(data, str):
            raise Malformed("an event of the answer is not an object")
        kind = data.get("type")
        if kind == "content_block_delta":
            heard = self._delta(data)
            return Piece(heard, "held") if self._held else Piece(heard) if heard else _ON
        if kind == "error":
            raise BrokenOff(data)
        if kind == "ping":
            return _ON
        if kind == "message_start":
            self._message = dict(base.mapping(data.get("message"), "message"))
            base.sequence(self._message.get("content", []), "message.content")
            base.mapping(self._message.get("usage") or {}, "message.usage")
        elif kind == "content_block_start":
            self._blocks[_index(data)] = dict(base.mapping(data.get("content_block"), "content_block"))
        elif kind == "content_block_stop":
            # The program acts on these blocks. Calls of the provider's own tools are done already.
            self._held = self._held or self._blocks.get(_index(data), {}).get("type") == "tool_use"
        elif kind == "message_delta":
            self._end(data)
        return _HELD if self._held else _ON

    def answer(self) -> dict[str, Any]:
        for (index, field), written in self._written.items():
            block = self._blocks[index]
            whole = "".join(written)
            block[field] = _input(whole) if field == "input" else block.get(field, "") + whole
        self._written.clear()
        blocks = [block for _, block in sorted(self._blocks.items())]
        return {**self._message, "content": [*self._message.get("content", ()), *blocks]} if self._message else {}

    def _delta(self, data: Mapping[str, Any]) -> str:
        """Adds a delta to its block, whatever kind it is of: its texts are parts of the block's fields."""
        index, delta = _index(data), base.mapping(data.get("delta"), "delta")
        block = self._blocks.get(index)
        if block is None:
            raise Malformed(f"a delta of the block {index}, which has not begun")
        for name, value in delta.items():
            if name == "partial_json":
                self._written.setdefault((index, "input"), []).append(base.text(value, name))
            elif name == "citation":
                block["citations"] = [*(block.get("citations") or ()), value]
            elif name != "type" and isinstance(value, str) and isinstance(block.get(name, ""), str):
                self._written.setdefault((index, name), []).append(value)
            elif name != "type":
                block[name] = value
        return delta["text"] if delta.get("type") == "text_delta" and isinstance(delta.get("text"), str) else ""

    def _end(self, data: Mapping[str, Any]) -> None:
        usage = dict(self._message.get("usage") or {})
        told = base.mapping(data.get("usage") or {}, "usage")  # repeats some numbers and leaves others empty
        usage.update({name: value for name, value in told.items() if value is not None})
        beside = {name: value for name, value in data.items() if name not in ("type", "delta", "usage")}
        self._message = {**self._message, **base.mapping(data.get("delta"), "delta"), **beside, "usage": usage}
        self._held = True


def _index(data: Mapping[str, Any]) -> int:
    index = data.get("index")
    if not isinstance(index, int):
        raise Malformed("an event of the answer has no index")
    return index


def _input(written: str) -> Any:
    """The arguments of a call. What was cut off in the midst of them stays text."""
    try:
        read: Any = json.loads(written or "{}")
    except (ValueError, RecursionError):
        return written
    return cast("dict[str, Any]", read) if isinstance(read, dict) else written


def _part(block: Mapping[str, Any], place: str) -> ModelResponsePart | None:
    match block.get("type"):
        case "text":
            return TextPart(base.text(block.get("text"), f"{place}.text"))
        case "tool_use":
            arguments = block.get("input")
            name, id = base.text(block.get("name"), f"{place}.name"), base.text(block.get("id"), f"{place}.id")
            return ToolCallPart(name, arguments if isinstance(arguments, str) else base.mapping(arguments, place), id)
        case "thinking":
            words, signature = str(block.get("thinking") or ""), str(block.get("signature") or "")
            return ThinkingPart(words, signature=signature or None, provider_name=API)
        case "redacted_thinking":
            return ThinkingPart("", id="redacted_thinking", signature=str(block.get("data")), provider_name=API)
        case _:
            return None


def _usage(usage: Mapping[str, Any]) -> RequestUsage:
    """Here the cached tokens stand beside the input tokens; with us they are among them."""
    read, written = (
        base.count_of(usage.get("cache_read_input_tokens")),
        base.count_of(usage.get("cache_creation_input_tokens")),
    )
    split = usage.get("cache_creation")
    hour = cast("Mapping[str, Any]", split).get("ephemeral_1h_input_tokens") if isinstance(split, dict) else 0
    return RequestUsage(
        input_tokens=base.count_of(usage.get("input_tokens")) + read + written,
        cache_read_tokens=read,
        cache_write_tokens=written,
        cache_write_1h_tokens=min(base.count_of(hour), written),
        output_tokens=base.count_of(usage.get("output_tokens")),
    )


def _deltas(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The deltas that make a block; none where it comes in one piece, as every unknown kind does."""
    match block.get("type"):
        case "text":
            for piece in pieces(block["text"]):
                yield {"type": "text_delta", "text": piece}
            for citation in block.get("citations") or ():
                yield {"type": "citations_delta", "citation": citation}
        case "tool_use":
            arguments = block["input"]
            written = arguments if isinstance(arguments, str) else json.dumps(arguments)
            for piece in ("", *pieces(written)):
                yield {"type": "input_json_delta", "partial_json": piece}
        case "thinking":
            for piece in pieces(block["thinking"]):
                yield {"type": "thinking_delta", "thinking": piece}
            yield {"type": "signature_delta", "signature": block.get("signature") or ""}
        case _:
            return


def _event(kind: str, **data: Any) -> str:
    return base.event({"type": kind, **data}, kind)


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
_LEAST_THINKING = 1024  # tokens; the API takes no smaller budget
_OWN_LINES = re.compile(r"x-anthropic-billing-header:|You are Claude Code\b|You are a Claude agent\b")


class Anthropic:
    """Anthropic's Messages API."""

    api: ClassVar[str] = API
    path: ClassVar[str] = "/v1/messages"

    def read(self, body: Mapping[str, Any]) -> WireRequest:
        if body.get("max_tokens") is None:
            raise Malformed("max_tokens: Field required", "max_tokens")
        conversation = Conversation()
        if system := base.shown(body.get("system"), "system"):
            conversation.system(system)
        for message, place in base.objects(body.get("messages"), "messages"):
            _read_message(conversation, message, place)
        return WireRequest(
            model=base.text(body.get("model"), "model"),
            messages=conversation.messages(),
            settings=base.settings(body, "max_tokens"),
            parameters=base.parameters(
                [
                    base.tool_definition(tool, "input_schema", place)
                    for tool, place in base.objects(body.get("tools"), "tools")
                ]
            ),
            stream=base.flag(body.get("stream"), "stream"),
        )

    def whole(self, request: WireRequest, response: ModelResponse, answer_id: str) -> dict[str, Any]:
        answer = self._answer(request, response, answer_id)
        for block in answer["content"]:
            if isinstance(block.get("input"), str):  # cut off in the midst of its arguments
                block["input"] = {"INVALID_JSON": block["input"]}
        return answer

    def stream(self, request: WireRequest, response: ModelResponse, answer_id: str) -> Iterator[str]:
        answer = self._answer(request, response, answer_id)
        usage: dict[str, Any] = answer.get("usage") or {}
        opening: dict[str, Any] = {**answer, "content": [], "stop_reason": None, "stop_sequence": None}
        beside = {name: opening.pop(name) for name in ("context_management",) if name in opening}
        yield _event("message_start", message={**opening, "usage": {**usage, "output_tokens": 1}})
        yield _event("ping")
        for index, block in enumerate(answer["content"]):
            deltas = list(_deltas(block))
            opened: dict[str, Any] = (
                {**block, **{k: v for k, v in _MADE_BY_DELTAS.items() if k in block}} if deltas else block
            )
            yield _event("content_block_start", index=index, content_block=opened)
            for delta in deltas:
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        ended = {"stop_reason": answer["stop_reason"], "stop_sequence": answer.get("stop_sequence")}
        yield _event("message_delta", delta=ended, usage=usage, **beside)
        yield _event("message_stop")

    def error(self, status: int, message: str, param: str | None = None) -> dict[str, Any]:
        kind = _ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": message}}

    def broken(self, status: int, message: str) -> str:
        return base.event(self.error(status, message), "error")

    def collector(self, *, usage: bool) -> AnthropicCollector:
        return AnthropicCollector()

    def response(self, answer: Mapping[str, Any]) -> ModelResponse:
        if answer.get("type") == "error":
            raise BrokenOff(answer)
        if not isinstance(reason := answer.get("stop_reason"), str):
            raise BrokenOff
        blocks = base.objects(answer.get("content"), "content")
        parts = [part for block, place in blocks if (part := _part(block, place)) is not None]
        usage = _usage(base.mapping(answer.get("usage") or {}, "usage"))
        finish = _FINISH.get(reason, "stop")
        return base.whole_response(answer, parts, API, API, usage, finish)

    def system(self, body: Mapping[str, Any]) -> str:
        return base.shown(body.get("system"), "system")

    def trimmed(self, body: Mapping[str, Any], trim: Trim) -> dict[str, Any]:
        said = base.objects(body.get("messages"), "messages")
        left = [kept for message, _ in said if (kept := _without_reminders(message)) is not None]
        messages = [_with_results(message, trim) for message in blocks_in_order(left)]
        offered = [tool for tool, _ in base.objects(body.get("tools"), "tools")]
        tools = [trim.defined(tool, "input_schema") for tool in offered if base.tool_name(tool) in trim.tools]
        system = _system(body.get("system"), trim)
        kept = {**body, "system": system, "messages": messages, "tools": tools}
        empty = [name for name in ("system", "tools") if not kept[name]]
        without = {*empty, *base.NOT_PASSED, *(("tool_choice",) if not tools else ())}
        return {name: value for name, value in kept.items() if name not in without}

    def sent(self, body: Mapping[str, Any], model: str, max_tokens: int | None) -> dict[str, Any]:
        sent = {**body, "model": model}
        if max_tokens is not None:
            sent["max_tokens"] = most = min(max_tokens, body["max_tokens"])
            thinking = body.get("thinking")
            if isinstance(thinking, dict) and "budget_tokens" in thinking:
                budget = min(base.count_of(cast("Any", thinking)["budget_tokens"]), most - 1)
                sent["thinking"] = {**thinking, "budget_tokens": budget}
                if budget < _LEAST_THINKING:
                    del sent["thinking"]
        return sent

    def _answer(self, request: WireRequest, response: ModelResponse, answer_id: str) -> dict[str, Any]:
        """The whole answer, the arguments of a call as text where they are no object."""
        if (answer := base.kept(response, API)) is not None:
            names = base.names_of(response)
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
            "content": list(_blocks(response)),
            "stop_reason": _STOP_REASONS.get(response.finish_reason or "", "end_turn"),
            "stop_sequence": None,
            "usage": {  # the cached tokens stand beside the input tokens here, not among them
                "input_tokens": usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens,
                "cache_creation_input_tokens": usage.cache_write_tokens,
                "cache_read_input_tokens": usage.cache_read_tokens,
                "output_tokens": usage.output_tokens,
            },
        }


def _with_results(message: Mapping[str, Any], trim: Trim) -> Mapping[str, Any]:
    """A message with the results of calls as the calls gave them, where that is known."""
    content = message.get("content")
    if not trim.results or message.get("role") != "user" or not isinstance(content, list):
        return message
    return {**message, "content": [_given(block, trim) for block in cast("list[Any]", content)]}


def _given(block: Any, trim: Trim) -> Any:
    result = cast("dict[str, Any]", block) if isinstance(block, dict) else {}
    known = trim.results.get(str(result.get("tool_use_id"))) if result.get("type") == "tool_result" else None
    if known is None:
        return cast("Any", block)
    content: Any = known.content
    told = [_piece(piece) for piece in (cast("list[Any]", content) if isinstance(content, list) else [content])]
    return {**result, "content": told, "is_error": known.outcome == "failed"}


def _piece(piece: Any) -> dict[str, Any]:
    if not isinstance(piece, BinaryContent):
        return {"type": "text", "text": str(piece)}
    source = {"type": "base64", "media_type": piece.media_type, "data": piece.base64}
    return {"type": "document" if piece.media_type == "application/pdf" else "image", "source": source}


def _system(system: Any, trim: Trim) -> list[dict[str, Any]]:
    """The run's prompt as the only one, marked for the cache as the program's was.

    With a login the provider wants the lines with which the program says what it is: those before the run's prompt.
    """
    blocks: list[dict[str, Any]] = [{"type": "text", "text": system}] if isinstance(system, str) else system or []
    marked = {"cache_control": last["cache_control"]} if blocks and "cache_control" in (last := blocks[-1]) else {}
    own = [{"type": "text", "text": trim.prompt, **marked}] if trim.prompt else []
    return [*(block for block in blocks if trim.login and _OWN_LINES.match(str(block.get("text")))), *own]


def _without_reminders(message: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A message without what the program tells the model by itself; None: there is nothing else in it."""
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
        and isinstance(said := cast("dict[str, Any]", block).get("text"), str)
        and said.startswith("<system-reminder>")
        and said.rstrip().endswith("</system-reminder>")
    )


def _read_message(conversation: Conversation, message: Mapping[str, Any], place: str) -> None:
    role = base.text(message.get("role"), f"{place}.role")
    content = message.get("content")
    if role == "system":
        conversation.system(base.shown(content, f"{place}.content"))
        return
    if role not in {"user", "assistant"}:
        raise Malformed(f"{place}.role: expected user or assistant", f"{place}.role")
    if content is None:
        raise Malformed(f"{place}.content: Field required", f"{place}.content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    read_block = _read_answered if role == "assistant" else _read_asked
    for block, block_place in base.objects(content, f"{place}.content"):
        read_block(conversation, block, block_place)
    if role == "assistant":
        conversation.end_turn()


def _read_asked(conversation: Conversation, block: Mapping[str, Any], place: str) -> None:
    kind = base.text(block.get("type"), f"{place}.type")
    if kind == "tool_result":
        call_id = base.text(block.get("tool_use_id"), f"{place}.tool_use_id")
        result = base.shown(block.get("content"), f"{place}.content")
        failed = base.flag(block.get("is_error"), f"{place}.is_error")
        conversation.result(call_id, result, f"{place}.tool_use_id", failed=failed)
    else:
        words = base.text(block.get("text"), f"{place}.text") if kind == "text" else f"[{kind}]"
        sent = _file(block, place)
        conversation.user(words if sent is None else [sent])


def _file(block: Mapping[str, Any], place: str) -> BinaryContent | None:
    """The image or the document in a block, where it comes with the request."""
    if block.get("type") not in ("image", "document"):
        return None
    source = base.mapping(block.get("source"), f"{place}.source")
    if source.get("type") != "base64":
        return None
    media_type = base.text(source.get("media_type"), f"{place}.source.media_type")
    return base.file(media_type, base.text(source.get("data"), f"{place}.source.data"), f"{place}.source.data")


def _read_answered(conversation: Conversation, block: Mapping[str, Any], place: str) -> None:
    kind = base.text(block.get("type"), f"{place}.type")
    if kind == "tool_use":
        call_id = base.text(block.get("id"), f"{place}.id")
        tool = base.text(block.get("name"), f"{place}.name")
        conversation.called(call_id, tool, base.mapping(block.get("input"), f"{place}.input"), f"{place}.id")
    elif kind == "text":
        conversation.said(base.text(block.get("text"), f"{place}.text"))


def _blocks(response: ModelResponse) -> Iterator[dict[str, Any]]:
    for part in response.parts:
        if isinstance(part, TextPart) and part.content:
            yield {"type": "text", "text": part.content}
        elif isinstance(part, ToolCallPart):
            yield {"type": "tool_use", "id": part.tool_call_id, "name": part.tool_name, "input": _arguments(part)}
        elif isinstance(part, ThinkingPart) and part.signature:
            yield {"type": "thinking", "thinking": part.content, "signature": part.signature}


def _arguments(part: ToolCallPart) -> dict[str, Any] | str:
    """An object; what is none is given as it was written."""
    try:
        return part.args_as_dict(raise_if_invalid=True)
    except (ValueError, AssertionError):
        return part.args_as_json_str()
