"""A run with a passthrough session: journal, ledger and model door are real, and the provider answers over HTTP."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from guildhall.core.clock import SystemClock
from guildhall.core.events import EventBus
from guildhall.core.ids import new_id
from guildhall.core.request_frame import RecordedFrame
from guildhall.models.door import ModelDoor
from guildhall.models.passthrough.provider_connection import ConnectionPool
from guildhall.models.passthrough.session import PassthroughSession, RunContent
from guildhall.models.provider_source import create_provider_source
from guildhall.runs.asks import Asks
from guildhall.runs.execution.call_ledger import CallLedger
from guildhall.runs.idle_tracker import IdleTracker
from guildhall.runs.model import Bounds, RunRequest
from guildhall.runs.record.entries import ModelAnswered
from guildhall.runs.record.journal import Journal
from guildhall.runs.record.records import add_run
from tests.entries import assembly
from tests.servers import close_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from pydantic_ai.messages import ModelResponse

    from guildhall.models.model import Source
    from guildhall.models.passthrough.session import Reply
    from guildhall.store.engine import Store

    Answer = Callable[["ReceivedRequest"], AsyncIterator[bytes]]

KEY = "sk-the-real-key-that-must-stay-hidden"
TOOLS = {"mcp__tools__memory_read": "memory_read"}
CLAUDE = "anthropic:claude-sonnet-5"


@dataclass(frozen=True)
class ReceivedRequest:
    """A request as the provider received it."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class InstantClock(SystemClock):
    """A clock that does not sleep, and records the durations."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@dataclass
class Upstream:
    """A provider on loopback that gives one answer after another, repeats the last one, and records the requests."""

    answers: list[Answer]
    requests: list[ReceivedRequest] = field(default_factory=list)
    connections: int = 0
    url: str = ""
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Upstream]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            await close_server(server)
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                while True:
                    await self._answer(reader, writer)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(_header(line) for line in head[1:] if line)
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        request = ReceivedRequest(head[0].split(" ")[1], headers, json.loads(body or b"{}"))
        self.requests.append(request)
        answer = self.answers[min(len(self.requests), len(self.answers)) - 1]
        async for piece in answer(request):
            writer.write(piece)
            await writer.drain()


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(": ")
    return name.lower(), value


def whole_answer(status: int, body: Any, **headers: str) -> Answer:
    """Return an answer in one piece."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n{more}\r\n"

    async def answer(request: ReceivedRequest) -> AsyncIterator[bytes]:
        yield head.encode() + content

    return answer


def streamed_answer(
    pieces: Iterable[bytes | asyncio.Event], *, cut: bool = False, headers: Mapping[str, str] | None = None
) -> Answer:
    """Return an answer of server-sent events in these pieces.

    The answer waits for an asyncio.Event between them. With `cut`, it closes the connection at the end.
    """
    more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n{more}\r\n"

    async def answer(request: ReceivedRequest) -> AsyncIterator[bytes]:
        yield head.encode()
        for piece in pieces:
            if isinstance(piece, asyncio.Event):
                await piece.wait()
            elif piece:
                yield b"%x\r\n%s\r\n" % (len(piece), piece)
        if cut:
            raise ConnectionError
        yield b"0\r\n\r\n"

    return answer


class PassthroughRun:
    """A run with its own doors, as a program sees them."""

    def __init__(
        self,
        store: Store,
        source: Source,
        *,
        names: Mapping[str, str] | None = TOOLS,
        prompt: str = "Be Bob.",
        **bounds: Any,
    ) -> None:
        self.clock = InstantClock()
        self.store = store
        self.source = source
        self.run = new_id("r")
        self.journal = Journal(self.run, store, self.clock)
        self.errors: list[Exception] = []
        self.answers: list[tuple[str, ModelResponse]] = []
        self.pool = ConnectionPool()
        offered = [ToolDefinition(name=name) for name in (names or {}).values()]
        parameters = ModelRequestParameters(function_tools=offered)
        self._shown = None if names is None else RunContent(prompt=prompt, names=names, parameters=parameters)
        self._bounds = Bounds(**bounds)

    async def open(self) -> PassthroughSession:
        """Open a session as the program of the run does, also after a restart."""
        if not self.journal.entries:
            row = {
                "worker": "w",
                "model": "m",
                "kind": "plain",
                "status": "running",
                "request": {
                    **asdict(RunRequest(worker="w", input="go")),
                    "frame": RecordedFrame(cwd=Path("/"), root=Path("/")).as_dict(),
                },
                "created_at": "2026-01-01T00:00:00.000Z",
            }
            counts = {"turns": 0, "input_tokens": 0, "output_tokens": 0, "running_seconds": 0.0}
            await self.store.write(lambda c: add_run(c, id=self.run, root=self.run, **row, **counts))
            await self.journal.append(assembly(bounds=asdict(self._bounds)))
        ledger = CallLedger(
            worker="w",
            identity="project:w",
            root=self.run,
            journal=self.journal,
            asks=Asks(self.store, self.clock),
            store=self.store,
            bus=EventBus(),
            clock=self.clock,
            idle_tracker=IdleTracker(self.clock, client_count=0),
            interactive=False,
        )
        door = ModelDoor(self.source, ledger, self.clock, worker="w", ordinal=0)
        return PassthroughSession(
            door.call,
            content=self._shown,
            on_error=self.errors.append,
            on_answer=lambda key, response: self.answers.append((key, response)),
            has_other_question=ledger.is_other_question,
            upstream=door.upstream,
            pool=self.pool,
        )

    def kinds(self) -> list[str]:
        return [entry.kind for entry in self.journal.entries[1:]]

    def keys(self) -> list[str]:
        return [entry.key or "" for entry in self.journal.all(ModelAnswered)]

    def journal_text(self) -> str:
        """Return the whole journal as text."""
        return json.dumps([entry.as_dict() for entry in self.journal.entries])


def provider(url: str, name: str = CLAUDE, **environ: str) -> Source:
    maker = name.partition(":")[0].partition("-")[0].upper()
    return create_provider_source(name, {f"{maker}_BASE_URL": url, f"{maker}_API_KEY": KEY, **environ})


def run_with_provider(
    store: Store, *answers: Answer, then: Callable[..., Any], name: str = CLAUDE, **more: Any
) -> tuple[PassthroughRun, Upstream, Any]:
    """Run `then(session, passage)` with a provider that gives these answers.

    Return the run, the provider and the result.
    """

    async def run_then() -> tuple[PassthroughRun, Upstream, Any]:
        async with Upstream(list(answers)).serving() as upstream:
            passage = PassthroughRun(store, provider(upstream.url, name), **more)
            session = await passage.open()
            try:
                async with asyncio.timeout(8):
                    return passage, upstream, await then(session, passage)
            finally:
                session.close()
                await passage.pool.close()

    return asyncio.run(run_then())


async def read_body(reply: Reply) -> bytes:
    async with asyncio.timeout(5):
        return b"".join([piece async for piece in reply.body])


def parse_events(data: bytes) -> list[Any]:
    """Return the data of server-sent events."""
    lines = [line[6:] for line in data.decode().splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]
