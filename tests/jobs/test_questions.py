"""Questions of a job: asks in the one inbox, answered by one verb, heard by the run and kept in the directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import Conflict, UsageError
from guildhall.hall.composition.recovery import Recovery
from guildhall.runs.model import Answer
from tests.jobs.shop import LATE, call, say, submit

if TYPE_CHECKING:
    from guildhall.runs.model import Ask
    from tests.jobs.shop import Shop

ASK = call("log_question", question="Which door?\n\nFront or back?")
WAIT = call("log_question", question="Which door?", wait=True)


async def asked(shop: Shop, number: int = 1) -> list[Ask]:
    """Wait until this many asks are open, and return them."""
    return await shop.until(lambda: asks if len(asks := shop.hall.asks.open()) >= number else None)


def told(shop: Shop, run: str | None) -> list[str]:
    """Return the tool results that the model received, in order."""
    entries = shop.hall.history.entries(run)
    return ["\n".join(block["text"] for block in e.data.result["content"]) for e in entries if e.kind == "tool_ended"]


@pytest.mark.req("WD-12", "X-15")
def test_an_open_question_shows_in_the_inbox_and_in_the_status(shop: Shop) -> None:
    shop.script([ASK, submit(), say()])

    async def work(shop: Shop) -> None:
        job = await shop.done()
        assert job.status == "completed"
        shown = shop.jobs.status(job.id)
        assert shown.as_wire()["questions"] == ["Which door?\n\nFront or back?"]
        assert shown.waiting_asks == []
        (ask,) = shop.hall.asks.open()  # it outlives the run
        assert (ask.kind, ask.question.body) == ("question", "Which door?\n\nFront or back?")
        for wrong in (" ", "", "\0", "x" * 10_001, "\ud800"):
            with pytest.raises(UsageError):
                await shop.client.asks.answer(ask.id, Answer(choice=wrong))
        await shop.client.asks.answer(ask.id, Answer(choice=" the back door ", note="it is open"))
        shown = shop.jobs.status(job.id)
        assert shown.as_wire()["questions"] is None
        assert [one.answer for one in shown.question_log] == ["the back door\nit is open"]
        assert "> the back door\n> it is open" in shop.files(job.id)["questions.md"]
        assert shop.jobs.get(job.id).status == "completed"
        assert not shop.hall.runs.is_alive(job.run)
        with pytest.raises(Conflict):
            await shop.client.asks.answer(ask.id, Answer(choice="another"))

    shop.inside(work)


def test_an_answer_that_comes_while_it_works_is_heard_with_the_next_call(shop: Shop) -> None:
    note = call("update_summary", summary="on")
    shop.script([ASK, {"sleep": 0.15, **note}, note, say()])

    async def work(shop: Shop) -> None:
        job = await shop.dispatch()
        (ask,) = await asked(shop)
        await shop.client.asks.answer(ask.id, Answer(choice="the front door"))
        await shop.ended(job.id)
        heard = [text for text in told(shop, job.run) if "the front door" in text]
        assert len(heard) == 1
        assert "Which door?" in heard[0]
        assert shop.hall.asks.get(ask.id).status == "applied"
        assert (await shop.client.runs.replay(job.run, shop.frame)).matches

    shop.inside(work)


def test_a_question_that_waits_puts_the_job_away_and_the_answer_lets_it_go_on(shop: Shop) -> None:
    shop.script([WAIT, submit(), say()])

    async def ask(shop: Shop) -> tuple[str, str]:
        job = await shop.dispatch()
        (ask,) = await asked(shop)
        await shop.until(lambda: not shop.hall.runs.is_alive(job.run))
        shown = shop.jobs.status(job.id)
        assert (shown.job.status, list(shown.waiting_asks)) == ("running", [ask.id])
        assert shown.as_wire()["questions"] == ["Which door?"]
        return job.id, ask.id

    async def answer(shop: Shop) -> None:  # days later, in another process
        assert shop.jobs.get(job).status == "running"
        await shop.client.asks.answer(question, Answer(choice="the front door"))
        ended = await shop.ended(job)
        assert ended.status == "completed"
        assert told(shop, ended.run)[0] == "The user answered: the front door"
        assert len(shop.jobs.status(job).question_log) == 1

    job, question = shop.inside(ask)
    shop.inside(answer)


def test_two_that_wait_get_their_own_answers(shop: Shop) -> None:
    both = {"calls": [WAIT, call("log_question", question="Which lock?", wait=True), ASK]}
    shop.script([both, submit(), say()])

    async def work(shop: Shop) -> None:
        job = await shop.dispatch()
        asks = await asked(shop, 3)
        await shop.until(lambda: not shop.hall.runs.is_alive(job.run))
        for ask in asks:
            await shop.client.asks.answer(ask.id, Answer(choice=f"to {ask.question.body[:11]}"))
        await shop.ended(job.id)
        assert told(shop, job.run)[0].count("to Which") + told(shop, job.run)[1].count("to Which") >= 2
        answers = {one.question[:11]: one.answer for one in shop.jobs.status(job.id).question_log}
        assert answers == {"Which door?": "to Which door?", "Which lock?": "to Which lock?"}
        by_tool = [text for text in told(shop, job.run) if text.startswith("The user answered: ")]
        assert sorted(text.partition("\n")[0][-11:] for text in by_tool) == ["Which door?", "Which lock?"]

    shop.inside(work)


def test_a_resumed_job_is_told_what_was_answered_meanwhile(shop: Shop) -> None:
    shop.script([ASK, call("update_summary", summary="two"), submit(), say()])

    async def work(shop: Shop) -> None:
        job = await shop.done(maxTurns=1)
        assert job.status == "failed"
        (ask,) = shop.hall.asks.open()
        await shop.client.asks.answer(ask.id, Answer(choice="the front door"))
        assert shop.jobs.get(job.id).status == "failed"
        async for _ in shop.client.runs.resume(job.run, shop.frame, max_turns=9):
            pass
        assert shop.jobs.get(job.id).status == "completed"
        assert sum("the front door" in text for text in told(shop, job.run)) == 1

    shop.inside(work)


def test_cancelling_and_deleting_withdraw_the_questions(shop: Shop) -> None:
    async def work(shop: Shop) -> None:
        shop.script([WAIT, LATE])
        waiting = await shop.dispatch()
        (ask,) = await asked(shop)
        await shop.until(lambda: not shop.hall.runs.is_alive(waiting.run))
        assert (await shop.jobs.cancel(waiting.id)).status == "cancelled"
        with pytest.raises(Conflict, match="withdrawn"):
            await shop.client.asks.answer(ask.id, Answer(choice="late"))
        assert shop.jobs.get(waiting.id).status == "cancelled"
        shop.script([ASK, say()])
        done = await shop.done()
        (ask,) = shop.hall.asks.open()
        await shop.jobs.delete(done.id)
        assert shop.hall.asks.get(ask.id).status == "withdrawn"

    shop.inside(work)


def test_other_asks_of_a_job_are_among_its_questions(shop: Shop) -> None:
    shop.worker(tool_rules={"Glob": {"approval_required": True}})
    shop.script([call("Glob", pattern="*"), submit(), say()])

    async def work(shop: Shop) -> None:
        job = await shop.dispatch()
        (ask,) = await asked(shop)
        await shop.until(lambda: not shop.hall.runs.is_alive(job.run))
        shown = shop.jobs.status(job.id)
        (question,) = shown.as_wire()["questions"]
        assert "wants to call Glob" in question
        assert list(shown.waiting_asks) == [ask.id]
        assert shown.job.status == "running"
        await shop.client.asks.answer(ask.id, Answer(choice="yes"))
        assert (await shop.ended(job.id)).status == "completed"

    shop.inside(work)


def test_hostile_calls_of_the_job_tools_are_told_and_change_nothing(shop: Shop) -> None:
    wrong: list[Any] = [
        call("update_summary", summary=" "),
        call("update_summary", summary="x" * 20_001),
        call("update_summary", summary="a\0b"),
        call("record_decision", question="q", decision="", reasoning="r"),
        call("record_decision", question="q"),
        call("log_question", question="\n"),
        call("log_question", question="x" * 10_001),
        call("write_artifact", path="../meta.json", content="{}"),
        call("write_artifact", path="a", content="a\0b"),
        call("store_memory", key="a/b", content="x"),
        call("submit_result", output=""),
        call("submit_result", output="a", artifacts=["nothing.md"]),
        call("submit_result", output="a", artifacts=["../meta.json"]),
        call("submit_result", output=3),
    ]
    shop.script([{"calls": wrong}, say("the end")])

    async def work(shop: Shop) -> None:
        job = await shop.done()
        ends = {"tool_ended", "tool_refused"}
        results = [e.data.result for e in shop.hall.history.entries(job.run) if e.kind in ends]
        assert [result["is_error"] for result in results] == [True] * len(wrong)
        assert (job.status, shop.files(job.id)["result.md"]) == ("failed", "the end")
        assert set(shop.files(job.id)) == {"task.md", "config.json", "meta.json", "result.md"}
        assert shop.hall.asks.open() == []

    shop.inside(work)


def test_an_answer_that_nobody_acted_on_lets_the_job_go_on_at_the_next_start(shop: Shop) -> None:
    shop.script([WAIT, submit(), say()])

    async def ask(shop: Shop) -> str:
        job = await shop.dispatch()
        (ask,) = await asked(shop)
        await shop.until(lambda: not shop.hall.runs.is_alive(job.run))
        await shop.hall.asks.answer(ask.id, Answer(choice="the front door"))  # and here the process died
        return job.id

    async def work(shop: Shop) -> None:
        await Recovery(shop.hall).resume_runs()
        assert (await shop.ended(job)).status == "completed"
        assert [one.answer for one in shop.jobs.status(job).question_log] == ["the front door"]

    job = shop.inside(ask)
    shop.inside(work)


@pytest.mark.parametrize("again", [False, True])
def test_a_job_goes_on_when_the_time_for_an_answer_is_over(shop: Shop, again: bool) -> None:
    shop.worker(tool_rules={"Glob": {"approval_required": True, "timeout": "1s"}})
    shop.script([call("Glob", pattern="*"), submit(), say()])

    async def work(shop: Shop) -> str:
        await Recovery(shop.hall).resume_runs()
        job = await shop.dispatch()
        await asked(shop)
        await shop.until(lambda: not shop.hall.runs.is_alive(job.run))
        assert shop.jobs.has_pending_resume
        assert shop.hall.is_busy()
        return job.id if again else (await shop.ended(job.id)).id

    async def later(shop: Shop) -> None:
        await Recovery(shop.hall).resume_runs()
        ended = await shop.ended(job)
        assert ended.status == "completed"
        ends = [e for e in shop.hall.history.entries(ended.run) if e.kind == "tool_refused"]
        assert "timed out" in ends[0].data.result["content"][0]["text"]
        assert not shop.jobs.has_pending_resume

    job = shop.inside(work)
    shop.inside(later)
