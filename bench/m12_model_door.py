"""Metric 12: the time that the model door adds to a direct call of the provider.

The provider is a separate process that streams events on loopback, each with the time at which it was sent. Measured is
the delay of the first byte and of each event. It includes token, trimming, reservation and journal.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from bench.frame import Metric
from guildhall.core.paths import Home
from guildhall.core.request_frame import Frame
from guildhall.hall.composition.environment import RunPolicy
from guildhall.hall.composition.hall import Hall
from guildhall.hall.doors import DoorApp
from guildhall.rpc.listener import Listener
from guildhall.runs.model import RunRequest
from guildhall.runtimes.model import Outcome, ProgramHooks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from guildhall.runtimes.model import Assignment, DoorAccess, HttpDoors

CALLS = 30  # of one round
EVENTS = 40  # of one answer

# A provider that answers each request with events that contain the time at which they were sent.
_PROVIDER = """
import asyncio, json, sys, time
EVENTS = int(sys.argv[1])
def event(kind, **data):
    return f"event: {kind}\\ndata: {json.dumps({'type': kind, **data})}\\n\\n"
START = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
         "usage": {"input_tokens": 9, "output_tokens": 1}}
async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\\r\\n\\r\\n")
            size = int(head.lower().partition(b"content-length:")[2].split(b"\\r\\n")[0])
            await reader.readexactly(size)
            def send(text):
                data = text.encode()
                writer.write(b"%x\\r\\n%s\\r\\n" % (len(data), data))
            head = b"HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\n"
            writer.write(head + b"transfer-encoding: chunked\\r\\n\\r\\n")
            send(event("message_start", message=START))
            send(event("content_block_start", index=0, content_block={"type": "text", "text": ""}))
            for number in range(EVENTS):
                await asyncio.sleep(0.002)
                send(event("content_block_delta", index=0, delta={"type": "text_delta", "text": f"<{time.time()}>"}))
            send(event("content_block_stop", index=0))
            send(event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None},
                       usage={"output_tokens": EVENTS}))
            send(event("message_stop"))
            writer.write(b"0\\r\\n\\r\\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""

# A client: one connection, one request after another; says the medians of the first byte and of an event's way.
_CLIENT = """
import json, re, socket, statistics, sys, time
port, path, key, calls, turn = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5]
there = socket.create_connection(("127.0.0.1", port))
there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
head = f"POST {path} HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nx-api-key: {key}\\r\\nContent-Type: application/json\\r\\n"
firsts, ways = [], []
for number in range(calls + 3):
    asked = {"model": "m", "max_tokens": 1000, "stream": True, "system": "Wait.",
             "messages": [{"role": "user", "content": f"{turn}, {number}: " + "words " * 500}]}
    body = json.dumps(asked).encode()
    request = f"{head}Content-Length: {len(body)}\\r\\n\\r\\n".encode() + body
    began = time.perf_counter()
    there.sendall(request)
    first, got, rest = None, b"", b""
    while b"\\r\\n0\\r\\n\\r\\n" not in got[-64:]:
        piece = there.recv(65536)
        if not piece:
            sys.exit("the connection ended: " + got.decode()[-500:])
        now = time.time()
        if first is None and b"data:" in got + piece:
            first = time.perf_counter() - began
        if number >= 3:
            ways += [now - float(sent) for sent in re.findall(rb"<([0-9.]+)>", rest + piece)]
        rest = piece[-60:] if b">" not in piece[-60:] else b""
        got += piece
    if number >= 3:
        firsts.append(first)
print(json.dumps([statistics.median(firsts), statistics.median(ways)]), flush=True)
"""


def metrics(scratch: Path) -> list[Metric]:
    (scratch / "workers").mkdir()
    worker = {"instructions": "Wait.", "model": "anthropic:claude-sonnet-5", "base": False}
    (scratch / "workers" / "clerk.yaml").write_text(json.dumps(worker))
    rounds = _Rounds(scratch)
    return [
        Metric(
            name="12 model door: first byte",
            floor_name="2 ms",
            floor=lambda: 0.002,
            measured=rounds.first,
            target=1.0,
            rounds=5,
            note="added to a direct call",
        ),
        Metric(
            name="12 model door: each event",
            floor_name="0.2 ms",
            floor=lambda: 0.0002,
            measured=rounds.event,
            target=1.0,
            rounds=5,
            note="added to a direct call",
        ),
    ]


class _Rounds:
    """Measures direct calls and calls through the door in the same round."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._events: list[float] = []  # of rounds whose first byte was returned

    def first(self) -> float:
        first, event = asyncio.run(self._measure_overhead())
        self._events.append(event)
        return first

    def event(self) -> float:
        return self._events.pop() if self._events else asyncio.run(self._measure_overhead())[1]

    async def _measure_overhead(self) -> tuple[float, float]:
        async with _provider() as port, _door(self._scratch, port) as (door, token):
            directly, through = [], []
            await _client(str(door), "/llm/anthropic/v1/messages", token, "warm")
            for turn in range(2):  # both orders
                order = [
                    (directly, (str(port), "/v1/messages", "k")),
                    (through, (str(door), "/llm/anthropic/v1/messages", token)),
                ]
                for times, words in order if turn % 2 else reversed(order):
                    times.append(await _client(*words, str(turn)))
        first = statistics.median(a[0] for a in through) - statistics.median(a[0] for a in directly)
        event = statistics.median(a[1] for a in through) - statistics.median(a[1] for a in directly)
        return first, event


@asynccontextmanager
async def _provider() -> AsyncGenerator[int]:
    words = [sys.executable, "-S", "-E", "-c", _PROVIDER, str(EVENTS)]
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()


async def _client(port: str, path: str, key: str, turn: str) -> tuple[float, float]:
    words = [sys.executable, "-S", "-E", "-c", _CLIENT, port, path, key, str(CALLS // 2), turn]
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError("a client failed")
    first, event = json.loads(out)
    return first, event


class _Open:
    """A runtime that registers a program and waits."""

    def __init__(self) -> None:
        self.entry: asyncio.Future[DoorAccess] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()

    async def execute(self, assignment: Assignment, doors: HttpDoors) -> Outcome:
        entry = doors.register(ProgramHooks(name_tool=lambda server, tool: tool, on_answer=lambda response: None))
        self.entry.set_result(entry)
        await self.over.wait()
        entry.close()
        return Outcome(output="done", messages=[])


@asynccontextmanager
async def _door(scratch: Path, provider: int) -> AsyncGenerator[tuple[int, str]]:
    keys = {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{provider}", "ANTHROPIC_API_KEY": "k"}
    opened: Any = _Open()
    policy = RunPolicy(runtime_of=lambda *_: opened)
    hall = Hall(Home(scratch / "home"), environ={**os.environ, **keys}, policy=policy)
    listener = Listener(port=0)
    try:
        await listener.listen(DoorApp(hall.runtimes.tokens.find))
        frame = Frame.here(scratch, os.environ)
        hall.runs.launch(await hall.runs.prepare(RunRequest(worker="clerk", input="go"), frame))
        yield listener.port, (await opened.entry).token
        opened.over.set()
    finally:
        await listener.close(1)
        await hall.close()
