"""Canonical form of a conversation: restores the run's tool names, and orders tool results by their calls.

Programs that call tools in parallel report the results in the order of arrival, which differs each time. Without the
canonical order, a resumed run would not find its recorded model calls.
Does not change the text of messages, except for results whose original is known.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Message = TypeVar("Message", ModelMessage, ModelResponse)

_LAST = 10**9


def in_order(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """Messages with the results first in each, in the order of the calls that they answer."""
    told: list[ModelMessage] = []
    places: dict[str, int] = {}
    for message in messages:
        if isinstance(message, ModelResponse):
            places = _places(part.tool_call_id for part in message.parts if isinstance(part, ToolCallPart))
            told.append(message)
            continue
        ranks = [
            places.get(part.tool_call_id, _LAST - 1) if isinstance(part, ToolReturnPart) else _LAST
            for part in message.parts
        ]
        told.append(replace(message, parts=_sorted(message.parts, ranks)))
    return told


def blocks_in_order(messages: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The same for messages as Anthropic takes them."""
    told: list[Mapping[str, Any]] = []
    places: dict[str, int] = {}
    for message in messages:
        content = message.get("content")
        blocks = cast("list[Any]", content) if isinstance(content, list) else []
        if message.get("role") == "assistant":
            places = _places(_told(block, "id") for block in blocks)
        elif any(_told(block, "type") == "tool_result" for block in blocks):
            ranks = [
                places.get(_told(block, "tool_use_id"), _LAST - 1) if _told(block, "type") == "tool_result" else _LAST
                for block in blocks
            ]
            message = {**message, "content": _sorted(blocks, ranks)}
        told.append(message)
    return told


def _places(ids: Iterable[str]) -> dict[str, int]:
    return {id: place for place, id in enumerate(ids)}


def _told(block: Any, name: str) -> str:
    return str(cast("dict[str, Any]", block).get(name)) if isinstance(block, dict) else ""


def _sorted(items: Sequence[Any], ranks: Sequence[int]) -> list[Any]:
    return [items[place] for place in sorted(range(len(items)), key=ranks.__getitem__)]


def renamed(
    message: Message,
    names: Mapping[str, str],
    prompt: str | None = None,
    results: Mapping[str, ToolReturnPart] | None = None,
) -> Message:
    """A message with other names for tools, and with results as the calls gave them, where that is known.

    The prompt stands where every run has it: beside the messages.
    """
    parts: list[Any] = [
        _renamed(part, names, results or {}) for part in message.parts if part.part_kind != "system-prompt"
    ]
    more = {"instructions": prompt} if isinstance(message, ModelRequest) else {}
    return replace(message, parts=parts, **more)


def _renamed(part: Any, names: Mapping[str, str], results: Mapping[str, ToolReturnPart]) -> Any:
    if part.part_kind not in ("tool-call", "tool-return"):
        return part
    name = names.get(part.tool_name, part.tool_name)
    if part.part_kind == "tool-return" and (known := results.get(part.tool_call_id)) is not None:
        return replace(part, tool_name=name, content=known.content, outcome=known.outcome)
    return replace(part, tool_name=name)
