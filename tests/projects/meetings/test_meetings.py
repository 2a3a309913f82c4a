"""Meetings in one process: opened, talked in, left and come back to, closed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import Conflict, NotDeletable, NotFound, Refused, UsageError
from guildhall.projects.meetings.model import MAX_MESSAGE_CHARS
from guildhall.runs import limits
from guildhall.runs.record.entries import ModelAsked, Resumed, Said
from tests.projects.meetings.harness import call, say

if TYPE_CHECKING:
    from tests.projects.meetings.harness import MeetingProject

TALK = [say("Parquet."), say("Small it is."), say("Bye.")]


@pytest.mark.req("MTG-15")
def test_a_turn_gives_its_events_and_ends_when_the_worker_listens(harness: MeetingProject) -> None:
    harness.script([call("link_artifact", path=".lore/plan.md"), say("Linked it.")])

    async def work() -> None:
        meeting = await harness.client.meetings.open("architect", "Look at the plan", harness.frame)
        events = await harness.collect(harness.client.meetings.join(meeting.id, harness.frame))
        kinds = [event.type for event in events]
        told = [kind for kind in kinds if kind in ("tool_use", "tool_result", "text_delta")]
        assert list(dict.fromkeys(told)) == ["tool_use", "tool_result", "text_delta"]
        used, result = (next(e for e in events if e.type == kind) for kind in ("tool_use", "tool_result"))
        assert used.data["id"] == result.data["id"]
        assert kinds.count("turn_end") == 2
        assert kinds[-1] == "listening"
        assert harness.details(meeting.id).meeting.linked == (".lore/plan.md",)

    harness.run_in_hall(work)


def test_a_worker_links_the_record_of_an_earlier_meeting(harness: MeetingProject) -> None:
    async def work() -> None:
        harness.script([say("one")])
        first = await harness.open_meeting()
        await harness.client.meetings.close(first.id, harness.frame)
        record = f".lore/meetings/{first.id}.md"
        harness.script([call("link_artifact", path=record), say("two")])
        second = await harness.open_meeting()
        assert harness.details(second.id).meeting.linked == (record,)

    harness.run_in_hall(work)


@pytest.mark.req("WKR-20", "MTG-10")
def test_left_and_come_back_to_in_another_hall(harness: MeetingProject) -> None:
    harness.script(TALK)
    meeting = harness.run_in_hall(harness.open_meeting)

    async def again() -> None:
        assert not await harness.collect(harness.client.meetings.join(meeting.id, harness.frame)), "nothing is due"
        await harness.say(meeting.id, "It must be small")
        asked = harness.hall.history.journal(meeting.run).all(ModelAsked)
        assert len(asked) == 2
        assert harness.answers(meeting.id) == [
            ("How do we store exports?", "Parquet."),
            ("It must be small", "Small it is."),
        ]
        assert harness.meetings.get(meeting.id).run == meeting.run

    harness.clock.days = 5
    harness.run_in_hall(again)


def test_the_person_sees_nothing_of_it_in_their_own_folder(harness: MeetingProject) -> None:
    harness.script([call("Write", file_path=".lore/new.md", content="new"), say("written")])
    harness.repo.git("add", "-A")
    harness.repo.git("commit", "-qm", "all")

    async def work() -> None:
        meeting = await harness.open_meeting()
        await harness.wait_idle()
        assert harness.repo.git("status", "--porcelain") == ""
        assert not (harness.repo.path / ".lore/new.md").exists()
        closed = await harness.client.meetings.close(meeting.id, harness.frame)
        assert harness.repo.git("status", "--porcelain") == ""
        assert harness.repo.at("claude/main", ".lore/new.md") == "new"
        assert closed.notes

    harness.run_in_hall(work)


def test_words_while_the_worker_answers_wait_their_turn(harness: MeetingProject) -> None:
    harness.script([say("one"), {"sleep": 0.15, "say": "two"}, say("three")])

    async def work() -> None:
        meeting = await harness.open_meeting()
        first, second = await asyncio.gather(harness.say(meeting.id, "second"), harness.say(meeting.id, "third"))
        assert "two" in _text(first)
        assert _text(second) == "three"
        assert [answer for _, answer in harness.answers(meeting.id)] == ["one", "two", "three"]
        assert [words for words, _ in harness.answers(meeting.id)][1:] == ["second", "third"]

    harness.run_in_hall(work)


def _text(events: list) -> str:  # pyright: ignore
    return "".join(event.data["text"] for event in events if event.type == "text_delta")


def test_words_that_come_while_the_run_is_put_away_are_answered(harness: MeetingProject) -> None:
    harness.script([say(str(number)) for number in range(12)])

    async def work() -> None:
        meeting = await harness.open_meeting()
        for number in range(1, 11):
            await asyncio.sleep(0.05 + number / 1000)  # about when it is paused
            await harness.say(meeting.id, f"say {number}")
        assert [answer for _, answer in harness.answers(meeting.id)] == [str(number) for number in range(11)]

    harness.run_in_hall(work)


def test_what_was_said_is_answered_though_nobody_follows(harness: MeetingProject) -> None:
    harness.script([say("one"), {"sleep": 0.1, "say": "two"}])

    async def work() -> None:
        meeting = await harness.open_meeting()
        stream = harness.client.meetings.join(meeting.id, harness.frame, messages=["go"])
        await anext(stream)
        await stream.aclose()
        await harness.wait_until(lambda: harness.answers(meeting.id)[-1] == ("go", "two"))
        assert len(harness.meetings.context.list_messages(meeting.id)) == 2, "and it was said once"

    harness.run_in_hall(work)


def test_what_cannot_be_said_is_refused_and_nothing_changes(harness: MeetingProject) -> None:
    async def work() -> None:
        meeting = await harness.open_meeting()
        for words in ("", "  \n", "a\0b", "x" * (MAX_MESSAGE_CHARS + 1)):
            with pytest.raises(UsageError):
                await harness.say(meeting.id, words)
            assert len(harness.meetings.context.list_messages(meeting.id)) == 1
            with pytest.raises(UsageError):
                await harness.client.meetings.open("architect", words, harness.frame)
            assert len(harness.meetings.list_meetings()) == 1

    harness.run_in_hall(work)


@pytest.mark.req("SYS-8a")
def test_open_meetings_are_capped_for_each_project(harness: MeetingProject) -> None:
    harness.register(max_meetings=2)

    async def work() -> None:
        made = [await harness.client.meetings.open("architect", f"topic {n}", harness.frame) for n in range(2)]
        with pytest.raises(Refused) as refused:
            await harness.client.meetings.open("architect", "one more", harness.frame)
        assert "maximum: 2" in refused.value.message
        assert all(one.id in refused.value.message for one in made)
        await harness.client.meetings.close(made[0].id, harness.frame)
        await harness.client.meetings.open("architect", "one more", harness.frame)

    harness.run_in_hall(work)


def test_the_cap_holds_for_many_at_once(harness: MeetingProject) -> None:
    async def work() -> None:
        opening = (harness.client.meetings.open("architect", f"topic {n}", harness.frame) for n in range(9))
        came = await asyncio.gather(*opening, return_exceptions=True)
        assert sum(isinstance(one, Refused) for one in came) == 4
        assert len(harness.meetings.list_meetings(status="open")) == 5

    harness.run_in_hall(work)


def test_outside_of_a_project_nobody_is_met(harness: MeetingProject, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")

    async def work() -> None:
        from guildhall.core.request_frame import Frame

        frame = Frame(cwd=elsewhere, root=elsewhere)
        with pytest.raises(NotFound) as refused:
            await harness.client.meetings.open("architect", "hello", frame)
        assert "guild project add" in (refused.value.hint or "")
        named = await harness.client.meetings.open("architect", "hello", frame, project="shop")
        assert named.project == "shop"
        with pytest.raises(NotFound):
            await harness.client.meetings.open("nobody", "hello", harness.frame)
        with pytest.raises(NotFound):
            await harness.client.meetings.open("architect", "hello", harness.frame, project="ship")

    harness.run_in_hall(work)


def test_a_meeting_that_is_not_there(harness: MeetingProject) -> None:
    async def work() -> None:
        for id in ("t-7k2m9x4qpw", "", "x" * 500):
            with pytest.raises(NotFound):
                await harness.client.meetings.get(id)
            with pytest.raises(NotFound):
                await harness.say(id, "hello")
            with pytest.raises(NotFound):
                await harness.client.meetings.close(id, harness.frame)
            with pytest.raises(NotFound):
                await harness.client.meetings.defer(id, "2099-01-01")

    harness.run_in_hall(work)


def test_nothing_is_said_in_a_meeting_that_is_over(harness: MeetingProject) -> None:
    async def work() -> None:
        meeting = await harness.open_meeting()
        with pytest.raises(NotDeletable):
            await harness.client.meetings.delete(meeting.id)
        await harness.client.meetings.close(meeting.id, harness.frame)
        for refused in (
            lambda: harness.say(meeting.id, "still there?"),
            lambda: harness.collect(harness.client.meetings.join(meeting.id, harness.frame, renew=True)),
            lambda: harness.client.meetings.close(meeting.id, harness.frame),
            lambda: harness.client.meetings.accept(meeting.id),
            lambda: harness.client.meetings.decline(meeting.id),
        ):
            with pytest.raises(Conflict):
                await refused()
        assert harness.hall.history.get(meeting.run).status == "completed"
        await harness.client.meetings.delete(meeting.id)
        with pytest.raises(NotFound):
            await harness.client.meetings.get(meeting.id)

    harness.run_in_hall(work)


def test_an_answer_that_is_cut_off_is_followed_by_the_next_words(harness: MeetingProject) -> None:
    harness.script([say("one"), {"sleep": 30, "say": "never"}, say("three")])

    async def work() -> None:
        meeting = await harness.open_meeting()

        async def talks() -> None:
            await harness.say(meeting.id, "a long one")

        task = asyncio.create_task(talks())
        await harness.wait_until(lambda: harness.hall.history.journal(meeting.run).all(Said))
        await harness.wait_until(lambda: len(harness.hall.history.journal(meeting.run).all(ModelAsked)) == 2)
        await harness.client.meetings.interrupt(meeting.id)
        await task
        await harness.say(meeting.id, "something else")
        answers = [answer for _, answer in harness.answers(meeting.id)]
        assert answers == ["one", "[The user interrupted this response.]", "three"]
        await harness.client.meetings.interrupt(meeting.id)  # nothing is under way
        assert [answer for _, answer in harness.answers(meeting.id)] == answers

    harness.run_in_hall(work)


@pytest.mark.parametrize("limit", ["max_budget_usd", "max_tokens"])
def test_no_limit_is_passed_by_cutting_answers_off(harness: MeetingProject, limit: str) -> None:
    harness.worker(limits={limit: {"max_budget_usd": 0.5, "max_tokens": 5_000}[limit]})
    harness.script([say("one"), {"sleep": 30, "say": "never"}, say("three")], price=100.0)

    async def work() -> None:
        meeting = await harness.open_meeting()
        before = harness.details(meeting.id).cost_usd
        task = asyncio.create_task(harness.say(meeting.id, "a long one"))
        asked = await harness.wait_until(lambda: harness.hall.history.journal(meeting.run).all(ModelAsked)[1:])
        await harness.client.meetings.interrupt(meeting.id)
        await task
        journal = harness.hall.history.journal(meeting.run)
        paid = round(before + asked[0].data.reserved_usd, 9)
        assert harness.details(meeting.id).cost_usd == limits.usage_of(journal).cost_usd == paid
        assert harness.hall.history.get(meeting.run).usage == limits.usage_of(journal)
        assert limits.Spent.in_journals([journal]).tokens >= asked[0].data.reserved_tokens
        ended = (await harness.say(meeting.id, "something else"))[-1]
        assert ended.data["status"] == "failed"
        assert harness.hall.history.get(meeting.run).error["code"] == "limit_reached"
        assert len(harness.hall.history.journal(meeting.run).all(ModelAsked)) == 2

    harness.run_in_hall(work)


def test_it_goes_on_after_a_failure(harness: MeetingProject) -> None:
    harness.script([say("one")])

    async def fails() -> str:
        meeting = await harness.open_meeting()
        events = await harness.say(meeting.id, "more")
        assert events[-1].type == "run_ended"
        assert events[-1].data["status"] == "failed"
        assert harness.details(meeting.id).answering
        return meeting.id

    id = harness.run_in_hall(fails)
    harness.script([say("one"), say("two")])

    async def again() -> None:
        await harness.collect(harness.client.meetings.join(id, harness.frame))
        assert harness.answers(id)[-1] == ("more", "two")

    harness.run_in_hall(again)


def test_for_a_person_at_a_terminal_it_is_kept_alive_and_then_put_away(harness: MeetingProject) -> None:
    harness.script(TALK)

    async def work() -> None:
        frame = replace(harness.frame, interactive=True)
        meeting = await harness.client.meetings.open("architect", "hello", frame)
        await harness.collect(harness.client.meetings.join(meeting.id, frame))
        run = harness.meetings.get(meeting.id).run
        await asyncio.sleep(0.15)
        assert harness.hall.runs.is_alive(run), "the person may say more in a moment"
        await harness.collect(harness.client.meetings.join(meeting.id, frame, messages=["more"]))
        assert not harness.hall.history.journal(run).all(Resumed)
        harness.meetings._sessions._leave(run)
        await harness.wait_until(lambda: not harness.hall.runs.is_alive(run))
        assert harness.hall.history.get(run).status == "waiting"
        harness.meetings._sessions._leave(run)  # nobody is there twice
        await harness.say(meeting.id, "and more")
        await harness.wait_idle()

    harness.run_in_hall(work)
