"""A renewed session: a new run of the same meeting, told in short what was said, and the last of it word for word."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from guildhall.runs.limits import current_bounds
from tests.projects.meetings.harness import say

if TYPE_CHECKING:
    from guildhall.runs.model import Bounds, Run
    from tests.projects.meetings.harness import MeetingProject

TOO_LONG = {"fail": 413}


@pytest.mark.req("MTG-10")
def test_renewed_because_the_person_wants_it(harness: MeetingProject) -> None:
    harness.script([say("Parquet."), say("Small.")], summary="SUMMED UP")

    async def work() -> None:
        meeting = await harness.open_meeting("Which form?")
        await harness.say(meeting.id, "It must be small")
        harness.script([say("We were at Parquet."), say("Yes.")], summary="SUMMED UP")
        events = await harness.collect(harness.client.meetings.join(meeting.id, harness.frame, renew=True))
        assert any(event.data.get("renewed") for event in events)
        now = harness.meetings.get(meeting.id)
        assert now.session_count == 2
        assert now.run != meeting.run
        told = harness.model_input(now.run)
        assert "SUMMED UP" in told
        assert "| It must be small" in told
        assert "| Small." in told
        await harness.say(meeting.id, "Go on")
        assert harness.answers(meeting.id) == [
            ("Which form?", "Parquet."),
            ("It must be small", "Small."),
            ("", "We were at Parquet."),
            ("Go on", "Yes."),
        ]

    harness.run_in_hall(work)


@pytest.mark.req("MTG-10")
def test_renewed_when_the_conversation_no_longer_fits(harness: MeetingProject) -> None:
    harness.script([say("one"), TOO_LONG], summary="SUMMED UP")

    async def work() -> None:
        meeting = await harness.open_meeting("first")
        events = await harness.say(meeting.id, "second")
        assert events[-1].type == "listening"
        assert any(event.data.get("renewed") for event in events)
        assert harness.answers(meeting.id) == [("first", "one"), ("second", "one")]
        run = harness.meetings.get(meeting.id).run
        assert "SUMMED UP" in harness.model_input(run)
        assert "second" in harness.model_input(run)

    harness.run_in_hall(work)


def test_one_that_never_fits_is_given_up(harness: MeetingProject) -> None:
    harness.script([say("one")])

    async def work() -> None:
        meeting = await harness.open_meeting("first")
        await harness.wait_idle()
        harness.script([TOO_LONG, say("one"), TOO_LONG])
        events = await harness.say(meeting.id, "second")
        assert events[-1].type == "run_ended"
        assert harness.meetings.get(meeting.id).session_count == 2
        assert harness.details(meeting.id).answering

    harness.run_in_hall(work)


def test_without_a_summary_it_goes_on_all_the_same(harness: MeetingProject) -> None:
    harness.script([say("one"), say("two")], summary=None)

    async def work() -> None:
        meeting = await harness.open_meeting("first")
        await harness.say(meeting.id, "second")
        await harness.collect(harness.client.meetings.join(meeting.id, harness.frame, renew=True))
        lines = [line.reason for line in harness.details(meeting.id).timeline]
        assert any("without a summary" in line for line in lines)
        told = harness.model_input(harness.meetings.get(meeting.id).run)
        assert "| second" in told

    harness.run_in_hall(work)


def test_a_run_that_somebody_has_cancelled_is_no_end_of_the_meeting(harness: MeetingProject) -> None:
    harness.script([say("one")])

    async def work() -> None:
        meeting = await harness.open_meeting("first")
        await harness.wait_idle()
        await harness.hall.runs.cancel(meeting.run)
        await harness.say(meeting.id, "second")
        assert harness.answers(meeting.id) == [("first", "one"), ("second", "one")]

    harness.run_in_hall(work)


def test_a_renewed_session_has_what_those_before_have_left(harness: MeetingProject) -> None:
    harness.worker(limits={"max_budget_usd": 2.0, "max_tokens": 100_000})
    harness.script([say("one"), say("two")], price=100.0)

    async def work() -> None:
        meeting = await harness.open_meeting("first " * 100)

        async def renewed() -> Run:
            await harness.collect(harness.client.meetings.join(meeting.id, harness.frame, renew=True))
            return harness.hall.history.get(harness.meetings.get(meeting.id).run)

        def bounds(run: Run) -> Bounds:
            return current_bounds(harness.hall.history.journal(run.id))

        before = harness.hall.history.get(meeting.run)
        second = await renewed()
        assert before.cost_usd > 0
        assert bounds(second).max_budget_usd == pytest.approx(2.0 - before.cost_usd)
        assert bounds(second).budget == pytest.approx(bounds(before).budget - before.cost_usd)
        assert bounds(second).max_tokens < 100_000
        third = await renewed()
        assert bounds(third).max_budget_usd == pytest.approx(2.0 - before.cost_usd - second.cost_usd)

    harness.run_in_hall(work)


def test_one_that_has_used_up_its_dollars_says_so_and_goes_on_with_more(harness: MeetingProject) -> None:
    harness.worker(limits={"max_budget_usd": 0.2})
    harness.script([say("one")], price=100.0)

    async def work() -> None:
        meeting = await harness.open_meeting("first " * 300)
        events = await harness.collect(harness.client.meetings.join(meeting.id, harness.frame, renew=True))
        ended = harness.hall.history.get(events[-1].run)
        assert (ended.status, ended.error["code"]) == ("failed", "limit_reached"), ended
        more = harness.client.meetings.join(meeting.id, harness.frame, renew=True, budget=5.0)
        assert (await harness.collect(more))[-1].type == "listening"

    harness.run_in_hall(work)
