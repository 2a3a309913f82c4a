"""Metric 5: channel_send over MCP by 32 client processes, compared with raw HTTP that inserts a row into SQLite.

The floor uses asyncio streams and commits each row (WAL, NORMAL). The measured call also checks the token, passes the
gate, and writes the journal and the log of the room.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from bench.frame import Metric
from guildhall.core.paths import Home
from guildhall.core.request_frame import Frame
from guildhall.hall.composition.hall import Hall
from guildhall.hall.doors import McpEndpoint
from guildhall.room.service import Rooms
from guildhall.room.tools import RoomTools, room_tools
from guildhall.rpc.listener import Listener
from guildhall.runs.model import RunRequest
from guildhall.runs.owner_hooks import RunHooks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

CLIENTS = 32
AGENTS = 8  # each has four of the clients
MESSAGES = 40  # of each client

# A client: one connection, requests that are ready beforehand, one after another.
_CLIENT = """
import json, socket, sys
port, path, token, place, count = sys.argv[1:]
bodies = [
    json.dumps({"jsonrpc": "2.0", "id": n, "method": "tools/call",
                "params": {"name": "channel_send", "arguments": {"message": f"message {n} of {place}"}}}).encode()
    for n in range(int(count))
]
head = f"POST {path} HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nAuthorization: Bearer {token}\\r\\n"
head += "Content-Type: application/json\\r\\n"
requests = [f"{head}Content-Length: {len(body)}\\r\\n\\r\\n".encode() + body for body in bodies]
there = socket.create_connection(("127.0.0.1", int(port)))
there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
print("ready", flush=True)
sys.stdin.read()
for request in requests:
    there.sendall(request)
    answer = there.recv(65536)
    while b"}" not in answer:  # the head comes first
        answer += there.recv(65536)
    if not answer.startswith(b"HTTP/1.1 200") or b'"isError":true' in answer:
        sys.exit(answer.decode())
print("done", flush=True)
"""


def metrics(scratch: Path) -> list[Metric]:
    (scratch / "workers").mkdir()
    (scratch / "workers" / "clerk.yaml").write_text("instructions: Wait.\nmodel: script:long.yaml\nbase: false\n")
    (scratch / "long.yaml").write_text(
        json.dumps({"workers": {"*": [[{"sleep": 600, "say": "done"}]]}, "repeat": True})
    )
    turn = iter(range(1000))
    return [
        Metric(
            name="5 channel_send over MCP",
            floor_name="HTTP + SQLite",
            floor=lambda: asyncio.run(_floor(scratch / f"floor{next(turn)}.db")),
            measured=lambda: asyncio.run(_measure(scratch, f"t{next(turn)}")),
            target=1 / 0.34,
            rounds=5,
            note=f"{CLIENTS} processes",
        )
    ]


async def _floor(database: Path) -> float:
    store = sqlite3.connect(database, isolation_level=None)
    store.executescript(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; CREATE TABLE m (id INTEGER PRIMARY KEY, t)"
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                asked = json.loads(await reader.readexactly(size))
                store.execute("INSERT INTO m (t) VALUES (?)", (asked["params"]["arguments"]["message"],))
                body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {"isError": False}}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        duration = await _run_clients(server.sockets[0].getsockname()[1], "/", ["-"] * CLIENTS)
    assert store.execute("SELECT count(*) FROM m").fetchone() == (CLIENTS * MESSAGES,)
    store.close()
    return duration


async def _measure(scratch: Path, tag: str) -> float:
    hall = Hall(Home(scratch / "home"), environ=os.environ)
    listener = Listener()
    await listener.listen(McpEndpoint(hall.runtimes.tokens.find, version="0"))
    room = await Rooms(hall.store, hall.clock).open("/project", "bench", tag, [f"a{place}" for place in range(AGENTS)])
    tokens = [await _start_agent(hall, room, f"a{place}", scratch) for place in range(AGENTS)] * (CLIENTS // AGENTS)
    try:
        duration = await _run_clients(listener.port, "/mcp/room/", tokens)
        assert len(room.list_messages(limit=10**6)) == CLIENTS * MESSAGES
    finally:
        await listener.close(1)
        await hall.close()
    return duration


async def _start_agent(hall: Hall, room: Any, agent: str, scratch: Path) -> str:
    hooks = RunHooks(
        tools=room_tools(),
        executor=lambda run: RoomTools(room, agent, run).call,
        record_start=lambda connection, run: None,
        record_stop=lambda connection, run, end: None,
    )
    request = RunRequest(worker="clerk", input="go")
    prepared = await hall.runs.prepare(request, Frame.here(scratch, os.environ), hooks=hooks)
    hall.runs.launch(prepared)
    return hall.runs.token(prepared.run_id)


async def _run_clients(port: int, path: str, tokens: list[str]) -> float:
    """Return the seconds per message, with all clients at once."""

    async def client(place: int, token: str) -> asyncio.subprocess.Process:
        words = [str(port), path, token, str(place), str(MESSAGES)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return await asyncio.create_subprocess_exec(sys.executable, "-S", "-E", "-c", _CLIENT, *words, **pipes)

    started = [await client(place, token) for place, token in enumerate(tokens)]
    await _all(started, lambda process: process.stdout.readline())  # type: ignore[union-attr]
    began = time.perf_counter()
    for process in started:
        process.stdin.close()  # type: ignore[union-attr]
    lines = await _all(started, lambda process: process.stdout.readline())  # type: ignore[union-attr]
    duration = time.perf_counter() - began
    await _all(started, lambda process: process.wait())
    if set(lines) != {b"done\n"}:
        raise RuntimeError("a client failed")
    return duration / (CLIENTS * MESSAGES)


async def _all(
    processes: list[asyncio.subprocess.Process], do: Callable[[asyncio.subprocess.Process], Awaitable[Any]]
) -> list[Any]:
    return list(await asyncio.gather(*map(do, processes)))
