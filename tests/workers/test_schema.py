"""The shipped JSON Schema says what the loader says."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from scripts.docs import WORKER_SCHEMA, generated, worker_schema

from guildhall.core import yaml
from guildhall.workers.definition import Definition
from guildhall.workers.registry import SHIPPED
from tests.workers.test_load import EARLIER, FULL


def test_the_shipped_schema_is_up_to_date():
    assert WORKER_SCHEMA.read_text() == generated()[WORKER_SCHEMA], "run `make docs`"


def test_every_field_is_described():
    described = {name for name, field in worker_schema()["properties"].items() if field.get("description")}
    assert described == {*Definition.model_fields, "backend"}


@pytest.mark.req("DO-1")
def test_what_loads_fits_the_schema():
    schema: dict[str, Any] = json.loads(WORKER_SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    files = [yaml.parse(WORKER_SCHEMA.with_suffix(".yaml"), text) for text in (FULL, *EARLIER)]
    files += [yaml.read(path) for path in SHIPPED.glob("*.yaml")]
    for source in files:
        validator.validate(source.data)
    validator.validate({"backend": "codex", "allow_workers": "*", "limits": {"timeout": 30}})


@pytest.mark.parametrize(
    "data",
    [
        {"nmae": "x"},
        {"tools": ["Raed"]},
        {"tool_rules": [{"allowed": True}]},
        {"tool_rules": {"net": {"alowed": True}}},
        {"runtime": "cloud"},
        {"sandboxes": {"in": {}}},
        {"limits": {"timeout": "soon"}},
        {"status": "done"},
        {"locked": "yes"},
    ],
)
def test_what_does_not_load_does_not_fit(data: dict[str, Any]):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, worker_schema())
