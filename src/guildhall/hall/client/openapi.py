"""OpenAPI 3.1 document of the HTTP API: generates routes and JSON schemas from the interface.

Does not validate requests: `hall.server.api` does, with `codec`.
Imported only when the document is requested, because it imports every type that a verb names.
"""

from __future__ import annotations

import collections.abc
import inspect
import types
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from guildhall import __version__
from guildhall.core.errors import ErrorInfo, GuildError
from guildhall.core.events import EVENT_DATA, Event
from guildhall.hall.client.codec import fields_of, get_verb
from guildhall.hall.client.interface import SERVICES, VERBS
from guildhall.hall.client.model import Health
from guildhall.runs.record.entries import PAYLOADS, Entry

_PLAIN: dict[Any, dict[str, Any]] = {
    None: {"type": "null"},
    type(None): {"type": "null"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    Path: {"type": "string", "minLength": 1, "description": "A path of the machine of the hall."},
    bytes: {"type": "string", "contentEncoding": "base64"},
    Any: {},
    object: {},
}
_REF = "#/components/schemas/{model}"
_ERRORS = {
    400: "The request is invalid.",
    401: "The token is missing or invalid.",
    403: "The hall refuses: the code is not trusted, the worker is locked, or the token is that of a run.",
    404: "The path or the id is unknown.",
    405: "The method is not allowed.",
    408: "The body of the request did not arrive in time.",
    409: "The verb is not possible in the current state.",
    413: "The request is too large.",
    421: "The Host header does not name this machine.",
    422: "A file that the verb needs is invalid.",
    429: "A limit is reached.",
    500: "An internal error of the hall.",
    502: "A model, a member or another server failed.",
    503: "The hall is stopping, or something that the verb needs is not available.",
    504: "A call or a process timed out.",
}
_TAGGED: dict[Any, tuple[str, Mapping[Any, Any]]] = {Event: ("type", EVENT_DATA), Entry: ("kind", PAYLOADS)}


@cache
def openapi_document() -> dict[str, Any]:
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
        "paths": {**_fixed_paths(schemas), **paths},
        "components": {
            "responses": {
                f"Error{status}": _response(text, _object({"error": schemas.of(ErrorInfo)}, ["error"]))
                for status, text in _ERRORS.items()
            },
            "schemas": schemas.components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _fixed_paths(schemas: _Schemas) -> dict[str, Any]:
    """Return the paths that are not verbs."""
    health = {
        "operationId": "health",
        "tags": ["hall"],
        "summary": "Return whether the hall is serving. No token is needed.",
        "security": [],
        "responses": {"200": _response("The state.", schemas.of(Health)), **_errors(403, 421)},
    }
    document = {
        "operationId": "openapi",
        "tags": ["hall"],
        "summary": "Return this document.",
        "responses": {
            "200": _response("The document.", {"type": "object", "required": ["openapi", "info", "paths"]}),
            **_errors(401, 403, 405, 421),
        },
    }
    return {"/healthz": {"get": health}, "/api/openapi.json": {"get": document}}


def _operation(name: str, schemas: _Schemas) -> dict[str, Any]:
    verb = get_verb(name)
    summary, _, rest = (inspect.getdoc(verb.method) or "").partition("\n\n")
    body = _object({part: schemas.of(kind) for part, kind in verb.parameters.items()}, sorted(verb.required))
    result = schemas.of(verb.result)
    if verb.is_stream:
        lines = [
            _object({"item": result}, ["item"]),
            _object({"error": schemas.of(ErrorInfo)}, ["error"]),
            _object({"end": {"const": True}}, ["end"]),
        ]
        media = {"application/x-ndjson": {"schema": {"description": "One line.", "anyOf": lines}}}
        success = {"description": "One JSON object for each line: items, then an error or the end.", "content": media}
    else:
        success = _response("The result.", _object({"result": result}, ["result"]))
    return {
        "operationId": name,
        "tags": [name.partition(".")[0]],
        "summary": " ".join(summary.split()),
        **({"description": rest} if rest else {}),
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": success, **_errors(*_ERRORS)},
    }


def _errors(*statuses: int) -> dict[str, Any]:
    return {str(status): {"$ref": f"#/components/responses/Error{status}"} for status in statuses}


def _response(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


class _Schemas:
    """The JSON schemas of types. Classes become components."""

    def __init__(self) -> None:
        self.components: dict[str, Any] = {}
        self._names: dict[type, str] = {}

    def of(self, kind: Any) -> dict[str, Any]:
        """Return the schema of a type as the codec encodes it."""
        if kind in _PLAIN:
            return _PLAIN[kind]
        origin, arguments = get_origin(kind), get_args(kind)
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.of(variant) for variant in arguments]}
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin is not None and not is_dataclass(origin):
            return self._collection(origin, arguments)
        named: Any = origin or kind
        if hasattr(named, "model_json_schema"):
            return self._model(named)
        return {"$ref": _REF.format(model=self._component(ErrorInfo if issubclass(named, GuildError) else named))}

    def _collection(self, origin: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
        if origin in (dict, collections.abc.Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if origin is tuple and arguments[-1] is not Ellipsis:
            count = len(arguments)
            items = [self.of(item) for item in arguments]
            return {"type": "array", "prefixItems": items, "minItems": count, "maxItems": count}
        return {"type": "array", "items": self.of(arguments[0])}

    def _component(self, kind: type) -> str:
        """Return the name of the component with the schema of a class. Add the component if it is missing."""
        if kind not in self._names:
            name = kind.__name__
            if name in self.components:
                name = f"{kind.__module__.split('.')[1].capitalize()}{name}"
            self._names[kind] = name
            self.components[name] = {}  # a type may contain itself
            self.components[name] = {"description": inspect.getdoc(kind) or "", **self._fields(kind)}
        return self._names[kind]

    def _fields(self, kind: type) -> dict[str, Any]:
        """Return the schema of a dataclass or a TypedDict. A tagged class has a variant for each value of its tag."""
        tag, variants = _TAGGED.get(kind, ("", {}))
        fields = fields_of(kind)
        required = [name for name, (_, is_required) in fields.items() if is_required]
        if not variants:
            return _object({name: self.of(field_type) for name, (field_type, _) in fields.items()}, required)
        common = {name: self.of(field_type) for name, (field_type, _) in fields.items() if name not in (tag, "data")}
        schemas = [
            _object({tag: {"const": value}, **common, "data": self.of(data)}, sorted({*required, tag, "data"}))
            for value, data in variants.items()
        ]
        return {"oneOf": schemas}

    def _model(self, kind: Any) -> dict[str, Any]:
        """Add the schemas of a pydantic model and of its parts, and return the reference to it."""
        schema = kind.model_json_schema(by_alias=bool(kind.model_config.get("serialize_by_alias")), ref_template=_REF)
        for name, part in {**schema.pop("$defs", {}), kind.__name__: schema}.items():
            if self.components.setdefault(name, part) != part:
                raise RuntimeError(f"two types of the API have the name {name}")
        return {"$ref": _REF.format(model=kind.__name__)}
