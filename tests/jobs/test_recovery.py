"""Recovery of the jobs of an earlier hall."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from guildhall.hall.composition.recovery import MAX_CRASHES, Recovery
from tests.jobs.job_hall import LATE, call, say, submit

if TYPE_CHECKING:
    from tests.jobs.job_hall import JobHall


def left(job_hall: JobHall) -> str:
    """Return a job that a stopped hall did not finish."""

    async def work(job_hall: JobHall) -> str:
        job = await job_hall.dispatch()
        await job_hall.until(lambda: job_hall.jobs.get(job.id).summary)
        await job_hall.hall.runs.pause_all("shutdown")
        assert job_hall.jobs.get(job.id).status == "running"
        return job.id

    return job_hall.run(work)


def sql(job_hall: JobHall, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(job_hall.home.database)) as connection:
        connection.execute(statement, values)
        connection.commit()


@pytest.mark.req("WD-47")
def test_a_job_of_an_earlier_hall_resumes(job_hall: JobHall) -> None:
    job_hall.script([call("update_summary", summary="one"), {**LATE, "sleep": 0.3, **submit()}, say()])
    id = left(job_hall)

    async def work(job_hall: JobHall) -> None:
        await Recovery(job_hall.hall).resume_runs()
        job = await job_hall.ended(id)
        assert (job.status, job.summary) == ("completed", "one")

    job_hall.run(work)


@pytest.mark.req("WD-47")
def test_a_job_that_cannot_resume_fails_with_the_reason(job_hall: JobHall) -> None:
    job_hall.script([call("update_summary", summary="one"), LATE])
    id = left(job_hall)
    (job_hall.project / "script.yaml").unlink()

    async def work(job_hall: JobHall) -> None:
        await Recovery(job_hall.hall).resume_runs()
        job = job_hall.jobs.get(id)
        assert job.status == "failed"
        assert "script" in (job.error or "")
        assert job_hall.hall.history.get(job.run).status == "failed"
        job_hall.script([call("update_summary", summary="one"), submit(), say()])
        async for _ in job_hall.client.runs.resume(job.run, job_hall.frame):
            pass
        assert job_hall.jobs.get(id).status == "completed"

    job_hall.run(work)


@pytest.mark.req("WD-47")
def test_a_job_whose_process_dies_repeatedly_fails(job_hall: JobHall) -> None:
    job_hall.script([call("update_summary", summary="one"), LATE])
    id = left(job_hall)
    sql(job_hall, "UPDATE runs SET status='interrupted', crashes=?", MAX_CRASHES)

    async def work(job_hall: JobHall) -> None:
        await Recovery(job_hall.hall).resume_runs()
        job = job_hall.jobs.get(id)
        assert job.status == "failed"
        assert "died" in (job.error or "")

    job_hall.run(work)


@pytest.mark.req("WD-47")
def test_a_job_without_its_run_has_failed(job_hall: JobHall) -> None:
    job_hall.script([call("update_summary", summary="one"), LATE])
    id = left(job_hall)
    for file in job_hall.home.path.glob("hall.db*"):
        file.unlink()

    async def work(job_hall: JobHall) -> None:
        job = job_hall.jobs.get(id)
        assert job.status == "failed"
        assert "the run of the job is missing" in (job.error or "")
        assert job_hall.jobs.status(id).as_wire()["summary"] == "one"
        await job_hall.jobs.delete(id, force=True)

    job_hall.run(work)


@pytest.mark.parametrize(
    ("status", "said"), [("completed", "completed"), ("failed", "failed"), ("cancelled", "cancelled")]
)
def test_the_start_writes_the_end_of_a_run_to_the_directory(job_hall: JobHall, status: str, said: str) -> None:
    job_hall.script([call("update_summary", summary="one"), LATE])
    id = left(job_hall)
    (job_hall.home.jobs / id / "result.md").write_text("it was there")
    sql(job_hall, "UPDATE runs SET status=?, ended_at='2026-01-01T00:00:00.000Z'", status)

    async def work(job_hall: JobHall) -> None:
        job = job_hall.jobs.get(id)
        assert (job.status, job.completed_at) == (said, "2026-01-01T00:00:00.000Z")

    job_hall.run(work)


def test_a_run_without_a_job_is_cancelled_at_the_start(job_hall: JobHall) -> None:
    job_hall.script([call("update_summary", summary="one"), LATE])
    id = left(job_hall)
    (job_hall.home.jobs / id / "meta.json").unlink()

    async def work(job_hall: JobHall) -> None:
        await Recovery(job_hall.hall).resume_runs()
        assert not (job_hall.home.jobs / id).exists()
        assert [run.status for run in job_hall.hall.history.recent()] == ["cancelled"]

    job_hall.run(work)
