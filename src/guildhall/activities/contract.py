"""Contract of a result: checks an output against its schema and artifacts, and adapts the tool `submit_result`.

Also defines the values that jobs, commissions and meetings share: a question with its answer, and a decision of the
worker.
Does not ask questions (`activities.questions`) and does not define the type of a contract (`runs.purpose`). Does not
resolve remote references of a schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from guildhall.runs.record.entries import Entry, Payload, ToolEnded, ToolRefused, ToolStarted

if TYPE_CHECKING:
    from guildhall.runs.purpose import Contract
    from guildhall.tools.model import Tool


READ_TOOLS = ("Read", "Grep", "Glob")  # file tools that every activity gives to its worker
WRITE_TOOLS = ("Write", "Edit")  # file tools of commissions and meetings; a job has none


@dataclass(frozen=True, kw_only=True)
class AskedQuestion:
    """A question of the worker, with the user's answer."""

    ask: str  # the id of the ask in the inbox
    at: str
    question: str
    answer: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {"ask": self.ask, "question": self.question, "answer": self.answer}


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A decision that the worker made without the user."""

    question: str
    decision: str
    reasoning: str

    def as_wire(self) -> dict[str, Any]:
        return {"question": self.question, "decision": self.decision, "reasoning": self.reasoning}


MAX_PROBLEMS = 5  # in one error
_MAX_PROBLEM_CHARS = 300


def output_text(output: Any) -> str:
    """Return an output as text: JSON, unless it is text already."""
    return output if isinstance(output, str) else json.dumps(output, indent=2, ensure_ascii=False)


def check_output(contract: Contract, output: Any, missing: Sequence[str]) -> tuple[Any, list[str]]:
    """Return the output, parsed if the contract has a schema, and the problems for which it is rejected.

    `missing`: required artifacts that do not exist.
    """
    problems = [f"the artifact {path} is missing" for path in missing]
    if contract.schema is None:
        return output, problems
    value = _parse_json(output) if isinstance(output, str) else output
    return value, problems + _schema_problems(contract.schema, value)


def _parse_json(text: str) -> Any:
    """Return the value of a JSON text, which may have a code fence around it. Return other text unchanged."""
    inner = text.strip()
    if inner.startswith("```") and inner.endswith("```"):
        inner = inner.removesuffix("```").partition("\n")[2]
    try:
        return json.loads(inner)
    except (ValueError, RecursionError):
        return text


def _schema_problems(schema: Mapping[str, Any], value: Any) -> list[str]:
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing.jsonschema import EMPTY_REGISTRY

    validator: Any = validator_for(schema, default=Draft202012Validator)
    problems: list[str] = []
    for error in validator(schema, registry=EMPTY_REGISTRY).iter_errors(value):  # no remote references
        path = str(error.json_path).removeprefix("$").lstrip(".") or "the result"
        message = str(error.message)
        if len(message) > _MAX_PROBLEM_CHARS:
            message = message[:_MAX_PROBLEM_CHARS] + "..."
        problems.append(f"{path}: {message}")
    return problems


SUBMIT = "submit_result"


def with_output_schema(submit: Tool, schema: Mapping[str, Any] | None) -> Tool:
    """Return the tool `submit_result` with `schema` as the schema of its argument `output`."""
    if schema is None:
        return submit
    inner = {name: part for name, part in schema.items() if name not in ("$schema", "$id", "$defs", "definitions")}
    tool_schema = cast("dict[str, Any]", submit.input_schema)
    outer = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    if _has_other_references(inner, outer):  # they would be resolved against the schema of the tool
        inner = {
            "type": "object",
            "description": "An output that does not match its schema is rejected with the reasons.",
        }
    properties = {**tool_schema["properties"], "output": inner}
    # The typed handler would reject an output that is not text.
    handler = cast("Any", submit.handler).function
    return replace(submit, input_schema={**tool_schema, **outer, "properties": properties}, handler=handler)


def _has_other_references(*parts: Any) -> bool:
    """Return True if a schema refers to something outside of its definitions."""
    pending = list(parts)
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            for name, value in cast("dict[str, Any]", part).items():
                if name == "$ref" and not str(value).startswith(("#/$defs/", "#/definitions/")):
                    return True
                pending.append(value)
        elif isinstance(part, list):
            pending += cast("list[Any]", part)
    return False


def is_result_accepted(entries: Sequence[Entry[Payload]]) -> bool:
    """Return True if the journal entries contain a successful call of `submit_result`."""
    return any(not result["is_error"] for result in _submit_results(entries))


def rejection_reason(entries: Sequence[Entry[Payload]]) -> str | None:
    """Return the error of the last call of `submit_result`, or None if there was no call or it succeeded."""
    last = (_submit_results(entries) or [None])[-1]
    if last is None or not last["is_error"]:
        return None
    return str(last["content"][0].get("text", "")) if last["content"] else ""


def _submit_results(entries: Sequence[Entry[Payload]]) -> list[Mapping[str, Any]]:
    """Return the results of all calls of `submit_result` in order, including refused calls."""
    tools = {e.key: e.data.tool for e in entries if isinstance(e.data, ToolStarted | ToolRefused)}
    ends = ((e.key, e.data.result) for e in entries if isinstance(e.data, ToolEnded | ToolRefused))
    return [result for key, result in ends if tools.get(key) == SUBMIT]
