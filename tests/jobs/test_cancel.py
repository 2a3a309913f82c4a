"""Cancel: for good, against everything else that may happen at the same moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import Conflict
from tests.jobs.job_hall import LATE, call, say, submit

if TYPE_CHECKING:
    from tests.jobs.job_hall import JobHall


@pytest.mark.req("WD-16", "WD-14")
def test_a_cancelled_job_stays_cancelled(job_hall: JobHall) -> None:
    job_hall.script([call("update_summary", summary="one"), LATE])

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.dispatch()
        await job_hall.until(lambda: job_hall.jobs.get(job.id).summary)
        cancelled = await job_hall.jobs.cancel(job.id)
        assert (cancelled.status, cancelled.error) == ("cancelled", None)
        assert cancelled.completed_at is not None
        assert not job_hall.hall.runs.is_alive(job.run)
        assert job_hall.hall.history.get(job.run).status == "cancelled"
        assert await job_hall.jobs.cancel(job.id) == cancelled
        with pytest.raises(Conflict, match="was cancelled"):
            job_hall.jobs.result(job.id)
        with pytest.raises(Conflict):
            await job_hall.hall.main.prepare_resume(job.run, job_hall.frame)
        assert job_hall.jobs.get(job.id).status == "cancelled"

    job_hall.run(work)


@pytest.mark.req("WD-16")
def test_cancelling_an_ended_job_changes_nothing(job_hall: JobHall) -> None:
    async def work(job_hall: JobHall) -> None:
        job_hall.script([say()])
        done = await job_hall.done()
        assert await job_hall.jobs.cancel(done.id) == done
        job_hall.script([{"fail": 400}])
        failed = await job_hall.done()
        assert await job_hall.jobs.cancel(failed.id) == failed
        for job in (done, failed):
            with pytest.raises(Conflict, match=r"its status is already (completed|failed)"):
                await job_hall.client.runs.stop(job.run)

    job_hall.run(work)


def test_stopping_the_run_cancels_the_job(job_hall: JobHall) -> None:
    job_hall.script([LATE])

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.dispatch()
        assert await job_hall.client.runs.stop(job.run) == [job.run]
        assert job_hall.jobs.get(job.id).status == "cancelled"

    job_hall.run(work)


def test_a_job_with_an_accepted_result_is_completed_when_cancelled(job_hall: JobHall) -> None:
    job_hall.script([submit("in time"), LATE])

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.dispatch()
        await job_hall.until(lambda: (job_hall.home.jobs / job.id / "result.md").exists())
        await asyncio.sleep(0.05)  # the call is on record now
        ended = await job_hall.jobs.cancel(job.id)
        assert ended.status == "completed"
        assert job_hall.jobs.result(job.id).output == "in time"
        run = job_hall.hall.history.get(job.run)
        assert (run.status, run.output) == ("completed", "in time")
        assert (await job_hall.client.runs.replay(job.run, job_hall.frame)).matches

    job_hall.run(work)


def test_concurrent_cancels_return_the_same_status(job_hall: JobHall) -> None:
    job_hall.script([LATE])

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.dispatch()
        told = await asyncio.gather(*(job_hall.jobs.cancel(job.id) for _ in range(5)))
        assert {one.status for one in told} == {"cancelled"}
        assert len({one.completed_at for one in told}) == 1

    job_hall.run(work)


@pytest.mark.parametrize("pause", [0.0, 0.01, 0.03, 0.05, 0.08])
def test_a_cancel_during_the_end_leaves_one_stable_status(job_hall: JobHall, pause: float) -> None:
    job_hall.script([call("update_summary", summary="one"), submit("done"), {"fail": 400}])

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.dispatch()
        await asyncio.sleep(pause)
        ended = await job_hall.jobs.cancel(job.id)
        assert ended.status in ("cancelled", "completed")
        await asyncio.sleep(0.05)
        assert job_hall.jobs.get(job.id).status == ended.status == job_hall.hall.history.get(job.run).status
        if ended.status == "completed":
            assert job_hall.jobs.result(job.id).output == "done"

    job_hall.run(work)
