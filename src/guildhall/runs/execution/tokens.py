"""Tokens of live runs: map a token to the doors of its run.

A token is valid only while its run is executing.

Does not serve HTTP (`hall.doors`) and does not start programs (`runs.execution.program_access`).

Invariant: a token opens only the doors of its own run. Tokens are kept only in memory.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from guildhall.core.ids import digest
from guildhall.tools.mcp.model import tool_name
from guildhall.tools.model import Tool, ToolCall, ToolResult

if TYPE_CHECKING:
    import asyncio

    from pydantic_ai.messages import ModelMessage

    from guildhall.models.model import Upstream
    from guildhall.models.passthrough.session import Ask as AskModel
    from guildhall.models.passthrough.session import PassthroughSession
    from guildhall.runs.assembly.assembled import Assembled
    from guildhall.runs.owner_hooks import RunHooks


TOOLS = "tools"
DISPATCH = "-dispatch"  # suffix of the name of a server that dispatches jobs to a member
RESULT = "result"  # the server at which a program delivers an output with a schema
_TOKEN_BYTES = 32
_MAX_ID_CHARS = 200


class RunHandle(Protocol):
    """The run behind a door: a live run or a replay."""

    @property
    def is_open(self) -> bool: ...

    @property
    def call_model(self) -> AskModel: ...

    async def call_tool(self, call: ToolCall) -> ToolResult: ...

    def is_other_call(self, call: ToolCall) -> bool:
        """Return True if the journal has a different call under the key of this call."""
        ...

    def is_other_question(self, key: str, messages: Sequence[ModelMessage]) -> bool:
        """Return True if the journal has a different model call under this key."""
        ...

    def upstream(self, api: str) -> Upstream | None:
        """Return the provider endpoint that receives requests of this API unchanged, or None."""
        ...

    def fail(self, error: Exception) -> None:
        """End the run, because a call has failed fatally."""
        ...

    def expect_calls(self, count: int) -> None:
        """Set how many calls of the last model response the program has yet to make."""
        ...


@dataclass(kw_only=True)
class RunDoor:
    """The doors of a run for programs: its tools by server, and the model door for a program that executes the run."""

    run: str
    servers: Mapping[str, tuple[Tool, ...]]
    handle: RunHandle = field(repr=False)
    passthrough: PassthroughSession | None = None
    submit: Callable[[ToolCall], Awaitable[ToolResult]] | None = field(default=None, repr=False)  # for RESULT
    on_result: Callable[[ToolCall, ToolResult], None] = field(default=lambda call, result: None, repr=False)
    calls: dict[str, tuple[ToolCall, asyncio.Future[ToolResult]]] = field(
        default_factory=dict[str, "tuple[ToolCall, asyncio.Future[ToolResult]]"], repr=False
    )  # open calls by key
    _ids: Iterator[str] = field(default_factory=lambda: _new_ids(), repr=False)  # for calls without an id
    _requested: list[ToolCall] = field(default_factory=list["ToolCall"], repr=False)  # requested by the model
    _pending: set[str] = field(default_factory=set[str], repr=False)  # keys of calls that the program has yet to make

    def call(self, server: str, call: ToolCall) -> Awaitable[ToolResult]:
        """Make a call at the gate. A call at the server RESULT goes to the program instead."""
        if call.key in self._pending:
            self._pending.discard(call.key)
            self.handle.expect_calls(len(self._pending))
        return self.submit(call) if self.submit is not None and server == RESULT else self.handle.call_tool(call)

    def add_requested(self, calls: Iterable[ToolCall]) -> None:
        """Add the calls of a model response, which the program is going to make."""
        new = list(calls)
        self._requested += new
        own = {tool.name for tools in self.servers.values() for tool in tools}
        self._pending = {call.key for call in new if call.tool in own}
        self.handle.expect_calls(len(self._pending))

    def identify(self, call_id: str | None, tool: str, arguments: Mapping[str, Any]) -> ToolCall:
        """Return the call with the key from the model response. Without an id, the first equal call counts."""
        equal = [call for call in self._requested if (call.tool, call.arguments) == (tool, arguments)]
        if call_id is None and equal:
            self._requested.remove(equal[0])
            return equal[0]
        for call in reversed(equal):
            if call.key.partition("/")[2] == call_id:
                return call
        key = call_id or next(self._ids)
        if len(key) > _MAX_ID_CHARS or not key.isprintable():
            key = digest(key.encode("utf-8", "surrogatepass"))
        return ToolCall(key=f"mcp/{key}", tool=tool, arguments=arguments)


class TokenRegistry:
    """The doors of all live runs by token."""

    def __init__(self) -> None:
        self._doors: dict[bytes, RunDoor] = {}  # by hash: the duration of a look-up reveals nothing about a token

    def issue(self, door: RunDoor) -> str:
        """Return a new token that opens this door."""
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._doors[_hash(token)] = door
        return token

    def revoke(self, token: str) -> None:
        """Invalidate a token, and cancel the open calls of its door."""
        if (door := self._doors.pop(_hash(token), None)) is None:
            return
        for _, task in tuple(door.calls.values()):
            task.cancel()
        if door.passthrough is not None:
            door.passthrough.close()

    def find(self, token: str) -> RunDoor | None:
        """Return the door of a token, or None if the token is unknown or the run is not open."""
        door = self._doors.get(_hash(token))
        return door if door is not None and door.handle.is_open else None


def servers_of(assembled: Assembled, hooks: RunHooks | None) -> dict[str, tuple[Tool, ...]]:
    """Return the tools of a run by server: the owner's, one for each member to dispatch to, and TOOLS for the rest."""
    dispatch = assembled.member_tools.dispatch
    servers = {tool.name: name for name, tools in dispatch.items() for tool in tools}
    if hooks is not None:
        servers |= {tool.name: hooks.server for tool in hooks.tools if tool.name not in servers}
    names = (TOOLS, *((hooks.server,) if hooks and hooks.tools else ()), *dispatch)
    tools = [tool for tool in assembled.visible_tools if not tool.native]
    return {name: tuple(tool for tool in tools if servers.get(tool.name, TOOLS) == name) for name in names}


def server_tool_name(server: str, tool: str) -> str:
    """Return the name of a tool at its server. A dispatch server leaves its own name out of the names of its tools."""
    return tool.removeprefix(tool_name(server, "")) if server.endswith(DISPATCH) else tool


def _new_ids() -> Iterator[str]:
    prefix = secrets.token_hex(8)
    return (f"{prefix}.{number}" for number in itertools.count(1))


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
