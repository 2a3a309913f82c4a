"""Where handlers execute: system ones here in the hall, all others in a tool host of the run.

A run has one host for each set of capabilities that its tools have, made when it is first needed: a handler that may
only read files lives in a process that can only read files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guildhall.tools.define import invoke
from guildhall.tools.host import HostSpec, ToolHost
from guildhall.tools.model import Tool, Toolbox, ToolCall, ToolResult

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.tools.builtin import Surroundings


class Executor:
    """Executes the calls of one run, and ends with it."""

    def __init__(self, surroundings: Surroundings, toolboxes: tuple[tuple[str, Path], ...] = ()) -> None:
        self._surroundings = surroundings
        self._toolboxes = toolboxes
        self._hosts: dict[frozenset[str], ToolHost] = {}

    async def __call__(self, tool: Tool, call: ToolCall) -> ToolResult:
        arguments = call.arguments or {}
        if tool.runs_in == "hall":
            return await invoke(tool, arguments)
        return await self._host(tool.capabilities).call(tool.name, arguments)

    async def close(self) -> None:
        for host in self._hosts.values():
            await host.close()
        self._hosts.clear()

    def _host(self, capabilities: frozenset[str]) -> ToolHost:
        if capabilities not in self._hosts:
            self._hosts[capabilities] = ToolHost(_spec(self._surroundings, capabilities, self._toolboxes))
        return self._hosts[capabilities]


def _spec(
    surroundings: Surroundings, capabilities: frozenset[str], toolboxes: tuple[tuple[str, Path], ...]
) -> HostSpec:
    return HostSpec(view=surroundings.view, capabilities=capabilities, toolboxes=toolboxes)


async def describe_toolbox(name: str, path: Path, surroundings: Surroundings) -> Toolbox:
    return Toolbox(name)
