"""Servers on loopback."""

from __future__ import annotations

import asyncio


async def close_server(server: asyncio.Server) -> None:
    """Close a server when its last connections have reached their handlers.

    asyncio leaks the socket of a connection whose handler is cancelled before its first step.
    """
    server.close()
    for _ in range(10):  # accept, create the transport, create the handler, start it
        await asyncio.sleep(0)
