"""What a worker's output must look like: a JSON Schema in a file, or that of a model in Python."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError, InvalidFile, ToolUnavailable
from guildhall.core.yaml import read_text
from guildhall.workers.output_schema import checked_schema

if TYPE_CHECKING:
    from collections.abc import Mapping
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
    return checked_schema(schema, str(path))


async def schema_of_model(worker: Worker, code: Code) -> Mapping[str, Any]:
    """The schema of a model. Its module is imported in a confined child: the very bytes that `code` has read."""
    from guildhall.tools.schema import schema_of

    try:
        return checked_schema(await schema_of(code.name, code.sources(), code.root), code.name)
    except ToolUnavailable as error:
        where = f"{code.root / error.where}" if error.where else worker.place
        raise ToolUnavailable(f"output_schema_ref: {error.message}", where=where, hint=error.hint) from None
    except GuildError as error:
        raise InvalidFile(f"output_schema_ref: {error.message}", where=worker.place, hint=error.hint) from None
