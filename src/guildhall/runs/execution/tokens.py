"""Tokens of live runs: map a token to the doors of its run. A token is valid only while its run is executing.

Does not serve HTTP (`hall.doors`) and does not start programs (`access`).

Invariant: a token opens only the doors of its own run, and is kept only in memory.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from guildhall.core.ids import digest
from guildhall.tools.mcp.model import tool_name
from guildhall.tools.model import Tool, ToolCall, ToolResult

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from pydantic_ai.messages import ModelMessage

    from guildhall.models.model import Upstream
    from guildhall.models.passthrough.session import Ask as AskModel
    from guildhall.models.passthrough.session import Passing
    from guildhall.runs.assembly.assembled import Assembled
    from guildhall.runs.hooks import RunHooks


TOOLS = "tools"
DISPATCH = "-dispatch"  # ends the name of the server with which a member is dispatched to
RESULT = "result"  # the server at which a guest gives the result of a run that must fit a schema
_BYTES = 32
_LONGEST_ID = 200


class RunHandle(Protocol):
    """The run behind a door that is used from outside: a live run or a replay."""

    @property
    def is_open(self) -> bool: ...

    @property
    def model(self) -> AskModel: ...

    async def tool(self, call: ToolCall) -> ToolResult: ...

    def is_other_call(self, call: ToolCall) -> bool:
        """Return True if the record has a different call under the key of this call."""
        ...

    def is_other_question(self, key: str, messages: Sequence[ModelMessage]) -> bool:
        """Return True if the record has a different question under this key."""
        ...

    def upstream(self, api: str) -> Upstream | None:
        """Return where a request in the format of this API is passed on unchanged, or None."""
        ...

    def breaks(self, error: Exception) -> None:
        """End the run, because a call has failed fatally."""
        ...

    def expects(self, calls: int) -> None:
        """Note that the program has not made this many calls of the last answer yet."""
        ...


@dataclass(kw_only=True)
class RunDoor:
    """The doors of a run from outside: its tools by server, and the model door for a program that executes the run."""

    run: str
    servers: Mapping[str, tuple[Tool, ...]]
    handle: RunHandle = field(repr=False)
    passing: Passing | None = None
    own: Callable[[ToolCall], Awaitable[ToolResult]] | None = field(default=None, repr=False)  # for the server RESULT
    done: Callable[[ToolCall, ToolResult], None] = field(default=lambda call, result: None, repr=False)  # is told
    calls: dict[str, tuple[ToolCall, asyncio.Future[ToolResult]]] = field(
        default_factory=dict[str, "tuple[ToolCall, asyncio.Future[ToolResult]]"], repr=False
    )  # under way, by their keys
    _ids: Iterator[str] = field(default_factory=lambda: _new_ids(), repr=False)  # for calls that nobody has given one
    _asked: list[ToolCall] = field(default_factory=list["ToolCall"], repr=False)  # by the model
    _due: set[str] = field(default_factory=set[str], repr=False)  # the keys of those that the guest has not made yet

    def call(self, server: str, call: ToolCall) -> Awaitable[ToolResult]:
        """Makes a call at the gate; what the guest itself takes goes to it."""
        if call.key in self._due:
            self._due.discard(call.key)
            self.handle.expects(len(self._due))
        return self.own(call) if self.own is not None and server == RESULT else self.handle.tool(call)

    def heard(self, calls: Iterable[ToolCall]) -> None:
        """The calls in an answer of the model, which the guest will make."""
        new = list(calls)
        self._asked += new
        own = {tool.name for tools in self.servers.values() for tool in tools}
        self._due = {call.key for call in new if call.tool in own}
        self.handle.expects(len(self._due))

    def identified(self, id: str | None, tool: str, arguments: Mapping[str, Any]) -> ToolCall:
        """Return the call with the key that the model's answer gave it. Without an id, the first equal call counts."""
        alike = [call for call in self._asked if (call.tool, call.arguments) == (tool, arguments)]
        if id is None and alike:
            self._asked.remove(alike[0])
            return alike[0]
        for call in reversed(alike):
            if call.key.partition("/")[2] == id:
                return call
        id = id or next(self._ids)
        key = id if len(id) <= _LONGEST_ID and id.isprintable() else digest(id.encode("utf-8", "surrogatepass"))
        return ToolCall(key=f"mcp/{key}", tool=tool, arguments=arguments)


class TokenRegistry:
    """Knows the doors by their tokens."""

    def __init__(self) -> None:
        self._doors: dict[bytes, RunDoor] = {}  # by the hash: how long a look-up takes tells nothing of a token

    def issue(self, door: RunDoor) -> str:
        """A new token, which opens this door."""
        token = secrets.token_urlsafe(_BYTES)
        self._doors[_hashed(token)] = door
        return token

    def revoke(self, token: str) -> None:
        """Shuts a door for good: whoever still waits behind it is told."""
        door = self._doors.pop(_hashed(token), None)
        for _, task in tuple(door.calls.values()) if door else ():
            task.cancel()
        if door is not None and door.passing is not None:
            door.passing.close()

    def door(self, token: str) -> RunDoor | None:
        """The door that the token opens now."""
        door = self._doors.get(_hashed(token))
        return door if door is not None and door.handle.is_open else None


def servers_of(assembled: Assembled, hooks: RunHooks | None) -> dict[str, tuple[Tool, ...]]:
    """A run's tools by server: those of its seat, those that dispatch to members, each on its own, and all others."""
    dispatch = assembled.member_tools.dispatch
    theirs = {tool.name: name for name, tools in dispatch.items() for tool in tools}
    if hooks is not None:
        theirs |= {tool.name: hooks.server for tool in hooks.tools if tool.name not in theirs}
    names = (TOOLS, *((hooks.server,) if hooks and hooks.tools else ()), *dispatch)
    tools = [tool for tool in assembled.tools if not tool.native]
    return {name: tuple(tool for tool in tools if theirs.get(tool.name, TOOLS) == name) for name in names}


def server_tool_name(server: str, tool: str) -> str:
    """The name of a tool at its server: one that dispatches is named after the server already."""
    return tool.removeprefix(tool_name(server, "")) if server.endswith(DISPATCH) else tool


def _new_ids() -> Iterator[str]:
    beginning = secrets.token_hex(8)
    return (f"{beginning}.{number}" for number in itertools.count(1))


def _hashed(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
