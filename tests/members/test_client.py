"""The JSON-RPC client: six calls, and every way in which a member can fail to answer them."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.clock import SystemClock
from guildhall.core.errors import MemberFailed, MemberRefused, MemberTimedOut, MemberUnreachable, Refused
from guildhall.core.frame import Frame
from guildhall.members.client import MemberClient
from guildhall.members.handle import WorkerHandle
from guildhall.members.model import Door
from guildhall.members.process import MemberProcess, Pace
from guildhall.members.roster import Roster
from tests.members.places import put_member
from tests.members.toy_member import ODD

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from pathlib import Path

    from guildhall.core.paths import Home


@asynccontextmanager
async def running(home: Home, way: str = "", seconds: float = 30.0) -> AsyncGenerator[MemberClient]:
    put_member(home.path, "ant", way)
    member = Roster(home.path / "nowhere", home).find("ant")
    frame = Frame.here(home.path, os.environ)
    process = MemberProcess(member, frame, home, SystemClock(), Pace(leave=0.2), "")
    client = MemberClient((await process.client()).door, seconds=seconds)
    try:
        yield client
    finally:
        await client.close()
        await process.stop()


@pytest.mark.req("WD-35")
def test_the_six_calls(home: Home) -> None:
    async def work() -> None:
        async with running(home) as client:
            slow = await client.dispatch_worker("slow one", "take your time", {"depth": 2})
            quick = await client.dispatch_worker("quick/one", "quick, please")
            assert (slow, quick) == ("j-1", "j-2")
            simple = await client.list_workers()
            assert simple.as_wire() == {
                "jobs": [{"jobId": "j-1", "status": "running"}, {"jobId": "j-2", "status": "completed"}]
            }
            listed = await client.list_workers(detailed=True, filter="quick*")
            assert [(job.id, job.description, job.summary) for job in listed.jobs] == [("j-2", "quick/one", None)]
            standing = await client.worker_status(slow)
            assert standing.questions == ("Which one?\n\nThe red one?",)
            assert standing.decisions
            assert standing.decisions[0].decision == "that"
            assert "extra" not in standing.as_wire()
            with pytest.raises(MemberRefused) as caught:
                await client.worker_result(slow)
            assert caught.value.rpc_code == -32000
            assert caught.value.data == {"jobId": "j-1", "status": "running"}
            result = await client.worker_result(quick)
            assert (result.output, result.artifacts) == ("done: quick, please", ("artifacts/report.md",))
            with pytest.raises(MemberRefused, match="cannot be deleted") as caught:
                await client.delete_worker(slow)
            assert caught.value.rpc_code == -32602
            assert await client.cancel_worker(slow) == "cancelled"
            await client.delete_worker(slow)
            for call in (client.worker_status, client.worker_result, client.cancel_worker, client.delete_worker):
                with pytest.raises(MemberRefused, match="there is no job 'j-1'"):
                    await call(slow)

    asyncio.run(work())


def test_whatever_a_member_answers_is_one_of_our_errors(home: Home) -> None:
    async def work() -> None:
        async with running(home, "odd") as client:
            calls: list[Callable[[str], Any]] = [
                lambda way: client.dispatch_worker(way, "t"),
                lambda way: client.list_workers(detailed=True, filter=way),
                client.worker_status,
                client.worker_result,
                client.cancel_worker,
                client.delete_worker,
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
                await client.worker_status("j")
            stranger = MemberClient(Door(name="ant", url=client.door.url, secret="guessed"))
            with pytest.raises(MemberUnreachable, match="HTTP status 401") as caught:
                await stranger.list_workers()
            assert (caught.value.status, caught.value.sent) == (401, True)
            await stranger.close()
        with pytest.raises(MemberUnreachable, match="cannot be reached") as caught:
            await MemberClient(client.door).list_workers()
        assert not caught.value.sent
        assert issubclass(MemberTimedOut, MemberFailed)

    asyncio.run(work())


def test_the_secret_is_not_shown() -> None:
    assert "xyz" not in repr(Door(name="a", url="u", secret="xyz"))


def test_a_call_that_has_not_reached_a_member_which_was_just_ending_is_made_again(home: Home) -> None:
    async def work() -> None:
        async with running(home) as client:
            member = Roster(home.path / "nowhere", home).find("ant")
            gone = MemberClient(Door(name="ant", url="http://127.0.0.1:1/mcp", secret="x"))
            closed = MemberClient(client.door)
            await closed.close()
            with pytest.raises(MemberUnreachable, match="not running any more"):
                await closed.list_workers()
            for first in (gone, closed):
                assert (await WorkerHandle(member, _giving(first, client)).list()).jobs == ()
            with pytest.raises(MemberUnreachable, match="cannot be reached"):
                await WorkerHandle(member, _giving(gone, gone)).dispatch("d", "t")
            slow = MemberClient(client.door, seconds=0.0001)
            with pytest.raises(MemberTimedOut):
                await WorkerHandle(member, _giving(slow)).dispatch("d", "t")  # it may have heard: not again
            await slow.close()
            await gone.close()

    asyncio.run(work())


def _giving(*clients: MemberClient) -> Callable[[], Awaitable[MemberClient]]:
    ways = iter(clients)

    async def reach() -> MemberClient:
        return next(ways)

    return reach


@pytest.mark.req("WD-36", "WD-4")
def test_a_handle_is_for_members_that_take_work_only(home: Home, project: Path) -> None:
    put_member(project, "tools", work=False)
    put_member(project, "both")

    async def never() -> MemberClient:
        raise AssertionError

    roster = Roster(project, home)
    with pytest.raises(Refused, match="takes no work"):
        WorkerHandle(roster.find("tools"), never)
    assert WorkerHandle(roster.find("both"), never).member.name == "both"
