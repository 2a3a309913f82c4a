"""The JSON Schema of worker files, made from the types that check them. Editors read the shipped copy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from guildhall.workers.definition import Definition
from guildhall.workers.model import BUILT_IN_TOOLS

SHIPPED_SCHEMA = Path(__file__).parent / "schema" / "worker.schema.json"


def worker_schema() -> dict[str, Any]:
    """The schema of a worker file."""
    schema = Definition.model_json_schema(mode="validation")
    fields: dict[str, Any] = schema["properties"]
    fields["backend"] = {**fields["runtime"], "description": "Another name for `runtime`."}
    fields["tools"]["items"] = {"enum": list(BUILT_IN_TOOLS)}
    rules: dict[str, Any] = fields["tool_rules"]
    rule: dict[str, Any] = {"allOf": [{"$ref": "#/$defs/ToolRule"}, {"required": ["name"]}]}
    fields["tool_rules"] = {
        "description": rules.pop("description"),
        "title": rules.pop("title"),
        "anyOf": [rules, {"type": "array", "items": rule}],
    }
    schema.pop("required", None)  # without `name`, the file's name is the worker's
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Guildhall worker"}
    return {**head, **{key: value for key, value in schema.items() if key not in head}}


def worker_schema_text() -> str:
    """The schema as it is shipped."""
    return json.dumps(worker_schema(), indent=2, ensure_ascii=False) + "\n"
