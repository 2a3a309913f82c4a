"""The tokens of live runs: whoever shows one is at that run's tool door, and nowhere else.

They are kept in memory only and never written anywhere. A token opens as long as its run is going on: not before, not
while it is parked, not after its end.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from guildhall.tools.mcp_model import tool_name

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

    from guildhall.runs.execute import Execution
    from guildhall.tools.model import Tool, ToolCall, ToolResult

TOOLS = "tools"
ROOM = "room"
DISPATCH = "-dispatch"  # ends the name of the server with which a member is dispatched to
_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class ToolDoor:
    """The tool door of a live run, as it is seen from outside: its tools by the name of the server that shows them."""

    run: str
    servers: Mapping[str, tuple[Tool, ...]]
    execution: Execution = field(repr=False)
    calls: dict[str, tuple[ToolCall, asyncio.Future[ToolResult]]] = field(
        default_factory=dict[str, "tuple[ToolCall, asyncio.Future[ToolResult]]"], repr=False
    )  # under way, by their keys
    ids: Iterator[str] = field(default_factory=lambda: _ids(), repr=False)  # for calls that nobody has given one

    @property
    def call(self) -> Callable[[ToolCall], Awaitable[ToolResult]]:
        return self.execution.tool


class Tokens:
    """Knows the doors by their tokens."""

    def __init__(self) -> None:
        self._doors: dict[bytes, ToolDoor] = {}  # by the hash: how long a look-up takes tells nothing of a token

    def issue(self, door: ToolDoor) -> str:
        """A new token, which opens this door."""
        token = secrets.token_urlsafe(_BYTES)
        self._doors[_hashed(token)] = door
        return token

    def revoke(self, token: str) -> None:
        """Shuts a door for good: whoever still waits behind it is told."""
        door = self._doors.pop(_hashed(token), None)
        for _, task in tuple(door.calls.values()) if door else ():
            task.cancel()

    def door(self, token: str) -> ToolDoor | None:
        """The door that the token opens now."""
        door = self._doors.get(_hashed(token))
        return door if door is not None and door.execution.is_open else None


def servers_of(tools: Iterable[Tool], seat: Iterable[Tool] = (), name: str = ROOM) -> dict[str, tuple[Tool, ...]]:
    """A run's tools by server: those that it has at its seat, under this name, and all others."""
    seated = {tool.name for tool in seat}
    tools = tuple(tool for tool in tools if not tool.native)
    servers = {TOOLS: tuple(tool for tool in tools if tool.name not in seated)}
    if seated:
        servers[name] = tuple(tool for tool in tools if tool.name in seated)
    return servers


def with_dispatch(
    servers: Mapping[str, tuple[Tool, ...]], dispatch: Mapping[str, tuple[Tool, ...]]
) -> dict[str, tuple[Tool, ...]]:
    """The same, with the tools that dispatch to members on servers of their own."""
    theirs = {tool.name: name for name, tools in dispatch.items() for tool in tools}
    left = {name: tuple(tool for tool in tools if tool.name not in theirs) for name, tools in servers.items()}
    every = [tool for tools in servers.values() for tool in tools]
    return {**left, **{name: tuple(t for t in every if theirs.get(t.name) == name) for name in dispatch}}


def shown_at(server: str, tool: str) -> str:
    """The name of a tool at its server: one that dispatches is named after the server already."""
    return tool.removeprefix(tool_name(server, "")) if server.endswith(DISPATCH) else tool


def _ids() -> Iterator[str]:
    beginning = secrets.token_hex(8)
    return (f"{beginning}.{number}" for number in itertools.count(1))


def _hashed(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
