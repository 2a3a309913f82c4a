"""The contract of a result: converts the output of a worker to the demanded form and lists what is wrong with it.

Does not look at files; the owner of the activity knows which artifacts are missing.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from guildhall.runs.purpose import Contract


MAX_PROBLEMS = 5  # in one error
_MAX_PROBLEM_CHARS = 300


def output_text(output: Any) -> str:
    """Return an output as text: JSON, unless it is text already."""
    return output if isinstance(output, str) else json.dumps(output, indent=2, ensure_ascii=False)


def check_output(contract: Contract, output: Any, missing: Sequence[str]) -> tuple[Any, list[str]]:
    """Return the output in the demanded form, and why it cannot be accepted. `missing`: artifacts that do not exist."""
    problems = [f"the artifact {path} is not there" for path in missing]
    if contract.schema is None:
        return output, problems
    value = _parse(output) if isinstance(output, str) else output
    return value, problems + _schema_problems(contract.schema, value)


def _parse(text: str) -> Any:
    """Return the value of a JSON text, without the code fence that models put around it, or the text itself."""
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

    kind: Any = validator_for(schema, default=Draft202012Validator)
    found: list[str] = []
    for error in kind(schema, registry=EMPTY_REGISTRY).iter_errors(value):  # the registry resolves no remote reference
        place = str(error.json_path).removeprefix("$").lstrip(".") or "the result"
        message = str(error.message)
        if len(message) > _MAX_PROBLEM_CHARS:
            message = message[:_MAX_PROBLEM_CHARS] + "..."
        found.append(f"{place}: {message}")
    return found
