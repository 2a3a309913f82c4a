"""What the tools of jobs and commissions have in common: the answers in a result, and `submit_result`.

Does not declare tools; each owner has a class of its own, and `bind_tools` in tools/define makes tools of its methods.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from guildhall.runs.record.entries import Entry, Payload, ToolEnded, ToolRefused, ToolStarted
from guildhall.tools.define import call_method
from guildhall.tools.model import Text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from guildhall.activities.model import Asked
    from guildhall.activities.questions import QuestionChannel
    from guildhall.tools.model import Tool, ToolCall, ToolResult

SUBMIT = "submit_result"


async def call_with_answers(tools: object, tool: Tool, call: ToolCall, questions: QuestionChannel) -> ToolResult:
    """Call the method of the tool's name, and append the user's new answers to its result."""
    result = await call_method(tools, tool, call)
    answers = await questions.new_answers(call.key)
    return replace(result, content=(*result.content, *map(_answer_block, answers)))


def _answer_block(asked: Asked) -> Text:
    return Text(f"A person has answered your question {asked.question!r}: {asked.answer}")


def with_output_schema(submit: Tool, schema: Mapping[str, Any] | None) -> Tool:
    """Return the tool `submit_result` for results with a schema."""
    if schema is None:
        return submit
    inner = {name: part for name, part in schema.items() if name not in ("$schema", "$id", "$defs", "definitions")}
    shape = cast("dict[str, Any]", submit.input_schema)
    outer = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    if _has_other_references(inner, outer):  # they would point to other places inside the larger schema
        inner = {"type": "object", "description": "Its form is told when it does not fit."}
    properties = {**shape["properties"], "output": inner}
    # A plain handler: the form of a typed one would reject outputs that are not text.
    handler = cast("Any", submit.handler).function
    return replace(submit, input_schema={**shape, **outer, "properties": properties}, handler=handler)


def _has_other_references(*parts: Any) -> bool:
    """Return True if a schema refers to something outside of its definitions."""
    level = list(parts)
    while level:
        part = level.pop()
        if isinstance(part, dict):
            for name, value in cast("dict[str, Any]", part).items():
                if name == "$ref" and not str(value).startswith(("#/$defs/", "#/definitions/")):
                    return True
                level.append(value)
        elif isinstance(part, list):
            level += cast("list[Any]", part)
    return False


def is_result_accepted(entries: Sequence[Entry[Payload]]) -> bool:
    """Return True if a call of `submit_result` succeeded, by the entries of the run's journal."""
    return any(not result["is_error"] for result in _submit_results(entries))


def rejection_reason(entries: Sequence[Entry[Payload]]) -> str | None:
    """Return why the last call of `submit_result` failed, or None if there was none or it succeeded."""
    last = (_submit_results(entries) or [None])[-1]
    if last is None or not last["is_error"]:
        return None
    return str(last["content"][0].get("text", "")) if last["content"] else ""


def _submit_results(entries: Sequence[Entry[Payload]]) -> list[Mapping[str, Any]]:
    """Return the results of all calls of `submit_result` in order, including refused ones."""
    tools = {e.key: e.data.tool for e in entries if isinstance(e.data, ToolStarted | ToolRefused)}
    ends = ((e.key, e.data.result) for e in entries if isinstance(e.data, ToolEnded | ToolRefused))
    return [result for key, result in ends if tools.get(key) == SUBMIT]
