"""YAML and JSON reader: reads the user's files with the line of every field and validates them by models.

Does not write YAML (see `core.yaml_writer`) or edit it (see `core.yaml_edit`). Not a general YAML library.

Invariant: every error names the file, and an error about a field names its line and the field.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from guildhall.core.errors import InvalidFile
from guildhall.core.text import did_you_mean, nearest

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

    Model = TypeVar("Model", bound=BaseModel)

MAX_BYTES = 1_000_000
_MAX_NODES = 50_000
_MAX_DEPTH = 60
_MAX_SHOWN = 80
_MAX_PROBLEMS = 20

Location = tuple[str | int, ...]


@dataclass(frozen=True)
class Source:
    """The plain data of a file, with the line of every part."""

    path: Path
    text: str
    data: Any
    lines: dict[Location, int]

    def line(self, location: Location) -> int | None:
        """Return the line of a part, or of the nearest enclosing part."""
        for end in range(len(location), -1, -1):
            if (found := self.lines.get(location[:end])) is not None:
                return found
        return None

    def at(self, location: Location) -> Any:
        """Return the part of the data at a location."""
        node = self.data
        for part in location:
            node = node[part]
        return node

    def error(self, message: str, location: Location = (), hint: str | None = None) -> InvalidFile:
        """Return an error with this file, the line and the field."""
        line = self.line(location)
        where = f"{self.path}:{line}" if line else str(self.path)
        name = field_name(location)
        return InvalidFile(f"{name}: {message}" if name else message, where=where, hint=hint)


def field_name(location: Location) -> str:
    """Return a location as text: `sandboxes.input.mode`, `tools[2]`."""
    name = ""
    for part in location:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name


def read_text(path: Path) -> str:
    """Read a text file of the user. Raise InvalidFile if it is not a regular UTF-8 file or is too large."""
    try:
        if not path.exists():
            raise InvalidFile("file not found", where=str(path), hint="Create it, or correct the path.")
        if not path.is_file():
            raise InvalidFile("not a regular file", where=str(path))
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidFile(f"cannot read the file: {reason}", where=str(path)) from None
    if len(data) > MAX_BYTES:
        raise InvalidFile(f"cannot read the file: larger than {MAX_BYTES:,} bytes", where=str(path))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidFile(f"not UTF-8 text: invalid byte at offset {error.start}", where=str(path)) from None


def read(path: Path) -> Source:
    """Read a YAML file, or a JSON file if the suffix is `.json`."""
    return parse(path, read_text(path))


@lru_cache(maxsize=256)
def parse(path: Path, text: str) -> Source:
    """Parse a text. The suffix of `path` selects the format; errors name `path`."""
    return _parse_json(path, text) if path.suffix == ".json" else _parse_yaml(path, text)


def _parse_json(path: Path, text: str) -> Source:
    try:
        data = json.loads(text, parse_constant=_reject_constant)
    except json.JSONDecodeError as error:
        raise InvalidFile(f"not JSON: {error.msg}", where=f"{path}:{error.lineno}") from None
    except RecursionError:
        raise InvalidFile("nested too deeply", where=str(path)) from None
    except ValueError as error:
        raise InvalidFile(f"not JSON: {error}", where=str(path)) from None
    reader = _Reader(path, _JsonLines(path, text).lines)
    return Source(path, text, reader.plain(data, ()), reader.lines)


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


class _JsonLines:
    """Finds the line of every part of a valid JSON text, and rejects duplicate keys."""

    _SPACE = re.compile(r"[ \t\n\r]*")

    def __init__(self, path: Path, text: str) -> None:
        self.lines: dict[Location, int] = {(): 1}
        self._path = path
        self._text = text
        self._decoder = json.JSONDecoder()
        self._line = 1
        self._counted = 0
        self._value(0, ())

    def _skip(self, at: int) -> int:
        match = self._SPACE.match(self._text, at)
        return match.end() if match else at

    def _note(self, at: int, location: Location) -> None:
        self._line += self._text.count("\n", self._counted, at)
        self._counted = at
        if location in self.lines and location:
            raise InvalidFile(f"{field_name(location)}: duplicate key", where=f"{self._path}:{self._line}")
        self.lines[location] = self._line

    def _value(self, at: int, location: Location) -> int:
        """Walk over the value at an offset and return the offset of its end."""
        if len(location) > _MAX_DEPTH:
            raise InvalidFile("nested too deeply", where=str(self._path))
        at = self._skip(at)
        if self._text[at] not in "{[":
            return self._decoder.raw_decode(self._text, at)[1]
        closing = "}" if self._text[at] == "{" else "]"
        at = self._skip(at + 1)
        index = 0
        while self._text[at] != closing:
            at = self._skip(at + 1) if self._text[at] == "," else at
            if closing == "}":
                key, after = self._decoder.raw_decode(self._text, at)
                self._note(at, (*location, key))
                at = self._value(self._skip(after) + 1, (*location, key))
            else:
                self._note(at, (*location, index))
                at = self._value(at, (*location, index))
            index += 1
            at = self._skip(at)
        return at + 1


def _parse_yaml(path: Path, text: str) -> Source:
    if text.startswith("{"):
        with suppress(InvalidFile):  # JSON is YAML; errors are those of the YAML parser
            return _parse_json(path, text)
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError

    loader: Any = YAML(typ="rt")
    loader.Scanner = _shallow_scanner()
    loader.composer.warn_double_anchors = False
    try:
        tree = loader.load(text)
    except MarkedYAMLError as error:
        raise _syntax_error(path, error) from None
    except Exception as error:  # noqa: BLE001 - on broken text ruamel lets errors of every kind out
        problem = next(iter(str(error).splitlines()), "")[:_MAX_SHOWN] or "invalid syntax"
        raise InvalidFile(f"not YAML: {problem}", where=str(path)) from None
    reader = _Reader(path, {(): 1})
    data = reader.plain(tree, ())
    return Source(path, text, data, reader.lines)


@lru_cache(maxsize=1)
def _shallow_scanner() -> Any:
    """Return ruamel's scanner with a limit on nesting. Without it deeply nested text takes minutes."""
    from ruamel.yaml.scanner import RoundTripScanner, ScannerError

    class Shallow(cast("type[Any]", RoundTripScanner)):
        def save_possible_simple_key(self) -> None:
            self._stay_shallow(len(self.flow_context))
            RoundTripScanner.save_possible_simple_key(self)

        def add_indent(self, column: int) -> bool:
            self._stay_shallow()
            return RoundTripScanner.add_indent(self, column)

        def _stay_shallow(self, more: int = 0) -> None:
            if len(self.indents) + more > _MAX_DEPTH:
                raise ScannerError(None, None, "nested too deeply", self.reader.get_mark())

    return Shallow


def _syntax_error(path: Path, error: Any) -> InvalidFile:
    """Return an error with the problem and the line of ruamel's error."""
    mark = error.problem_mark or error.context_mark
    problem = str(error.problem or error.context or "invalid syntax").split("\n")[0]
    return InvalidFile(f"not YAML: {problem}", where=f"{path}:{mark.line + 1}" if mark else str(path))


class _Reader:
    """Converts ruamel's tree to plain data with lines. Rejects small files that expand to too much data."""

    def __init__(self, path: Path, lines: dict[Location, int]) -> None:
        self.lines = lines
        self._path = path
        self._nodes = 0

    def plain(self, node: Any, location: Location) -> Any:
        self._nodes += 1
        if self._nodes > _MAX_NODES or len(location) > _MAX_DEPTH:
            raise InvalidFile(f"more than {_MAX_NODES:,} values, or {_MAX_DEPTH} levels", where=str(self._path))
        if isinstance(node, dict):
            return self._mapping(cast("dict[Any, Any]", node), location)
        if isinstance(node, list):
            return self._sequence(cast("list[Any]", node), location)
        return self._text(_scalar(node), location)

    def _mapping(self, node: dict[Any, Any], location: Location) -> dict[str, Any]:
        places: Any = getattr(node, "lc", None)
        plain: dict[str, Any] = {}
        for key, value in node.items():
            name = str(self._text(_scalar(key), location))
            here = (*location, name)
            if places is not None and key in (places.data or {}):
                self.lines[here] = places.data[key][0] + 1
            if name in plain:
                raise self._error(f"{field_name(here)}: duplicate key", here)
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

    def _text(self, value: Any, location: Location) -> Any:
        """Reject lone surrogates: they can be escaped in a file, but not printed, sent or stored."""
        if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
            raise self._error("invalid text (it contains a lone surrogate)", location)
        return value

    def _error(self, message: str, location: Location) -> InvalidFile:
        line = self.lines.get(location)
        return InvalidFile(message, where=f"{self._path}:{line}" if line else str(self._path))


def _scalar(node: Any) -> Any:
    """Return the plain value of ruamel's scalar."""
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    if node is None:
        return None
    return str(getattr(node, "value", node))  # a tagged scalar


def validate(model: type[Model], source: Source, location: Location = ()) -> Model:
    """Validate a source, or a part of it. Raise InvalidFile with the line of the first mistake."""
    from pydantic import ValidationError

    data = source.at(location)
    if not isinstance(data, dict):
        raise source.error("expected a mapping, like `name: value`", location)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _validation_error(model, source, location, error) from None


def _validation_error(
    model: type[BaseModel], source: Source, location: Location, error: ValidationError
) -> InvalidFile:
    # An unknown field explains more than the missing field that it was probably meant to be.
    every = sorted(error.errors(include_url=False), key=lambda problem: problem["type"] == "missing")
    first, *others = [_field_error(model, source, location, problem) for problem in every[:_MAX_PROBLEMS]]
    first.others = tuple(dict.fromkeys(map(str, others)))
    return first


def _field_error(model: type[BaseModel], source: Source, location: Location, first: ErrorDetails) -> InvalidFile:
    here = (*location, *_file_location(first["loc"], source, location))
    if first["type"] == "extra_forbidden":
        return source.error("unknown field", here, did_you_mean(str(here[-1]), _siblings(model, first)))
    if first["type"] == "literal_error":
        return source.error(*_choice_error(first, here))
    return source.error("this field is required" if first["type"] == "missing" else describe_problem(first), here)


def _file_location(loc: tuple[int | str, ...], source: Source, location: Location) -> Location:
    """Return the part of pydantic's location that exists in the file, without tags of unions and validators."""
    node = source.at(location)
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
    """Return the names of the fields that are valid in place of an unknown one."""
    current: Any = model
    for part in error["loc"][:-1]:
        fields = getattr(current, "model_fields", None)
        if fields and part in fields:
            current = _inner_model(fields[part].annotation)
    fields = getattr(current, "model_fields", {})
    return [info.alias or name for name, info in fields.items()]


def _inner_model(annotation: Any) -> Any:
    """Return the model inside `X | None`, `dict[str, X]`, `list[X]`, Annotated and similar types."""
    if hasattr(annotation, "model_fields"):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if (found := _inner_model(argument)) is not None:
            return found
    return None


_EXPECTED = {
    "string_type": "expected text",
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "int_type": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "float_parsing": "expected a number",
    "tuple_type": "expected a list",
    "list_type": "expected a list",
    "dict_type": "expected a mapping",
    "model_type": "expected a mapping",
    "model_attributes_type": "expected a mapping",
}

# The beginning of pydantic's messages, such as "Input should be greater than 0".
_LIBRARY_WORDS = re.compile(r"^\w+ should\b")


def _choice_error(error: ErrorDetails, here: Location) -> tuple[str, Location, str | None]:
    """Return message, location and hint for a value that is not one of the permitted values."""
    expected = str(error.get("ctx", {}).get("expected", ""))
    guess = nearest(str(error["input"])[:_MAX_SHOWN], re.findall(r"'([^']*)'", expected))
    hint = f"Did you mean {guess!r}?" if guess else None
    return f"expected {expected} (got {format_value(error['input'])})", here, hint


def describe_problem(error: ErrorDetails) -> str:
    """Return a problem of pydantic in the words of the user's files."""
    if error["type"] in {"value_error", "assertion_error"}:
        return error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = _EXPECTED.get(error["type"]) or _LIBRARY_WORDS.sub("must", error["msg"]).partition(" after validation")[0]
    message = message.replace(r"match pattern '^https?://[^\s]+$'", "be a URL that starts with http:// or https://")
    return f"{message} (got {format_value(error['input'])})"


def format_value(value: Any) -> str:
    """Return a value as short text for an error message."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None or isinstance(value, bool):
        return "empty" if value is None else str(value).lower()
    try:
        text = repr(value)
    except ValueError:  # a whole number of thousands of digits
        return "a very long number"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
