"""Model messages: convert requests and answers of a model to plain data for the journal, comparison and display.

Times are left out, so that a repeated request has equal data. Attached files are replaced by media type, size and
digest.

Does not append the data to a journal: `runs.execution.ledger` does.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import BinaryContent, ModelMessage, ModelMessagesTypeAdapter, ModelResponse, TextContent

from guildhall.core.ids import digest, fingerprint
from guildhall.runtimes.pydantic import OUTPUT_TOOL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic_ai.models import ModelRequestParameters


def request(message: ModelMessage) -> list[dict[str, Any]]:
    """The parts of a request message."""
    return [_part(part) for part in message.parts]


def _part(part: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {"part": part.part_kind, "content": _content(part.content)}
    for name in ("tool_name", "tool_call_id", "outcome"):
        if (value := getattr(part, name, None)) is not None:
            shown[name] = value
    return shown


def _content(content: Any) -> Any:
    if isinstance(content, BinaryContent):
        return f"[{content.media_type}, {len(content.data):,} bytes, {digest(content.data)}]"
    if isinstance(content, TextContent):
        what: dict[str, Any] = content.metadata
        return f"[{what['media_type']}, {what['bytes']:,} bytes, {what['digest']}]"
    if isinstance(content, list | tuple):
        return [_content(item) for item in content]  # pyright: ignore[reportUnknownVariableType]
    return content


def tools(parameters: ModelRequestParameters) -> str:
    """A fingerprint of the tools that the model was shown."""
    shown = [*parameters.function_tools, *parameters.output_tools]
    return fingerprint([[tool.name, tool.description, tool.parameters_json_schema] for tool in shown])


def dump(messages: Sequence[ModelMessage]) -> list[dict[str, Any]]:
    """Messages as JSON."""
    return ModelMessagesTypeAdapter.dump_python(list(messages), mode="json", exclude_none=True)


def load_response(data: Mapping[str, Any]) -> ModelResponse:
    """A recorded answer."""
    message = ModelMessagesTypeAdapter.validate_python([data])[0]
    if message.kind != "response":
        raise ValueError("the record of an answer holds something else")
    return message


def not_usable(messages: Sequence[ModelMessage]) -> str | None:
    """What the model is told about its last answer, if that answer was no good: neither an end nor a call."""
    if len(messages) == 1:
        return None
    for part in messages[-1].parts:
        if part.part_kind == "user-prompt" or (part.part_kind == "tool-return" and part.tool_name == OUTPUT_TOOL):
            return str(part.content)
    return None


def arguments(given: Mapping[str, Any]) -> str:
    """Arguments as a person reads them: a line each, long texts below their name."""
    lines: list[str] = []
    for name, value in given.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
        lines.append(f"{name}:\n{text}" if "\n" in text else f"{name}: {text}")
    return "\n".join(lines) or "(no arguments)"
