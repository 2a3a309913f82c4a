"""Codec of the hall's interface: encodes typed values as JSON, and decodes JSON by the annotations of the verbs.

The types are the annotations of the services in `interface` and of the dataclasses that these annotations name.
A value of the wrong type raises UsageError with the location of the value, such as `request.input`.
Errors of a hall are decoded to the class that the hall raised.
Does not import slow modules, because every command imports this module.
"""

from __future__ import annotations

import base64
import collections.abc
import inspect
import os
import re
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Union, cast, get_args, get_origin

from guildhall.core.errors import GuildError, InvalidFile, UsageError, error_class
from guildhall.core.text_checks import did_you_mean
from guildhall.hall.client.interface import SERVICES

_MAX_PATH_BYTES, _MAX_NAME_BYTES = 4096, 255
_TYPE_IMPORT = re.compile(r"^    from (guildhall[\w.]*) import (?:\(([^)]*)\)|(.+))$", re.MULTILINE)
_SCALARS: dict[Any, tuple[Any, str]] = {
    None: (type(None), "nothing"),
    type(None): (type(None), "nothing"),
    str: (str, "text"),
    bool: (bool, "true or false"),
    int: (int, "a whole number"),
    float: (int | float, "a number"),
}
_LISTS = (list, collections.abc.Sequence, collections.abc.Collection, collections.abc.Iterable)


class _Names(dict[str, Any]):
    """The names that annotations of a module can use, including imports for the type checker only."""

    def __init__(self, module: str) -> None:
        super().__init__({**vars(collections.abc), "Path": Path, **vars(import_module(module))})
        text = Path(self["__file__"]).read_text(encoding="utf-8")
        block = text.partition("\nif TYPE_CHECKING:\n")[2].partition("\n\n\n")[0]
        imports = (
            f"{source} {name}" for source, *names in _TYPE_IMPORT.findall(block) for name in "".join(names).split(",")
        )
        # By name, or by alias if the import has one: the module and the name in it.
        self._imports = {words[-1]: words[:2] for line in imports if len(words := line.split()) > 1}

    def __missing__(self, name: str) -> Any:
        if name not in self._imports:
            raise KeyError(name)
        module, original = self._imports[name]
        return getattr(import_module(module), original)


_names = cache(_Names)


@dataclass(frozen=True)
class Verb:
    """The declaration of a verb in the interface."""

    method: types.FunctionType
    signature: inspect.Signature
    parameters: dict[str, Any]  # type of each parameter
    required: frozenset[str]
    result: Any  # type of the result, or of the items of a stream
    is_stream: bool

    def bind(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name. Raise TypeError if they do not fit the signature."""
        bound = self.signature.bind(None, *arguments, **named).arguments
        return {name: value for name, value in bound.items() if name != "self"}


@cache
def get_verb(name: str) -> Verb:
    """Return the declaration of a verb such as `runs.get`."""
    service, _, method_name = name.partition(".")
    method: types.FunctionType = getattr(SERVICES[service], method_name)
    names = _names(method.__module__)
    kinds = {parameter: _evaluate(annotation, names) for parameter, annotation in method.__annotations__.items()}
    result = kinds.pop("return")
    is_stream = get_origin(result) is collections.abc.AsyncGenerator
    signature = inspect.signature(method)
    parameters = [parameter for name, parameter in signature.parameters.items() if name != "self"]
    required = frozenset(parameter.name for parameter in parameters if parameter.default is parameter.empty)
    return Verb(method, signature, kinds, required, get_args(result)[0] if is_stream else result, is_stream)


def _evaluate(annotation: Any, names: _Names) -> Any:
    return eval(annotation, {}, names) if isinstance(annotation, str) else annotation


@cache
def fields_of(kind: type) -> dict[str, tuple[Any, bool]]:
    """Return the fields of a dataclass or a TypedDict: the type of each, and True if it is required."""
    types_by_name: dict[str, tuple[Any, bool]] = {}
    if typing.is_typeddict(kind):
        for name, annotation in kind.__annotations__.items():
            declared = _evaluate(annotation.__forward_arg__, _names(annotation.__forward_module__))
            is_optional = get_origin(declared) is typing.NotRequired
            types_by_name[name] = (get_args(declared)[0] if is_optional else declared, not is_optional)
        return types_by_name
    modules = {name: cls.__module__ for cls in reversed(kind.__mro__) for name in vars(cls).get("__annotations__", ())}
    for field in fields(kind):
        is_required = field.default is MISSING and field.default_factory is MISSING
        types_by_name[field.name] = (_evaluate(field.type, _names(modules[field.name])), is_required)
    return types_by_name


# Encoding


def encode(value: Any) -> Any:
    """Return the value as plain data."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, GuildError):
        return value.as_dict()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, collections.abc.Mapping):
        return {str(key): encode(part) for key, part in cast("dict[Any, Any]", value).items()}
    if isinstance(value, frozenset | set):
        return sorted(cast("set[str]", value))
    if isinstance(value, collections.abc.Sequence):
        return [encode(part) for part in cast("list[Any]", value)]
    if hasattr(value, "to_wire"):
        return value.to_wire()
    if is_dataclass(value):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    return value.model_dump(mode="json", exclude_unset=True)


# Decoding


def decode(kind: Any, data: Any, location: str = "") -> Any:
    """Return the value of this type from plain data. Raise UsageError if the data does not fit the type."""
    origin = get_origin(kind)
    if kind is Any or kind is object:
        return data
    if origin in (Union, types.UnionType):
        return _decode_union(get_args(kind), data, location)
    if hasattr(origin, "from_wire"):
        return _decode_custom(origin, data, location)
    if origin is Literal:
        if data in get_args(kind):
            return data
        raise _type_error(location, f"one of {', '.join(map(str, get_args(kind)))}", data)
    if origin is not None:
        return _decode_collection(origin, get_args(kind), data, location)
    return _decode_plain(kind, data, location)


def _decode_plain(kind: Any, data: Any, location: str) -> Any:
    if kind in _SCALARS:
        accepted, expected = _SCALARS[kind]
        is_valid = isinstance(data, accepted) and (kind is bool or not isinstance(data, bool))
        return _check(is_valid, data, location, expected, data)
    if kind is Path:
        return Path(data) if _is_path(data) else _check(False, None, location, "a path", data)
    if kind is bytes:
        return _decode_bytes(data, location)
    if typing.is_typeddict(kind):
        return _check(isinstance(data, dict), data, location, "an object", data)
    if is_dataclass(kind):
        return _decode_dataclass(cast("type", kind), data, location)
    if issubclass(kind, GuildError):
        return decode_error(data)
    return kind.model_validate(data)


def _is_path(data: object) -> bool:
    """Return True if the system accepts the path: not empty, not too long, no NUL, no lone surrogate."""
    if not isinstance(data, str):
        return False
    try:
        name = os.fsencode(data)
    except UnicodeEncodeError:
        return False
    is_short = 0 < len(name) < _MAX_PATH_BYTES and max(map(len, name.split(b"/"))) <= _MAX_NAME_BYTES
    return is_short and b"\0" not in name


def _check(is_valid: bool, value: Any, location: str, expected: str, data: Any) -> Any:
    """Return the value. Raise UsageError about `data` if it is not valid."""
    if not is_valid:
        raise _type_error(location, expected, data)
    return value


def _type_error(location: str, expected: str, data: Any) -> UsageError:
    actual = {"dict": "an object", "list": "a list", "NoneType": "nothing"}.get(type(data).__name__) or repr(data)[:80]
    return UsageError(f"{f'{location}: ' if location else ''}expected {expected}, got {actual}")


def _decode_union(kinds: tuple[Any, ...], data: Any, location: str) -> Any:
    if data is None and type(None) in kinds:
        return None
    *others, last = (kind for kind in kinds if kind is not type(None))
    for kind in others:
        try:
            return decode(kind, data, location)
        except UsageError:
            continue
    return decode(last, data, location)


def _decode_collection(origin: Any, parts: tuple[Any, ...], data: Any, location: str) -> object:
    if origin in (dict, collections.abc.Mapping):
        _check(isinstance(data, dict), None, location, "an object", data)
        return {key: decode(parts[1], part, f"{location}.{key}") for key, part in data.items()}
    _check(isinstance(data, list), None, location, "a list", data)
    if origin is tuple and parts[-1] is not Ellipsis:
        _check(len(data) == len(parts), None, location, f"{len(parts)} parts", data)
        items = [decode(kind, part, location) for kind, part in zip(parts, data, strict=True)]
    else:
        items = [decode(parts[0], part, f"{location}[{index}]") for index, part in enumerate(data)]
    return items if origin in _LISTS else cast("Any", origin)(items)


def _decode_custom(kind: Any, data: Any, location: str) -> Any:
    """Decode a value of a class that defines `to_wire` and `from_wire`."""
    _check(isinstance(data, dict), None, location, "an object", data)
    try:
        return kind.from_wire(data)
    except InvalidFile as error:
        raise UsageError(f"{f'{location}: ' if location else ''}{error.message}") from None


def _decode_bytes(data: Any, location: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (TypeError, ValueError):
        raise _type_error(location, "bytes in base64", data) from None


def _decode_dataclass(kind: type, data: Any, location: str) -> Any:
    _check(isinstance(data, dict), None, location, "an object", data)
    known, prefix = fields_of(kind), f"{location}." if location else ""
    for name in data:
        if name not in known:
            raise UsageError(f"{prefix}{name}: unknown field", hint=did_you_mean(name, known))
    for name, (_, is_required) in known.items():
        if is_required and name not in data:
            raise UsageError(f"{prefix}{name}: this field is required")
    return kind(**{name: decode(known[name][0], part, f"{prefix}{name}") for name, part in data.items()})


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text in an argument of a verb, except for paths, which may contain any bytes."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple | dict):
        parts = cast("Iterable[Any]", (*value.keys(), *value.values()) if isinstance(value, dict) else value)
        for part in parts:
            yield from texts_in(part)
    elif is_dataclass(value) and not isinstance(value, type):
        for name in fields_of(type(value)):
            yield from texts_in(getattr(value, name))


# Errors


def decode_error(data: Any) -> GuildError:
    """Return an error in the format of `GuildError.as_dict` as an instance of its class."""
    fields: dict[str, Any] = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    kind = error_class(str(fields.get("code")))
    more = {name: fields.get(name) for name in kind.more}
    message = str(fields.get("message") or "no reason given")
    return kind(message, hint=fields.get("hint"), where=fields.get("where"), **more)
