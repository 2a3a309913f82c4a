"""Recovery of the jobs of an earlier hall."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from guildhall.hall.composition.recovery import MAX_CRASHES, Recovery
from tests.jobs.shop import LATE, call, say, submit

if TYPE_CHECKING:
    from tests.jobs.shop import Shop


def left(shop: Shop) -> str:
    """Return a job that a stopped hall did not finish."""

    async def work(shop: Shop) -> str:
        job = await shop.dispatch()
        await shop.until(lambda: shop.jobs.get(job.id).summary)
        await shop.hall.runs.pause_all("shutdown")
        assert shop.jobs.get(job.id).status == "running"
        return job.id

    return shop.inside(work)


def sql(shop: Shop, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(shop.home.database)) as connection:
        connection.execute(statement, values)
        connection.commit()


@pytest.mark.req("WD-47")
def test_a_job_of_a_hall_that_left_goes_on_by_itself(shop: Shop) -> None:
    shop.script([call("update_summary", summary="one"), {**LATE, "sleep": 0.3, **submit()}, say()])
    id = left(shop)

    async def work(shop: Shop) -> None:
        await Recovery(shop.hall).resume_runs()
        job = await shop.ended(id)
        assert (job.status, job.summary) == ("completed", "one")

    shop.inside(work)


@pytest.mark.req("WD-47")
def test_a_job_that_cannot_go_on_has_failed_and_says_why(shop: Shop) -> None:
    shop.script([call("update_summary", summary="one"), LATE])
    id = left(shop)
    (shop.project / "script.yaml").unlink()

    async def work(shop: Shop) -> None:
        await Recovery(shop.hall).resume_runs()
        job = shop.jobs.get(id)
        assert job.status == "failed"
        assert "script" in (job.error or "")
        assert shop.hall.history.get(job.run).status == "failed"
        shop.script([call("update_summary", summary="one"), submit(), say()])
        async for _ in shop.client.runs.resume(job.run, shop.frame):
            pass
        assert shop.jobs.get(id).status == "completed"

    shop.inside(work)


@pytest.mark.req("WD-47")
def test_a_job_whose_process_died_again_and_again_is_given_up(shop: Shop) -> None:
    shop.script([call("update_summary", summary="one"), LATE])
    id = left(shop)
    sql(shop, "UPDATE runs SET status='interrupted', crashes=?", MAX_CRASHES)

    async def work(shop: Shop) -> None:
        await Recovery(shop.hall).resume_runs()
        job = shop.jobs.get(id)
        assert job.status == "failed"
        assert "died" in (job.error or "")

    shop.inside(work)


@pytest.mark.req("WD-47")
def test_a_job_whose_record_was_lost_has_failed(shop: Shop) -> None:
    shop.script([call("update_summary", summary="one"), LATE])
    id = left(shop)
    for file in shop.home.path.glob("hall.db*"):
        file.unlink()

    async def work(shop: Shop) -> None:
        job = shop.jobs.get(id)
        assert job.status == "failed"
        assert "its run is missing" in (job.error or "")
        assert shop.jobs.status(id).as_wire()["summary"] == "one"
        await shop.jobs.delete(id, force=True)

    shop.inside(work)


@pytest.mark.parametrize(
    ("status", "said"), [("completed", "completed"), ("failed", "failed"), ("cancelled", "cancelled")]
)
def test_an_end_that_the_directory_had_no_time_to_say_is_said_at_the_start(shop: Shop, status: str, said: str) -> None:
    shop.script([call("update_summary", summary="one"), LATE])
    id = left(shop)
    (shop.home.jobs / id / "result.md").write_text("it was there")
    sql(shop, "UPDATE runs SET status=?, ended_at='2026-01-01T00:00:00.000Z'", status)

    async def work(shop: Shop) -> None:
        job = shop.jobs.get(id)
        assert (job.status, job.completed_at) == (said, "2026-01-01T00:00:00.000Z")

    shop.inside(work)


def test_a_run_whose_job_was_never_told_of_is_over(shop: Shop) -> None:
    shop.script([call("update_summary", summary="one"), LATE])
    id = left(shop)
    (shop.home.jobs / id / "meta.json").unlink()

    async def work(shop: Shop) -> None:
        await Recovery(shop.hall).resume_runs()
        assert not (shop.home.jobs / id).exists()
        assert [run.status for run in shop.hall.history.recent()] == ["cancelled"]

    shop.inside(work)
