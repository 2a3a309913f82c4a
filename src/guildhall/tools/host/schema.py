"""Inside a tool host: import `package.module:Model` of a project and return its JSON Schema.

Does not load tools (`modules`).
"""

from __future__ import annotations

import json
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, cast, is_typeddict

from pydantic import BaseModel, TypeAdapter
from typing_extensions import is_typeddict as is_other_typeddict

from guildhall.core.errors import ToolUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping
from guildhall.tools.host.modules import load, unusable

_MAX_SCHEMA = 1_000_000  # characters


def json_schema(reference: str, sources: Mapping[str, str]) -> dict[str, Any]:
    """The JSON Schema of a model; `sources` has the text of each file of its package, by path."""
    try:
        schema = _schema(load(reference, sources), reference)
        text = json.dumps(schema)
    except BaseException as error:  # noqa: BLE001 - whatever the module does, it is the module that is wrong
        raise unusable(reference, error, sources) from None
    if len(text) > _MAX_SCHEMA:
        raise ToolUnavailable(f"{reference}: the JSON Schema is too large: {len(text):,} characters")
    return json.loads(text)


def _schema(found: Any, reference: str) -> Any:
    if not isinstance(found, type):
        what = "there is no such name in the module" if found is None else f"it is a {type(found).__name__}"
        raise ToolUnavailable(f"{reference} is no model: {what}", hint=_KINDS)
    model = cast("type[Any]", found)
    if issubclass(model, BaseModel):
        return model.model_json_schema()
    if is_dataclass(model) or is_typeddict(model) or is_other_typeddict(model):
        return TypeAdapter[Any](model).json_schema()
    raise ToolUnavailable(f"{reference} is no model: it is another kind of class", hint=_KINDS)


_KINDS = "Name a pydantic model, a dataclass or a TypedDict."
