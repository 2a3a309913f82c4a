"""Built-in tools: names, order and declared capabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from guildhall.policy.rules import CAPABILITIES
from guildhall.sandbox.view import Folder, View
from guildhall.tools.call_router import BUILT_IN, ToolEnvironment, built_in_tools
from guildhall.workers.model import BUILT_IN_TOOLS

if TYPE_CHECKING:
    from pathlib import Path


def environment(folder: Path) -> ToolEnvironment:
    view = View(cwd=folder, folders=(Folder(path=folder, is_writable=True),))
    return ToolEnvironment(view=view, web_search={"searxng": "http://127.0.0.1:1", "provider": None})


@pytest.mark.req("WKR-6")
@pytest.mark.parametrize("name", BUILT_IN)
def test_each_tool_has_the_capabilities_of_the_table(tmp_path: Path, name: str) -> None:
    (tool,) = built_in_tools([name], environment(tmp_path))
    assert tool.name == name
    assert tool.capabilities == BUILT_IN[name] <= CAPABILITIES.keys()
    assert tool.description
    assert tool.input_schema["type"] == "object"
    assert tool.input_schema["additionalProperties"] is False
    assert set(tool.as_shown()) == {"name", "description", "input_schema"}
    for parameter in tool.input_schema["properties"].values():
        assert parameter.get("description"), f"{name}: a parameter has no description"


def test_tools_keep_their_declared_order(tmp_path: Path) -> None:
    for names in (["Write", "Read"], ["Bash", "Glob", "WebFetch", "Edit"], [], list(BUILT_IN)):
        assert [tool.name for tool in built_in_tools(names, environment(tmp_path))] == names


def test_worker_files_accept_the_same_names() -> None:
    assert set(BUILT_IN_TOOLS) == set(BUILT_IN)


def test_only_idempotent_tools_are_repeatable(tmp_path: Path) -> None:
    repeatable = {tool.name for tool in built_in_tools(BUILT_IN, environment(tmp_path)) if tool.repeatable}
    assert repeatable == {"Read", "Grep", "Glob", "Write", "WebFetch", "WebSearch"}
