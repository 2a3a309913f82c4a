"""Meetings in one process: opened, talked in, left and come back to, closed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import Conflict, NotDeletable, NotFound, Refused, UsageError
from guildhall.projects.meetings.model import MAX_MESSAGE
from guildhall.runs import limits
from guildhall.runs.record.entries import ModelAsked, Resumed, Said
from tests.projects.meetings.parlour import call, say

if TYPE_CHECKING:
    from tests.projects.meetings.parlour import Parlour

TALK = [say("Parquet."), say("Small it is."), say("Bye.")]


@pytest.mark.req("MTG-15")
def test_a_turn_gives_its_events_and_ends_when_the_worker_listens(parlour: Parlour) -> None:
    parlour.script([call("link_artifact", path=".lore/plan.md"), say("Linked it.")])

    async def work() -> None:
        meeting = await parlour.client.meetings.open("architect", "Look at the plan", parlour.frame)
        events = await parlour.seen(parlour.client.meetings.join(meeting.id, parlour.frame))
        kinds = [event.type for event in events]
        told = [kind for kind in kinds if kind in ("tool_use", "tool_result", "text_delta")]
        assert list(dict.fromkeys(told)) == ["tool_use", "tool_result", "text_delta"]
        used, result = (next(e for e in events if e.type == kind) for kind in ("tool_use", "tool_result"))
        assert used.data["id"] == result.data["id"]
        assert kinds.count("turn_end") == 2
        assert kinds[-1] == "listening"
        assert parlour.shown(meeting.id).meeting.linked == (".lore/plan.md",)

    parlour.inside(work)


@pytest.mark.req("WKR-20", "MTG-10")
def test_left_and_come_back_to_in_another_hall(parlour: Parlour) -> None:
    parlour.script(TALK)
    meeting = parlour.inside(parlour.opened)

    async def again() -> None:
        assert not await parlour.seen(parlour.client.meetings.join(meeting.id, parlour.frame)), "nothing is due"
        await parlour.said(meeting.id, "It must be small")
        asked = parlour.hall.history.journal(meeting.run).all(ModelAsked)
        assert len(asked) == 2
        assert parlour.answers(meeting.id) == [
            ("How do we store exports?", "Parquet."),
            ("It must be small", "Small it is."),
        ]
        assert parlour.meetings.get(meeting.id).run == meeting.run

    parlour.clock.days = 5
    parlour.inside(again)


def test_the_person_sees_nothing_of_it_in_their_own_folder(parlour: Parlour) -> None:
    parlour.script([call("Write", file_path=".lore/new.md", content="new"), say("written")])
    parlour.repo.git("add", "-A")
    parlour.repo.git("commit", "-qm", "all")

    async def work() -> None:
        meeting = await parlour.opened()
        await parlour.quiet()
        assert parlour.repo.git("status", "--porcelain") == ""
        assert not (parlour.repo.path / ".lore/new.md").exists()
        closed = await parlour.client.meetings.close(meeting.id, parlour.frame)
        assert parlour.repo.git("status", "--porcelain") == ""
        assert parlour.repo.at("claude/main", ".lore/new.md") == "new"
        assert closed.notes

    parlour.inside(work)


def test_words_while_the_worker_answers_wait_their_turn(parlour: Parlour) -> None:
    parlour.script([say("one"), {"sleep": 0.15, "say": "two"}, say("three")])

    async def work() -> None:
        meeting = await parlour.opened()
        first, second = await asyncio.gather(parlour.said(meeting.id, "second"), parlour.said(meeting.id, "third"))
        assert "two" in _text(first)
        assert _text(second) == "three"
        assert [answer for _, answer in parlour.answers(meeting.id)] == ["one", "two", "three"]
        assert [words for words, _ in parlour.answers(meeting.id)][1:] == ["second", "third"]

    parlour.inside(work)


def _text(events: list) -> str:  # pyright: ignore
    return "".join(event.data["text"] for event in events if event.type == "text_delta")


def test_words_that_come_while_the_run_is_put_away_are_answered(parlour: Parlour) -> None:
    parlour.script([say(str(number)) for number in range(12)])

    async def work() -> None:
        meeting = await parlour.opened()
        for number in range(1, 11):
            await asyncio.sleep(0.05 + number / 1000)  # about when it is paused
            await parlour.said(meeting.id, f"say {number}")
        assert [answer for _, answer in parlour.answers(meeting.id)] == [str(number) for number in range(11)]

    parlour.inside(work)


def test_what_was_said_is_answered_though_nobody_follows(parlour: Parlour) -> None:
    parlour.script([say("one"), {"sleep": 0.1, "say": "two"}])

    async def work() -> None:
        meeting = await parlour.opened()
        stream = parlour.client.meetings.say(meeting.id, "go", parlour.frame)
        await anext(stream)
        await stream.aclose()
        await parlour.until(lambda: parlour.answers(meeting.id)[-1] == ("go", "two"))
        assert len(parlour.meetings.context.messages(meeting.id)) == 2, "and it was said once"

    parlour.inside(work)


def test_what_cannot_be_said_is_refused_and_nothing_changes(parlour: Parlour) -> None:
    async def work() -> None:
        meeting = await parlour.opened()
        for words in ("", "  \n", "a\0b", "x" * (MAX_MESSAGE + 1)):
            with pytest.raises(UsageError):
                await parlour.said(meeting.id, words)
            assert len(parlour.meetings.context.messages(meeting.id)) == 1
            with pytest.raises(UsageError):
                await parlour.client.meetings.open("architect", words, parlour.frame)
            assert len(parlour.meetings.all()) == 1

    parlour.inside(work)


@pytest.mark.req("SYS-8a")
def test_open_meetings_are_capped_for_each_project(parlour: Parlour) -> None:
    parlour.register(max_meetings=2)

    async def work() -> None:
        made = [await parlour.client.meetings.open("architect", f"topic {n}", parlour.frame) for n in range(2)]
        with pytest.raises(Refused) as refused:
            await parlour.client.meetings.open("architect", "one more", parlour.frame)
        assert "maximum: 2" in refused.value.message
        assert all(one.id in refused.value.message for one in made)
        await parlour.client.meetings.close(made[0].id, parlour.frame)
        await parlour.client.meetings.open("architect", "one more", parlour.frame)

    parlour.inside(work)


def test_the_cap_holds_for_many_at_once(parlour: Parlour) -> None:
    async def work() -> None:
        opening = (parlour.client.meetings.open("architect", f"topic {n}", parlour.frame) for n in range(9))
        came = await asyncio.gather(*opening, return_exceptions=True)
        assert sum(isinstance(one, Refused) for one in came) == 4
        assert len(parlour.meetings.all(status="open")) == 5

    parlour.inside(work)


def test_outside_of_a_project_nobody_is_met(parlour: Parlour, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")

    async def work() -> None:
        from guildhall.core.request_frame import Frame

        frame = Frame(cwd=elsewhere, root=elsewhere)
        with pytest.raises(NotFound) as refused:
            await parlour.client.meetings.open("architect", "hello", frame)
        assert "guild project add" in (refused.value.hint or "")
        named = await parlour.client.meetings.open("architect", "hello", frame, project="shop")
        assert named.project == "shop"
        with pytest.raises(NotFound):
            await parlour.client.meetings.open("nobody", "hello", parlour.frame)
        with pytest.raises(NotFound):
            await parlour.client.meetings.open("architect", "hello", parlour.frame, project="ship")

    parlour.inside(work)


def test_a_meeting_that_is_not_there(parlour: Parlour) -> None:
    async def work() -> None:
        for id in ("t-7k2m9x4qpw", "", "x" * 500):
            with pytest.raises(NotFound):
                await parlour.client.meetings.get(id)
            with pytest.raises(NotFound):
                await parlour.said(id, "hello")
            with pytest.raises(NotFound):
                await parlour.client.meetings.close(id, parlour.frame)
            with pytest.raises(NotFound):
                await parlour.client.meetings.defer(id, "2099-01-01")

    parlour.inside(work)


def test_nothing_is_said_in_a_meeting_that_is_over(parlour: Parlour) -> None:
    async def work() -> None:
        meeting = await parlour.opened()
        with pytest.raises(NotDeletable):
            await parlour.client.meetings.delete(meeting.id)
        await parlour.client.meetings.close(meeting.id, parlour.frame)
        for refused in (
            lambda: parlour.said(meeting.id, "still there?"),
            lambda: parlour.seen(parlour.client.meetings.join(meeting.id, parlour.frame, renew=True)),
            lambda: parlour.client.meetings.close(meeting.id, parlour.frame),
            lambda: parlour.client.meetings.accept(meeting.id),
            lambda: parlour.client.meetings.decline(meeting.id),
        ):
            with pytest.raises(Conflict):
                await refused()
        assert parlour.hall.history.get(meeting.run).status == "completed"
        await parlour.client.meetings.delete(meeting.id)
        with pytest.raises(NotFound):
            await parlour.client.meetings.get(meeting.id)

    parlour.inside(work)


def test_an_answer_that_is_cut_off_is_followed_by_the_next_words(parlour: Parlour) -> None:
    parlour.script([say("one"), {"sleep": 30, "say": "never"}, say("three")])

    async def work() -> None:
        meeting = await parlour.opened()

        async def talks() -> None:
            await parlour.said(meeting.id, "a long one")

        task = asyncio.create_task(talks())
        await parlour.until(lambda: parlour.hall.history.journal(meeting.run).all(Said))
        await parlour.until(lambda: len(parlour.hall.history.journal(meeting.run).all(ModelAsked)) == 2)
        await parlour.client.meetings.interrupt(meeting.id)
        await task
        await parlour.said(meeting.id, "something else")
        answers = [answer for _, answer in parlour.answers(meeting.id)]
        assert answers == ["one", "[The user interrupted this answer.]", "three"]
        await parlour.client.meetings.interrupt(meeting.id)  # nothing is under way
        assert [answer for _, answer in parlour.answers(meeting.id)] == answers

    parlour.inside(work)


@pytest.mark.parametrize("limit", ["max_budget_usd", "max_tokens"])
def test_no_limit_is_passed_by_cutting_answers_off(parlour: Parlour, limit: str) -> None:
    parlour.worker(limits={limit: {"max_budget_usd": 0.5, "max_tokens": 5_000}[limit]})
    parlour.script([say("one"), {"sleep": 30, "say": "never"}, say("three")], price=100.0)

    async def work() -> None:
        meeting = await parlour.opened()
        before = parlour.shown(meeting.id).cost_usd
        task = asyncio.create_task(parlour.said(meeting.id, "a long one"))
        asked = await parlour.until(lambda: parlour.hall.history.journal(meeting.run).all(ModelAsked)[1:])
        await parlour.client.meetings.interrupt(meeting.id)
        await task
        journal = parlour.hall.history.journal(meeting.run)
        paid = round(before + asked[0].data.reserved_usd, 9)
        assert parlour.shown(meeting.id).cost_usd == limits.usage_of(journal).cost_usd == paid
        assert parlour.hall.history.get(meeting.run).usage == limits.usage_of(journal)
        assert limits.Spent.in_journals([journal]).tokens >= asked[0].data.reserved_tokens
        ended = (await parlour.said(meeting.id, "something else"))[-1]
        assert ended.data["status"] == "failed"
        assert parlour.hall.history.get(meeting.run).error["code"] == "limit_reached"
        assert len(parlour.hall.history.journal(meeting.run).all(ModelAsked)) == 2

    parlour.inside(work)


def test_it_goes_on_after_a_failure(parlour: Parlour) -> None:
    parlour.script([say("one")])

    async def fails() -> str:
        meeting = await parlour.opened()
        events = await parlour.said(meeting.id, "more")
        assert events[-1].type == "run_ended"
        assert events[-1].data["status"] == "failed"
        assert parlour.shown(meeting.id).answering
        return meeting.id

    id = parlour.inside(fails)
    parlour.script([say("one"), say("two")])

    async def again() -> None:
        await parlour.seen(parlour.client.meetings.join(id, parlour.frame))
        assert parlour.answers(id)[-1] == ("more", "two")

    parlour.inside(again)


def test_for_a_person_at_a_terminal_it_is_kept_alive_and_then_put_away(parlour: Parlour) -> None:
    parlour.script(TALK)

    async def work() -> None:
        frame = replace(parlour.frame, interactive=True)
        meeting = await parlour.client.meetings.open("architect", "hello", frame)
        await parlour.seen(parlour.client.meetings.join(meeting.id, frame))
        run = parlour.meetings.get(meeting.id).run
        await asyncio.sleep(0.15)
        assert parlour.hall.runs.is_alive(run), "the person may say more in a moment"
        await parlour.seen(parlour.client.meetings.say(meeting.id, "more", frame))
        assert not parlour.hall.history.journal(run).all(Resumed)
        parlour.meetings._sessions._leave(run)
        await parlour.until(lambda: not parlour.hall.runs.is_alive(run))
        assert parlour.hall.history.get(run).status == "waiting"
        parlour.meetings._sessions._leave(run)  # nobody is there twice
        await parlour.said(meeting.id, "and more")
        await parlour.quiet()

    parlour.inside(work)
