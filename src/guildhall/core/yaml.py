"""YAML and JSON reader: reads files of the user with the line of every field, and validates them with pydantic models.

YAML is written and edited by `core.yaml_writer`. This is not a general YAML library.

Invariant: every error names the file, and an error about a field names its line and the field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from guildhall.core.errors import InvalidFile
from guildhall.core.text_checks import did_you_mean, nearest

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

    Model = TypeVar("Model", bound=BaseModel)

MAX_BYTES = 1_000_000
_MAX_NODES = 20_000  # about one second of parsing
_MAX_DEPTH = 60
_MAX_SHOWN_CHARS = 80
_MAX_ERRORS = 20
_SYNTAX_HINT = "Check the indentation, the colons, the brackets and the quotes."
_TOO_DEEP = f"nested too deeply (more than {_MAX_DEPTH} levels)"
_TOO_MANY = f"more than {_MAX_NODES:,} values"

Location = tuple[str | int, ...]


@dataclass(frozen=True)
class Source:
    """The plain data of a file, with the line of each value."""

    path: Path
    text: str
    data: Any
    lines: dict[Location, int]
    written_names: dict[Location, str] = field(default_factory=dict[Location, str])  # of renamed fields

    def line(self, location: Location) -> int | None:
        """Return the line of a value, or of the nearest enclosing value."""
        for end in range(len(location), -1, -1):
            if (line := self.lines.get(location[:end])) is not None:
                return line
        return None

    def at(self, location: Location) -> Any:
        """Return the value at a location."""
        node = self.data
        for part in location:
            node = node[part]
        return node

    def error(self, message: str, location: Location = (), hint: str | None = None) -> InvalidFile:
        """Return an error that names this file, the line and the field."""
        line = self.line(location)
        where = f"{self.path}:{line}" if line else str(self.path)
        parts = (self.written_names.get(location[: index + 1], part) for index, part in enumerate(location))
        name = field_name(tuple(parts))
        return InvalidFile(f"{name}: {message}" if name else message, field=name or None, where=where, hint=hint)


def field_name(location: Location) -> str:
    """Return a location as text, such as `sandboxes.input.mode` or `tools[2]`."""
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
        message = f"not UTF-8 text: invalid byte at offset {error.start}"
        raise InvalidFile(message, where=str(path), hint="Convert it to UTF-8.") from None


def read(path: Path) -> Source:
    """Read a YAML file, or a JSON file if the suffix is `.json`."""
    return parse(path, read_text(path))


@lru_cache(maxsize=256)
def parse(path: Path, text: str) -> Source:
    """Parse a text. The suffix of `path` selects the format. Errors name `path`."""
    return _parse_json(path, text) if path.suffix == ".json" else _parse_yaml(path, text)


def _parse_json(path: Path, text: str) -> Source:
    try:
        data = json.loads(text, parse_constant=_reject_constant)
    except json.JSONDecodeError as error:
        raise InvalidFile(f"not JSON: {error.msg}", where=f"{path}:{error.lineno}") from None
    except RecursionError:
        raise InvalidFile(_TOO_DEEP, where=str(path)) from None
    except ValueError as error:
        raise InvalidFile(f"not JSON: {error}", where=str(path)) from None
    reader = _Reader(path, _JsonLines(path, text).lines)
    return Source(path, text, reader.plain(data, ()), reader.lines)


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


class _JsonLines:
    """Finds the line of each value of a valid JSON text, and rejects duplicate keys."""

    _SPACE = re.compile(r"[ \t\n\r]*")

    def __init__(self, path: Path, text: str) -> None:
        self.lines: dict[Location, int] = {(): 1}
        self._path = path
        self._text = text
        self._decoder = json.JSONDecoder()
        self._line = 1
        self._counted_until = 0
        self._value(0, ())

    def _skip(self, at: int) -> int:
        match = self._SPACE.match(self._text, at)
        return match.end() if match else at

    def _record_line(self, at: int, location: Location) -> None:
        self._line += self._text.count("\n", self._counted_until, at)
        self._counted_until = at
        if location in self.lines and location:
            raise InvalidFile(f"{field_name(location)}: duplicate key", where=f"{self._path}:{self._line}")
        self.lines[location] = self._line

    def _value(self, at: int, location: Location) -> int:
        """Record the lines inside the value at an offset. Return the offset of its end."""
        if len(location) > _MAX_DEPTH:
            raise InvalidFile(_TOO_DEEP, where=str(self._path))
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
                self._record_line(at, (*location, key))
                at = self._value(self._skip(after) + 1, (*location, key))
            else:
                self._record_line(at, (*location, index))
                at = self._value(at, (*location, index))
            index += 1
            at = self._skip(at)
        return at + 1


def _parse_yaml(path: Path, text: str) -> Source:
    if text.startswith("{"):
        with suppress(InvalidFile):  # JSON is YAML, and the YAML parser reports the errors
            return _parse_json(path, text)
    from ruamel.yaml.error import MarkedYAMLError

    try:
        tree = limited_ruamel().load(text)
    except _Rejected as error:
        raise InvalidFile(error.reason, where=f"{path}:{error.line}") from None
    except MarkedYAMLError as error:
        raise _syntax_error(path, text, error) from None
    except Exception:  # noqa: BLE001 - ruamel raises many types of errors for invalid text
        raise InvalidFile("not YAML: invalid syntax", where=str(path), hint=_SYNTAX_HINT) from None
    reader = _Reader(path, {(): 1})
    data = reader.plain(tree, ())
    return Source(path, text, data, reader.lines)


class _Rejected(Exception):
    """A text that ruamel could read and that exceeds a limit or uses an unsupported feature."""

    def __init__(self, reason: str, mark: Any) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = mark.line + 1


def limited_ruamel() -> Any:
    """Return a ruamel YAML object that stops at the limits while it reads, before hostile text costs time."""
    from ruamel.yaml import YAML

    ruamel: Any = YAML(typ="rt")
    ruamel.Scanner, ruamel.Composer, ruamel.Constructor = _limited_classes()
    ruamel.composer.warn_double_anchors = False
    return ruamel


@lru_cache(maxsize=1)
def _limited_classes() -> tuple[Any, Any, Any]:
    """Return a scanner that limits the nesting, a composer that limits the values, and a constructor.

    Deeply nested text takes minutes without the first limit. Merge keys copy mappings: 9 KB of them take half a minute,
    so the composer rejects them. The constructor rejects duplicate keys.
    """
    from ruamel.yaml.composer import Composer
    from ruamel.yaml.constructor import RoundTripConstructor
    from ruamel.yaml.scanner import RoundTripScanner

    class LimitedScanner(cast("type[Any]", RoundTripScanner)):
        def save_possible_simple_key(self) -> None:
            self._check_depth(len(self.flow_context))
            RoundTripScanner.save_possible_simple_key(self)

        def add_indent(self, column: int) -> bool:
            self._check_depth()
            return RoundTripScanner.add_indent(self, column)

        def _check_depth(self, more: int = 0) -> None:
            if len(self.indents) + more > _MAX_DEPTH:
                raise _Rejected(_TOO_DEEP, self.reader.get_mark())

    class LimitedComposer(cast("type[Any]", Composer)):
        _values = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self._values += index is not None  # None for a key
            if self._values > _MAX_NODES:
                raise _Rejected(_TOO_MANY, self.parser.peek_event().start_mark)
            node: Any = cast("Any", Composer).compose_node(self, parent, index)
            if node.tag == "tag:yaml.org,2002:merge":
                raise _Rejected("merge keys (<<) are not supported: repeat the fields", node.start_mark)
            return node

    class UniqueConstructor(cast("type[Any]", RoundTripConstructor)):
        def check_mapping_key(self, node: Any, key_node: Any, mapping: Any, key: Any, value: Any) -> bool:
            if key in mapping:
                raise _Rejected(f"duplicate key {format_value(key)}", key_node.start_mark)
            return True

    return LimitedScanner, LimitedComposer, UniqueConstructor


def _syntax_error(path: Path, text: str, error: Any) -> InvalidFile:
    """Return an error with the line of a ruamel error and the text at which it occurred."""
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return InvalidFile("not YAML: invalid syntax", where=str(path), hint=_SYNTAX_HINT)
    rest_of_line = text[mark.index :].partition("\n")[0].rstrip()
    reason = f"invalid syntax at {format_value(rest_of_line)}" if rest_of_line.strip() else "invalid syntax"
    if rest_of_line.startswith("\t"):
        reason = "a tab cannot indent a line"
    return InvalidFile(f"not YAML: {reason}", where=f"{path}:{mark.line + 1}", hint=_SYNTAX_HINT)


class _Reader:
    """Converts a ruamel tree to plain data with lines. Rejects a small file that aliases expand to too many values."""

    def __init__(self, path: Path, lines: dict[Location, int]) -> None:
        self.lines = lines
        self._path = path
        self._nodes = 0

    def plain(self, node: Any, location: Location) -> Any:
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise InvalidFile(f"the file has {_TOO_MANY}", where=str(self._path))
        if len(location) > _MAX_DEPTH:
            raise InvalidFile(_TOO_DEEP, where=str(self._path))
        if isinstance(node, dict):
            return self._mapping(cast("dict[Any, Any]", node), location)
        if isinstance(node, list):
            return self._sequence(cast("list[Any]", node), location)
        return self._text(_scalar(node), location)

    def _mapping(self, node: dict[Any, Any], location: Location) -> dict[str, Any]:
        positions: Any = getattr(node, "lc", None)
        plain: dict[str, Any] = {}
        for key, value in node.items():
            name = str(self._text(_scalar(key), location))
            here = (*location, name)
            if positions is not None and key in (positions.data or {}):
                self.lines[here] = positions.data[key][0] + 1
            if name in plain:
                raise self._error(f"{field_name(here)}: duplicate key", here)
            plain[name] = self.plain(value, here)
        return plain

    def _sequence(self, node: list[Any], location: Location) -> list[Any]:
        positions: Any = getattr(node, "lc", None)
        plain: list[Any] = []
        for index, value in enumerate(node):
            here = (*location, index)
            if positions is not None and index in (positions.data or {}):
                self.lines[here] = positions.data[index][0] + 1
            plain.append(self.plain(value, here))
        return plain

    def _text(self, value: Any, location: Location) -> Any:
        """Return the value. Raise InvalidFile for a lone surrogate, which cannot be printed, sent or stored."""
        if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
            raise self._error("invalid text (it contains a lone surrogate)", location)
        return value

    def _error(self, message: str, location: Location) -> InvalidFile:
        line = self.lines.get(location)
        return InvalidFile(message, where=f"{self._path}:{line}" if line else str(self._path))


def _scalar(node: Any) -> Any:
    """Return the plain value of a ruamel scalar."""
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    if node is None:
        return None
    return str(getattr(node, "value", node))  # a tagged scalar


def validate(
    model: type[Model],
    source: Source,
    location: Location = (),
    further: Iterable[tuple[Location, str, str | None]] = (),
) -> Model:
    """Validate the data at a location. Raise InvalidFile for the first error, with the other errors in `others`.

    `further`: location, message and hint of errors that the model does not find.
    """
    from pydantic import ValidationError

    data = source.at(location)
    if not isinstance(data, dict):
        raise source.error("expected a mapping, like `name: value`", location)
    errors = [(place, source.error(message, place, hint)) for place, message, hint in further]
    validated: Model | None = None
    missing: list[InvalidFile] = []
    try:
        validated = model.model_validate(data)
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            place = (*location, *_file_location(problem["loc"], source, location))
            if problem["type"] == "missing":
                missing.append(source.error("this field is required", place))
            else:
                errors.append((place, _field_error(model, source, place, problem)))
    # An unknown field is often a misspelled required field, so it is reported before missing fields.
    by_line = sorted(errors, key=lambda entry: source.line(entry[0]) or 0)
    unique = list({str(error): error for error in (*(error for _, error in by_line), *missing)}.values())
    if validated is None or unique:
        unique[0].others = tuple(map(_as_other, unique[1:_MAX_ERRORS]))
        raise unique[0]
    return validated


def _as_other(error: InvalidFile) -> Mapping[str, str]:
    """Return an error as an entry of `others`."""
    fields = {"message": error.message, "where": error.where, "field": error.field, "hint": error.hint}
    return {name: value for name, value in fields.items() if value}


def _field_error(model: type[BaseModel], source: Source, place: Location, problem: ErrorDetails) -> InvalidFile:
    if problem["type"] == "extra_forbidden":
        hints = getattr(_model_at(model, problem["loc"][:-1]), "FIELD_HINTS", {})
        hint = hints.get(place[-1]) or did_you_mean(str(place[-1]), _siblings(model, problem))
        return source.error("unknown field", place, hint)
    if problem["type"] == "literal_error":
        return source.error(*_choice_error(problem, place))
    hint = None
    if problem["type"] in ("dict_type", "model_type", "model_attributes_type"):
        expected = _model_at(model, problem["loc"])
        fields = getattr(expected, "model_fields", {})
        required = next((name for name, info in fields.items() if info.is_required()), None)
        example = required or next((name for name in fields if name != "name"), "name")
        value = problem["input"] if required and isinstance(problem["input"], str) else "..."
        hint = f"Write it like {{{example}: {value[:_MAX_SHOWN_CHARS]}}}."
        hint = getattr(expected, "MAPPING_HINT", hint)
    return source.error(describe_problem(problem), place, hint)


def _file_location(loc: tuple[int | str, ...], source: Source, location: Location) -> Location:
    """Return a pydantic location without the parts that are not in the file, such as tags of unions."""
    node = source.at(location)
    kept: list[str | int] = []
    for index, part in enumerate(loc):
        is_in_file = (isinstance(node, dict) and part in node) or (isinstance(node, list) and isinstance(part, int))
        if is_in_file:
            kept.append(part)
            node = cast("Any", node)[part]
        elif index == len(loc) - 1 and isinstance(node, dict):
            kept.append(part)
    return tuple(kept)


def _siblings(model: type[BaseModel], error: ErrorDetails) -> list[str]:
    """Return the names of the valid fields beside an unknown field."""
    fields = getattr(_model_at(model, error["loc"][:-1]), "model_fields", {})
    return [info.alias or name for name, info in fields.items()]


def _model_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> Any:
    """Return the model of the value at a pydantic location, or None."""
    current: Any = model
    for part in loc:
        fields = getattr(current, "model_fields", None)
        if fields and part in fields:
            current = _inner_model(fields[part].annotation)
    return current


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

# Texts with the values of a pydantic constraint.
_CONSTRAINTS = {
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must not be empty",
    "too_long": "must have at most {max_length} items",
    "finite_number": "must be a finite number",
}

# The start of a pydantic message, such as "Input should be greater than 0".
_PYDANTIC_START = re.compile(r"^\w+ should\b")


def _choice_error(error: ErrorDetails, here: Location) -> tuple[str, Location, str | None]:
    """Return message, location and hint for a value that is not one of the permitted values."""
    expected = str(error.get("ctx", {}).get("expected", ""))
    guess = nearest(str(error["input"])[:_MAX_SHOWN_CHARS], re.findall(r"'([^']*)'", expected))
    hint = f"Did you mean {guess!r}?" if guess else None
    return f"expected {expected} (got {format_value(error['input'])})", here, hint


def describe_problem(error: ErrorDetails) -> str:
    """Return the message of a pydantic error in the terms of a file."""
    if error["type"] in {"value_error", "assertion_error"}:
        return error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = (
        _EXPECTED.get(error["type"]) or _PYDANTIC_START.sub("must", error["msg"]).partition(" after validation")[0]
    )
    if (constraint := _CONSTRAINTS.get(error["type"])) is not None and "ctx" in error:
        message = constraint.format(**error["ctx"]).removesuffix(".0")
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
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."
