"""Answers of OpenAI's Responses API: put together from their events, read, and told again as events."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.usage import RequestUsage

from guildhall.models.dialects.model import BrokenOff, Piece, count_of, event, keeping
from guildhall.models.dialects.reading import Malformed, mapping, objects, text
from guildhall.models.script import pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic_ai.messages import ModelResponsePart

API = "openai-responses"
CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_ENDS = ("response.completed", "response.incomplete")
_ON, _HELD = Piece(), Piece(fate="held")


class ResponsesCollector:
    """Hears the events of one response. Its last event has all of it; some servers leave the items out there."""

    def __init__(self) -> None:
        self._response: dict[str, Any] = {}
        self._items: dict[int, dict[str, Any]] = {}
        self._held = False

    def take(self, data: Mapping[str, Any] | str) -> Piece:
        if isinstance(data, str):
            return _HELD
        kind = data.get("type")
        if kind == "response.output_text.delta":
            heard = text(data.get("delta"), "delta")
            return Piece(heard, "held") if self._held else Piece(heard)
        if kind in ("error", "response.failed") or (kind is None and data.get("error")):
            raise BrokenOff(mapping(data.get("response") or data, "response"))
        if kind in ("response.created", "response.in_progress", "response.queued", *_ENDS):
            self._response = dict(mapping(data.get("response"), "response"))
            self._held = self._held or kind in _ENDS
        elif kind == "response.output_item.done":
            self._item(data)
        elif kind in ("response.function_call_arguments.done", "response.custom_tool_call_input.done"):
            self._held = True
        return _HELD if self._held else _ON

    def answer(self) -> dict[str, Any]:
        items = self._response.get("output") or [item for _, item in sorted(self._items.items())]
        return {**self._response, "output": items} if self._response else {}

    def _item(self, data: Mapping[str, Any]) -> None:
        index = data.get("output_index", len(self._items))
        if not isinstance(index, int):
            raise Malformed("output_index: expected a number")
        item = dict(mapping(data.get("item"), "item"))
        self._items[index] = item
        self._held = self._held or item.get("type") in CALLS


def response_of(answer: Mapping[str, Any]) -> ModelResponse:
    """A response of the API as a response."""
    status = answer.get("status")
    if answer.get("error") or status == "failed":
        raise BrokenOff(answer)
    if status not in ("completed", "incomplete"):
        raise BrokenOff
    parts: list[ModelResponsePart] = []
    for item, place in objects(answer.get("output"), "output"):
        parts += _parts(item, place)
    why = mapping(answer.get("incomplete_details") or {}, "incomplete_details").get("reason")
    called = any(isinstance(part, ToolCallPart) for part in parts)
    cut = "content_filter" if why == "content_filter" else "length"
    return ModelResponse(
        parts=parts,
        usage=_usage(mapping(answer.get("usage") or {}, "usage")),
        model_name=str(answer.get("model") or ""),
        provider_name="openai",
        provider_response_id=str(answer.get("id") or ""),
        provider_details=keeping(API, answer),
        finish_reason=cut if status == "incomplete" else "tool_call" if called else "stop",
    )


def _parts(item: Mapping[str, Any], place: str) -> Iterator[ModelResponsePart]:
    kind = str(item.get("type"))
    if kind == "message":
        for block, inner in objects(item.get("content"), f"{place}.content"):
            said = block.get("text", block.get("refusal"))
            if said:
                yield TextPart(text(said, inner))
    elif kind in CALLS:
        name, id = text(item.get("name"), f"{place}.name"), text(item.get("call_id"), f"{place}.call_id")
        space = item.get("namespace")
        shown = name if space is None else joined(text(space, f"{place}.namespace"), name)
        yield ToolCallPart(shown, text(item.get(CALLS[kind]) or "{}", f"{place}.{CALLS[kind]}"), id)
    elif kind == "reasoning":
        summary = [str(block.get("text") or "") for block, _ in objects(item.get("summary"), f"{place}.summary")]
        sealed = item.get("encrypted_content")
        yield ThinkingPart(
            "\n".join(summary),
            id=str(item.get("id") or ""),
            signature=sealed if isinstance(sealed, str) else None,
            provider_name="openai",
        )


def joined(space: str, name: str) -> str:
    """The name of a tool in a namespace, in one word."""
    return f"{space.removesuffix('__')}__{name}"


def _usage(usage: Mapping[str, Any]) -> RequestUsage:
    cached = mapping(usage.get("input_tokens_details") or {}, "input_tokens_details")
    thought = mapping(usage.get("output_tokens_details") or {}, "output_tokens_details")
    sent = count_of(usage.get("input_tokens"))
    read = min(sent, count_of(cached.get("cached_tokens")))
    return RequestUsage(
        input_tokens=sent,
        cache_read_tokens=read,
        cache_write_tokens=min(sent - read, count_of(cached.get("cache_write_tokens"))),
        output_tokens=count_of(usage.get("output_tokens")),
        output_reasoning_tokens=count_of(thought.get("reasoning_tokens")),
    )


def events_of(answer: Mapping[str, Any]) -> Iterator[str]:
    """A whole response as the events that make it."""
    numbers = count()
    for data in _events(answer):
        yield event({**data, "sequence_number": next(numbers)}, data["type"])


def _events(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    head: dict[str, Any] = {**answer, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    yield {"type": "response.created", "response": head}
    yield {"type": "response.in_progress", "response": head}
    for index, item in enumerate(answer["output"]):
        place = {"item_id": item.get("id"), "output_index": index}
        write = {"message": _write_message, "function_call": _write_call}.get(item.get("type"), _write_whole)
        yield from write(item, place)
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{answer['status']}", "response": dict(answer)}


def _write_message(item: Mapping[str, Any], place: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    opened: dict[str, Any] = {**item, "status": "in_progress", "content": []}
    yield {"type": "response.output_item.added", "output_index": place["output_index"], "item": opened}
    for index, whole in enumerate(item["content"]):
        part = {**place, "content_index": index}
        if whole.get("type") == "output_text":
            yield {"type": "response.content_part.added", **part, "part": {**whole, "text": ""}}
            for piece in pieces(whole["text"]):
                yield {"type": "response.output_text.delta", **part, "delta": piece, "logprobs": []}
            yield {"type": "response.output_text.done", **part, "text": whole["text"], "logprobs": []}
        else:
            yield {"type": "response.content_part.added", **part, "part": whole}
        yield {"type": "response.content_part.done", **part, "part": whole}


def _write_call(item: Mapping[str, Any], place: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    opened = {**item, "status": "in_progress", "arguments": ""}
    yield {"type": "response.output_item.added", "output_index": place["output_index"], "item": opened}
    for piece in pieces(item["arguments"]):
        yield {"type": "response.function_call_arguments.delta", **place, "delta": piece}
    done = {**place, "name": item["name"], "arguments": item["arguments"]}
    yield {"type": "response.function_call_arguments.done", **done}


def _write_whole(item: Mapping[str, Any], place: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"type": "response.output_item.added", "output_index": place["output_index"], "item": item}
