"""Members and their halls die; the jobs go on. With real members, a real hall, and the real command."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.clock import SystemClock
from guildhall.core.errors import MemberFailed
from guildhall.core.request_frame import Frame
from guildhall.jobs.model import Dispatch
from guildhall.members.process import Timings
from guildhall.members.service import Members
from guildhall.workers.code_trust import Trust
from tests.members.member_servers import make_member
from tests.members.test_process import alive
from tests.runs.places import wait_until

if TYPE_CHECKING:
    from guildhall.core.paths import Home
    from guildhall.jobs.model import JobDetails
    from guildhall.members.jobs import MemberJobs
    from tests.conftest import GuildWithHall

DECIDED = {"question": "Which?", "decision": "This.", "reasoning": "It is near."}
ANSWERS: list[Any] = [
    {"call": "update_summary", "with": {"summary": "one"}},
    {"call": "record_decision", "with": DECIDED, "sleep": 0.2},
    {"call": "log_question", "with": {"question": "Is that\n---\nall?"}},
    {"call": "update_summary", "with": {"summary": "two"}},
    {"call": "write_artifact", "with": {"path": "report.md", "content": "It is so."}, "sleep": 0.2},
    {"call": "update_summary", "with": {"summary": "three"}},
    {"call": "submit_result", "with": {"output": "It is so.", "artifacts": ["report.md"]}, "sleep": 0.2},
    {"say": "done"},
]


def program_of(supervisor: int) -> int:
    """Return the process of a supervisor."""
    (child,) = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    return int(child)


@pytest.mark.req("WD-47")
def test_a_job_completes_although_its_member_is_killed_repeatedly(home: Home, project: Path) -> None:
    folder = make_member(home.path / "guild-members" / "smith", answers=ANSWERS)
    frame = Frame.here(project, os.environ)

    async def work() -> None:
        members = Members(
            home=home,
            clock=SystemClock(),
            trust=lambda: Trust({}),
            timings=Timings(first_pause_s=0.02, stable_after_s=0.1),
        )
        smith = members.find("smith", frame)
        jobs = members.jobs(smith, frame)
        try:
            job = (
                await jobs.dispatch(
                    Dispatch(description="a report", task="Write it.", config={"artifacts": ["report.md"]})
                )
            ).id
            for word in ("one", "two", "three"):
                await _until(jobs, job, lambda s, word=word: s.job.summary == word)
                supervisor = members.details(smith).pid
                assert supervisor is not None
                os.kill(program_of(supervisor), signal.SIGKILL)
            ended = await _until(jobs, job, lambda s: s.job.status != "running")
            assert (ended.job.status, ended.job.error, ended.job.summary) == ("completed", None, "three")
            assert [vars(one) for one in ended.decisions] == [DECIDED]
            assert ended.questions == ("Is that\n---\nall?",)
            result = await jobs.result(job)
            assert (result.output, result.artifacts) == ("It is so.", ("artifacts/report.md",))
            assert (folder / "jobs" / job / "artifacts" / "report.md").read_text() == "It is so."
        finally:
            await members.close()

    asyncio.run(work())


async def _until(jobs: MemberJobs, job: str, true: Any) -> JobDetails:
    async with asyncio.timeout(30):
        while True:
            try:
                standing = await jobs.status(job)
            except MemberFailed:  # it died while it was asked
                continue
            if true(standing):
                return standing
            await asyncio.sleep(0.01)


@pytest.mark.req("WD-47", "WD-36")
def test_a_member_job_completes_after_the_hall_was_killed(guild_hall: GuildWithHall, project: Path, home: Home) -> None:
    make_member(home.path / "guild-members" / "smith", answers=ANSWERS)
    guild = guild_hall
    job = guild("dispatch", "smith", "Write it.").out.strip()
    wait_until(lambda: guild("show", job, "--json").json["summary"] is not None)
    supervisor = guild("member", "show", "smith", "--json").json["pid"]
    program = program_of(supervisor)
    guild.kill_hall()
    wait_until(lambda: not alive(supervisor) and not alive(program))
    assert guild("wait", job, "--timeout", "30s").out == "It is so.\n"
    shown = guild("show", job, "--json").json
    assert shown["decisions"] == [DECIDED]
    assert json.loads(guild("ls", "jobs", "--member", "smith", "--json").out)["jobs"][0]["status"] == "completed"


@pytest.mark.req("WD-12", "X-15")
def test_a_question_of_a_member_job_reaches_the_user_and_the_answer_the_job(
    guild_hall: GuildWithHall, project: Path, home: Home
) -> None:
    answers = [
        {"call": "log_question", "with": {"question": "Red\nor blue?", "wait": True}},
        {"expect": "Blue, please.", "call": "submit_result", "with": {"output": "It is blue."}},
        {"say": "done"},
    ]
    make_member(home.path / "guild-members" / "smith", answers=answers)
    guild = guild_hall
    job = guild("dispatch", "smith", "Paint it.", "--description", "paint").out.strip()
    wait_until(lambda: guild("show", job, "--json").json["questions"] is not None)
    assert guild("show", job, "--json").json["questions"] == ["Red\nor blue?"]
    wait_until(lambda: any(one["questions"] for one in guild("ls", "--json").json["members"]))
    listed = guild("ls").out
    assert f"guild answer {job}" in listed
    assert "Red" in listed
    assert guild("answer", f"home/{job}").code == 2
    assert guild("approve", f"home/{job}").code == 2
    assert "no open question" in guild("answer", job, "x", "--question", "Green?").err
    assert guild("answer", f"home/{job}", "Blue, please.").code == 0
    assert guild("wait", job, "--timeout", "30s").out == "It is blue.\n"
