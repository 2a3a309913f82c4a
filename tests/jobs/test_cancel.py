"""Cancel: for good, against everything else that may happen at the same moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import Conflict
from tests.jobs.shop import LATE, call, say, submit

if TYPE_CHECKING:
    from tests.jobs.shop import Shop


@pytest.mark.req("WD-16", "WD-14")
def test_a_cancelled_job_is_over_and_stays_so(shop: Shop) -> None:
    shop.script([call("update_summary", summary="one"), LATE])

    async def work(shop: Shop) -> None:
        job = await shop.dispatch()
        await shop.until(lambda: shop.jobs.get(job.id).summary)
        cancelled = await shop.jobs.cancel(job.id)
        assert (cancelled.status, cancelled.error) == ("cancelled", None)
        assert cancelled.completed_at is not None
        assert not shop.hall.runs.is_alive(job.run)
        assert shop.hall.history.get(job.run).status == "cancelled"
        assert await shop.jobs.cancel(job.id) == cancelled
        with pytest.raises(Conflict, match="was cancelled"):
            shop.jobs.result(job.id)
        with pytest.raises(Conflict):
            await shop.hall.main.prepare_resume(job.run, shop.frame)
        assert shop.jobs.get(job.id).status == "cancelled"

    shop.inside(work)


@pytest.mark.req("WD-16")
def test_to_cancel_what_has_ended_changes_nothing(shop: Shop) -> None:
    async def work(shop: Shop) -> None:
        shop.script([say()])
        done = await shop.done()
        assert await shop.jobs.cancel(done.id) == done
        shop.script([{"fail": 400}])
        failed = await shop.done()
        assert await shop.jobs.cancel(failed.id) == failed
        for job in (done, failed):
            with pytest.raises(Conflict, match=r"is already (completed|failed)"):
                await shop.client.runs.stop(job.run)

    shop.inside(work)


def test_to_stop_the_run_is_to_cancel_the_job(shop: Shop) -> None:
    shop.script([LATE])

    async def work(shop: Shop) -> None:
        job = await shop.dispatch()
        assert await shop.client.runs.stop(job.run) == [job.run]
        assert shop.jobs.get(job.id).status == "cancelled"

    shop.inside(work)


def test_a_result_that_was_submitted_first_wins_against_the_cancel(shop: Shop) -> None:
    shop.script([submit("in time"), LATE])

    async def work(shop: Shop) -> None:
        job = await shop.dispatch()
        await shop.until(lambda: (shop.home.jobs / job.id / "result.md").exists())
        await asyncio.sleep(0.05)  # the call is on record now
        ended = await shop.jobs.cancel(job.id)
        assert ended.status == "completed"
        assert shop.jobs.result(job.id).output == "in time"
        run = shop.hall.history.get(job.run)
        assert (run.status, run.output) == ("completed", "in time")
        assert (await shop.client.runs.replay(job.run, shop.frame)).matches

    shop.inside(work)


def test_of_many_who_cancel_at_once_all_are_told_the_same(shop: Shop) -> None:
    shop.script([LATE])

    async def work(shop: Shop) -> None:
        job = await shop.dispatch()
        told = await asyncio.gather(*(shop.jobs.cancel(job.id) for _ in range(5)))
        assert {one.status for one in told} == {"cancelled"}
        assert len({one.completed_at for one in told}) == 1

    shop.inside(work)


@pytest.mark.parametrize("pause", [0.0, 0.01, 0.03, 0.05, 0.08])
def test_a_cancel_that_races_the_end_gives_the_one_or_the_other_and_it_stays(shop: Shop, pause: float) -> None:
    shop.script([call("update_summary", summary="one"), submit("done"), {"fail": 400}])

    async def work(shop: Shop) -> None:
        job = await shop.dispatch()
        await asyncio.sleep(pause)
        ended = await shop.jobs.cancel(job.id)
        assert ended.status in ("cancelled", "completed")
        await asyncio.sleep(0.05)
        assert shop.jobs.get(job.id).status == ended.status == shop.hall.history.get(job.run).status
        if ended.status == "completed":
            assert shop.jobs.result(job.id).output == "done"

    shop.inside(work)
