"""What a worker's output must look like: a JSON Schema in a file, or that of a model in Python."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import GuildError, InvalidFile, ToolUnavailable
from guildhall.core.yaml import read_text, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from guildhall.core.frame import Frame
    from guildhall.workers.code import Code
    from guildhall.workers.model import Worker


def schema_path(worker: Worker, frame: Frame) -> Path | None:
    """The file of the worker's output schema, if it names one."""
    reference = worker.definition.output_schema_ref
    return worker.beside(frame) / reference if reference and reference.endswith(".json") else None


def schema_in_file(worker: Worker, path: Path) -> Mapping[str, Any]:
    """The schema in a file."""
    if not path.exists():
        hint = "Make it, or correct the path: it starts at the worker's project."
        raise InvalidFile(f"output_schema_ref: there is no file {path}", where=worker.place, hint=hint)
    try:
        schema: Any = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InvalidFile(f"not JSON: {error}", where=str(path)) from None
    return _checked(schema, str(path))


async def schema_of_model(worker: Worker, code: Code) -> Mapping[str, Any]:
    """The schema of a model. Its module is imported in a confined child: the very bytes that `code` has read."""
    from guildhall.tools.schema import schema_of

    try:
        return _checked(await schema_of(code.name, code.sources(), code.root), code.name)
    except ToolUnavailable as error:
        where = f"{code.root / error.where}" if error.where else worker.place
        raise ToolUnavailable(f"output_schema_ref: {error.message}", where=where, hint=error.hint) from None
    except GuildError as error:
        raise InvalidFile(f"output_schema_ref: {error.message}", where=worker.place, hint=error.hint) from None


def _checked(schema: Any, where: str) -> Mapping[str, Any]:
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
