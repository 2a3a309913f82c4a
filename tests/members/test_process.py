"""A member as a process: started, looked after, started again, stopped; nothing of it is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from guildhall.core.clock import SystemClock
from guildhall.core.errors import ToolUnavailable
from guildhall.core.request_frame import Frame
from guildhall.members.process import MemberProcess, Timings, environment
from guildhall.members.registry import MemberRegistry
from tests.conftest import ROOT
from tests.members.member_folders import put_member

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from guildhall.core.paths import Home

QUICK = Timings(first_pause_s=0.02, max_pause_s=0.05, listen_s=10, handshake_s=5, grace_s=0.5)


@asynccontextmanager
async def kept(home: Home, name: str, timings: Timings = QUICK) -> AsyncGenerator[MemberProcess]:
    member = MemberRegistry(home.path / "nowhere", home).find(name)
    frame = Frame.here(home.path, os.environ, keys=["A_KEY", "OTHER_KEY"])
    process = MemberProcess(member, frame, home, SystemClock(), timings, "")
    try:
        yield process
    finally:
        await process.stop()


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(8):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def marks(folder: Path) -> list[int]:
    file = folder / "marks"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


async def looked(process: MemberProcess) -> dict[str, object]:
    client = await process.client()
    told = await client.call("tools/call", {"name": "look", "arguments": {}})
    return json.loads(told["content"][0]["text"])


def test_a_member_runs_in_its_folder_with_a_secret_and_the_allowed_variables(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "key-1")
    monkeypatch.setenv("OTHER_KEY", "key-2")
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("SURPRISE", "x")
    told = {"FIXED": "a ${PORT}", "KEY": "${A_KEY}", "GONE": "${NOT_SET}"}
    mcp = {"command": "${PYTHON}", "args": ["server.py", "${PORT}"], "env": told}
    folder = put_member(home.path, "ant", mcp=mcp)

    async def work() -> None:
        async with kept(home, "ant") as process:
            seen = await looked(process)
            env = seen["env"]
            assert isinstance(env, dict)
            assert seen["cwd"] == str(folder.resolve())
            assert (env["FIXED"], env["KEY"]) == (f"a {process.port}", "key-1")
            assert len(env.pop("GUILDHALL_MEMBER_SECRET")) > 30
            assert env.pop("GUILDHALL_HOME") == str(home.path)
            allowed = {"PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TERM", "NO_COLOR", "FIXED", "KEY"}
            assert env.keys() <= allowed
            assert process.state == "ready"
            assert process.log.stat().st_mode & 0o777 == 0o600
        assert process.state == "stopped"
        assert (folder / "left").read_text() == "politely"
        assert not alive(marks(folder)[0])

    asyncio.run(work())


def test_git_variables_are_not_passed_to_a_member() -> None:
    frame = Frame.here(ROOT, {"PATH": "/bin"})
    assert environment(frame, {"GIT_DIR": "x", "A": "1"}, {}) == {"PATH": "/bin", "A": "1"}


def test_an_exited_member_restarts_at_its_port(home: Home) -> None:
    folder = put_member(home.path, "ant")

    async def work() -> None:
        async with kept(home, "ant") as process:
            first = await process.client()
            port = process.port
            os.kill(marks(folder)[0], signal.SIGKILL)
            await until(lambda: process.state != "ready")
            assert process.note == "was killed by SIGKILL"
            client = await process.client()
            assert client is not first
            assert client.endpoint == first.endpoint  # whoever knows the address keeps it
            assert process.port == port
            await client.initialize()
            assert len(marks(folder)) == 2

    asyncio.run(work())


def test_a_member_that_does_not_start_is_broken_with_the_reason(home: Home) -> None:
    put_member(home.path, "ant", "stillborn")

    async def work() -> None:
        async with kept(home, "ant") as process:
            with pytest.raises(ToolUnavailable) as caught:
                await process.client()
            said = "cannot run the member ant: it exited with code 4 before it was ready"
            assert caught.value.message == f"{said}; its last output: no ink"
            assert str(process.log) in (caught.value.hint or "")
            await until(lambda: process.is_over)
            assert process.state == "broken"
            assert process.log.read_text().count("no ink") == QUICK.max_failures
            with pytest.raises(ToolUnavailable, match="no ink"):
                await process.client()

    asyncio.run(work())


@pytest.mark.parametrize(
    ("way", "timings", "said"),
    [
        ("silent", Timings(listen_s=0.2, max_failures=1, grace_s=0.1), "did not listen on its port within 0.2 s"),
        ("deaf", Timings(handshake_s=0.2, max_failures=1, grace_s=0.1), "did not respond to initialize within 0.2 s"),
    ],
)
def test_the_handshake_is_the_health_check(home: Home, way: str, timings: Timings, said: str) -> None:
    folder = put_member(home.path, "ant", way)

    async def work() -> None:
        async with kept(home, "ant", timings) as process:
            with pytest.raises(ToolUnavailable, match=said):
                await process.client()
            assert not any(map(alive, marks(folder)))

    asyncio.run(work())


@pytest.mark.parametrize("command", ["no-such-program", "./gone.sh", "server.py/x"])
def test_a_missing_program_is_reported_at_once(home: Home, command: str) -> None:
    put_member(home.path, "ant", mcp={"command": command, "args": ["${PORT}"]})

    async def work() -> None:
        async with kept(home, "ant") as process:
            with pytest.raises(ToolUnavailable, match="was not found"):
                await process.client()
            assert process.state == "broken"

    asyncio.run(work())


@pytest.mark.parametrize("way", ["litter", "stubborn"])
def test_a_stopped_member_leaves_no_process(home: Home, way: str) -> None:
    folder = put_member(home.path, "ant", way)

    async def work() -> None:
        async with kept(home, "ant") as process:
            await process.client()
            assert alive(marks(folder)[0])
        left = [*marks(folder), *([int((folder / "litter").read_text())] if way == "litter" else [])]
        assert not any(map(alive, left))

    asyncio.run(work())


_HALL = """
import asyncio, os, sys
from pathlib import Path
from guildhall.core.clock import SystemClock
from guildhall.core.request_frame import Frame
from guildhall.core.paths import Home
from guildhall.members.process import MemberProcess, Timings
from guildhall.members.registry import MemberRegistry

async def main():
    home, clock, timings = Home(Path(sys.argv[1])), SystemClock(), Timings(grace_s=0.3)
    frame = Frame.here(home.path, os.environ)
    members = MemberRegistry(home.path / "nowhere", home).members()
    processes = [MemberProcess(member, frame, home, clock, timings, "") for member in members]
    await asyncio.gather(*(process.client() for process in processes))
    print(*(process.pid for process in processes), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("who", ["hall", "supervisors"])
def test_no_process_is_left_after_a_crash_of_the_hall_or_the_supervisor(home: Home, who: str) -> None:
    folders = [put_member(home.path, f"a-{way}", way) for way in ("litter", "polite", "stubborn")]
    with subprocess.Popen([sys.executable, "-c", _HALL, home.path], stdout=subprocess.PIPE, text=True) as hall:
        assert hall.stdout is not None
        supervisors = [int(pid) for pid in hall.stdout.readline().split()]
        litter = int((folders[0] / "litter").read_text())
        left = [marks(folder)[0] for folder in folders] + ([litter] if who == "hall" else [])
        for pid in [hall.pid] if who == "hall" else supervisors:
            os.kill(pid, signal.SIGKILL)
        ends = time.monotonic() + 8
        while any(map(alive, left)) and time.monotonic() < ends:
            time.sleep(0.01)
        assert not any(map(alive, left))
        hall.kill()
    if who == "supervisors":  # what a member starts in a session of its own is the supervisor's to end
        os.kill(litter, signal.SIGKILL)
