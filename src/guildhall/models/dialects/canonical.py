"""Canonical form of a conversation: restores the run's tool names, and orders tool results by their calls.

Programs that call tools in parallel report the results in the order of arrival, which differs each time. Without the
canonical order, a resumed run would not find its recorded model calls.
Does not change the text of messages, except for results whose original is known.
"""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Message = TypeVar("Message", ModelMessage, ModelResponse)


def in_order(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """Put the tool results of each message first, in the order of the calls that they answer."""
    ordered: list[ModelMessage] = []
    calls: dict[str, int] = {}
    for message in messages:
        if isinstance(message, ModelResponse):
            parts = (part for part in message.parts if isinstance(part, ToolCallPart))
            calls = {part.tool_call_id: place for place, part in enumerate(parts)}
            ordered.append(message)
        else:
            answered = (part.tool_call_id if isinstance(part, ToolReturnPart) else None for part in message.parts)
            ordered.append(replace(message, parts=_results_first(message.parts, answered, calls)))
    return ordered


def blocks_in_order(messages: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Put the tool results first in messages in Anthropic's format."""
    ordered: list[Mapping[str, Any]] = []
    calls: dict[str, int] = {}
    for message in messages:
        content = message.get("content")
        blocks = cast("list[Any]", content) if isinstance(content, list) else []
        if message.get("role") == "assistant":
            calls = {_field(block, "id"): place for place, block in enumerate(blocks)}
        elif blocks:
            answered = (
                _field(block, "tool_use_id") if _field(block, "type") == "tool_result" else None for block in blocks
            )
            message = {**message, "content": _results_first(blocks, answered, calls)}
        ordered.append(message)
    return ordered


def _field(block: Any, name: str) -> str:
    return str(cast("dict[str, Any]", block).get(name)) if isinstance(block, dict) else ""


def _results_first(items: Sequence[Any], answered: Iterable[str | None], calls: Mapping[str, int]) -> list[Any]:
    """Sort items by the calls whose ids `answered` has. Results of unknown calls and other items (None) are last."""
    last = len(calls)
    ranks = [last + 1 if id is None else calls.get(id, last) for id in answered]
    return [item for _, item in sorted(zip(ranks, items, strict=True), key=itemgetter(0))]


def renamed(
    message: Message,
    names: Mapping[str, str],
    prompt: str | None = None,
    results: Mapping[str, ToolReturnPart] | None = None,
) -> Message:
    """Return a message with other names for tools, and with the results that calls gave, where they are known.

    The prompt moves from the parts to the instructions, where every run has it.
    """
    parts: list[Any] = []
    for part in message.parts:
        if isinstance(part, ToolCallPart | ToolReturnPart):
            part = replace(part, tool_name=names.get(part.tool_name, part.tool_name))
            if isinstance(part, ToolReturnPart) and (known := (results or {}).get(part.tool_call_id)) is not None:
                part = replace(part, content=known.content, outcome=known.outcome)
        if part.part_kind != "system-prompt":
            parts.append(part)
    more = {"instructions": prompt} if isinstance(message, ModelRequest) else {}
    return replace(message, parts=parts, **more)
