"""What the tests of the tool door stand on: a hall with live runs, served on a real socket of this machine."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import httpx2
import uvicorn

from guildhall.core.frame import Frame
from guildhall.hall.composition.hall import Hall
from guildhall.hall.doors import McpEndpoint
from guildhall.runs.model import RunRequest
from guildhall.tools.definition import tool
from guildhall.tools.model import Blob, Text, Toolbox, ToolResult

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.runs.hooks import RunHooks

MODERN = "2026-07-28"
PNG = b"\x89PNG\r\n\x1a\n not really"


class Desk:
    """A toolbox whose tools say what happened to them."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()

    def toolbox(self) -> Toolbox:
        @tool(repeatable=True)
        def add(a: int, b: int) -> int:
            """Adds two numbers."""
            return a + b

        @tool
        async def note(number: int) -> str:
            """Notes a number, once for each call."""
            await asyncio.sleep(0)
            self.done.append(number)
            return f"noted {number}"

        @tool
        async def hold(number: int) -> str:
            """Waits until it may go on, then notes a number."""
            self.began.set()
            await self.go_on.wait()
            self.done.append(number)
            return f"held {number}"

        @tool(repeatable=True)
        def picture() -> ToolResult:
            """Shows a picture and a paper."""
            return ToolResult(content=(Text("here"), Blob(PNG, "image/png"), Blob(b"%PDF", "application/pdf")))

        @tool(repeatable=True)
        def broken(why: str) -> str:
            """Fails."""
            raise ValueError(why)

        return Toolbox("desk", add, note, hold, picture, broken)


class Served:
    """A hall whose tool door is served, with runs that live until they are stopped."""

    def __init__(self, hall: Hall, url: str, project: Path) -> None:
        self.hall = hall
        self.url = url
        self._project = project

    async def live(self, worker: str, *given: Toolbox, hooks: RunHooks | None = None) -> tuple[str, str]:
        """A run that goes on for as long as the test wants: its id and its token."""
        frame = Frame.here(self._project, {})
        request = RunRequest(worker=worker, input="go")
        prepared = await self.hall.runs.prepare(request, frame, given, hooks=hooks)
        self.hall.runs.launch(prepared)
        return prepared.run, self.hall.runs.token(prepared.run)

    def kinds(self, run: str, kind: str) -> list[dict[str, Any]]:
        return [entry.data.to_record() for entry in self.hall.history.entries(run) if entry.kind == kind]


@asynccontextmanager
async def served(home: Home, project: Path) -> AsyncGenerator[Served]:
    """The hall of a home, its tool door on a free port."""
    script = {"workers": {"*": [[{"sleep": 60, "say": "done"}]]}, "repeat": True}
    (project / "long.yaml").write_text(json.dumps(script))
    (project / "guildhall.yaml").write_text("model: script:long.yaml\n")
    hall = Hall(home, environ=dict(os.environ))
    try:
        async with listening(McpEndpoint(hall.runtimes.tokens.find, version="1.2.3")) as url:
            yield Served(hall, f"{url}/mcp", project)
    finally:
        await hall.close()


@asynccontextmanager
async def listening(app: Any, **settings: Any) -> AsyncGenerator[str]:
    """An ASGI application on a free port of this machine."""
    server = uvicorn.Server(
        uvicorn.Config(app, log_config=None, ws="none", timeout_graceful_shutdown=1, **{"lifespan": "off", **settings})
    )
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        task = asyncio.create_task(server.serve([bound]))
        try:
            async with asyncio.timeout(10):
                while not server.started:  # noqa: ASYNC110 - it says so nowhere else
                    await asyncio.sleep(0.002)
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            with suppress(asyncio.CancelledError):
                await task


def put(project: Path, name: str, **fields: Any) -> None:
    """A worker of the project that has the toolbox `desk`."""
    (project / "workers").mkdir(exist_ok=True)
    text = {"instructions": "Work.", "base": False, "toolboxes": ["desk"], **fields}
    (project / "workers" / f"{name}.yaml").write_text(json.dumps(text))


class Raw:
    """MCP by hand: exactly the bytes and headers that a test names."""

    def __init__(self, client: httpx2.AsyncClient, url: str, token: str | None) -> None:
        self._client = client
        self._url = url
        self._token = token
        self._number = 0

    async def post(self, content: bytes, headers: Mapping[str, str] | None = None) -> httpx2.Response:
        given = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        if self._token is not None:
            given["authorization"] = f"Bearer {self._token}"
        return await self._client.post(self._url, content=content, headers={**given, **(headers or {})})

    async def ask(self, method: str, params: Any = None, *, modern: bool = False, **more: str) -> httpx2.Response:
        """A request that is right for its era; `more` are headers, with `_` for `-`."""
        self._number += 1
        headers = {name.replace("_", "-"): value for name, value in more.items()}
        if modern:
            meta = {
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientCapabilities": {},
            }
            params = {**(params or {}), "_meta": {**meta, **(params or {}).get("_meta", {})}}
            headers = {"mcp-protocol-version": MODERN, "mcp-method": method, **headers}
            if "name" in params:
                headers.setdefault("mcp-name", str(params["name"]))
        message = {"jsonrpc": "2.0", "id": self._number, "method": method}
        if params is not None:
            message["params"] = params
        return await self.post(json.dumps(message).encode(), headers)

    async def call(self, tool: str, arguments: Any, *, id: str | None = None, modern: bool = False) -> Any:
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        if id is not None:
            params["_meta"] = {"claudecode/toolUseId": id}
        return (await self.ask("tools/call", params, modern=modern)).json()


@asynccontextmanager
async def raw(url: str, token: str | None) -> AsyncGenerator[Raw]:
    async with httpx2.AsyncClient(trust_env=False, timeout=10) as client:
        yield Raw(client, url, token)
