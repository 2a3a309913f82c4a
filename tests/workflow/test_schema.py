"""The shipped JSON Schema accepts and rejects the same files as the loader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from scripts.docs import WORKFLOW_SCHEMA, generated, workflow_schema

from guildhall.core import yaml
from guildhall.workflow.definition import FIELD_ALIASES, AgentDefinition, Definition
from tests.workflow.test_docs import EXAMPLES
from tests.workflow.test_load import FULL, SIMPLE, TEAM

AGENTS = {"agents": {"a": {"system_prompt": "x"}}}


def test_the_shipped_schema_is_up_to_date():
    assert WORKFLOW_SCHEMA.read_text() == generated()[WORKFLOW_SCHEMA], "run `make docs`"


def test_every_field_is_described():
    schema = workflow_schema()
    agent = schema["$defs"]["AgentDefinition"]["properties"]
    assert {name for name, field in schema["properties"].items() if field.get("description")} == {
        *Definition.model_fields
    }
    assert {name for name, field in agent.items() if field.get("description")} == {
        *AgentDefinition.model_fields,
        *FIELD_ALIASES,
    }


@pytest.mark.req("AW-1")
def test_valid_files_match_the_schema():
    schema: dict[str, Any] = json.loads(WORKFLOW_SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for text in (FULL, SIMPLE, TEAM, *EXAMPLES):
        validator.validate(yaml.parse(Path("review.yaml"), text).data)
    for more in (
        {"context": False},
        {"context": None},
        {"params": ["a", {"name": "b", "default": 1}]},
        {"params": {"a": None, "b": 1.5, "c": {"required": True}}},
        {"budget": "none"},
        {"agents": {"a": {"ref": "b", "backend": "pydantic", "wakeup": 30, "timeout": "5m"}}},
    ):
        validator.validate({**AGENTS, **more})


@pytest.mark.parametrize(
    "more",
    [
        {"kickof": "x"},
        {"agents": {}},
        {"agents": {"a": {"sytem_prompt": "x"}}},
        {"agents": {"a": {"tools": ["Raed"]}}},
        {"context": {"documentowner": "a"}},
        {"context": {"provider": "cloud"}},
        {"params": [{"default": 1}]},
        {"setup": [{"as": "x"}]},
        {"budget": "lots"},
        {"limits": {"max_hops": 0}},
        {"env": "A"},
    ],
)
def test_invalid_files_do_not_match_the_schema(more: dict[str, Any]):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**AGENTS, **more}, workflow_schema())
