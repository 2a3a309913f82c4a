"""An agent at its desk: calls as a run makes them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from guildhall.room.toolbox import Desk, room_tools
from guildhall.tools.define import argument_problem
from guildhall.tools.model import ToolCall, ToolResult

if TYPE_CHECKING:
    from guildhall.room.room import Room

_KEYS = count(1)  # no two calls of a test are the same one, unless it says so


@dataclass
class At:
    """The desk of one agent: `At(room, "coder")("channel_send", message="...")` is the text of the result."""

    room: Room
    agent: str
    run: str = ""

    def call(self, name: str, /, key: str | None = None, **arguments: Any) -> ToolResult:
        return asyncio.run(self.calling(name, key, **arguments))

    async def calling(self, name: str, /, key: str | None = None, **arguments: Any) -> ToolResult:
        (tool,) = room_tools(self.room, self.agent, (name,))
        if problem := argument_problem(tool, arguments):  # as the gate does it, before the call gets here
            return ToolResult.error(problem)
        run = self.run or f"r-{self.agent}"
        call = ToolCall(key=key or f"m{next(_KEYS)}/c", tool=name, arguments=arguments)
        return await Desk(self.room, self.agent, run).execute(tool, call)

    def __call__(self, name: str, /, key: str | None = None, **arguments: Any) -> str:
        result = self.call(name, key, **arguments)
        assert not result.is_error, result.text
        return result.text

    def refused(self, name: str, /, **arguments: Any) -> str:
        result = self.call(name, **arguments)
        assert result.is_error, result.text
        return result.text
