"""The results of calls in the order of the calls, whatever order a program tells them in.

Programs that make calls side by side tell the results as they came, which is another order each time: the same question
would then not be known again when a run goes on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from pydantic_ai.messages import ModelResponse, ToolCallPart, ToolReturnPart

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydantic_ai.messages import ModelMessage

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
