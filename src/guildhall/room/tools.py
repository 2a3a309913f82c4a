"""The room tools of an agent: present the operations for agents as tools.

The actor of a call is the agent of the run, never an argument.
Does not declare tools: `ROOM_TOOLS` of `workers.model` names them, and the docstring of an operation is the
description.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MethodType
from typing import TYPE_CHECKING, Any, cast

from guildhall.room.model import Actor
from guildhall.room.service import OPERATIONS, Room
from guildhall.tools.definition import TypedHandler, invoke, tool
from guildhall.workers.model import ROOM_TOOLS

if TYPE_CHECKING:
    from guildhall.tools.model import Tool, ToolCall, ToolResult

TOOLS = {name: OPERATIONS[name].capabilities or frozenset[str]() for name in ROOM_TOOLS}


def room_tools(names: tuple[str, ...] = ROOM_TOOLS, recipients: Sequence[str] = ()) -> tuple[Tool, ...]:
    """Return the room tools as a model sees them. `recipients` are the values of `to` in `channel_send`."""
    tools = map(_build_tool, names)
    return tuple(
        _with_recipients(tool, recipients) if tool.name == "channel_send" and recipients else tool for tool in tools
    )


def _with_recipients(tool: Tool, recipients: Sequence[str]) -> Tool:
    properties = tool.input_schema["properties"]
    to = {"type": "string", "enum": list(recipients), "description": properties["to"]["description"]}
    return replace(tool, input_schema={**tool.input_schema, "properties": {**properties, "to": to}})


def _build_tool(name: str) -> Tool:
    operation = OPERATIONS[name]
    bound = MethodType(operation.function, operation)  # a method, because the model does not see the first parameter
    return tool(name=name, capabilities=TOOLS[name], repeatable=True, runs_in="run")(bound)


class RoomTools:
    """Executes the room tools of one run of an agent."""

    def __init__(self, room: Room, agent: str, run: str) -> None:
        self.room = room
        self.agent = agent
        self.run = run

    async def call(self, tool: Tool, call: ToolCall) -> ToolResult:
        """Return the result of a call. A repeated call, by its key, has the same result and no second effect."""
        operation = OPERATIONS[tool.name]
        actor = Actor(name=self.agent, run=self.run, key=call.key)

        async def perform(**arguments: Any) -> str:
            return operation.render(await self.room.perform(operation.name, actor, **arguments))

        # The form is reused, because building it takes longer than performing the operation.
        typed = tool if isinstance(tool.handler, TypedHandler) else _build_tool(tool.name)
        form = cast("TypedHandler", typed.handler).form
        return await invoke(replace(typed, handler=TypedHandler(perform, form)), call.arguments or {})
