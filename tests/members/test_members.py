"""Members of a hall: one process each, restarted after a change. The hall stays up while they work."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from guildhall.core.clock import SystemClock
from guildhall.core.errors import NotTrusted, ToolUnavailable
from guildhall.core.request_frame import Frame
from guildhall.jobs.model import Dispatch
from guildhall.members.jobs import JobWatcher
from guildhall.members.manifest import Manifest
from guildhall.members.process import Timings
from guildhall.members.registry import member_code
from guildhall.members.service import Members
from guildhall.workers.code_trust import Trust
from guildhall.workers.model import Pin
from tests.members.member_folders import put_member
from tests.members.member_servers import make_member
from tests.members.test_process import alive, marks, until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from guildhall.core.paths import Home
    from guildhall.members.model import Member

PAGE = Path(__file__).parents[2] / "docs" / "members.md"


@asynccontextmanager
async def members_of(home: Home, trust: Trust | None = None) -> AsyncGenerator[Members]:
    timings = Timings(first_pause_s=0.02, grace_s=0.2)
    found = Members(home=home, clock=SystemClock(), trust=lambda: trust or Trust({}), timings=timings)
    try:
        yield found
    finally:
        await found.close()


def test_all_callers_share_one_process_of_a_member(home: Home, project: Path) -> None:
    folder = put_member(home.path, "ant")
    frame = Frame.here(project, os.environ)

    async def work() -> None:
        async with members_of(home) as members:
            ant = members.find("ant", frame)
            assert members.details(ant).state == "trusted"
            clients = await asyncio.gather(*(members.client(ant, frame) for _ in range(8)))
            assert len({id(client) for client in clients}) == 1
            assert len(marks(folder)) == 1
            shown = members.details(ant)
            assert (shown.state, shown.port is not None) == ("ready", True)
        assert not any(map(alive, marks(folder)))
        with pytest.raises(ToolUnavailable, match="the hall is stopping"):
            await members.client(ant, frame)

    asyncio.run(work())


def test_a_changed_member_restarts_only_with_trusted_files(home: Home, project: Path) -> None:
    folder = put_member(project, "ant")
    program = folder / "server.py"
    # What the toy notes in its folder would count as a change of it: it notes it where members write.
    (folder / "logs").mkdir()
    program.write_text(
        program.read_text().replace('Path("marks")', 'Path("logs/marks")').replace('"left"', '"logs/left"')
    )
    frame = Frame.here(project, os.environ)
    pins: dict[Path, Pin] = {}

    async def work() -> None:
        async with members_of(home, Trust(pins)) as members:
            ant = members.find("ant", frame)
            with pytest.raises(NotTrusted):
                await members.client(ant, frame)
            assert marks(folder / "logs") == []
            pins.update(pinned(ant))
            await members.client(ant, frame)
            program.write_text(f"# other\n{program.read_text()}")
            with pytest.raises(NotTrusted, match="changed since"):
                await members.client(ant, frame)
            pins.update(pinned(ant))
            await members.client(ant, frame)
            first, second = marks(folder / "logs")
            assert (alive(first), alive(second)) == (False, True)

    asyncio.run(work())


def pinned(member: Member) -> dict[Path, Pin]:
    return {f.path: Pin(path=f.path, digest=f.digest, trusted_at="now") for f in member_code(member).files}


def test_the_hall_keeps_running_while_a_member_job_runs(home: Home, project: Path) -> None:
    put_member(home.path, "ant")
    frame = Frame.here(project, os.environ)
    note = home.path / "members-at-work.json"

    async def work() -> None:
        async with members_of(home) as members:
            jobs = members.jobs(members.find("ant", frame), frame)
            reach = members.client(jobs.member, frame)
            polling = asyncio.create_task(reach)
            await until(lambda: members.is_busy)
            assert not note.exists(), "a member without jobs is not listed for the next hall"
            await polling
            await until(lambda: not members.is_busy)
            job = (await jobs.dispatch(Dispatch(description="d", task="slow"))).id
            assert members.is_busy
            assert json.loads(note.read_text()) == {str(jobs.member.folder): str(project)}
            await jobs.cancel(job)
            await until(lambda: not members.is_busy)
            assert not note.exists()
            await jobs.dispatch(Dispatch(description="d", task="slow again"))
        assert note.exists(), "it had not ended, and the next hall will start the member again"
        async with members_of(home) as members:
            assert members.restart_busy(lambda root: Frame.here(root, os.environ)) == ["ant"]
            assert members.is_busy
            await until(lambda: not members.is_busy)  # this one forgets its jobs with its process

    asyncio.run(work())


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 5}', '{"": "x"}', "[" * 9999, '{"/nowhere": "/nowhere"}'])
def test_an_invalid_list_of_busy_members_is_ignored(home: Home, text: str) -> None:
    home.path.mkdir(parents=True)
    (home.path / "members-at-work.json").write_text(text)
    left = JobWatcher(home.path / "members-at-work.json", SystemClock()).busy_members()
    assert left == ([(Path("/nowhere"), Path("/nowhere"))] if "nowhere" in text else [])

    async def work() -> None:
        async with members_of(home) as members:
            assert members.restart_busy(lambda root: Frame(cwd=root, root=root)) == []

    asyncio.run(work())


def test_the_page_about_members_matches_the_code() -> None:
    text = PAGE.read_text()
    example = re.search(r"```json\n(.*?)```", text, re.S)
    assert example
    manifest = Manifest.model_validate(json.loads(example[1]))
    assert manifest.mcp.variables == ("TZ_KEY",)
    for name, field in Manifest.model_fields.items():
        assert f"`{field.alias or name}" in text
    timings = Timings()
    assert f"{timings.listen_s:g} seconds to listen at its port and then {timings.handshake_s:g} to answer" in text
    assert f"doubles from {timings.first_pause_s:g} to {timings.max_pause_s:g} seconds" in text
    assert (timings.max_failures, timings.grace_s) == (5, 5.0)


def test_the_hall_keeps_running_when_a_busy_member_dies(home: Home, project: Path) -> None:
    folder = make_member(home.path / "guild-members" / "smith", answers=[{"sleep": 60, "say": "late"}])
    frame = Frame.here(project, os.environ)

    async def work() -> None:
        async with members_of(home) as members:
            smith = members.find("smith", frame)
            jobs = members.jobs(smith, frame)
            job = (await jobs.dispatch(Dispatch(description="d", task="slow"))).id
            await until(lambda: members.active_jobs())
            (theirs,) = members.active_jobs()
            assert (theirs.id, theirs.details.job.status) == (f"smith/{job}", "running")
            assert theirs.project is None
            supervisor = members.details(smith).pid
            assert supervisor
            os.kill(supervisor, signal.SIGKILL)
            await until(lambda: members.details(smith).pid not in (None, supervisor))
            assert (await jobs.status(job)).job.status == "running"
            assert members.is_busy
            assert (await jobs.cancel(job)).status == "cancelled"
        assert (folder / "jobs" / job / "meta.json").is_file()

    asyncio.run(work())
