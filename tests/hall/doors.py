"""A hall with live runs whose tool door is served on a real socket, and an MCP client by hand."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import httpx2
import uvicorn

from guildhall.core.request_frame import Frame
from guildhall.hall.composition.hall import Hall
from guildhall.hall.doors import McpEndpoint
from guildhall.runs.model import RunRequest
from guildhall.tools.definition import tool
from guildhall.tools.model import Blob, Text, Toolbox, ToolResult

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.runs.owner_hooks import RunHooks

MODERN = "2026-07-28"
PNG = b"\x89PNG\r\n\x1a\n not really"


class SampleTools:
    """Tools that record their calls in `done`."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.has_started = asyncio.Event()
        self.may_finish = asyncio.Event()

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
            """Waits until it may finish, then notes a number."""
            self.has_started.set()
            await self.may_finish.wait()
            self.done.append(number)
            return f"held {number}"

        @tool(repeatable=True)
        def picture() -> ToolResult:
            """Shows a picture and a document."""
            return ToolResult(content=(Text("here"), Blob(PNG, "image/png"), Blob(b"%PDF", "application/pdf")))

        @tool(repeatable=True)
        def broken(why: str) -> str:
            """Fails."""
            raise ValueError(why)

        return Toolbox("desk", add, note, hold, picture, broken)


class ToolDoorHall:
    """A hall whose tool door is served, with runs that last until they are stopped."""

    def __init__(self, hall: Hall, url: str, project: Path) -> None:
        self.hall = hall
        self.url = url
        self._project = project

    async def start_run(self, worker: str, *given: Toolbox, hooks: RunHooks | None = None) -> tuple[str, str]:
        """Start a run that lasts as long as the test, and return its id and its token."""
        frame = Frame.here(self._project, {})
        request = RunRequest(worker=worker, input="go")
        prepared = await self.hall.runs.prepare(request, frame, given, hooks=hooks)
        self.hall.runs.launch(prepared)
        return prepared.run_id, self.hall.runs.token(prepared.run_id)

    def read_entries(self, run: str, kind: str) -> list[dict[str, Any]]:
        return [entry.data.to_record() for entry in self.hall.history.entries(run) if entry.kind == kind]


@asynccontextmanager
async def serve_tool_door(home: Home, project: Path) -> AsyncGenerator[ToolDoorHall]:
    """Serve the tool door of a hall on a free port."""
    script = {"workers": {"*": [[{"sleep": 60, "say": "done"}]]}, "repeat": True}
    (project / "long.yaml").write_text(json.dumps(script))
    (project / "guildhall.yaml").write_text("model: script:long.yaml\n")
    hall = Hall(home, environ=dict(os.environ))
    try:
        async with serve_app(McpEndpoint(hall.runtimes.tokens.find, version="1.2.3")) as url:
            yield ToolDoorHall(hall, f"{url}/mcp", project)
    finally:
        await hall.close()


@asynccontextmanager
async def serve_app(app: Any, **settings: Any) -> AsyncGenerator[str]:
    """Serve an ASGI application on a free local port, and return its URL."""
    server = uvicorn.Server(
        uvicorn.Config(app, log_config=None, ws="none", timeout_graceful_shutdown=1, **{"lifespan": "off", **settings})
    )
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        task = asyncio.create_task(server.serve([bound]))
        try:
            async with asyncio.timeout(10):
                while not server.started:  # noqa: ASYNC110 - there is no event to wait for
                    await asyncio.sleep(0.002)
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            with suppress(asyncio.CancelledError):
                await task


def write_worker(project: Path, name: str, **fields: Any) -> None:
    """Write a worker file with the toolbox `desk`."""
    (project / "workers").mkdir(exist_ok=True)
    text = {"instructions": "Work.", "base": False, "toolboxes": ["desk"], **fields}
    (project / "workers" / f"{name}.yaml").write_text(json.dumps(text))


class RawClient:
    """An MCP client that sends exactly the bytes and headers of the test."""

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
        """Send a valid request of the old or the modern protocol. `more` are headers, with `_` for `-`."""
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
async def open_raw_client(url: str, token: str | None) -> AsyncGenerator[RawClient]:
    async with httpx2.AsyncClient(trust_env=False, timeout=10) as client:
        yield RawClient(client, url, token)
