"""Meetings that somebody asks for: an ask in the one inbox, accepted, declined or put off to a date."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from guildhall.core.clock import SystemClock, stamp
from guildhall.core.errors import Conflict, Refused, UsageError
from guildhall.runs.model import Answer
from tests.projects.meetings.parlour import say

if TYPE_CHECKING:
    from guildhall.projects.meetings.model import Meeting
    from tests.projects.meetings.parlour import Parlour

LINKED = (".lore/plan.md",)


async def requested(parlour: Parlour, topic: str = "Two findings") -> Meeting:
    run = await parlour.a_run()
    place = parlour.hall.projects.get("shop")
    return await parlour.meetings.request(place, "architect", topic, by="manager", made_by=run, linked=LINKED)


@pytest.mark.req("MTG-4", "X-15")
def test_a_request_is_an_ask_that_outlives_its_run(parlour: Parlour) -> None:
    async def work() -> None:
        meeting = await requested(parlour)
        assert meeting.status == "requested"
        (ask,) = await parlour.client.asks.list()
        assert (ask.kind, ask.id, ask.status) == ("meeting", meeting.ask, "open")
        assert meeting.id in ask.question.title
        assert ".lore/plan.md" in ask.question.body
        assert parlour.hall.history.get(ask.run).status == "completed"
        assert "status: requested" in parlour.repo.at("claude/main", f".lore/meetings/{meeting.id}.md")
        with pytest.raises(Conflict):
            await parlour.said(meeting.id, "not yet open")

        answered = await parlour.client.asks.answer(ask.id, Answer(choice="yes"))
        assert answered.status == "applied"
        assert not await parlour.client.asks.list()
        parlour.script([say("Two things.")])
        await parlour.seen(parlour.client.meetings.join(meeting.id, parlour.frame))
        assert parlour.answers(meeting.id) == [("", "Two things.")]
        run = parlour.meetings.get(meeting.id).run
        assert "Two findings" in parlour.told(run)
        assert ".lore/plan.md" in parlour.told(run)

    parlour.inside(work)


def test_declined_with_a_reason(parlour: Parlour) -> None:
    async def work() -> None:
        meeting = await requested(parlour)
        await parlour.client.asks.answer(meeting.ask, Answer(choice="no", note="I know already"))
        shown = parlour.shown(meeting.id)
        assert (shown.meeting.status, shown.meeting.reason) == ("declined", "I know already")
        assert [line.after for line in shown.timeline if line.after] == ["requested", "declined"]
        assert not await parlour.client.asks.list()
        assert "status: declined" in parlour.repo.at("claude/main", f".lore/meetings/{meeting.id}.md")
        with pytest.raises(Conflict):
            await parlour.client.asks.answer(meeting.ask, Answer(choice="yes"))

    parlour.inside(work)


@pytest.mark.req("MTG-4")
def test_put_off_it_is_out_of_sight_until_its_date(parlour: Parlour) -> None:
    when = stamp(SystemClock().now() + timedelta(days=3))

    async def defers() -> Meeting:
        meeting = await requested(parlour)
        ask = await parlour.client.asks.answer(meeting.ask, Answer(choice=when))
        assert (ask.status, ask.question.after) == ("open", when)
        assert not await parlour.client.asks.list()
        assert parlour.meetings.get(meeting.id).deferred_to == when
        return meeting

    meeting = parlour.inside(defers)

    async def nothing() -> None:
        assert not await parlour.client.asks.list()

    async def back() -> None:
        (ask,) = await parlour.client.asks.list()
        assert ask.id == meeting.ask
        opened = await parlour.client.meetings.accept(meeting.id)
        assert (opened.status, opened.deferred_to) == ("open", None)
        assert not await parlour.client.asks.list()

    parlour.clock.days = 2.9
    parlour.inside(nothing)
    parlour.clock.days = 3.1
    parlour.inside(back)


def test_what_is_no_date_or_over_puts_nothing_off(parlour: Parlour) -> None:
    async def work() -> None:
        meeting = await requested(parlour)
        for date in ("tomorrow", "2001-01-01", "", "\0", "9" * 5000):
            with pytest.raises(UsageError):
                await parlour.client.meetings.defer(meeting.id, date)
        with pytest.raises(UsageError):
            await parlour.client.asks.answer(meeting.ask, Answer(choice="maybe"))
        assert len(await parlour.client.asks.list()) == 1
        await parlour.client.meetings.decline(meeting.id)
        with pytest.raises(Conflict):
            await parlour.client.meetings.defer(meeting.id, "2099-01-01")

    parlour.inside(work)


def test_asked_for_again_it_is_the_same_and_there_is_an_end_to_it(parlour: Parlour) -> None:
    async def work() -> None:
        first = await requested(parlour)
        place = parlour.hall.projects.get("shop")
        again = {"by": "manager", "made_by": first.made_by}
        assert await parlour.meetings.request(place, "architect", "Two findings", **again) == first
        for number in range(19):
            await parlour.meetings.request(place, "architect", f"topic {number}", **again)
        with pytest.raises(Refused):
            await parlour.meetings.request(place, "architect", "one too many", **again)
        assert len(await parlour.client.asks.list()) == 20

    parlour.inside(work)


@pytest.mark.req("SYS-8a")
def test_accepting_is_capped_too(parlour: Parlour) -> None:
    parlour.register(max_meetings=1)

    async def work() -> None:
        meeting = await requested(parlour)
        await parlour.client.meetings.open("architect", "first", parlour.frame)
        with pytest.raises(Refused):
            await parlour.client.asks.answer(meeting.ask, Answer(choice="yes"))
        assert parlour.meetings.get(meeting.id).status == "requested"
        assert len(await parlour.client.asks.list()) == 1

    parlour.inside(work)


def test_the_end_of_the_run_that_asked_withdraws_nothing(parlour: Parlour) -> None:
    parlour.script([{"sleep": 30, "say": "late"}])

    async def work() -> None:
        from guildhall.runs.model import RunRequest

        stream = parlour.client.runs.run(RunRequest(worker="architect", input="go"), parlour.frame)
        run = (await anext(stream)).run
        place = parlour.hall.projects.get("shop")
        meeting = await parlour.meetings.request(place, "architect", "Stuck", by="worker", made_by=run)
        await parlour.client.runs.stop(run)
        await stream.aclose()
        (ask,) = await parlour.client.asks.list()
        assert ask.id == meeting.ask

    parlour.inside(work)
