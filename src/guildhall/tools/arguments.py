"""Whether what a model has given a tool is what the tool takes: said so that the model can correct it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import UsageError
from guildhall.core.ids import canonical
from guildhall.core.nearest import did_you_mean
from guildhall.core.yaml import field_name

if TYPE_CHECKING:
    from jsonschema.protocols import Validator
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    from guildhall.tools.define import Form
    from guildhall.tools.model import Tool

_SHOWN_ERRORS = 5
_SHOWN_VALUE = 200


def checked(tool: Tool, arguments: Any, form: Form | None) -> dict[str, Any]:
    """The arguments as the handler takes them; UsageError names what is wrong. Without a form the schema counts."""
    if not isinstance(arguments, Mapping):
        raise UsageError(f"{tool.name}: the arguments are not an object with names and values")
    given = dict(cast("Mapping[str, Any]", arguments))
    if form is None:
        return _checked_by_schema(tool, given)
    from pydantic import ValidationError

    try:
        return form.adapter.validate_python(given)
    except ValidationError as error:
        raise _explained(tool, error) from None
    except Exception as error:  # noqa: BLE001 - endless nesting, or a validator of the tool's own that breaks
        raise UsageError(f"{tool.name}: the arguments cannot be checked: {type(error).__name__}") from None


def _explained(tool: Tool, error: ValidationError) -> UsageError:
    details = error.errors(include_url=False, include_context=False)
    lines = [_sentence(tool, detail) for detail in details[:_SHOWN_ERRORS]]
    return UsageError("\n".join(f"{tool.name}: {line}" for line in lines), hint="Correct the arguments and call again.")


def _sentence(tool: Tool, detail: ErrorDetails) -> str:
    name = field_name(detail["loc"]) or "arguments"
    if detail["type"] == "missing":
        return f"{name}: this argument is required"
    if detail["type"] == "extra_forbidden" and len(detail["loc"]) == 1:
        known = cast("Mapping[str, Any]", tool.input_schema.get("properties", {}))
        return f"{name}: there is no such argument. {did_you_mean(name, known) or 'It takes none.'}"
    return f"{name}: {detail['msg']} (it is {_shortened(detail['input'])})"


def _shortened(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_VALUE else f"{shown[:_SHOWN_VALUE]}..."


def _checked_by_schema(tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    from jsonschema import exceptions

    best: Callable[[Iterable[exceptions.ValidationError]], exceptions.ValidationError | None]
    best = cast("Any", exceptions).best_match
    try:
        found = best(_validator(canonical(tool.input_schema)).iter_errors(arguments))
    except exceptions.SchemaError as error:
        raise UsageError(f"{tool.name}: the tool's own input schema is wrong: {_cut(error.message)}") from None
    except Exception as error:  # noqa: BLE001 - unresolvable references, endless nesting, patterns that do not compile
        raise UsageError(f"{tool.name}: the arguments cannot be checked: {type(error).__name__}") from None
    if found is None:
        return arguments
    name = field_name(tuple(found.absolute_path)) or "arguments"
    raise UsageError(f"{tool.name}: {name}: {_cut(found.message)}", hint="Correct the arguments and call again.")


def _cut(message: str) -> str:
    return message if len(message) <= 2 * _SHOWN_VALUE else f"{message[: 2 * _SHOWN_VALUE]}..."


@functools.lru_cache(maxsize=512)
def _validator(schema: str) -> Validator:
    """The compiled check of a hand-written schema. It looks nothing up elsewhere: the registry is empty."""
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing.jsonschema import EMPTY_REGISTRY

    parsed = json.loads(schema)
    kind: Any = validator_for(parsed, default=Draft202012Validator)
    kind.check_schema(parsed)
    return kind(parsed, registry=EMPTY_REGISTRY)
