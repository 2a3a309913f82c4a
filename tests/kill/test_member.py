"""Crashes of a member: its process is killed at many points of a job, and after a restart it completes the job."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from tests.hall.test_member import free_port, wait_until_up
from tests.members.killed_member import KilledMember
from tests.members.member_servers import SECRET, connect_member, make_member, serve_member

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from tests.warm import WarmProcess

ANSWERS = [
    {"call": "update_summary", "with": {"summary": "begun"}},
    {"call": "log_question", "with": {"question": "Who pays?"}},
    {"call": "record_decision", "with": {"question": "Which?", "decision": "This.", "reasoning": "It is nearer."}},
    {"call": "store_memory", "with": {"key": "fact", "content": "It is nearer."}},
    {"call": "write_artifact", "with": {"path": "report.md", "content": "All of it."}},
    {"call": "submit_result", "with": {"output": "All is well."}},
    {"say": "done"},
]
STEP = 5  # each fifth commit is a point; before and after it in turn


@pytest.fixture(scope="module")
def dying(warm: WarmProcess) -> Generator[KilledMember]:
    with KilledMember(warm) as dying:
        yield dying


async def dispatch_and_kill(dying: KilledMember, folder: Path, number: int, when: str) -> tuple[str | None, bool]:
    """Dispatch to a member that dies at a commit.

    Return the job, or None if the dispatch was not answered, and True if the member died.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    process = dying.start(folder, port, SECRET, number, when)
    jobs: list[str] = []

    async def dispatch() -> None:
        with suppress(httpx2.TransportError):
            await wait_until_up(url)
            async with connect_member(url) as member:
                jobs.append(await member.dispatch("Do it.", "A job"))
                await member.ended(jobs[0])
            os.kill(process, signal.SIGTERM)  # it has outlived the job

    ending = asyncio.create_task(asyncio.to_thread(dying.ended))
    dispatching = asyncio.create_task(dispatch())
    await asyncio.wait({dispatching, ending}, return_when=asyncio.FIRST_COMPLETED)
    if ending.done():  # it may have died before it listened
        await asyncio.wait({dispatching}, timeout=2)
        dispatching.cancel()
    await asyncio.gather(dispatching, return_exceptions=True)
    return jobs[0] if jobs else None, await ending == "killed"


async def finish_job(folder: Path, job: str | None) -> dict[str, Any]:
    """Return the outcome of the job in a live member. A job without a confirmed dispatch is dispatched again."""
    async with serve_member(folder) as member:
        listed = [row["jobId"] for row in (await member.worker("list"))["jobs"]]
        assert len(listed) <= 1
        assert job is None or listed == [job]
        shown = await member.ended(listed[0] if listed else await member.dispatch("Do it.", "A job"))
        result = await member.worker("result", jobId=shown["jobId"])
    files = [path.name for path in (folder / "jobs").iterdir()]
    assert files == [shown["jobId"]]  # nothing is left of one that never was
    memory = (folder / "memory" / "fact.md").read_text()
    return {**shown, **result, "memory": memory, "jobId": "", "startedAt": "", "completedAt": ""}


@pytest.mark.req("WD-47")
def test_killed_at_any_commit_a_member_ends_its_job_as_if_nothing_had_been(tmp_path: Path, dying: KilledMember) -> None:
    whole = make_member(tmp_path / "whole" / "clerk", answers=ANSWERS)
    expected = asyncio.run(finish_job(whole, None))
    assert (expected["status"], expected["questions"]) == ("completed", ["Who pays?"])
    points = 0
    for number in itertools.count(2, STEP):
        folder = make_member(tmp_path / str(number) / "clerk", answers=ANSWERS)
        when = ("before", "after")[points % 2]
        job, died = asyncio.run(dispatch_and_kill(dying, folder, number, when))
        assert asyncio.run(finish_job(folder, job)) == expected, (number, when)
        if not died:
            break
        points += 1
    assert points >= 6
