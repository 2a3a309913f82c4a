"""The memory tools as a run calls them: schemas, scopes, results and errors."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.memory.tools import MemoryTools
from guildhall.tools.definition import invoke
from tests.memory.conftest import CODER, REVIEWER, edit_by_hand, make_worker, read_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.core.request_frame import Frame
    from guildhall.memory.folder import MemoryFolder
    from guildhall.memory.model import Author, Scope
    from guildhall.memory.service import Memory
    from guildhall.tools.model import ToolResult


class ToolCaller:
    """Calls the memory tools in the name of one worker."""

    def __init__(
        self,
        memory: Memory,
        frame: Frame,
        author: Author,
        *,
        limit_tokens: int = 8_000,
        folders: Mapping[Scope, MemoryFolder] | None = None,
    ) -> None:
        worker = make_worker(frame.root / "workers" / f"{author.worker}.yaml")
        self.folders = folders or memory.folders(worker, frame)
        self.grown_folders: list[MemoryFolder] = []
        tools = MemoryTools(
            memory=memory,
            folders=self.folders,
            author=author,
            limit_tokens=limit_tokens,
            on_compaction_due=self.grown_folders.append,
        ).tools()
        self.tools = {tool.name: tool for tool in tools}

    def __call__(self, name: str, **arguments: Any) -> ToolResult:
        return asyncio.run(invoke(self.tools[name], arguments))


@pytest.fixture
def reviewer(memory: Memory, frame: Frame) -> ToolCaller:
    return ToolCaller(memory, frame, REVIEWER)


@pytest.fixture
def coder(memory: Memory, frame: Frame) -> ToolCaller:
    return ToolCaller(memory, frame, CODER)


def test_tools_have_schemas_and_capabilities(reviewer: ToolCaller):
    tools = reviewer.tools
    assert list(tools) == ["memory_read", "memory_write", "memory_list"]
    assert {tool.runs_in for tool in tools.values()} == {"hall"}
    assert all(tool.repeatable for tool in tools.values())
    assert tools["memory_write"].capabilities == {"memory.write"}
    assert tools["memory_read"].capabilities == tools["memory_list"].capabilities == {"memory.read"}
    properties = tools["memory_write"].input_schema["properties"]
    assert list(properties) == ["scope", "key", "content"], "the author is not an argument"
    assert properties["scope"]["enum"] == ["worker", "project", "global"]
    assert all(field["description"] for field in properties.values())


@pytest.mark.req("WD-29")
@pytest.mark.parametrize("scope", ["global", "project", "worker"])
def test_write_replaces_an_entry_and_rejects_invalid_keys(reviewer: ToolCaller, scope: Scope):
    assert reviewer("memory_write", scope=scope, key="build", content="make").text == f"Saved {scope}/build."
    reviewer("memory_write", scope=scope, key="build", content="make all")
    assert reviewer("memory_read", scope=scope, key="build").text == "make all"
    for key in ("../build", "a/b", ".x", "", "x.md", "compacted", "a" * 65):
        result = reviewer("memory_write", scope=scope, key=key, content="x")
        assert result.is_error
        assert "\n" in result.text, "the second line is a hint"
    assert read_files(reviewer.folders[scope]) == {"build.md": b"make all"}


@pytest.mark.req("SYS-20")
def test_worker_cannot_reach_the_memory_of_another_worker(reviewer: ToolCaller, coder: ToolCaller):
    for scope in ("global", "project", "worker"):
        reviewer("memory_write", scope=scope, key="note", content=f"of {scope}")
    assert coder("memory_read", scope="global", key="note").text == "of global"
    assert coder("memory_read", scope="project", key="note").text == "of project"
    assert coder("memory_read", scope="worker", key="note").is_error
    assert coder("memory_list", scope="worker").text == "The worker memory is empty."
    coder("memory_write", scope="worker", key="note", content="mine")
    assert reviewer("memory_read", scope="worker", key="note").text == "of worker"
    for scope in ("workers/reviewer", "reviewer", "", "../workers"):
        assert coder("memory_read", scope=scope, key="note").is_error


def test_author_is_logged_and_cannot_be_passed_in(reviewer: ToolCaller, coder: ToolCaller, memory: Memory):
    reviewer("memory_write", scope="global", key="note", content="one")
    coder("memory_write", scope="global", key="note", content="two")
    assert coder("memory_write", scope="global", key="note", content="x", worker="reviewer", run="r-1").is_error
    history = memory.history(reviewer.folders["global"], "note")
    assert [change.author.worker for change in history.changes] == ["coder", "reviewer"]


def test_list_is_newest_first_and_limited(reviewer: ToolCaller):
    for number in range(205):
        edit_by_hand(reviewer.folders["global"], f"k{number:03}", "x" * number, number)
    lines = reviewer("memory_list", scope="global").text.splitlines()
    assert lines[0] == "k204  2023-11-14T22:16:44.000Z  204 bytes"
    assert lines[-1] == "... and 5 older entries."
    assert len(lines) == 201


def test_write_warns_if_the_entry_is_too_long_for_a_prompt(reviewer: ToolCaller):
    result = reviewer("memory_write", scope="worker", key="long", content="x" * 50_000)
    assert "too long for a prompt" in result.text
    assert len(reviewer("memory_read", scope="worker", key="long").text) == 50_000
    assert reviewer("memory_write", scope="worker", key="long", content="x" * 100_001).is_error


def test_growth_beyond_the_threshold_is_reported(memory: Memory, frame: Frame):
    reviewer = ToolCaller(memory, frame, REVIEWER, limit_tokens=500)
    reviewer("memory_write", scope="project", key="a", content="x" * 4_000)
    assert reviewer.grown_folders == []
    reviewer("memory_write", scope="project", key="b", content="x")
    assert reviewer.grown_folders == [reviewer.folders["project"]]
    reviewer("memory_write", scope="worker", key="b", content="x")
    assert len(reviewer.grown_folders) == 1


def test_unavailable_scope_is_refused(memory: Memory, frame: Frame, folder: MemoryFolder):
    caller = ToolCaller(memory, frame, REVIEWER, folders={"global": folder})
    result = caller("memory_read", scope="worker", key="a")
    assert result.is_error
    assert result.text == "this run has no worker memory\nAvailable scopes: global."
    assert not caller("memory_write", scope="global", key="a", content="x").is_error


@pytest.mark.parametrize("content", ["", "\0", "\ud800", 7, None, ["x"]])
def test_content_that_is_not_text_is_rejected(reviewer: ToolCaller, content: Any):
    assert reviewer("memory_write", scope="global", key="a", content=content).is_error
    assert read_files(reviewer.folders["global"]) == {}
