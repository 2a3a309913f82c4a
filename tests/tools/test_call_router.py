"""CallRouter: tools of the hall run in the hall, other tools in a host that has only their capabilities."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import ToolUnavailable
from guildhall.sandbox.view import Folder, View
from guildhall.tools.call_router import CallRouter, FileHandler, ToolEnvironment, built_in_tools, describe_toolbox
from guildhall.tools.definition import tool
from guildhall.tools.model import Tool, ToolCall, ToolResult
from tests.tools.places import refuse_run_tool

if TYPE_CHECKING:
    from pathlib import Path

FILE = '''
import os
from pathlib import Path

from guildhall import Toolbox, tool


@tool(capabilities={"fs.read"})
def look(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()


@tool(capabilities={"fs.write"}, repeatable=True)
def put(path: str) -> str:
    """Write a file."""
    Path(path).write_text("put")
    return "put"


@tool
def who() -> str:
    """Return the id of the process."""
    return str(os.getpid())


@tool
def die() -> str:
    """End the process."""
    os._exit(3)


toolbox = Toolbox("box", look, put, who, die)
'''


@pytest.fixture
def box(tmp_path: Path) -> Path:
    path = tmp_path / "box.py"
    path.write_text(FILE)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.txt").write_text("inside")
    (tmp_path / "secret.txt").write_text("outside")
    return path


def make_environment(folder: Path) -> ToolEnvironment:
    return ToolEnvironment(view=View(cwd=folder, folders=(Folder(path=folder, is_writable=True),)))


def execute(box: Path, *calls: tuple[str, dict[str, Any]]) -> list[ToolResult]:
    """Execute calls of the tools in the box and return their results."""
    environment = make_environment(box.parent / "work")

    async def go() -> list[ToolResult]:
        found = await describe_toolbox("box", box, environment)
        tools = {tool.name: tool for tool in found.tools}
        executor = CallRouter(found.tools, environment, refuse_run_tool)
        try:
            return [
                await executor(tools[name], ToolCall(key=f"m1/{i}", tool=name, arguments=arguments))
                for i, (name, arguments) in enumerate(calls)
            ]
        finally:
            await executor.close()

    return asyncio.run(go())


@pytest.mark.req("WKR-6")
def test_a_toolbox_file_is_described_without_loading_it_into_the_hall(box: Path) -> None:
    found = asyncio.run(describe_toolbox("box", box, make_environment(box.parent / "work")))
    assert [tool.name for tool in found.tools] == ["look", "put", "who", "die"]
    assert found.tools[0].capabilities == {"fs.read"}
    assert [tool.repeatable for tool in found.tools] == [False, True, False, False]
    assert all(tool.handler == FileHandler("box", box) for tool in found.tools)
    with pytest.raises(ToolUnavailable, match="outside of a tool host"):
        found.tools[0].handler(path="x")


def test_tools_have_only_their_declared_capabilities(box: Path) -> None:
    inside, outside = box.parent / "work" / "a.txt", box.parent / "secret.txt"
    seen, hidden, _ = execute(
        box, ("look", {"path": str(inside)}), ("look", {"path": str(outside)}), ("put", {"path": str(outside)})
    )
    assert seen.text == "inside"
    assert hidden.is_error
    assert outside.read_text() == "outside"
    (made,) = execute(box, ("put", {"path": str(box.parent / "work" / "new.txt")}))
    assert made.text == "put"
    assert (box.parent / "work" / "new.txt").read_text() == "put"


def test_tools_with_the_same_capabilities_share_a_host_that_restarts_after_a_crash(box: Path) -> None:
    first, again, died, later = execute(box, ("who", {}), ("who", {}), ("die", {}), ("who", {}))
    assert first.text == again.text
    assert died.is_error
    assert not later.is_error


def test_a_tool_of_the_hall_runs_without_a_host(tmp_path: Path) -> None:
    @tool(runs_in="hall")
    def here(n: int = 1) -> int:
        """Answer."""
        return n + 1

    environment = make_environment(tmp_path)
    executor = CallRouter((here,), environment, refuse_run_tool)

    async def go(arguments: dict[str, Any] | None) -> ToolResult:
        return await executor(here, ToolCall(key="k", tool="here", arguments=arguments))

    assert asyncio.run(go({"n": 4})).text == "5"
    assert asyncio.run(go(None)).text == "2"


def test_a_tool_of_the_run_is_executed_by_the_run_with_its_call(tmp_path: Path) -> None:
    @tool(runs_in="run")
    def mine(n: int) -> str:
        """Answer."""
        raise AssertionError

    async def by_run(called: Tool, call: ToolCall) -> ToolResult:
        return ToolResult.of(f"{called.name} {call.key} {call.arguments}")

    executor = CallRouter((mine,), make_environment(tmp_path), by_run)
    call = ToolCall(key="m1/c1", tool="mine", arguments={"n": 4})
    assert asyncio.run(_call_and_close(executor, mine, call)) == ("mine m1/c1 {'n': 4}", True)


async def _call_and_close(executor: CallRouter, mine: Tool, call: ToolCall) -> tuple[str, bool]:
    """Return the text of a call, and True if the call fails after the executor is closed."""
    before = await executor(mine, call)
    await executor.close()
    return before.text, (await executor(mine, call)).is_error


def test_a_closed_executor_refuses_calls(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    environment = make_environment(tmp_path)
    tools = built_in_tools(["Read"], environment)
    executor = CallRouter(tools, environment, refuse_run_tool)

    async def go() -> tuple[ToolResult, ToolResult]:
        call = ToolCall(key="k", tool="Read", arguments={"file_path": "a.txt"})
        before = await executor(tools[0], call)
        await executor.close()
        return before, await executor(tools[0], call)

    before, after = asyncio.run(go())
    assert "a" in before.text
    assert after == ToolResult.error("The run has ended; the call was not made.")
