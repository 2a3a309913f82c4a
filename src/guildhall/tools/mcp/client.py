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
    META,
    METHOD_NOT_FOUND,
    MODERN,
    MOST_TOOLS,
    UNSUPPORTED_VERSION,
    Link,
    LinkBroken,
    Offered,
    ServerSpec,
    offered,
    result_of,
    shortened,
    tool_name,
)
from guildhall.tools.mcp.transports import HttpLink, StdioLink
from guildhall.tools.model import Tool, ToolResult

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping


START_SECONDS = 60.0
CALL_SECONDS = 600.0
_ABOUT_US = {"name": "guildhall", "version": "1"}
_MOST_PAGES = 100
_MOMENT = 0.3  # seconds


class _Refused(Exception):
    """A server answered with an error."""

    def __init__(self, code: object, message: str) -> None:
        super().__init__(message)
        self.code = code


class Server:
    """One server, connected."""

    def __init__(self, spec: ServerSpec, link: Link, seconds: float = CALL_SECONDS) -> None:
        self.spec = spec
        self._link = link
        self._seconds = seconds
        self._numbers = itertools.count(1)
        self._modern = False
        self._broken = False  # the last call found nobody there
        self.offered: tuple[Offered, ...] = ()  # as the server names them
        self.tools: tuple[Tool, ...] = ()  # as a run has them

    @staticmethod
    async def connect(
        spec: ServerSpec, *, start_seconds: float = START_SECONDS, call_seconds: float = CALL_SECONDS
    ) -> Server:
        """A server that has said which tools it has; ToolUnavailable says why there is none."""
        link = await StdioLink.start(spec) if spec.command else HttpLink(spec)
        server = Server(spec, link, call_seconds)
        try:
            async with asyncio.timeout(start_seconds):
                await server._begin(start_seconds)
                server.offered = tuple(offered(spec, await server._listing(start_seconds)))
                server.tools = tuple(server._tools())
        except TimeoutError:
            await link.close()
            raise spec.wrong(f"was not ready after {start_seconds:g} s and was given up") from None
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
        """The handshake; a server that knows none is spoken to without it."""
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
        for _ in range(_MOST_PAGES):
            page = await self._ask("tools/list", {} if cursor is None else {"cursor": cursor}, seconds)
            tools = page.get("tools")
            if not isinstance(tools, list):
                raise _Refused(None, "its list of tools is none")
            found += cast("list[Any]", tools)
            cursor = page.get("nextCursor")
            if cursor is None or len(found) > 10 * MOST_TOOLS:
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
        """The result of a call. ServerGone: it was not made, because the server is not there any more."""
        if self._link.gone is not None:
            raise self._lost(self._link.gone)
        try:
            answer = await self._ask("tools/call", {"name": tool, "arguments": dict(arguments)}, self._seconds)
        except _Refused as error:
            return ToolResult.error(f"The server {self.spec.name} refused the call: {error}")
        except LinkBroken as error:
            if not error.sent and self._broken:
                raise self._lost(error.why) from None
            self._broken = not error.sent
            known = "what it did until then is not known" if error.sent else "the call was not made"
            return ToolResult.error(f"The server {self.spec.name} {error.why}; {known}.")
        self._broken = False
        return result_of(answer)

    def _lost(self, why: str) -> ServerGone:
        return ServerGone(
            f"{self.spec.field}: {self.spec.name} {why}",
            where=self.spec.where,
            hint="See to it that it works, then resume the run: the server is started anew.",
        )

    async def close(self) -> None:
        await self._link.close()

    async def _ask(self, method: str, params: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        number = next(self._numbers)
        try:
            answer = await self._link.ask(self._message(number, method, params), seconds)
        except asyncio.CancelledError:
            await self._take_back(number)
            raise
        result, error = answer.get("result"), answer.get("error")
        if isinstance(result, dict):
            return cast("dict[str, Any]", result)
        told = cast("dict[str, Any]", error) if isinstance(error, dict) else {}
        raise _Refused(told.get("code"), shortened(str(told.get("message") or "it gave no reason")))

    async def _take_back(self, number: int) -> None:
        """Tells the server that nobody waits for an answer any more, if it listens."""
        gone = {"requestId": number, "reason": "nobody waits for it any more"}
        with suppress(TimeoutError):
            async with asyncio.timeout(_MOMENT):
                await self._link.tell({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": gone})

    def _message(self, number: int, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        if self._modern:
            meta = {"protocolVersion": MODERN, "clientInfo": _ABOUT_US, "clientCapabilities": {}}
            params = {**params, "_meta": {f"{META}{key}": value for key, value in meta.items()}}
        return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


class OnServer:
    """Stands for a handler that is somewhere else: the tool of a server."""

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
        """All of them, or none: what was started is ended where another one cannot be."""
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
        """The tools by the name of their server."""
        return {server.spec.name: server.tools for server in self._connected}

    async def close(self) -> None:
        """Ends those that were started, and lets go of the others."""
        await asyncio.gather(*(server.close() for server in self._connected))


@asynccontextmanager
async def ended_if_not_used(servers: Servers) -> AsyncGenerator[None]:
    """Ends servers where what they were started for does not come to be."""
    try:
        yield
    except BaseException:
        await servers.close()
        raise
