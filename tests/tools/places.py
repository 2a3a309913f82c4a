"""What the tests of tools start from: an executor of no run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from guildhall.tools.model import Tool, ToolCall, ToolResult


async def by_no_run(tool: Tool, call: ToolCall) -> ToolResult:
    """In the place of the run that executes its own tools, where there is none."""
    raise AssertionError(f"{tool.name} is for a run")
