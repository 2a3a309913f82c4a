"""Canonical form of a conversation: restores the run's tool names, and orders tool results by their calls.

Programs that call tools in parallel report the results in the order of arrival, which differs each time. Without the
canonical order, a resumed run would not find its recorded model calls.
Does not change the text of messages, except for results whose original is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, TypeVar, cast

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart

Message = TypeVar("Message", ModelMessage, ModelResponse)


def sort_results(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """Put the tool results of each message first, in the order of their calls."""
    ordered: list[ModelMessage] = []
    calls: dict[str, int] = {}
    for message in messages:
        if isinstance(message, ModelResponse):
            parts = (part for part in message.parts if isinstance(part, ToolCallPart))
            calls = {part.tool_call_id: index for index, part in enumerate(parts)}
            ordered.append(message)
        else:
            answered = (part.tool_call_id if isinstance(part, ToolReturnPart) else None for part in message.parts)
            ordered.append(replace(message, parts=_results_first(message.parts, answered, calls)))
    return ordered


def sort_result_blocks(messages: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Put the tool results of each message in Anthropic's format first, in the order of their calls."""
    ordered: list[Mapping[str, Any]] = []
    calls: dict[str, int] = {}
    for message in messages:
        content = message.get("content")
        blocks = cast("list[Any]", content) if isinstance(content, list) else []
        if message.get("role") == "assistant":
            calls = {_block_field(block, "id"): index for index, block in enumerate(blocks)}
        elif blocks:
            answered = map(_answered_call, blocks)
            message = {**message, "content": _results_first(blocks, answered, calls)}
        ordered.append(message)
    return ordered


def _answered_call(block: Any) -> str | None:
    return _block_field(block, "tool_use_id") if _block_field(block, "type") == "tool_result" else None


def _block_field(block: Any, name: str) -> str:
    return str(cast("dict[str, Any]", block).get(name)) if isinstance(block, dict) else ""


def _results_first(items: Sequence[Any], answered: Iterable[str | None], calls: Mapping[str, int]) -> list[Any]:
    """Sort items by the call ids in `answered`. Results of unknown calls and other items (None) are last."""
    last = len(calls)
    ranks = [last + 1 if id is None else calls.get(id, last) for id in answered]
    return [item for _, item in sorted(zip(ranks, items, strict=True), key=itemgetter(0))]


def rename_tools(
    message: Message,
    names: Mapping[str, str],
    prompt: str | None = None,
    results: Mapping[str, ToolReturnPart] | None = None,
) -> Message:
    """Return a message with other tool names, and with the known results of calls.

    The instructions of a request become `prompt`, and its system prompt parts are removed, as in every run.
    """
    parts: list[Any] = []
    for part in message.parts:
        if isinstance(part, ToolCallPart | ToolReturnPart):
            part = replace(part, tool_name=names.get(part.tool_name, part.tool_name))
            if isinstance(part, ToolReturnPart) and (known := (results or {}).get(part.tool_call_id)) is not None:
                part = replace(part, content=known.content, outcome=known.outcome)
        if part.part_kind != "system-prompt":
            parts.append(part)
    instructions = {"instructions": prompt} if isinstance(message, ModelRequest) else {}
    return replace(message, parts=parts, **instructions)
