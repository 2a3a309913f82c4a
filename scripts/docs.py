"""Write the generated files: the JSON Schemas in the package, for editors. `make docs` runs it.

The schemas are derived from the pydantic types that check the files. Tests compare the shipped copies with them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import guildhall
from guildhall.members.manifest import Manifest
from guildhall.workers.definition import Definition as WorkerDefinition
from guildhall.workers.model import BUILT_IN_TOOLS
from guildhall.workflow.definition import FIELD_ALIASES
from guildhall.workflow.definition import Definition as WorkflowDefinition

PACKAGE = Path(guildhall.__file__).parent
MANIFEST_SCHEMA = PACKAGE / "members" / "schema" / "guild-member.schema.json"
WORKER_SCHEMA = PACKAGE / "workers" / "schema" / "worker.schema.json"
WORKFLOW_SCHEMA = PACKAGE / "workflow" / "schema" / "workflow.schema.json"


def manifest_schema() -> dict[str, Any]:
    """Return the schema of the manifest of a member, `guild-member.json`."""
    return _with_head("Guildhall member", Manifest.model_json_schema(mode="validation", by_alias=True))


def worker_schema() -> dict[str, Any]:
    """Return the schema of a worker file."""
    schema = WorkerDefinition.model_json_schema(mode="validation")
    fields: dict[str, Any] = schema["properties"]
    fields["backend"] = {**fields["runtime"], "description": "Another name for `runtime`."}
    fields["tools"]["items"] = {"enum": list(BUILT_IN_TOOLS)}
    fields["tool_rules"] = _or_list(fields["tool_rules"], _named("ToolRule"))
    schema.pop("required", None)  # without `name`, the worker is named after its file
    return _with_head("Guildhall worker", schema)


def workflow_schema() -> dict[str, Any]:
    """Return the schema of a workflow file."""
    schema = WorkflowDefinition.model_json_schema(mode="validation")
    kinds: dict[str, Any] = schema["$defs"]
    agent: dict[str, Any] = kinds["AgentDefinition"]["properties"]
    for other, name in FIELD_ALIASES.items():
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
    schema["required"] = ["agents"]  # without `name`, the workflow is named after its file
    fields["budget"]["anyOf"] = [{"type": "number", "exclusiveMinimum": 0}, {"const": "none"}, {"type": "null"}]
    return _with_head("Guildhall workflow", schema)


def _with_head(title: str, schema: dict[str, Any]) -> dict[str, Any]:
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return {**head, **{key: value for key, value in schema.items() if key not in head}}


def _named(kind: str) -> dict[str, Any]:
    return {"allOf": [{"$ref": f"#/$defs/{kind}"}, {"required": ["name"]}]}


def _or_list(by_name: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that accepts a mapping by name, or a list of items that contain their name."""
    about = {key: by_name[key] for key in ("description", "title") if key in by_name}
    mapping = {key: value for key, value in by_name.items() if key not in about}
    return {**about, "anyOf": [mapping, {"type": "array", "items": item}]}


def generated() -> dict[Path, str]:
    """Return the text of every generated file."""
    schemas = {
        MANIFEST_SCHEMA: manifest_schema(),
        WORKER_SCHEMA: worker_schema(),
        WORKFLOW_SCHEMA: workflow_schema(),
    }
    return {path: json.dumps(schema, indent=2, ensure_ascii=False) + "\n" for path, schema in schemas.items()}


def main() -> None:
    """Write every generated file that is out of date and print its path."""
    for path, text in generated().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
