"""MCP client: connects to the servers of a run, lists their tools once, and calls them.

The client is our own (ADR 014), because it limits the size of a message before it parses the message. Its calls pass
the gate. Does not send bytes (see `tools.mcp.transports`).

Invariant: a lost server ends the run. The interrupted call returns an error, and the next call raises ServerGone.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

from guildhall.core.errors import ServerGone, ToolUnavailable
from guildhall.tools.mcp.model import (
    HANDSHAKE_PROTOCOL_VERSION,
    HEADER_MISMATCH,
    MAX_TOOLS,
    META_PREFIX,
    METHOD_NOT_FOUND,
    STATELESS_PROTOCOL_VERSION,
    UNSUPPORTED_PROTOCOL_VERSION,
    ListedTool,
    ServerSpec,
    Transport,
    TransportError,
    parse_result,
    parse_tool_list,
    to_single_line,
    tool_name,
)
from guildhall.tools.mcp.transports import HttpTransport, StdioTransport
from guildhall.tools.model import Tool, ToolResult

START_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 600.0
_CLIENT_INFO = {"name": "guildhall", "version": "1"}
_MAX_PAGES = 100
_CANCEL_TIMEOUT_S = 0.3


class _ErrorResponse(Exception):
    """A JSON-RPC error of a server, or an invalid response. `code` is the error code, if there is one."""

    def __init__(self, message: str, code: object = None) -> None:
        super().__init__(message)
        self.code = code


class Server:
    """A connected server."""

    def __init__(self, spec: ServerSpec, transport: Transport, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self.spec = spec
        self._transport = transport
        self._timeout_s = timeout_s
        self._request_ids = itertools.count(1)
        self._is_stateless = False  # the server has no `initialize`
        self._is_unreachable = False  # the last call could not be sent
        self.listed_tools: tuple[ListedTool, ...] = ()  # with the names of the server
        self.tools: tuple[Tool, ...] = ()  # with the names of the run

    @staticmethod
    async def connect(
        spec: ServerSpec, *, start_timeout_s: float = START_TIMEOUT_S, call_timeout_s: float = CALL_TIMEOUT_S
    ) -> Server:
        """Connect to a server and list its tools. Raise ToolUnavailable if that fails."""
        transport = await StdioTransport.start(spec) if spec.command else HttpTransport(spec)
        hint = "Run the command of the server to see its output." if spec.command else "Check its URL and its token."
        server = Server(spec, transport, call_timeout_s)
        try:
            async with asyncio.timeout(start_timeout_s):
                await server._initialize(start_timeout_s)
                await server._load_tools(start_timeout_s)
        except BaseException as error:
            await transport.close()
            if isinstance(error, TimeoutError):
                raise spec.error(f"the server was not ready after {start_timeout_s:g} s", hint) from None
            if isinstance(error, TransportError):
                raise spec.error(f"the server {error.reason}", hint) from None
            if isinstance(error, _ErrorResponse):
                raise spec.error(f"the server cannot be used: {error}") from None
            raise
        return server

    async def _initialize(self, timeout_s: float) -> None:
        """Perform the handshake, or use the stateless protocol if the server does not support the handshake."""
        params = {"protocolVersion": HANDSHAKE_PROTOCOL_VERSION, "capabilities": {}, "clientInfo": _CLIENT_INFO}
        try:
            await self._request("initialize", params, timeout_s)
        except _ErrorResponse as error:
            if error.code not in (METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION, HEADER_MISMATCH):
                raise
            self._is_stateless = True
            return
        await self._transport.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def _load_tools(self, timeout_s: float) -> None:
        self.listed_tools = tuple(parse_tool_list(self.spec, await self._request_tools(timeout_s)))
        self.tools = tuple(
            Tool(
                name=tool_name(self.spec.name, tool.name),
                description=tool.description,
                input_schema=tool.input_schema,
                handler=ServerHandler(self, tool.name),
                capabilities=self.spec.capabilities,
                repeatable=tool.repeatable,
                runs_in="hall",
            )
            for tool in self.listed_tools
        )

    async def _request_tools(self, timeout_s: float) -> list[Any]:
        """Return the entries of all pages of the tool list."""
        entries: list[Any] = []
        cursor: Any = None
        for _ in range(_MAX_PAGES):
            page = await self._request("tools/list", {} if cursor is None else {"cursor": cursor}, timeout_s)
            tools = page.get("tools")
            if not isinstance(tools, list):
                raise _ErrorResponse("invalid tool list: `tools` is not an array")
            entries += cast("list[Any]", tools)
            cursor = page.get("nextCursor")
            if cursor is None or len(entries) > 10 * MAX_TOOLS:
                return entries
        raise _ErrorResponse(f"invalid tool list: more than {_MAX_PAGES} pages")

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Return the result of a call. Raise ServerGone if the server has ended, or is unreachable for a second time.

        A call that raises ServerGone was not made.
        """
        if self._transport.end_reason is not None:
            raise self._gone_error(self._transport.end_reason)
        try:
            result = await self._request("tools/call", {"name": tool, "arguments": dict(arguments)}, self._timeout_s)
        except _ErrorResponse as error:
            return ToolResult.error(f"The server {self.spec.name} rejected the call: {error}")
        except TransportError as error:
            if not error.may_have_arrived and self._is_unreachable:
                raise self._gone_error(error.reason) from None
            self._is_unreachable = not error.may_have_arrived
            effect = "the effect of the call is unknown" if error.may_have_arrived else "the call was not made"
            return ToolResult.error(f"The server {self.spec.name} {error.reason}; {effect}.")
        self._is_unreachable = False
        return parse_result(result)

    def _gone_error(self, reason: str) -> ServerGone:
        return ServerGone(
            f"{self.spec.field}: {self.spec.name}: the server {reason}",
            where=self.spec.worker_file,
            hint="Fix the server, then resume the run. A resumed run connects to its servers again.",
        )

    async def close(self) -> None:
        await self._transport.close()

    async def _request(self, method: str, params: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:
        request_id = next(self._request_ids)
        if self._is_stateless:
            meta = {
                "protocolVersion": STATELESS_PROTOCOL_VERSION,
                "clientInfo": _CLIENT_INFO,
                "clientCapabilities": {},
            }
            params = {**params, "_meta": {f"{META_PREFIX}{key}": value for key, value in meta.items()}}
        message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        try:
            response = await self._transport.request(message, timeout_s)
        except asyncio.CancelledError:
            await self._cancel_request(request_id)
            raise
        if isinstance(result := response.get("result"), dict):
            return cast("dict[str, Any]", result)
        given = response.get("error")
        error = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
        raise _ErrorResponse(to_single_line(str(error.get("message") or "no reason given")), error.get("code"))

    async def _cancel_request(self, request_id: int) -> None:
        """Notify the server that a request was cancelled."""
        params = {"requestId": request_id, "reason": "cancelled"}
        with suppress(TimeoutError):
            async with asyncio.timeout(_CANCEL_TIMEOUT_S):
                await self._transport.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})


class ServerHandler:
    """Handler of a tool on an MCP server."""

    def __init__(self, server: Server, tool: str) -> None:
        self._server = server
        self._tool = tool

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        return await self._server.call(self._tool, arguments)

    def __call__(self, **_: Any) -> ToolResult:
        raise ToolUnavailable(f"cannot call the tool {self._tool!r} without its server")


class Servers:
    """The connected servers of one run."""

    def __init__(self, servers: Iterable[Server] = ()) -> None:
        self._servers = tuple(servers)

    @staticmethod
    async def connect(specs: Iterable[ServerSpec]) -> Servers:
        """Connect to all servers. If a connection fails, close the others and raise ToolUnavailable."""
        tasks = [asyncio.create_task(Server.connect(spec)) for spec in specs]
        try:
            return Servers(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            for server in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(server, Server):
                    await server.close()
            raise

    @property
    def tools(self) -> dict[str, tuple[Tool, ...]]:
        """Return the tools of each server by its name."""
        return {server.spec.name: server.tools for server in self._servers}

    async def close(self) -> None:
        """Close all connections and end the server programs."""
        await asyncio.gather(*(server.close() for server in self._servers))


@asynccontextmanager
async def close_on_error(servers: Servers) -> AsyncGenerator[None]:
    """Close the servers if the block raises."""
    try:
        yield
    except BaseException:
        await servers.close()
        raise
