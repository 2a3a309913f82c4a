"""The tools as a run calls them: checked arguments, its own scopes only, and a writer that nobody can claim to be."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.memory.toolbox import memory_toolbox
from guildhall.tools.define import invoke
from tests.memory.conftest import OTHER, WRITER, everything, put, worker

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.frame import Frame
    from guildhall.memory.memory import Memory
    from guildhall.memory.model import Place, Scope
    from guildhall.tools.model import Toolbox, ToolResult


class Desk:
    """One worker with its memory tools."""

    def __init__(self, memory: Memory, frame: Frame, path: Path, limit: int = 8_000) -> None:
        self.places = memory.places(worker(path), frame)
        self.grown: list[Place] = []
        writer = WRITER if path.stem == "reviewer" else OTHER
        self.toolbox: Toolbox = memory_toolbox(memory, self.places, writer, limit_tokens=limit, grown=self.grown.append)

    def __call__(self, name: str, **arguments: Any) -> ToolResult:
        found = {tool.name: tool for tool in self.toolbox.tools}[name]
        return asyncio.run(invoke(found, arguments))


@pytest.fixture
def desk(memory: Memory, frame: Frame, project: Path) -> Desk:
    return Desk(memory, frame, project / "workers" / "reviewer.yaml")


@pytest.fixture
def colleague(memory: Memory, frame: Frame, project: Path) -> Desk:
    return Desk(memory, frame, project / "workers" / "writer.yaml")


def test_what_the_model_is_shown(desk: Desk):
    shown = {tool.name: tool for tool in desk.toolbox.tools}
    assert list(shown) == ["memory_read", "memory_write", "memory_list"]
    assert {tool.runs_in for tool in shown.values()} == {"hall"}
    assert all(tool.repeatable for tool in shown.values())
    assert shown["memory_write"].capabilities == {"memory.write"}
    assert shown["memory_read"].capabilities == shown["memory_list"].capabilities == {"memory.read"}
    properties = shown["memory_write"].input_schema["properties"]
    assert list(properties) == ["scope", "key", "content"], "who writes is no argument"
    assert properties["scope"]["enum"] == ["global", "project", "worker"]
    assert all(field["description"] for field in properties.values())


@pytest.mark.req("WD-29")
@pytest.mark.parametrize("scope", ["global", "project", "worker"])
def test_a_key_is_written_and_replaced_and_any_other_is_refused(desk: Desk, scope: Scope):
    assert desk("memory_write", scope=scope, key="build", content="make").text == f"Remembered as {scope}/build."
    desk("memory_write", scope=scope, key="build", content="make all")
    assert desk("memory_read", scope=scope, key="build").text == "make all"
    assert everything(desk.places[scope]) == {"build.md": b"make all"}
    for key in ("../build", "a/b", ".x", "", "x.md", "compacted", "a" * 65):
        refused = desk("memory_write", scope=scope, key=key, content="x")
        assert refused.is_error
        assert "\n" in refused.text, "it says what to do instead"
    assert everything(desk.places[scope]) == {"build.md": b"make all"}


@pytest.mark.req("SYS-20")
def test_a_worker_reaches_what_is_shared_and_its_own_and_nobody_else_s(desk: Desk, colleague: Desk):
    for scope in ("global", "project", "worker"):
        desk("memory_write", scope=scope, key="note", content=f"of {scope}")
    assert colleague("memory_read", scope="global", key="note").text == "of global"
    assert colleague("memory_read", scope="project", key="note").text == "of project"
    assert colleague("memory_read", scope="worker", key="note").is_error
    assert colleague("memory_list", scope="worker").text == "The worker memory is empty."
    colleague("memory_write", scope="worker", key="note", content="mine")
    assert desk("memory_read", scope="worker", key="note").text == "of worker"
    for escape in ("workers/reviewer", "reviewer", "", "../workers"):
        assert colleague("memory_read", scope=escape, key="note").is_error


def test_who_wrote_is_known_and_cannot_be_claimed(desk: Desk, colleague: Desk, memory: Memory):
    desk("memory_write", scope="global", key="note", content="one")
    colleague("memory_write", scope="global", key="note", content="two")
    refused = colleague("memory_write", scope="global", key="note", content="x", worker="reviewer", run="r-1")
    assert refused.is_error
    assert [record.writer.worker for record in memory.blame(desk.places["global"], "note").records] == [
        "writer",
        "reviewer",
    ]


def test_the_list_is_newest_first_and_bounded(desk: Desk):
    for number in range(205):
        put(desk.places["global"], f"k{number:03}", "x" * number, number)
    lines = desk("memory_list", scope="global").text.splitlines()
    assert lines[0] == "k204  2023-11-14T22:16:44.000Z  204 bytes"
    assert lines[-1] == "... and 5 older ones."
    assert len(lines) == 201


def test_a_long_entry_is_kept_and_the_model_is_told(desk: Desk):
    told = desk("memory_write", scope="worker", key="long", content="x" * 50_000)
    assert "too long to be shown" in told.text
    assert len(desk("memory_read", scope="worker", key="long").text) == 50_000
    assert desk("memory_write", scope="worker", key="long", content="x" * 100_001).is_error


def test_a_scope_beyond_twice_the_limit_is_reported_once_it_is(memory: Memory, frame: Frame, project: Path):
    desk = Desk(memory, frame, project / "workers" / "reviewer.yaml", limit=500)
    desk("memory_write", scope="project", key="a", content="x" * 4_000)
    assert desk.grown == []
    desk("memory_write", scope="project", key="b", content="x")
    assert desk.grown == [desk.places["project"]]
    desk("memory_write", scope="worker", key="b", content="x")
    assert len(desk.grown) == 1


def test_a_scope_that_the_run_does_not_have_is_refused(memory: Memory, place: Place):
    tools = memory_toolbox(memory, {"global": place}, WRITER, limit_tokens=8_000)
    told = asyncio.run(invoke(tools.tools[0], {"scope": "worker", "key": "a"}))
    assert told.is_error
    assert told.text == "this run has no worker memory\nIt has: global."
    assert not asyncio.run(invoke(tools.tools[1], {"scope": "global", "key": "a", "content": "x"})).is_error


@pytest.mark.parametrize("content", ["", "\0", "\ud800", 7, None, ["x"]])
def test_a_content_that_is_no_text_is_refused(desk: Desk, content: Any):
    told = desk("memory_write", scope="global", key="a", content=content)
    assert told.is_error
    assert everything(desk.places["global"]) == {}
