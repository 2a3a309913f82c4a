"""Whether something is a JSON Schema that a worker's output can be held against."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import InvalidFile
from guildhall.core.yaml import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def checked_schema(schema: Any, where: str) -> Mapping[str, Any]:
    """The schema, if it is one of an object and stands alone; `where` is its place, for errors."""
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for

    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as error:
        raise InvalidFile(f"not a JSON Schema: {error.message}", where=where) from None
    except RecursionError:
        raise InvalidFile("not a JSON Schema: it is nested too deeply", where=where) from None
    if not isinstance(schema, dict) or cast("dict[str, Any]", schema).get("type") != "object":
        raise InvalidFile("an output schema must have `type: object`", where=where)
    for reference in _references(schema):
        if not _leads_somewhere(reference, cast("dict[str, Any]", schema)):
            hint = "An output schema stands alone: its references lead to parts of itself, such as #/$defs/part."
            raise InvalidFile(f"the reference {shown(reference)} leads nowhere", where=where, hint=hint)
    return cast("dict[str, Any]", schema)


def _references(schema: Any) -> Iterator[str]:
    rest = [schema]
    while rest:
        part = rest.pop()
        if isinstance(part, dict):
            inside = cast("dict[str, Any]", part)
            yield from (inside[name] for name in ("$ref", "$dynamicRef") if isinstance(inside.get(name), str))
            rest += inside.values()
        elif isinstance(part, list):
            rest += cast("list[Any]", part)


def _leads_somewhere(reference: str, schema: Mapping[str, Any]) -> bool:
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012, EMPTY_REGISTRY

    if not reference.startswith("#"):
        return False
    here = EMPTY_REGISTRY.with_resource("", DRAFT202012.create_resource(schema))
    try:
        return isinstance(here.resolver().lookup(reference).contents, dict | bool)
    except (Unresolvable, ValueError, TypeError):  # no such part
        return False
