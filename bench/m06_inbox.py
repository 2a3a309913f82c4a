"""Metric 6: reading an inbox with 10 unread messages, in a channel of 1,000 messages and in one of 1,000,000.

The inbox once contained every message of the channel. The time must not depend on the length of the channel.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from bench.frame import Metric, seconds
from guildhall.core.clock import SystemClock
from guildhall.room import inbox
from guildhall.room.service import Rooms
from guildhall.room.tools import RoomTools, room_tools
from guildhall.store.engine import Store
from guildhall.store.schema import prepare
from guildhall.tools.model import ToolCall

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.room.service import Room

UNREAD = 10
READS = 200
CALLS = 50


def metrics(scratch: Path) -> list[Metric]:
    short = _create_room(scratch / "short.db", 1_000)
    long = _create_room(scratch / "long.db", 1_000_000)
    return [
        Metric(
            name="6 inbox, 1M messages",
            floor_name="1k messages",
            floor=lambda: _read(short),
            measured=lambda: _read(long),
            target=1.2,
            rounds=25,
        ),
        Metric(
            name="6 inbox_read, 1M messages",
            floor_name="1k messages",
            floor=lambda: asyncio.run(_call_tool(short)),
            measured=lambda: asyncio.run(_call_tool(long)),
            target=1.2,
            note="the tool, with its journal",
        ),
    ]


def _create_room(path: Path, count: int) -> Room:
    prepare(path)
    store = Store(path)
    room = asyncio.run(Rooms(store, SystemClock()).open("/project", "review", "main", ["coder", "reviewer"]))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.executemany(
            "INSERT INTO messages (room, id, kind, sender, content, mentions, hops, at) "
            "VALUES (?, ?, 'message', 'reviewer', ?, '[\"coder\"]', 0, '2026-03-01T12:00:00.000Z')",
            ((room.id, number, f"@coder look at line {number}, please") for number in range(1, count + 1)),
        )
        connection.executemany(
            "INSERT INTO deliveries (room, agent, message, priority, status) VALUES (?, 'coder', ?, 1, ?)",
            ((room.id, number, "done" if number <= count - UNREAD else "unread") for number in range(1, count + 1)),
        )
        connection.execute("COMMIT")
    return room


def _read(room: Room) -> float:
    store = room.documents.store

    def read() -> None:
        for _ in range(READS):
            if len(store.read(lambda connection: inbox.unread_batch(connection, room.id, "coder"))) != UNREAD:
                raise RuntimeError("the inbox has the wrong number of messages")

    return seconds(read) / READS


async def _call_tool(room: Room) -> float:
    (tool,) = room_tools(("inbox_read",))
    tools = RoomTools(room, "coder", f"r-{id(tool)}-{asyncio.get_running_loop().time()}")
    loop = asyncio.get_running_loop()
    began = loop.time()
    for number in range(CALLS):
        result = await tools.call(tool, ToolCall(key=f"m{number}", tool="inbox_read", arguments={}))
        if result.is_error:
            raise RuntimeError(result.text)
    return (loop.time() - began) / CALLS
