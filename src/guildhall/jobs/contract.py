"""Completion is a contract: whether a job has given what it had to, and in what form."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import NotFulfilled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from guildhall.jobs.folder import JobFolder
    from guildhall.runs.purpose import Contract

MOST = 5  # problems that are told at once
_LONGEST = 300  # characters of one


def as_text(output: Any) -> str:
    """A result as result.md has it."""
    return output if isinstance(output, str) else json.dumps(output, indent=2, ensure_ascii=False)


def fulfil(folder: JobFolder, contract: Contract, output: Any) -> str:
    """The result as text, if the contract is kept. NotFulfilled says all that is missing."""
    value, problems = fitted(contract, output, folder.lacks(contract.artifacts))
    if problems:
        raise NotFulfilled(
            f"the job has not given what it had to: {'; '.join(problems[:MOST])}",
            hint="Write what is missing with write_artifact, correct the result, and submit it again.",
        )
    return as_text(value)


def fitted(contract: Contract, output: Any, lacks: Sequence[str]) -> tuple[Any, list[str]]:
    """The result in the form that is demanded, and what keeps it from being taken; it `lacks` these artifacts."""
    problems = [f"the artifact {path} is not there" for path in lacks]
    if contract.schema is None:
        return output, problems
    value = _read(output) if isinstance(output, str) else output
    return value, problems + _misfits(contract.schema, value)


def _read(text: str) -> Any:
    """What a text says as JSON, also inside the fence that models like to put around it; else the text itself."""
    inner = text.strip()
    if inner.startswith("```") and inner.endswith("```"):
        inner = inner.removesuffix("```").partition("\n")[2]
    try:
        return json.loads(inner)
    except (ValueError, RecursionError):
        return text


def _misfits(schema: Mapping[str, Any], value: Any) -> list[str]:
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing.jsonschema import EMPTY_REGISTRY

    kind: Any = validator_for(schema, default=Draft202012Validator)
    found: list[str] = []
    for error in kind(schema, registry=EMPTY_REGISTRY).iter_errors(value):  # it looks nothing up elsewhere
        place = str(error.json_path).removeprefix("$").lstrip(".") or "the result"
        message = str(error.message)
        found.append(f"{place}: {message if len(message) <= _LONGEST else message[:_LONGEST] + '...'}")
    return found
