"""A recorded conversation for people and programs: system, user, assistant, tool; whatever runtime it came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guildhall.runs import limits
from guildhall.runs.record.entries import ModelAnswered, ModelAsked, Said
from guildhall.runtimes.model import labelled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.runs.journal import Journal


def conversation(journal: Journal) -> list[dict[str, Any]]:
    """What was said to the model and by it, as far as it is on record."""
    frozen = journal.assembly
    messages: list[dict[str, Any]] = [{"role": "system", "content": frozen.system_prompt}]
    asked_first = "\n".join([frozen.first_message, *map(labelled, frozen.attachments)])
    for answer in journal.all(ModelAnswered):
        asked = journal.last(answer.key or "", ModelAsked)
        if asked is not None:
            messages += [_said_to_model(part, asked_first) for part in asked.data.message]
        messages.append(_said_by_model(answer.data.response))
    unanswered = [] if limits.turns(journal) else journal.all(Said)[-1:]
    return messages + [{"role": "user", "content": said.data.words} for said in unanswered]


def _said_to_model(part: Mapping[str, Any], asked_first: str) -> dict[str, Any]:
    if part["part"] != "tool-return":  # in more than one piece it is the first message with what is attached
        return {"role": "user", "content": part["content"] if isinstance(part["content"], str) else asked_first}
    return {
        "role": "tool",
        "id": part["tool_call_id"],
        "tool": part["tool_name"],
        "content": part["content"],
        "is_error": part["outcome"] != "success",
    }


def _said_by_model(response: Mapping[str, Any]) -> dict[str, Any]:
    parts: list[dict[str, Any]] = response["parts"]
    return {
        "role": "assistant",
        "content": "".join(part["content"] for part in parts if part["part_kind"] == "text"),
        "calls": [
            {"id": part["tool_call_id"], "tool": part["tool_name"], "arguments": part.get("args")}
            for part in parts
            if part["part_kind"] == "tool-call"
        ],
    }
