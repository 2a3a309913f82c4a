"""Helpers for tests of tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from guildhall.tools.model import Tool, ToolCall, ToolResult


async def refuse_run_tool(tool: Tool, call: ToolCall) -> ToolResult:
    """Stand in for the run that executes its own tools, and fail if it is called."""
    raise AssertionError(f"{tool.name} is for a run")
