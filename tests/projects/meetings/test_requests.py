"""Meetings that somebody asks for: an ask in the one inbox, accepted, declined or put off to a date."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from guildhall.core.clock import SystemClock, stamp
from guildhall.core.errors import Conflict, Refused, UsageError
from guildhall.runs.limits import current_bounds
from guildhall.runs.model import Answer
from tests.projects.meetings.harness import say

if TYPE_CHECKING:
    from guildhall.projects.meetings.model import Meeting
    from tests.projects.meetings.harness import MeetingProject

LINKED = (".lore/plan.md",)


async def requested(harness: MeetingProject, topic: str = "Two findings") -> Meeting:
    run = await harness.complete_run()
    place = harness.hall.projects.get("shop")
    request = harness.meetings.request
    return await request(place, "architect", topic, by="manager", made_by=run, linked=LINKED, max_turns=3)


@pytest.mark.req("MTG-4", "X-15", "WKR-19")
def test_a_request_is_an_ask_that_outlives_its_run(harness: MeetingProject) -> None:
    async def work() -> None:
        meeting = await requested(harness)
        assert meeting.status == "requested"
        (ask,) = await harness.client.asks.list()
        assert (ask.kind, ask.id, ask.status) == ("meeting", meeting.ask, "open")
        assert meeting.id in ask.question.title
        assert ".lore/plan.md" in ask.question.body
        assert harness.hall.history.get(ask.run).status == "completed"
        assert "status: requested" in harness.repo.at("guildhall/records", f".lore/meetings/{meeting.id}.md")
        with pytest.raises(Conflict):
            await harness.say(meeting.id, "not yet open")

        answered = await harness.client.asks.answer(ask.id, Answer(choice="yes"))
        assert answered.status == "applied"
        assert not await harness.client.asks.list()
        harness.script([say("Two things.")])
        await harness.collect(harness.client.meetings.join(meeting.id, harness.frame))
        assert harness.answers(meeting.id) == [("", "Two things.")]
        run = harness.meetings.get(meeting.id).run
        assert "Two findings" in harness.model_input(run)
        assert current_bounds(harness.hall.history.journal(run)).max_turns == 3
        assert ".lore/plan.md" in harness.model_input(run)

    harness.run_in_hall(work)


def test_declined_with_a_reason(harness: MeetingProject) -> None:
    async def work() -> None:
        meeting = await requested(harness)
        await harness.client.asks.answer(meeting.ask, Answer(choice="no", note="I know already"))
        shown = harness.details(meeting.id)
        assert (shown.meeting.status, shown.meeting.reason) == ("declined", "I know already")
        assert [line.after for line in shown.timeline if line.after] == ["requested", "declined"]
        assert not await harness.client.asks.list()
        assert "status: declined" in harness.repo.at("guildhall/records", f".lore/meetings/{meeting.id}.md")
        with pytest.raises(Conflict):
            await harness.client.asks.answer(meeting.ask, Answer(choice="yes"))

    harness.run_in_hall(work)


@pytest.mark.req("MTG-4")
def test_put_off_it_is_out_of_sight_until_its_date(harness: MeetingProject) -> None:
    when = stamp(SystemClock().now() + timedelta(days=3))

    async def defers() -> Meeting:
        meeting = await requested(harness)
        ask = await harness.client.asks.answer(meeting.ask, Answer(choice=when))
        assert (ask.status, ask.question.after) == ("open", when)
        assert not await harness.client.asks.list()
        assert harness.meetings.get(meeting.id).deferred_to == when
        return meeting

    meeting = harness.run_in_hall(defers)

    async def nothing() -> None:
        assert not await harness.client.asks.list()

    async def back() -> None:
        (ask,) = await harness.client.asks.list()
        assert ask.id == meeting.ask
        opened = await harness.client.meetings.accept(meeting.id)
        assert (opened.status, opened.deferred_to) == ("open", None)
        assert not await harness.client.asks.list()

    harness.clock.days = 2.9
    harness.run_in_hall(nothing)
    harness.clock.days = 3.1
    harness.run_in_hall(back)


def test_what_is_no_date_or_over_puts_nothing_off(harness: MeetingProject) -> None:
    async def work() -> None:
        meeting = await requested(harness)
        for date in ("tomorrow", "2001-01-01", "", "\0", "9" * 5000):
            with pytest.raises(UsageError):
                await harness.client.meetings.defer(meeting.id, date)
        with pytest.raises(UsageError):
            await harness.client.asks.answer(meeting.ask, Answer(choice="maybe"))
        assert len(await harness.client.asks.list()) == 1
        await harness.client.meetings.decline(meeting.id)
        with pytest.raises(Conflict):
            await harness.client.meetings.defer(meeting.id, "2099-01-01")

    harness.run_in_hall(work)


def test_asked_for_again_it_is_the_same_and_there_is_an_end_to_it(harness: MeetingProject) -> None:
    async def work() -> None:
        first = await requested(harness)
        place = harness.hall.projects.get("shop")
        again = {"by": "manager", "made_by": first.made_by}
        assert await harness.meetings.request(place, "architect", "Two findings", **again) == first
        for number in range(19):
            await harness.meetings.request(place, "architect", f"topic {number}", **again)
        with pytest.raises(Refused):
            await harness.meetings.request(place, "architect", "one too many", **again)
        assert len(await harness.client.asks.list()) == 20

    harness.run_in_hall(work)


@pytest.mark.req("SYS-8a")
def test_accepting_is_capped_too(harness: MeetingProject) -> None:
    harness.register(max_meetings=1)

    async def work() -> None:
        meeting = await requested(harness)
        await harness.client.meetings.open("architect", "first", harness.frame)
        with pytest.raises(Refused):
            await harness.client.asks.answer(meeting.ask, Answer(choice="yes"))
        assert harness.meetings.get(meeting.id).status == "requested"
        assert len(await harness.client.asks.list()) == 1

    harness.run_in_hall(work)


def test_the_end_of_the_run_that_asked_withdraws_nothing(harness: MeetingProject) -> None:
    harness.script([{"sleep": 30, "say": "late"}])

    async def work() -> None:
        from guildhall.runs.model import RunRequest

        stream = harness.client.runs.run(RunRequest(worker="architect", input="go"), harness.frame)
        run = (await anext(stream)).run
        place = harness.hall.projects.get("shop")
        meeting = await harness.meetings.request(place, "architect", "Stuck", by="worker", made_by=run)
        await harness.client.runs.stop(run)
        await stream.aclose()
        (ask,) = await harness.client.asks.list()
        assert ask.id == meeting.ask

    harness.run_in_hall(work)
