"""The JSON Schema of workflow files, made from the types that check them. Editors read the shipped copy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from guildhall.workers.model import BUILT_IN_TOOLS
from guildhall.workflow.definition import OTHER_NAMES, Definition

SHIPPED_SCHEMA = Path(__file__).parent / "schema" / "workflow.schema.json"


def workflow_schema() -> dict[str, Any]:
    """The schema of a workflow file."""
    schema = Definition.model_json_schema(mode="validation")
    kinds: dict[str, Any] = schema["$defs"]
    agent: dict[str, Any] = kinds["AgentDefinition"]["properties"]
    for other, name in OTHER_NAMES.items():
        agent[other] = {**agent[name], "description": f"Another name for `{name}`."}
    agent["tools"]["anyOf"][0]["items"] = {"enum": list(BUILT_IN_TOOLS)}
    agent["tool_rules"] = _or_list(agent["tool_rules"], _named("ToolRule"))
    fields: dict[str, Any] = schema["properties"]
    plain = {"type": ["string", "number", "boolean", "null"]}
    kinds["Param"]["properties"]["default"]["anyOf"] = [plain]
    by_name: dict[str, Any] = {
        **fields["params"],
        "additionalProperties": {"anyOf": [{"$ref": "#/$defs/Param"}, plain]},
    }
    fields["params"] = _or_list(by_name, {"anyOf": [{"type": "string"}, _named("Param")]})
    schema["required"] = ["agents"]  # without `name`, the file's name is the workflow's
    fields["budget"]["anyOf"] = [{"type": "number", "exclusiveMinimum": 0}, {"const": "none"}, {"type": "null"}]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Guildhall workflow"}
    return {**head, **{key: value for key, value in schema.items() if key not in head}}


def workflow_schema_text() -> str:
    """The schema as it is shipped."""
    return json.dumps(workflow_schema(), indent=2, ensure_ascii=False) + "\n"


def _named(kind: str) -> dict[str, Any]:
    return {"allOf": [{"$ref": f"#/$defs/{kind}"}, {"required": ["name"]}]}


def _or_list(by_name: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    """What is written as a mapping, or as a list of things that say their name."""
    told = {key: by_name[key] for key in ("description", "title") if key in by_name}
    mapping = {key: value for key, value in by_name.items() if key not in told}
    return {**told, "anyOf": [mapping, {"type": "array", "items": item}]}
