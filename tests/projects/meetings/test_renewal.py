"""A renewed session: a new run of the same meeting, told in short what was said, and the last of it word for word."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from guildhall.runs.limits import current_bounds
from tests.projects.meetings.parlour import say

if TYPE_CHECKING:
    from guildhall.runs.model import Bounds, Run
    from tests.projects.meetings.parlour import Parlour

TOO_LONG = {"fail": 413}


@pytest.mark.req("MTG-10")
def test_renewed_because_the_person_wants_it(parlour: Parlour) -> None:
    parlour.script([say("Parquet."), say("Small.")], summary="SUMMED UP")

    async def work() -> None:
        meeting = await parlour.opened("Which form?")
        await parlour.said(meeting.id, "It must be small")
        parlour.script([say("We were at Parquet."), say("Yes.")], summary="SUMMED UP")
        events = await parlour.seen(parlour.client.meetings.join(meeting.id, parlour.frame, renew=True))
        assert any(event.data.get("renewed") for event in events)
        now = parlour.meetings.get(meeting.id)
        assert now.session_count == 2
        assert now.run != meeting.run
        told = parlour.told(now.run)
        assert "SUMMED UP" in told
        assert "| It must be small" in told
        assert "| Small." in told
        await parlour.said(meeting.id, "Go on")
        assert parlour.answers(meeting.id) == [
            ("Which form?", "Parquet."),
            ("It must be small", "Small.\n\nWe were at Parquet."),
            ("Go on", "Yes."),
        ]

    parlour.inside(work)


@pytest.mark.req("MTG-10")
def test_renewed_when_the_conversation_no_longer_fits(parlour: Parlour) -> None:
    parlour.script([say("one"), TOO_LONG], summary="SUMMED UP")

    async def work() -> None:
        meeting = await parlour.opened("first")
        events = await parlour.said(meeting.id, "second")
        assert events[-1].type == "listening"
        assert any(event.data.get("renewed") for event in events)
        assert parlour.answers(meeting.id) == [("first", "one"), ("second", "one")]
        run = parlour.meetings.get(meeting.id).run
        assert "SUMMED UP" in parlour.told(run)
        assert "second" in parlour.told(run)

    parlour.inside(work)


def test_one_that_never_fits_is_given_up(parlour: Parlour) -> None:
    parlour.script([say("one")])

    async def work() -> None:
        meeting = await parlour.opened("first")
        await parlour.quiet()
        parlour.script([TOO_LONG, say("one"), TOO_LONG])
        events = await parlour.said(meeting.id, "second")
        assert events[-1].type == "run_ended"
        assert parlour.meetings.get(meeting.id).session_count == 2
        assert parlour.shown(meeting.id).answering

    parlour.inside(work)


def test_without_a_summary_it_goes_on_all_the_same(parlour: Parlour) -> None:
    parlour.script([say("one"), say("two")], summary=None)

    async def work() -> None:
        meeting = await parlour.opened("first")
        await parlour.said(meeting.id, "second")
        await parlour.seen(parlour.client.meetings.join(meeting.id, parlour.frame, renew=True))
        lines = [line.reason for line in parlour.shown(meeting.id).timeline]
        assert any("without a summary" in line for line in lines)
        told = parlour.told(parlour.meetings.get(meeting.id).run)
        assert "| second" in told

    parlour.inside(work)


def test_a_run_that_somebody_has_cancelled_is_no_end_of_the_meeting(parlour: Parlour) -> None:
    parlour.script([say("one")])

    async def work() -> None:
        meeting = await parlour.opened("first")
        await parlour.quiet()
        await parlour.hall.runs.cancel(meeting.run)
        await parlour.said(meeting.id, "second")
        assert parlour.answers(meeting.id) == [("first", "one"), ("second", "one")]

    parlour.inside(work)


def test_a_renewed_session_has_what_those_before_have_left(parlour: Parlour) -> None:
    parlour.worker(limits={"max_budget_usd": 2.0, "max_tokens": 100_000})
    parlour.script([say("one"), say("two")], price=100.0)

    async def work() -> None:
        meeting = await parlour.opened("first " * 100)

        async def renewed() -> Run:
            await parlour.seen(parlour.client.meetings.join(meeting.id, parlour.frame, renew=True))
            return parlour.hall.history.get(parlour.meetings.get(meeting.id).run)

        def bounds(run: Run) -> Bounds:
            return current_bounds(parlour.hall.history.journal(run.id))

        before = parlour.hall.history.get(meeting.run)
        second = await renewed()
        assert before.cost_usd > 0
        assert bounds(second).max_budget_usd == pytest.approx(2.0 - before.cost_usd)
        assert bounds(second).budget == pytest.approx(bounds(before).budget - before.cost_usd)
        assert bounds(second).max_tokens < 100_000
        third = await renewed()
        assert bounds(third).max_budget_usd == pytest.approx(2.0 - before.cost_usd - second.cost_usd)

    parlour.inside(work)


def test_one_that_has_used_up_its_dollars_says_so_and_goes_on_with_more(parlour: Parlour) -> None:
    parlour.worker(limits={"max_budget_usd": 0.2})
    parlour.script([say("one")], price=100.0)

    async def work() -> None:
        meeting = await parlour.opened("first " * 300)
        events = await parlour.seen(parlour.client.meetings.join(meeting.id, parlour.frame, renew=True))
        ended = parlour.hall.history.get(events[-1].run)
        assert (ended.status, ended.error["code"]) == ("failed", "limit_reached"), ended
        more = parlour.client.meetings.join(meeting.id, parlour.frame, renew=True, budget=5.0)
        assert (await parlour.seen(more))[-1].type == "listening"

    parlour.inside(work)
