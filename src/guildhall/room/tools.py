"""The room tools of an agent: present the operations for agents as tools, and find operations by name.

The actor of a call is the agent of the run, never an argument.
Does not declare tools: an operation with capabilities is a tool, and its docstring is the description.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import NotFound, UsageError
from guildhall.core.text import did_you_mean
from guildhall.room import channel, documents, inbox, voting
from guildhall.room.model import Actor
from guildhall.room.operation import REGISTERED, Operation, Performed, execute
from guildhall.tools.definition import TypedHandler, invoke, tool
from guildhall.tools.model import Tool, ToolCall, ToolResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from guildhall.room.room import Room


_MODULES = frozenset(module.__name__ for module in (channel, documents, inbox, voting))
OPERATIONS: Mapping[str, Operation] = {
    name: one for name, one in REGISTERED.items() if one.function.__module__ in _MODULES
}


def find_operation(name: str) -> Operation:
    """Return an operation by its name. Raise NotFound if there is none."""
    if (found := OPERATIONS.get(name)) is None:
        raise NotFound(f"unknown room operation {name[:80]!r}", hint=did_you_mean(name, OPERATIONS))
    return found


def perform_in(connection: Connection, room: str, name: str, actor: Actor, at: str, /, **arguments: Any) -> Performed:
    """Perform an operation in a transaction of the caller, who passes the turn to `Room.follow` after the commit."""
    operation = find_operation(name)
    if operation.kind == "document":
        raise UsageError(f"{name} cannot be performed inside a transaction")
    bound = operation.bind(arguments)
    return execute(connection, room, operation, actor, at, bound, partial(operation.function, **bound))


_ORDER = (  # in which a model sees them
    "channel_send",
    "channel_read",
    "inbox_read",
    "inbox_ack",
    "status_set",
    "team_list",
    "document_read",
    "document_write",
    "document_append",
    "document_list",
    "document_create",
    "document_suggest",
    "proposal_create",
    "proposal_vote",
    "proposal_status",
    "proposal_cancel",
    "resource_create",
    "resource_read",
    "no_action",
)
TOOLS = {name: OPERATIONS[name].capabilities or frozenset[str]() for name in _ORDER}


def room_tools(names: tuple[str, ...] = _ORDER) -> tuple[Tool, ...]:
    """Return the room tools as a model sees them."""
    return tuple(map(_tool, names))


def _tool(name: str) -> Tool:
    operation = OPERATIONS[name]
    bound = MethodType(operation.function, operation)  # a method, because the model does not see the first parameter
    return tool(name=name, capabilities=TOOLS[name], repeatable=True, runs_in="run")(bound)


class RoomTools:
    """Executes the room tools of one run of an agent."""

    def __init__(self, room: Room, agent: str, run: str) -> None:
        self._room = room
        self._agent = agent
        self._run = run

    async def call(self, tool: Tool, call: ToolCall) -> ToolResult:
        """Return the result of a call. A repeated call, by its key, has the same result and no second effect."""
        if tool.name not in TOOLS:
            return ToolResult.error(f"There is no room tool {tool.name!r}. {did_you_mean(tool.name, TOOLS) or ''}")
        operation = find_operation(tool.name)
        actor = Actor(name=self._agent, run=self._run, key=call.key)

        async def perform(**arguments: Any) -> str:
            return operation.show(await self._room.perform(operation.name, actor, **arguments))

        # The form is reused: it takes longer to make one than to perform the operation.
        known = tool if isinstance(tool.handler, TypedHandler) else _tool(tool.name)
        form = cast("TypedHandler", known.handler).form
        return await invoke(replace(known, handler=TypedHandler(perform, form)), call.arguments or {})
