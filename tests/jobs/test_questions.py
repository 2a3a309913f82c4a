"""Questions of a job: asks in the one inbox, answered by one verb, heard by the run and kept in the directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import Conflict, UsageError
from guildhall.hall.composition.recovery import Recovery
from guildhall.runs.model import Answer
from tests.jobs.job_hall import LATE, call, say, submit

if TYPE_CHECKING:
    from guildhall.runs.model import Ask
    from tests.jobs.job_hall import JobHall

ASK = call("log_question", question="Which door?\n\nFront or back?")
WAIT = call("log_question", question="Which door?", wait=True)


async def asked(job_hall: JobHall, number: int = 1) -> list[Ask]:
    """Wait until this many asks are open, and return them."""
    return await job_hall.until(lambda: asks if len(asks := job_hall.hall.asks.list_open()) >= number else None)


def told(job_hall: JobHall, run: str | None) -> list[str]:
    """Return the tool results that the model received, in order."""
    entries = job_hall.hall.history.entries(run)
    return ["\n".join(block["text"] for block in e.data.result["content"]) for e in entries if e.kind == "tool_ended"]


@pytest.mark.req("WD-12", "X-15")
def test_an_open_question_shows_in_the_inbox_and_in_the_status(job_hall: JobHall) -> None:
    job_hall.script([ASK, submit(), say()])

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.done()
        assert job.status == "completed"
        shown = job_hall.jobs.status(job.id)
        assert shown.as_wire()["questions"] == ["Which door?\n\nFront or back?"]
        assert shown.waiting_asks == []
        (ask,) = job_hall.hall.asks.list_open()  # it outlives the run
        assert (ask.kind, ask.question.body) == ("question", "Which door?\n\nFront or back?")
        for wrong in (" ", "", "\0", "x" * 10_001, "\ud800"):
            with pytest.raises(UsageError):
                await job_hall.client.asks.answer(ask.id, Answer(choice=wrong))
        await job_hall.client.asks.answer(ask.id, Answer(choice=" the back door ", note="it is open"))
        shown = job_hall.jobs.status(job.id)
        assert shown.as_wire()["questions"] is None
        assert [one.answer for one in shown.question_log] == ["the back door\nit is open"]
        assert "> the back door\n> it is open" in job_hall.files(job.id)["questions.md"]
        assert job_hall.jobs.get(job.id).status == "completed"
        assert not job_hall.hall.runs.is_alive(job.run)
        with pytest.raises(Conflict):
            await job_hall.client.asks.answer(ask.id, Answer(choice="another"))

    job_hall.run(work)


def test_an_answer_is_delivered_with_the_next_call(job_hall: JobHall) -> None:
    note = call("update_summary", summary="on")
    job_hall.script([ASK, {"sleep": 0.15, **note}, note, say()])

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.dispatch()
        (ask,) = await asked(job_hall)
        await job_hall.client.asks.answer(ask.id, Answer(choice="the front door"))
        await job_hall.ended(job.id)
        heard = [text for text in told(job_hall, job.run) if "the front door" in text]
        assert len(heard) == 1
        assert "Which door?" in heard[0]
        assert job_hall.hall.asks.get(ask.id).status == "applied"
        assert (await job_hall.client.runs.replay(job.run, job_hall.frame)).matches

    job_hall.run(work)


def test_a_waiting_question_pauses_the_job_until_the_answer(job_hall: JobHall) -> None:
    job_hall.script([WAIT, submit(), say()])

    async def ask(job_hall: JobHall) -> tuple[str, str]:
        job = await job_hall.dispatch()
        (ask,) = await asked(job_hall)
        await job_hall.until(lambda: not job_hall.hall.runs.is_alive(job.run))
        shown = job_hall.jobs.status(job.id)
        assert (shown.job.status, list(shown.waiting_asks)) == ("running", [ask.id])
        assert shown.as_wire()["questions"] == ["Which door?"]
        return job.id, ask.id

    async def answer(job_hall: JobHall) -> None:  # days later, in another process
        assert job_hall.jobs.get(job).status == "running"
        await job_hall.client.asks.answer(question, Answer(choice="the front door"))
        ended = await job_hall.ended(job)
        assert ended.status == "completed"
        assert told(job_hall, ended.run)[0] == "The user answered: the front door"
        assert len(job_hall.jobs.status(job).question_log) == 1

    job, question = job_hall.run(ask)
    job_hall.run(answer)


def test_two_waiting_questions_receive_their_own_answers(job_hall: JobHall) -> None:
    both = {"calls": [WAIT, call("log_question", question="Which lock?", wait=True), ASK]}
    job_hall.script([both, submit(), say()])

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.dispatch()
        asks = await asked(job_hall, 3)
        await job_hall.until(lambda: not job_hall.hall.runs.is_alive(job.run))
        for ask in asks:
            await job_hall.client.asks.answer(ask.id, Answer(choice=f"to {ask.question.body[:11]}"))
        await job_hall.ended(job.id)
        assert told(job_hall, job.run)[0].count("to Which") + told(job_hall, job.run)[1].count("to Which") >= 2
        answers = {one.question[:11]: one.answer for one in job_hall.jobs.status(job.id).question_log}
        assert answers == {"Which door?": "to Which door?", "Which lock?": "to Which lock?"}
        by_tool = [text for text in told(job_hall, job.run) if text.startswith("The user answered: ")]
        assert sorted(text.partition("\n")[0][-11:] for text in by_tool) == ["Which door?", "Which lock?"]

    job_hall.run(work)


def test_a_resumed_job_receives_earlier_answers(job_hall: JobHall) -> None:
    job_hall.script([ASK, call("update_summary", summary="two"), submit(), say()])

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.done(maxTurns=1)
        assert job.status == "failed"
        (ask,) = job_hall.hall.asks.list_open()
        await job_hall.client.asks.answer(ask.id, Answer(choice="the front door"))
        assert job_hall.jobs.get(job.id).status == "failed"
        async for _ in job_hall.client.runs.resume(job.run, job_hall.frame, max_turns=9):
            pass
        assert job_hall.jobs.get(job.id).status == "completed"
        assert sum("the front door" in text for text in told(job_hall, job.run)) == 1

    job_hall.run(work)


def test_cancelling_and_deleting_withdraw_the_questions(job_hall: JobHall) -> None:
    async def work(job_hall: JobHall) -> None:
        job_hall.script([WAIT, LATE])
        waiting = await job_hall.dispatch()
        (ask,) = await asked(job_hall)
        await job_hall.until(lambda: not job_hall.hall.runs.is_alive(waiting.run))
        assert (await job_hall.jobs.cancel(waiting.id)).status == "cancelled"
        with pytest.raises(Conflict, match="withdrawn"):
            await job_hall.client.asks.answer(ask.id, Answer(choice="late"))
        assert job_hall.jobs.get(waiting.id).status == "cancelled"
        job_hall.script([ASK, say()])
        done = await job_hall.done()
        (ask,) = job_hall.hall.asks.list_open()
        await job_hall.jobs.delete(done.id)
        assert job_hall.hall.asks.get(ask.id).status == "withdrawn"

    job_hall.run(work)


def test_other_asks_of_a_job_are_among_its_questions(job_hall: JobHall) -> None:
    job_hall.worker(tool_rules={"Glob": {"approval_required": True}})
    job_hall.script([call("Glob", pattern="*"), submit(), say()])

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.dispatch()
        (ask,) = await asked(job_hall)
        await job_hall.until(lambda: not job_hall.hall.runs.is_alive(job.run))
        shown = job_hall.jobs.status(job.id)
        (question,) = shown.as_wire()["questions"]
        assert "wants to call Glob" in question
        assert list(shown.waiting_asks) == [ask.id]
        assert shown.job.status == "running"
        await job_hall.client.asks.answer(ask.id, Answer(choice="yes"))
        assert (await job_hall.ended(job.id)).status == "completed"

    job_hall.run(work)


def test_invalid_calls_of_job_tools_are_rejected_without_effect(job_hall: JobHall) -> None:
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
    job_hall.script([{"calls": wrong}, say("the end")])

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.done()
        ends = {"tool_ended", "tool_refused"}
        results = [e.data.result for e in job_hall.hall.history.entries(job.run) if e.kind in ends]
        assert [result["is_error"] for result in results] == [True] * len(wrong)
        assert (job.status, job_hall.files(job.id)["result.md"]) == ("failed", "the end")
        assert set(job_hall.files(job.id)) == {"task.md", "config.json", "meta.json", "result.md"}
        assert job_hall.hall.asks.list_open() == []

    job_hall.run(work)


def test_an_answered_job_resumes_at_the_next_start(job_hall: JobHall) -> None:
    job_hall.script([WAIT, submit(), say()])

    async def ask(job_hall: JobHall) -> str:
        job = await job_hall.dispatch()
        (ask,) = await asked(job_hall)
        await job_hall.until(lambda: not job_hall.hall.runs.is_alive(job.run))
        await job_hall.hall.asks.answer(ask.id, Answer(choice="the front door"))  # and here the process died
        return job.id

    async def work(job_hall: JobHall) -> None:
        await Recovery(job_hall.hall).resume_runs()
        assert (await job_hall.ended(job)).status == "completed"
        assert [one.answer for one in job_hall.jobs.status(job).question_log] == ["the front door"]

    job = job_hall.run(ask)
    job_hall.run(work)


@pytest.mark.parametrize("again", [False, True])
def test_a_job_resumes_when_its_question_expires(job_hall: JobHall, again: bool) -> None:
    job_hall.worker(tool_rules={"Glob": {"approval_required": True, "timeout": "1s"}})
    job_hall.script([call("Glob", pattern="*"), submit(), say()])

    async def work(job_hall: JobHall) -> str:
        await Recovery(job_hall.hall).resume_runs()
        job = await job_hall.dispatch()
        await asked(job_hall)
        await job_hall.until(lambda: not job_hall.hall.runs.is_alive(job.run))
        assert job_hall.jobs.has_pending_resume
        assert job_hall.hall.is_busy()
        return job.id if again else (await job_hall.ended(job.id)).id

    async def later(job_hall: JobHall) -> None:
        await Recovery(job_hall.hall).resume_runs()
        ended = await job_hall.ended(job)
        assert ended.status == "completed"
        ends = [e for e in job_hall.hall.history.entries(ended.run) if e.kind == "tool_refused"]
        assert "timed out" in ends[0].data.result["content"][0]["text"]
        assert not job_hall.jobs.has_pending_resume

    job = job_hall.run(work)
    job_hall.run(later)
