"""YAML and JSON files of the user's: read with the line of every field, checked against a pydantic model.

Not a general YAML library: it reads what people wrote for Guildhall, and says where it is wrong.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from guildhall.core.errors import InvalidFile, did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

    Model = TypeVar("Model", bound=BaseModel)

MAX_BYTES = 1_000_000
_MAX_NODES = 50_000
_MAX_DEPTH = 60

Location = tuple[str | int, ...]


@dataclass(frozen=True)
class Source:
    """A file's plain data, and the line on which each part of it stands."""

    path: Path
    text: str
    data: Any
    lines: dict[Location, int]

    def line(self, location: Location) -> int | None:
        """The line of a part, or of the nearest part around it that has one."""
        for end in range(len(location), -1, -1):
            if (found := self.lines.get(location[:end])) is not None:
                return found
        return None

    def error(self, message: str, location: Location = (), hint: str | None = None) -> InvalidFile:
        """The error that names this file, the line and the field."""
        line = self.line(location)
        where = f"{self.path}:{line}" if line else str(self.path)
        name = field_name(location)
        return InvalidFile(f"{name}: {message}" if name else message, where=where, hint=hint)


def field_name(location: Location) -> str:
    """A location as people write it: `sandboxes.input.mode`, `tools[2]`."""
    name = ""
    for part in location:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name


def read_text(path: Path) -> str:
    """A user's text file: regular, not too large, UTF-8."""
    if not path.exists():
        raise InvalidFile("there is no such file", where=str(path))
    if not path.is_file():
        raise InvalidFile("this is not a regular file", where=str(path))
    if path.stat().st_size > MAX_BYTES:
        raise InvalidFile(f"the file is larger than {MAX_BYTES:,} bytes", where=str(path))
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidFile(f"not UTF-8 text: byte {error.start} cannot be read", where=str(path)) from None


def read(path: Path) -> Source:
    """The file as plain data; YAML, or JSON where the suffix says so."""
    return parse(path, read_text(path))


def parse(path: Path, text: str) -> Source:
    """The text as plain data; `path` says which language it is and stands in errors."""
    return _parse_json(path, text) if path.suffix == ".json" else _parse_yaml(path, text)


def _parse_json(path: Path, text: str) -> Source:
    try:
        return Source(path, text, json.loads(text), {(): 1})
    except json.JSONDecodeError as error:
        raise InvalidFile(f"not JSON: {error.msg}", where=f"{path}:{error.lineno}") from None
    except RecursionError:
        raise InvalidFile("nested too deeply", where=str(path)) from None


def _parse_yaml(path: Path, text: str) -> Source:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    loader = YAML(typ="rt")
    try:
        tree = cast("Any", loader).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = (error.problem or error.context or "cannot be read").split("\n")[0]
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise InvalidFile(f"not YAML: {problem}", where=where) from None
    except (YAMLError, ValueError, RecursionError) as error:
        problem = str(error).split("\n")[0] or "nested too deeply"
        raise InvalidFile(f"not YAML: {problem}", where=str(path)) from None
    reader = _Reader(path)
    data = reader.plain(tree, ())
    return Source(path, text, data, reader.lines)


class _Reader:
    """Turns ruamel's tree into plain data and notes the lines. Refuses trees that grow out of small files."""

    def __init__(self, path: Path) -> None:
        self.lines: dict[Location, int] = {(): 1}
        self._path = path
        self._nodes = 0

    def plain(self, node: Any, location: Location) -> Any:
        self._nodes += 1
        if self._nodes > _MAX_NODES or len(location) > _MAX_DEPTH:
            raise InvalidFile("the file unfolds into too much data", where=str(self._path))
        if isinstance(node, dict):
            return self._mapping(cast("dict[Any, Any]", node), location)
        if isinstance(node, list):
            return self._sequence(cast("list[Any]", node), location)
        return _scalar(node)

    def _mapping(self, node: dict[Any, Any], location: Location) -> dict[str, Any]:
        places: Any = getattr(node, "lc", None)
        plain: dict[str, Any] = {}
        for key, value in node.items():
            name = str(_scalar(key))
            here = (*location, name)
            if places is not None and key in (places.data or {}):
                self.lines[here] = places.data[key][0] + 1
            plain[name] = self.plain(value, here)
        return plain

    def _sequence(self, node: list[Any], location: Location) -> list[Any]:
        places: Any = getattr(node, "lc", None)
        plain: list[Any] = []
        for index, value in enumerate(node):
            here = (*location, index)
            if places is not None and index in (places.data or {}):
                self.lines[here] = places.data[index][0] + 1
            plain.append(self.plain(value, here))
        return plain


def _scalar(node: Any) -> Any:
    """ruamel's decorated scalars as the plain values that they stand for."""
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return None if node is None else str(node)


def validate(model: type[Model], source: Source, location: Location = (), data: Any = None) -> Model:
    """The data of a source (or a part of it) as a model; the first thing wrong is an error with its line."""
    from pydantic import ValidationError

    data = source.data if data is None else data
    if not isinstance(data, dict):
        raise source.error("expected fields with values, like `name: value`", location)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _explained(model, source, location, error) from None


def _explained(model: type[BaseModel], source: Source, location: Location, error: ValidationError) -> InvalidFile:
    first = error.errors(include_url=False)[0]
    here = (*location, *_written(first["loc"], source, location))
    if first["type"] == "extra_forbidden":
        return source.error("there is no such field", here, did_you_mean(str(here[-1]), _siblings(model, first)))
    if first["type"] == "missing":
        return source.error("this field is required", here)
    return source.error(_sentence(first), here)


def _written(loc: tuple[int | str, ...], source: Source, location: Location) -> Location:
    """The part of pydantic's location that stands in the file: tags of unions and validators are dropped."""
    node = source.data
    for part in location:
        node = node[part]
    kept: list[str | int] = []
    for index, part in enumerate(loc):
        inside = (isinstance(node, dict) and part in node) or (isinstance(node, list) and isinstance(part, int))
        if inside:
            kept.append(part)
            node = cast("Any", node)[part]
        elif index == len(loc) - 1 and isinstance(node, dict):
            kept.append(part)
    return tuple(kept)


def _siblings(model: type[BaseModel], error: ErrorDetails) -> list[str]:
    """The field names that would have been right where an unknown one stood."""
    current: Any = model
    for part in error["loc"][:-1]:
        fields = getattr(current, "model_fields", None)
        if fields and part in fields:
            current = _inner_model(fields[part].annotation)
    fields = getattr(current, "model_fields", {})
    return [info.alias or name for name, info in fields.items()]


def _inner_model(annotation: Any) -> Any:
    """The model inside `X | None`, `dict[str, X]`, `list[X]`, Annotated and the like."""
    if hasattr(annotation, "model_fields"):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if (found := _inner_model(argument)) is not None:
            return found
    return None


def _sentence(error: ErrorDetails) -> str:
    message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    shown = error["input"]
    if error["type"] in {"value_error", "assertion_error"} or isinstance(shown, dict | list):
        return message
    return f"{message} (it is {shown!r})"
