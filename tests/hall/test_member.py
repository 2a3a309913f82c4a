"""A small member: its tools, its process, and errors in its folder."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from guildhall import GuildError, Member
from guildhall.members.model import SECRET_VARIABLE
from tests.conftest import BLOCKED, Guild
from tests.members.member_servers import SECRET, connect_member, make_member, serve_member

if TYPE_CHECKING:
    from pathlib import Path


def test_typed_functions_are_tools_and_stay_functions(tmp_path: Path) -> None:
    folder = make_member(tmp_path / "desk", worker=False)
    member = Member(folder / "server.py")

    @member.tool
    def double(number: int) -> int:
        """Doubles a number."""
        return 2 * number

    @member.tool(name="greet")
    async def hello(name: str) -> str:
        """Greets a person."""
        await asyncio.sleep(0)
        return f"Hello {name}"

    assert double(4) == 8
    with pytest.raises(GuildError, match="two tools named 'greet'"):
        member.tool(name="greet")(double)
    with pytest.raises(GuildError, match="invalid tool name"):
        member.tool(lambda: 1)

    async def work() -> None:
        async with member.open_server(0, SECRET, {}) as url, connect_member(url) as http:
            tools = (await http.ask("tools/list")).json()["result"]["tools"]
            assert [(tool["name"], tool["description"]) for tool in tools] == [
                ("double", "Doubles a number."),
                ("greet", "Greets a person."),
            ]
            assert (await http.call("double", {"number": 21}))["result"]["content"][0]["text"] == "42"
            assert (await http.call("greet", {"name": "Ada"}))["result"]["content"][0]["text"] == "Hello Ada"
            about = (await http.ask("initialize", {"protocolVersion": "2025-06-18"})).json()["result"]
            assert about["serverInfo"] == {"name": "desk", "version": "1.2.3"}

    asyncio.run(work())
    assert not (folder / ".guild").exists()  # a member without workers stores nothing


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def start_member(folder: Path, port: int, *, secret: str | None = SECRET) -> subprocess.Popen[str]:
    """Start the program of the member."""
    environ = {**Guild.environment(), "PYTHONPATH": str(BLOCKED)}
    if secret is not None:
        environ[SECRET_VARIABLE] = secret
    return subprocess.Popen(
        [sys.executable, "server.py", "--port", str(port)],
        cwd=folder,
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


async def wait_until_up(url: str, secret: str = SECRET) -> None:
    """Wait until the member responds."""
    async with asyncio.timeout(20), connect_member(url, secret) as http:
        while True:
            with suppress(httpx2.TransportError):
                assert (await http.ask("ping")).status_code == 200
                return
            await asyncio.sleep(0.02)


def test_a_member_serves_until_it_is_terminated(tmp_path: Path) -> None:
    folder = make_member(tmp_path / "desk", worker=False)
    port = free_port()
    process = start_member(folder, port)
    try:
        url = f"http://127.0.0.1:{port}/mcp"
        asyncio.run(wait_until_up(url))

        async def work() -> Any:
            async with connect_member(url) as http:
                return await http.call("add", {"a": 2, "b": 3})

        assert asyncio.run(work())["result"]["content"][0]["text"] == "5"
        process.send_signal(signal.SIGTERM)
        _, output = process.communicate(timeout=10)
        assert (process.returncode, "desk stopped" in output) == (0, True)
        assert SECRET not in output
    finally:
        process.kill()
        process.communicate()


def test_a_secret_is_generated_if_none_is_given(tmp_path: Path) -> None:
    folder = make_member(tmp_path / "desk", worker=False)
    port = free_port()
    process = start_member(folder, port, secret=None)
    try:
        assert process.stderr is not None
        secret = process.stderr.readline().rpartition(": ")[2].strip()
        assert len(secret) >= 32
        asyncio.run(wait_until_up(f"http://127.0.0.1:{port}/mcp", secret))
    finally:
        process.kill()
        process.communicate()


def test_an_invalid_folder_is_reported_without_a_traceback(tmp_path: Path) -> None:
    with pytest.raises(GuildError, match=r"guild-member\.json"):
        _ = Member(tmp_path / "server.py").manifest
    folder = make_member(tmp_path / "desk", worker=False)
    manifest = json.loads((folder / "guild-member.json").read_text())
    (folder / "guild-member.json").write_text(json.dumps({**manifest, "capabilities": ["worker"]}))
    process = start_member(folder, 0)
    _, output = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "requires a worker in the folder" in output
    assert "workers/desk.yaml" in output
    assert "Traceback" not in output


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    folder = make_member(tmp_path / "desk", worker=False)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        process = start_member(folder, sock.getsockname()[1])
        _, output = process.communicate(timeout=20)
    assert (process.returncode, "in use" in output, "Traceback" in output) == (1, True, False)


def test_a_member_without_a_worker_refuses_jobs(tmp_path: Path) -> None:
    async def work() -> None:
        async with serve_member(make_member(tmp_path / "desk", worker=False)) as member:
            assert (await member.refused("dispatch", {"description": "x", "task": "x"}))["code"] == -32601

    asyncio.run(work())
