"""`guild mcp`: serves the hall as MCP tools for another program, over standard input and output.

The connection to the hall is renewed if the hall has exited. Does not define the tools (see `hall.mcp_tools`).
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from typing import TYPE_CHECKING

from guildhall.cli.command import Context, Work, command, connect
from guildhall.core.errors import HallGone, UsageError

if TYPE_CHECKING:
    from guildhall.cli.screen import Screen
    from guildhall.core.request_frame import Frame
    from guildhall.hall.client.interface import HallClient

_MAX_FILE_BYTES = 64 * 1024**2


@command()
def mcp(ctx: Context) -> Work:
    if sys.stdin is None or sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison] - closed by the caller
        hint = "Add the command to a program's settings. For example: claude mcp add guild -- guild mcp"
        raise UsageError("mcp: standard input is not connected to a program", hint=hint)
    return _serve(ctx.screen)


async def _serve(screen: Screen) -> None:
    from guildhall import __version__
    from guildhall.hall.mcp_tools import INSTRUCTIONS, TOOL_FIELDS, mcp_tools
    from guildhall.rpc.mcp_messages import ServerInfo
    from guildhall.rpc.mcp_stdio_server import MAX_LINE_BYTES, StdioServer

    connection = _Connection(screen)
    lines = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    transport = await _connect_stdin(lines)
    try:
        tools = mcp_tools(connection.get)
        server = ServerInfo(name="guild", version=__version__, instructions=INSTRUCTIONS, tool_fields=TOOL_FIELDS)
        await StdioServer(tools, server, write=_write_stdout).serve(lines)
    except BrokenPipeError:  # the client has exited
        pass
    finally:
        if transport is not None:
            transport.close()
        await connection.close()


async def _connect_stdin(lines: asyncio.StreamReader) -> asyncio.BaseTransport | None:
    """Connect standard input to `lines`. A file is read at once."""
    mode = os.fstat(0).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        loop = asyncio.get_running_loop()
        return (await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin))[0]
    lines.feed_data(sys.stdin.buffer.read(_MAX_FILE_BYTES))
    lines.feed_eof()
    return None


def _write_stdout(line: bytes) -> None:
    """Write a whole line to standard output."""
    while line:
        line = line[os.write(1, line) :]


class _Connection:
    """A connection that is renewed if the hall has exited because it was idle."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._connection: tuple[HallClient, Frame] | None = None
        self._lock = asyncio.Lock()

    async def get(self) -> tuple[HallClient, Frame]:
        from guildhall.hall.client.remote import RemoteHall

        async with self._lock:
            if self._connection is not None and isinstance(self._connection[0], RemoteHall):
                try:
                    await self._connection[0].hall.hello(self._connection[1].root)
                except HallGone:
                    await self.close()
            if self._connection is None:
                self._connection = await connect(self._screen)
            return self._connection

    async def close(self) -> None:
        if self._connection is not None:
            (client, _), self._connection = self._connection, None
            await client.close()
