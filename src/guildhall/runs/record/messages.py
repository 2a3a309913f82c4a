"""Model messages: convert model requests and responses to plain data for the journal, comparison and display.

The data has no times, so that a repeated request has equal data. Does not append to a journal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextContent,
    ToolCallPart,
)

from guildhall.core.ids import digest, fingerprint
from guildhall.runs.record.entries import ModelAnswered
from guildhall.runtimes.pydantic import OUTPUT_TOOL, to_tool_call

if TYPE_CHECKING:
    from pydantic_ai.models import ModelRequestParameters

    from guildhall.runs.record.journal import Journal
    from guildhall.tools.model import ToolCall


def request_parts(message: ModelMessage) -> list[dict[str, Any]]:
    return [_convert_part(part) for part in message.parts]


def _convert_part(part: Any) -> dict[str, Any]:
    data: dict[str, Any] = {"part": part.part_kind, "content": _convert_content(part.content)}
    for name in ("tool_name", "tool_call_id", "outcome"):
        if (value := getattr(part, name, None)) is not None:
            data[name] = value
    return data


def _convert_content(content: Any) -> Any:
    if isinstance(content, BinaryContent):
        return f"[{content.media_type}, {len(content.data):,} bytes, {digest(content.data)}]"
    if isinstance(content, TextContent):
        file: dict[str, Any] = content.metadata
        return f"[{file['media_type']}, {file['bytes']:,} bytes, {file['digest']}]"
    if isinstance(content, list | tuple):
        return [_convert_content(item) for item in content]  # pyright: ignore[reportUnknownVariableType]
    return content


def tools_fingerprint(parameters: ModelRequestParameters) -> str:
    """Return a fingerprint of the tool list that the model receives."""
    tools = [*parameters.function_tools, *parameters.output_tools]
    return fingerprint([[tool.name, tool.description, tool.parameters_json_schema] for tool in tools])


def dump_response(response: ModelResponse) -> dict[str, Any]:
    return ModelMessagesTypeAdapter.dump_python([response], mode="json", exclude_none=True)[0]


def load_response(data: Mapping[str, Any]) -> ModelResponse:
    message = ModelMessagesTypeAdapter.validate_python([data])[0]
    if message.kind != "response":
        raise ValueError("invalid record of a model response")
    return message


def requested_calls(journal: Journal, call: ToolCall) -> list[ToolCall]:
    """Return the calls of the model response that contains this call, in order. Empty if there is no response."""
    key = call.key.partition("/")[0]
    if (recorded := journal.last(key, ModelAnswered)) is None:
        return []
    parts = load_response(recorded.data.response).parts
    return [to_tool_call(key, part) for part in parts if isinstance(part, ToolCallPart)]


def find_correction(messages: Sequence[ModelMessage]) -> str | None:
    """Return the correction that the model receives after an unusable response, or None."""
    if len(messages) == 1:
        return None
    for part in messages[-1].parts:
        if part.part_kind == "user-prompt" or (part.part_kind == "tool-return" and part.tool_name == OUTPUT_TOOL):
            return str(part.content)
    return None


def format_arguments(arguments: Mapping[str, Any]) -> str:
    """Format arguments for the user: one line each, long texts below their name."""
    lines: list[str] = []
    for name, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
        lines.append(f"{name}:\n{text}" if "\n" in text else f"{name}: {text}")
    return "\n".join(lines) or "(no arguments)"
