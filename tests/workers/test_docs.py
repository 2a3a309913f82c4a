"""The pages about workers say what the program does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from scripts.docs import WORKER_SCHEMA

from guildhall.core import yaml
from guildhall.core.config import Settings
from guildhall.policy.rules import ALIASES, CAPABILITIES
from guildhall.tools.call_router import BUILT_IN
from guildhall.workers.definition import AttachmentPolicy, Definition, Limits, McpServer, Sandbox, ToolRule
from guildhall.workers.lifecycle import TRANSITIONS
from guildhall.workers.loader import read_definition
from guildhall.workers.model import BUILT_IN_TOOLS

if TYPE_CHECKING:
    from pydantic import BaseModel

ROOT = Path(__file__).parents[2]
FILE = (ROOT / "docs/worker-file.md").read_text(encoding="utf-8")
LIFE = (ROOT / "docs/worker-lifecycle.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("part", [Definition, ToolRule, McpServer, Limits, AttachmentPolicy])
def test_every_field_has_its_row(part: type[BaseModel]):
    assert [name for name in part.model_fields if f"| `{name}` |" not in FILE] == []


def test_every_field_of_a_sandbox_and_of_the_settings_is_there():
    assert [name for name in Sandbox.model_fields if name != "name" and f"    {name}:" not in FILE] == []
    assert [name for name in Settings.model_fields if name != "env_refused" and f"| `{name}` |" not in FILE] == []


def test_every_capability_alias_and_built_in_is_there():
    for name in (*CAPABILITIES, *ALIASES, *BUILT_IN):
        assert f"`{name}`" in FILE
    assert tuple(BUILT_IN) == BUILT_IN_TOOLS


def test_the_examples_load():
    examples = re.findall(r"```yaml\n(.*?)```", FILE, re.DOTALL)
    assert len(examples) > 5
    for example in examples:
        source = yaml.parse(
            Path("evaluator.yaml"), f"toolboxes: [mail]\n{example}" if "toolboxes" not in example else example
        )
        assert read_definition(source).name == "evaluator"
    everything = yaml.parse(Path("evaluator.yaml"), examples[1]).data
    assert set(everything) == set(Definition.model_fields)


def test_the_diagram_draws_the_permitted_transitions():
    drawn = set(re.findall(r"^\s+(\w+) --> (\w+): guild worker set NAME (\w+)$", LIFE, re.MULTILINE))
    assert drawn == {(start, end, end) for start, end in TRANSITIONS}


def test_make_docs_brings_the_schema_up_to_date():
    done = subprocess.run([sys.executable, str(ROOT / "scripts/docs.py")], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert json.loads(WORKER_SCHEMA.read_text())["title"] == "Guildhall worker"
