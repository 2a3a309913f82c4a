"""Answers of Anthropic's Messages API: put together from their events, read, and told again as events."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.usage import RequestUsage

from guildhall.models.dialects.model import BrokenOff, Piece, count_of, event, keeping
from guildhall.models.dialects.reading import Malformed, mapping, objects, sequence, text
from guildhall.models.script import pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic_ai.messages import FinishReason, ModelResponsePart

API = "anthropic"
_CALLS = ("tool_use",)  # blocks that the program acts on; those of the provider's own tools are done already
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
            self._message = dict(mapping(data.get("message"), "message"))
            sequence(self._message.get("content", []), "message.content")
            mapping(self._message.get("usage") or {}, "message.usage")
        elif kind == "content_block_start":
            self._blocks[_index(data)] = dict(mapping(data.get("content_block"), "content_block"))
        elif kind == "content_block_stop":
            self._held = self._held or self._blocks.get(_index(data), {}).get("type") in _CALLS
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
        index, delta = _index(data), mapping(data.get("delta"), "delta")
        block = self._blocks.get(index)
        if block is None:
            raise Malformed(f"a delta of the block {index}, which has not begun")
        for name, value in delta.items():
            if name == "partial_json":
                self._written.setdefault((index, "input"), []).append(text(value, name))
            elif name == "citation":
                block["citations"] = [*(block.get("citations") or ()), value]
            elif name != "type" and isinstance(value, str) and isinstance(block.get(name, ""), str):
                self._written.setdefault((index, name), []).append(value)
            elif name != "type":
                block[name] = value
        return delta["text"] if delta.get("type") == "text_delta" and isinstance(delta.get("text"), str) else ""

    def _end(self, data: Mapping[str, Any]) -> None:
        usage: dict[str, Any] = {**(self._message.get("usage") or {}), **_known(data.get("usage"))}
        beside = {name: value for name, value in data.items() if name not in ("type", "delta", "usage")}
        self._message = {**self._message, **mapping(data.get("delta"), "delta"), **beside, "usage": usage}
        self._held = True


def _index(data: Mapping[str, Any]) -> int:
    index = data.get("index")
    if not isinstance(index, int):
        raise Malformed("an event of the answer has no index")
    return index


def _known(usage: Any) -> dict[str, Any]:
    """What this usage says: the last event repeats some numbers and leaves others empty."""
    return {name: value for name, value in mapping(usage or {}, "usage").items() if value is not None}


def _input(written: str) -> Any:
    """The arguments of a call. What was cut off in the midst of them stays text."""
    try:
        read: Any = json.loads(written or "{}")
    except (ValueError, RecursionError):
        return written
    return cast("dict[str, Any]", read) if isinstance(read, dict) else written


def response_of(answer: Mapping[str, Any]) -> ModelResponse:
    """A message of the API as a response."""
    reason = answer.get("stop_reason")
    if answer.get("type") == "error":
        raise BrokenOff(answer)
    if not isinstance(reason, str):
        raise BrokenOff
    parts: list[ModelResponsePart] = []
    for block, place in objects(answer.get("content"), "content"):
        part = _part(block, place)
        parts += [] if part is None else [part]
    return ModelResponse(
        parts=parts,
        usage=_usage(mapping(answer.get("usage") or {}, "usage")),
        model_name=str(answer.get("model") or ""),
        provider_name=API,
        provider_response_id=str(answer.get("id") or ""),
        provider_details=keeping(API, answer),
        finish_reason=_FINISH.get(reason, "stop"),
    )


def _part(block: Mapping[str, Any], place: str) -> ModelResponsePart | None:
    match block.get("type"):
        case "text":
            return TextPart(text(block.get("text"), f"{place}.text"))
        case "tool_use":
            arguments = block.get("input")
            name, id = text(block.get("name"), f"{place}.name"), text(block.get("id"), f"{place}.id")
            return ToolCallPart(name, arguments if isinstance(arguments, str) else mapping(arguments, place), id)
        case "thinking":
            words, signature = str(block.get("thinking") or ""), str(block.get("signature") or "")
            return ThinkingPart(words, signature=signature or None, provider_name=API)
        case "redacted_thinking":
            return ThinkingPart("", id="redacted_thinking", signature=str(block.get("data")), provider_name=API)
        case _:
            return None


def _usage(usage: Mapping[str, Any]) -> RequestUsage:
    """Here the cached tokens stand beside the input tokens; with us they are among them."""
    read, written = count_of(usage.get("cache_read_input_tokens")), count_of(usage.get("cache_creation_input_tokens"))
    split = usage.get("cache_creation")
    hour = cast("Mapping[str, Any]", split).get("ephemeral_1h_input_tokens") if isinstance(split, dict) else 0
    return RequestUsage(
        input_tokens=count_of(usage.get("input_tokens")) + read + written,
        cache_read_tokens=read,
        cache_write_tokens=written,
        cache_write_1h_tokens=min(count_of(hour), written),
        output_tokens=count_of(usage.get("output_tokens")),
    )


def events_of(answer: Mapping[str, Any]) -> Iterator[str]:
    """A whole message as the events that make it."""
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
    return event({"type": kind, **data}, kind)
