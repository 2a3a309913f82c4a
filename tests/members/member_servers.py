"""Members for tests: a folder with a manifest, a program, and where it takes work a worker with a scripted model."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2

from guildhall import Member
from tests.hall.doors import RawClient

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from pathlib import Path

SECRET = "a-secret-of-this-test-only"
SERVER = """\
from guildhall import Member

member = Member(__file__)


@member.tool
def add(a: int, b: int) -> int:
    "Adds two numbers."
    return a + b


if __name__ == "__main__":
    member.main()
"""


def make_member(folder: Path, *, worker: bool = True, answers: list[Any] | None = None, **fields: Any) -> Path:
    """Write a member named like its folder. `answers`: of its model in each job. `fields`: of its worker file."""
    folder.mkdir(parents=True)
    manifest = {
        "name": folder.name,
        "version": "1.2.3",
        "transport": "http",
        "mcp": {"command": "${PYTHON}", "args": ["server.py", "--port", "${PORT}"]},
        "capabilities": ["worker"] if worker else [],
    }
    (folder / "guild-member.json").write_text(json.dumps(manifest))
    (folder / "server.py").write_text(SERVER)
    if worker:
        (folder / "workers").mkdir()
        (folder / "workers" / f"{folder.name}.yaml").write_text(json.dumps({"instructions": "Work.", **fields}))
        (folder / "guildhall.yaml").write_text("model: script:script.yaml\n")
        write_script(folder / "script.yaml", answers if answers is not None else [{"say": "done"}])
    return folder


def write_script(path: Path, answers: list[Any]) -> str:
    """Write a script for one job and return the name of its model."""
    path.write_text(json.dumps({"workers": {"*": [answers]}, "repeat": True}))
    return f"script:{path}"


class MemberConnection(RawClient):
    """A connection to a member that sends `worker/*` requests."""

    async def worker(self, method: str, **params: Any) -> Any:
        """Return the result of a `worker/*` request."""
        reply = (await self.ask(f"worker/{method}", params)).json()
        assert "result" in reply, reply
        return reply["result"]

    async def refused(self, method: str, params: Any) -> dict[str, Any]:
        """Return the error of a `worker/*` request."""
        reply = (await self.ask(f"worker/{method}", params)).json()
        assert "error" in reply, reply
        return reply["error"]

    async def dispatch(self, task: str = "Do it.", description: str = "A job", **config: Any) -> str:
        return (await self.worker("dispatch", description=description, task=task, config=config))["jobId"]

    async def ended(self, job: str) -> dict[str, Any]:
        """Wait until a job has ended, and return its status."""
        async with asyncio.timeout(20):
            while True:
                shown = await self.worker("status", jobId=job)
                if shown["status"] != "running":
                    return shown
                await asyncio.sleep(0.01)


@asynccontextmanager
async def serve_member(folder: Path, environ: Mapping[str, str] | None = None) -> AsyncGenerator[MemberConnection]:
    """Serve the member of a folder in this process."""
    member = Member(folder / "server.py")
    async with member.open_server(0, SECRET, environ or {}) as url, connect_member(url) as connection:
        yield connection


@asynccontextmanager
async def connect_member(url: str, secret: str = SECRET) -> AsyncGenerator[MemberConnection]:
    async with httpx2.AsyncClient(trust_env=False, timeout=30) as http:  # the first dispatch imports a great deal
        yield MemberConnection(http, url, secret)
