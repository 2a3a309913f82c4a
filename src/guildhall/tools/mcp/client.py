"""MCP client: connects to the servers of a run, lists their tools once, and calls them.

It is a client of our own (ADR 014), which limits the size and time of a server's message before it parses it. The calls
pass the gate like all others. Does not send bytes (see `tools.mcp.transports`).

Invariant: a lost server is never ignored. The interrupted call returns an error, and the next call ends the run.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import ServerGone, ToolUnavailable
from guildhall.tools.mcp.model import (
    HANDSHAKE,
    MAX_TOOLS,
    META,
    METHOD_NOT_FOUND,
    MODERN,
    UNSUPPORTED_VERSION,
    Link,
    LinkBroken,
    ListedTool,
    ServerSpec,
    read_listing,
    result_of,
    to_short_line,
    tool_name,
)
from guildhall.tools.mcp.transports import HttpLink, StdioLink
from guildhall.tools.model import Tool, ToolResult

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping


START_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 600.0
_ABOUT_US = {"name": "guildhall", "version": "1"}
_MAX_PAGES = 100
_CANCEL_TIMEOUT_S = 0.3


class _Refused(Exception):
    """A server answered with an error."""

    def __init__(self, code: object, message: str) -> None:
        super().__init__(message)
        self.code = code


class Server:
    """One server, connected."""

    def __init__(self, spec: ServerSpec, link: Link, seconds: float = CALL_TIMEOUT_S) -> None:
        self.spec = spec
        self._link = link
        self._seconds = seconds
        self._numbers = itertools.count(1)
        self._modern = False
        self._broken = False  # the last call could not be sent
        self.offered: tuple[ListedTool, ...] = ()  # as the server names them
        self.tools: tuple[Tool, ...] = ()  # as a run has them

    @staticmethod
    async def connect(
        spec: ServerSpec, *, start_seconds: float = START_TIMEOUT_S, call_seconds: float = CALL_TIMEOUT_S
    ) -> Server:
        """Connect to a server and list its tools. Raise ToolUnavailable if that fails."""
        link = await StdioLink.start(spec) if spec.command else HttpLink(spec)
        server = Server(spec, link, call_seconds)
        try:
            async with asyncio.timeout(start_seconds):
                await server._begin(start_seconds)
                server.offered = tuple(read_listing(spec, await server._listing(start_seconds)))
                server.tools = tuple(server._tools())
        except TimeoutError:
            await link.close()
            raise spec.wrong(f"was not ready after {start_seconds:g} s and was closed") from None
        except LinkBroken as error:
            await link.close()
            raise spec.wrong(error.why, "Try the command by hand.") from None
        except _Refused as error:
            await link.close()
            raise spec.wrong(f"cannot be used: {error}") from None
        except BaseException:
            await link.close()
            raise
        return server

    async def _begin(self, seconds: float) -> None:
        """Perform the handshake. A server without a handshake is used in the modern protocol."""
        about = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": _ABOUT_US}
        try:
            await self._ask("initialize", about, seconds)
        except _Refused as error:
            if error.code not in (METHOD_NOT_FOUND, UNSUPPORTED_VERSION):
                raise
            self._modern = True
            return
        await self._link.tell({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def _listing(self, seconds: float) -> list[Any]:
        found: list[Any] = []
        cursor: Any = None
        for _ in range(_MAX_PAGES):
            page = await self._ask("tools/list", {} if cursor is None else {"cursor": cursor}, seconds)
            tools = page.get("tools")
            if not isinstance(tools, list):
                raise _Refused(None, "its list of tools is invalid")
            found += cast("list[Any]", tools)
            cursor = page.get("nextCursor")
            if cursor is None or len(found) > 10 * MAX_TOOLS:
                return found
        raise _Refused(None, "its list of tools has no end")

    def _tools(self) -> Iterable[Tool]:
        for one in self.offered:
            yield Tool(
                name=tool_name(self.spec.name, one.name),
                description=one.description,
                input_schema=one.input_schema,
                handler=OnServer(self, one.name),
                capabilities=self.spec.capabilities,
                repeatable=one.repeatable,
                runs_in="hall",
            )

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Return the result of a call. Raise ServerGone if it was not made because the server has ended."""
        if self._link.end_reason is not None:
            raise self._gone_error(self._link.end_reason)
        try:
            answer = await self._ask("tools/call", {"name": tool, "arguments": dict(arguments)}, self._seconds)
        except _Refused as error:
            return ToolResult.error(f"The server {self.spec.name} refused the call: {error}")
        except LinkBroken as error:
            if not error.sent and self._broken:
                raise self._gone_error(error.why) from None
            self._broken = not error.sent
            known = "its effect is unknown" if error.sent else "the call was not made"
            return ToolResult.error(f"The server {self.spec.name} {error.why}; {known}.")
        self._broken = False
        return result_of(answer)

    def _gone_error(self, why: str) -> ServerGone:
        return ServerGone(
            f"{self.spec.field}: {self.spec.name} {why}",
            where=self.spec.where,
            hint="Fix the server, then resume the run, which starts it again.",
        )

    async def close(self) -> None:
        await self._link.close()

    async def _ask(self, method: str, params: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        number = next(self._numbers)
        try:
            answer = await self._link.ask(self._message(number, method, params), seconds)
        except asyncio.CancelledError:
            await self._cancel_request(number)
            raise
        result, error = answer.get("result"), answer.get("error")
        if isinstance(result, dict):
            return cast("dict[str, Any]", result)
        error_body = cast("dict[str, Any]", error) if isinstance(error, dict) else {}
        raise _Refused(error_body.get("code"), to_short_line(str(error_body.get("message") or "no reason given")))

    async def _cancel_request(self, number: int) -> None:
        """Notify the server that the request was cancelled."""
        gone = {"requestId": number, "reason": "cancelled"}
        with suppress(TimeoutError):
            async with asyncio.timeout(_CANCEL_TIMEOUT_S):
                await self._link.tell({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": gone})

    def _message(self, number: int, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        if self._modern:
            meta = {"protocolVersion": MODERN, "clientInfo": _ABOUT_US, "clientCapabilities": {}}
            params = {**params, "_meta": {f"{META}{key}": value for key, value in meta.items()}}
        return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


class OnServer:
    """The handler of a tool on a server."""

    def __init__(self, server: Server, tool: str) -> None:
        self._server = server
        self._tool = tool

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        return await self._server.call(self._tool, arguments)

    def __call__(self, **_: Any) -> ToolResult:
        raise ToolUnavailable(f"the tool {self._tool!r} is called on its server only")


class Servers:
    """All servers of one run."""

    def __init__(self, connected: Iterable[Server] = ()) -> None:
        self._connected = tuple(connected)

    @staticmethod
    async def connect(specs: Iterable[ServerSpec]) -> Servers:
        """Connect to all servers. If a connection fails, close the rest and raise."""
        tasks = [asyncio.create_task(Server.connect(spec)) for spec in specs]
        try:
            return Servers(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            for one in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(one, Server):
                    await one.close()
            raise

    @property
    def tools(self) -> dict[str, tuple[Tool, ...]]:
        """Return the tools by the name of their server."""
        return {server.spec.name: server.tools for server in self._connected}

    async def close(self) -> None:
        """Close all connections and end the programs."""
        await asyncio.gather(*(server.close() for server in self._connected))


@asynccontextmanager
async def close_on_error(servers: Servers) -> AsyncGenerator[None]:
    """Close the servers if the block raises."""
    try:
        yield
    except BaseException:
        await servers.close()
        raise
