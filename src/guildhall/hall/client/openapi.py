"""OpenAPI 3.1 document of the HTTP API: generates routes and JSON schemas from the interface.

Does not validate requests: `hall.server.api` does, with `codec`.
Imported only when the document is requested, because it imports every type that a verb names.
"""

from __future__ import annotations

import collections.abc
import inspect
import types
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, cast, get_args, get_origin

from guildhall import __version__
from guildhall.core.errors import GuildError
from guildhall.hall.client.codec import fields_of, verb
from guildhall.hall.client.interface import SERVICES, VERBS

_PLAIN: dict[Any, dict[str, Any]] = {
    None: {"type": "null"},
    type(None): {"type": "null"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    Path: {"type": "string", "minLength": 1, "description": "A path of the machine of the hall."},
    bytes: {"type": "string", "contentEncoding": "base64"},
}
_ERRORS = {
    "400": "The request is invalid.",
    "401": "The token is missing or invalid.",
    "403": "The hall refuses: the code is not trusted, the worker is locked, or the token is that of a run.",
    "404": "There is no such thing.",
    "409": "The state of the thing does not permit the verb.",
    "413": "The request is too large.",
    "422": "A file that the verb needs is invalid.",
    "503": "The hall is leaving.",
    "default": "Another error.",
}
_ERROR = {
    "type": "object",
    "description": "An error. Programs decide by `code`.",
    "properties": {
        "code": {"type": "string"},
        "message": {"type": "string"},
        "hint": {"type": ["string", "null"], "description": "What to do about it."},
        "where": {"type": ["string", "null"], "description": "The file or field with the error."},
    },
    "required": ["code", "message"],
}


@cache
def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document of the HTTP API."""
    schemas = _Schemas()
    paths = {f"/api/{name.replace('.', '/')}": {"post": _operation(name, schemas)} for name in sorted(VERBS)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Guildhall",
            "version": __version__,
            "description": "The hall of one user on this machine. `hall.json` in the home has its address and token.",
        },
        "servers": [{"url": "http://127.0.0.1:7420"}],
        "security": [{"token": []}],
        "tags": [{"name": name, "description": inspect.getdoc(kind)} for name, kind in SERVICES.items()],
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR, **schemas.components},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(name: str, schemas: _Schemas) -> dict[str, Any]:
    known = verb(name)
    summary, _, rest = (inspect.getdoc(known.declared) or "").partition("\n\n")
    body = _object({part: schemas.of(kind) for part, kind in known.parameters.items()}, sorted(known.required))
    result = schemas.of(known.result)
    if known.streams:
        lines = [
            _object({"item": result}, ["item"]),
            _object({"error": {"$ref": "#/components/schemas/Error"}}, ["error"]),
            _object({"end": {"const": True}}, ["end"]),
        ]
        media = {"application/x-ndjson": {"schema": {"description": "One line.", "anyOf": lines}}}
        success = "One JSON object for each line: items, then an error or the end."
    else:
        media = {"application/json": {"schema": _object({"result": result}, ["result"])}}
        success = "The result."
    failed = {"application/json": {"schema": _object({"error": {"$ref": "#/components/schemas/Error"}}, ["error"])}}
    errors = {status: {"description": text, "content": failed} for status, text in _ERRORS.items()}
    return {
        "operationId": name,
        "tags": [name.partition(".")[0]],
        "summary": " ".join(summary.split()),
        **({"description": rest} if rest else {}),
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": {"description": success, "content": media}, **errors},
    }


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


class _Schemas:
    """The JSON schemas of types. Dataclasses become components."""

    def __init__(self) -> None:
        self.components: dict[str, Any] = {}
        self._names: dict[type, str] = {}

    def of(self, kind: Any) -> dict[str, Any]:
        """Return the schema of a type as the codec encodes it."""
        if kind in _PLAIN:
            return _PLAIN[kind]
        origin, arguments = get_origin(kind), get_args(kind)
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.of(one) for one in arguments]}
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin is not None and not is_dataclass(origin):
            return self._collection(origin, arguments)
        if inspect.isclass(kind) and issubclass(kind, GuildError):
            return {"$ref": "#/components/schemas/Error"}
        if is_dataclass(kind) and not hasattr(kind, "from_wire"):
            return {"$ref": f"#/components/schemas/{self._component(cast('type', kind))}"}
        if kind is Any or kind is object:
            return {}
        return {"type": "object"}  # a TypedDict, a model of pydantic, or a class with `from_wire`

    def _collection(self, origin: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
        if origin in (dict, collections.abc.Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if origin is tuple and arguments[-1] is not Ellipsis:
            count = len(arguments)
            each = [self.of(one) for one in arguments]
            return {"type": "array", "prefixItems": each, "minItems": count, "maxItems": count}
        return {"type": "array", "items": self.of(arguments[0])}

    def _component(self, kind: type) -> str:
        if kind not in self._names:
            name = kind.__name__
            if name in self.components:
                name = f"{kind.__module__.split('.')[1].capitalize()}{name}"
            self._names[kind] = name
            self.components[name] = {}  # a type may contain itself
            found = fields_of(kind)
            schema = _object(
                {field: self.of(one) for field, (one, _) in found.items()},
                [field for field, (_, required) in found.items() if required],
            )
            self.components[name] = {"description": inspect.getdoc(kind) or "", **schema}
        return self._names[kind]
