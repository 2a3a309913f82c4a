"""The JSON-RPC client: six calls, and every way in which a member can fail to answer them."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.clock import SystemClock
from guildhall.core.errors import (
    MemberFailed,
    MemberRefused,
    MemberTimedOut,
    MemberUnreachable,
    Refused,
    UnknownJob,
)
from guildhall.core.request_frame import Frame
from guildhall.jobs.model import Dispatch
from guildhall.members.client import MemberClient
from guildhall.members.jobs import MemberJobs
from guildhall.members.model import Endpoint
from guildhall.members.process import MemberProcess, Timings
from guildhall.members.registry import MemberRegistry
from tests.members.member_folders import put_member
from tests.members.toy_member import ODD

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from guildhall.core.paths import Home


@asynccontextmanager
async def running(home: Home, way: str = "", seconds: float = 30.0) -> AsyncGenerator[MemberClient]:
    put_member(home.path, "ant", way)
    member = MemberRegistry(home.path / "nowhere", home).find("ant")
    frame = Frame.here(home.path, os.environ)
    process = MemberProcess(member, frame, home, SystemClock(), Timings(grace_s=0.2), "")
    client = MemberClient((await process.client()).endpoint, timeout_s=seconds)
    try:
        yield client
    finally:
        await client.close()
        await process.stop()


def jobs_of(home: Home, *clients: MemberClient) -> MemberJobs:
    """Return the jobs of the running member through these clients, the last of them for all later calls."""
    given = list(clients)

    async def reach() -> MemberClient:
        return given.pop(0) if len(given) > 1 else given[0]

    return MemberJobs(MemberRegistry(home.path / "nowhere", home).find("ant"), reach)


@pytest.mark.req("WD-35")
def test_the_six_calls(home: Home) -> None:
    async def work() -> None:
        async with running(home) as client:
            jobs = jobs_of(home, client)
            config = {"depth": 2}
            slow = (await jobs.dispatch(Dispatch(description="slow one", task="take your time", config=config))).id
            quick = (await jobs.dispatch(Dispatch(description="quick/one", task="quick, please"))).id
            assert (slow, quick) == ("j-1", "j-2")
            simple = await jobs.page(detail="simple")
            assert simple.as_wire() == {
                "jobs": [{"jobId": "j-1", "status": "running"}, {"jobId": "j-2", "status": "completed"}]
            }
            listed = await jobs.page(filter="quick*")
            assert [(job.id, job.description, job.summary) for job in listed.jobs] == [("j-2", "quick/one", None)]
            shown = await jobs.status(slow)
            assert (shown.job.worker, shown.job.status) == ("ant", "running")
            assert shown.questions == ("Which one?\n\nThe red one?",)
            assert shown.decisions[0].decision == "that"
            assert "extra" not in shown.as_wire()
            with pytest.raises(MemberRefused) as caught:
                await jobs.result(slow)
            assert caught.value.rpc_code == -32000
            assert caught.value.data == {"jobId": "j-1", "status": "running"}
            result = await jobs.result(quick)
            assert (result.output, result.artifacts) == ("done: quick, please", ("artifacts/report.md",))
            with pytest.raises(MemberRefused, match="cannot be deleted") as caught:
                await jobs.delete(slow)
            assert caught.value.rpc_code == -32602
            with pytest.raises(MemberRefused, match="cannot be deleted"):
                await jobs.delete(slow, force=True)
            with pytest.raises(Refused, match="does not support worker/resume"):
                await jobs.resume(slow)
            assert (await jobs.cancel(slow)).row() == {"jobId": slow, "status": "cancelled"}
            await jobs.delete(slow)
            for call in (jobs.status, jobs.result, jobs.cancel, jobs.delete):
                with pytest.raises(UnknownJob, match="unknown job 'j-1' of the member ant"):
                    await call(slow)

    asyncio.run(work())


def test_an_invalid_response_of_a_member_is_a_guild_error(home: Home) -> None:
    async def work() -> None:
        async with running(home, "odd") as client:
            jobs = jobs_of(home, client)
            calls: list[Callable[[str], Any]] = [
                lambda way: jobs.dispatch(Dispatch(description=way, task="t")),
                lambda way: jobs.page(filter=way),
                jobs.status,
                jobs.result,
                jobs.cancel,
                jobs.delete,
            ]
            for way in ODD:
                expected = MemberUnreachable if way in ("teapot", "redirect") else MemberRefused
                for call in calls[:1] if way == "huge" else calls:
                    with pytest.raises(expected, match="the member ant"):
                        await call(way)

    asyncio.run(work())


def test_the_three_kinds_of_error(home: Home) -> None:
    async def work() -> None:
        async with running(home, "slow", seconds=0.2) as client:
            with pytest.raises(MemberTimedOut, match=r"worker/status within 0\.2 s"):
                await jobs_of(home, client).status("j")
            stranger = MemberClient(Endpoint(name="ant", url=client.endpoint.url, secret="guessed"))
            with pytest.raises(MemberUnreachable, match="HTTP status 401") as caught:
                await stranger.call("worker/list", {})
            assert (caught.value.status, caught.value.sent) == (401, True)
            await stranger.close()
        with pytest.raises(MemberUnreachable, match="cannot reach the member") as caught:
            await MemberClient(client.endpoint).call("worker/list", {})
        assert not caught.value.sent
        assert issubclass(MemberTimedOut, MemberFailed)

    asyncio.run(work())


def test_the_secret_is_not_shown() -> None:
    assert "xyz" not in repr(Endpoint(name="a", url="u", secret="xyz"))


def test_a_call_to_an_exiting_member_is_repeated(home: Home) -> None:
    dispatch = Dispatch(description="d", task="t")

    async def work() -> None:
        async with running(home) as client:
            gone = MemberClient(Endpoint(name="ant", url="http://127.0.0.1:1/mcp", secret="x"))
            closed = MemberClient(client.endpoint)
            await closed.close()
            with pytest.raises(MemberUnreachable, match="was stopped"):
                await closed.call("worker/list", {})
            for first in (gone, closed):
                assert (await jobs_of(home, first, client).page()).jobs == []
            with pytest.raises(MemberUnreachable, match="cannot reach the member"):
                await jobs_of(home, gone, gone).dispatch(dispatch)
            slow = MemberClient(client.endpoint, timeout_s=0.0001)
            with pytest.raises(MemberTimedOut):
                await jobs_of(home, slow, client).dispatch(dispatch)  # the member may have received it: not again
            await slow.close()
            await gone.close()

    asyncio.run(work())


@pytest.mark.req("WD-36", "WD-4")
def test_only_members_with_a_worker_have_jobs(home: Home, project: Path) -> None:
    put_member(project, "tools", work=False)
    put_member(project, "both")

    async def never() -> MemberClient:
        raise AssertionError

    roster = MemberRegistry(project, home)
    with pytest.raises(Refused, match="does not accept jobs"):
        MemberJobs(roster.find("tools"), never)
    assert MemberJobs(roster.find("both"), never).member.name == "both"
