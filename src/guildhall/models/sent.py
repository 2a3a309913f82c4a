"""What a model was sent, as text: what a script expects to find there, and what it takes out of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic_ai.messages import ModelMessage, ModelRequest, ModelRequestPart

_TAKEN = re.compile(r"\$\{(\w+)\}")


def system_text(messages: Sequence[ModelMessage]) -> str:
    """The system prompt that a model was sent."""
    for message in messages:
        if message.kind == "request" and message.instructions:
            return message.instructions
    return "\n".join(
        part.content for message in messages for part in message.parts if part.part_kind == "system-prompt"
    )


def sent_text(messages: Sequence[ModelMessage]) -> str:
    """What a model was newly sent: the prompts and tool results since its last answer, without the instructions."""
    latest: list[str] = []
    for message in reversed(messages):
        if message.kind == "response":
            break
        latest[:0] = _texts(message)
    return "\n".join(latest)


def _texts(message: ModelRequest) -> list[str]:
    return [text for part in message.parts if part.part_kind != "system-prompt" and (text := text_of(part))]


def text_of(part: ModelRequestPart) -> str:
    if part.part_kind == "user-prompt":
        content = [part.content] if isinstance(part.content, str) else part.content
        texts = (item if isinstance(item, str) else getattr(item, "content", None) for item in content)
        return "\n".join(text for text in texts if isinstance(text, str))
    if part.part_kind == "tool-return":
        return part.model_response_str(wrap_if_error=False)
    if part.part_kind in {"retry-prompt", "retry-feedback"}:
        return cast("Any", part).model_response()
    content = getattr(part, "content", None)
    return content if isinstance(content, str) else ""


def sent_each_time(messages: Sequence[ModelMessage]) -> list[str]:
    """What was newly sent before each answer of a conversation, the one that is asked for last of all."""
    found: list[list[str]] = [[]]
    for message in messages:
        if message.kind == "response":
            found.append([])
        else:
            found[-1] += _texts(message)
    return ["\n".join(texts) for texts in found]


def taken(patterns: Sequence[str | None], messages: Sequence[ModelMessage]) -> dict[str, str]:
    """What the named groups of these patterns found, each in what was sent before its answer. The last one counts."""
    found: dict[str, str] = {}
    if not any("(?P<" in pattern for pattern in patterns if pattern):
        return found
    for pattern, sent in zip(patterns, sent_each_time(messages), strict=False):
        if pattern and (match := re.search(pattern, sent)):
            found.update({name: text for name, text in match.groupdict().items() if text is not None})
    return found


def filled(value: Any, taken: Mapping[str, str]) -> Any:
    """Arguments with what was taken in the place of `${name}`. What no group is named after stays as it is."""
    if isinstance(value, str):
        return _TAKEN.sub(lambda match: taken.get(match[1], match[0]), value)
    if isinstance(value, list):
        return [filled(one, taken) for one in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {name: filled(one, taken) for name, one in cast("dict[str, Any]", value).items()}
    return value
