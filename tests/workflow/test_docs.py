"""The page about workflow files matches the program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from guildhall.core import yaml
from guildhall.workflow.definition import (
    AgentDefinition,
    Context,
    ContextConfig,
    Definition,
    Param,
    Step,
    TeamLimits,
)
from guildhall.workflow.loader import parse_definition
from guildhall.workflow.target import parse
from tests.workflow.test_load import SIMPLE, TEAM

if TYPE_CHECKING:
    from pydantic import BaseModel

PAGE = (Path(__file__).parents[2] / "docs/workflow-file.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("part", [Definition, AgentDefinition, Context, ContextConfig, Param, Step, TeamLimits])
def test_every_field_has_a_row_in_the_page(part: type[BaseModel]):
    names = [field.alias or name for name, field in part.model_fields.items()]
    assert [name for name in names if f"| `{name}` |" not in PAGE] == []


def test_the_examples_of_the_page_load_and_include_those_of_the_seed():
    assert [SIMPLE in EXAMPLES, TEAM in EXAMPLES] == [True, True]
    definitions = [parse_definition(yaml.parse(Path("example.yaml"), example)) for example in EXAMPLES]
    everything = yaml.parse(Path("example.yaml"), EXAMPLES[-1]).data
    assert set(everything) == set(Definition.model_fields)
    used = {name for agent in everything["agents"].values() for name in agent}
    assert used == set(AgentDefinition.model_fields)
    assert len(definitions) == 4


def test_the_page_has_the_defaults_of_the_program():
    for name, field in TeamLimits.model_fields.items():
        assert f"| `{name}` | {field.default} |" in PAGE


@pytest.mark.req("AW-2")
def test_the_page_has_the_targets_of_the_program():
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)`[^|]*\| `([^`]+)` \|$", PAGE.partition("## Targets")[2], re.MULTILINE)
    assert len(rows) == 5
    for typed, whole, shown in rows:
        assert (parse(typed).full, str(parse(typed))) == (whole, shown)
