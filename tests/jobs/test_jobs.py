"""A job from its dispatch to its result, as its directory and the wire show it."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import (
    GuildError,
    ModelUnusable,
    NotDeletable,
    NotFinished,
    NotFound,
    Refused,
    UnknownJob,
    UsageError,
    WorkerRetired,
)
from guildhall.core.ids import JOB, is_id
from guildhall.jobs.model import Dispatch
from tests.jobs.job_hall import LATE, call, say, submit

if TYPE_CHECKING:
    from tests.jobs.job_hall import JobHall


@pytest.mark.req("WD-5", "WD-20", "WD-21")
def test_a_dispatch_returns_at_once_and_the_job_continues(job_hall: JobHall) -> None:
    job_hall.script(
        [
            call("update_summary", summary="half of it"),
            call("record_decision", question="Which metal?", decision="iron", reasoning="it is there"),
            call("log_question", question="For which door?\n\n---\n## really"),
            call("write_artifact", path="plans/key.md", content="# Key\n"),
            submit("a key", artifacts=["plans/key.md"]),
            say(),
        ]
    )

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.dispatch("Forge a key.\n", "a key for Ada", metal="iron", maxTurns=20)
        assert job.status == "running"
        assert is_id(job.id, JOB)
        with pytest.raises(NotFinished) as error:
            job_hall.jobs.result(job.id)
        assert error.value.as_dict()["status"] == "running"
        ended = await job_hall.ended(job.id)
        assert (ended.status, ended.error, ended.late_error) == ("completed", None, None)
        assert job_hall.jobs.result(job.id).as_wire() == {
            "jobId": job.id,
            "output": "a key",
            "artifacts": ["artifacts/plans/key.md"],
        }
        shown = job_hall.jobs.status(job.id).as_wire()
        assert shown == {
            "jobId": job.id,
            "status": "completed",
            "description": "a key for Ada",
            "summary": "half of it",
            "questions": ["For which door?\n\n---\n## really"],
            "decisions": [{"question": "Which metal?", "decision": "iron", "reasoning": "it is there"}],
            "error": None,
            "startedAt": job.started_at,
            "completedAt": ended.completed_at,
        }
        files = job_hall.files(job.id)
        assert files["task.md"] == "Forge a key.\n"
        assert json.loads(files["config.json"]) == {"metal": "iron", "maxTurns": 20}
        assert json.loads(files["meta.json"])["status"] == "completed"
        assert files["status.md"] == "half of it"
        assert files["result.md"] == "a key"
        assert files["artifacts/plans/key.md"] == "# Key\n"
        assert set(files) == {
            *("task.md", "config.json", "meta.json", "status.md", "result.md"),
            *("questions.md", "decisions.json", "artifacts/plans/key.md"),
        }

    job_hall.run(work)


@pytest.mark.req("WD-14", "WD-44")
def test_a_failed_job_has_an_error_and_no_result(job_hall: JobHall) -> None:
    job_hall.script([{"fail": 400}])

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.done()
        assert (job.status, job.completed_at is not None) == ("failed", True)
        assert "400" in (job.error or "")
        assert job_hall.jobs.status(job.id).as_wire()["error"] == job.error
        with pytest.raises(NotFinished) as error:
            job_hall.jobs.result(job.id)
        assert (error.value.job, error.value.status) == (job.id, "failed")

    job_hall.run(work)


@pytest.mark.req("WD-32", "WD-44")
@pytest.mark.parametrize(
    ("config", "price", "said"), [({"maxTurns": 2}, None, "max_turns"), ({"maxBudgetUsd": 0.01}, 1000.0, "max_budget")]
)
def test_turns_and_budget_of_the_dispatch_limit_the_job(job_hall: JobHall, config: Any, price: Any, said: str) -> None:
    turn = {**call("update_summary", summary="more"), "usage": {"input": 5, "output": 5}}
    job_hall.script([turn] * 5, price={"input": price, "output": price} if price else None)

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.done(**config)
        assert job.status == "failed"
        assert said in (job.error or "")

    job_hall.run(work)


def test_a_resumed_job_keeps_its_id(job_hall: JobHall) -> None:
    job_hall.script([call("update_summary", summary="one"), call("update_summary", summary="two"), submit(), say()])

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.done(maxTurns=2)
        assert (job.status, job.summary) == ("failed", "two")
        async for event in job_hall.client.runs.resume(job.run, job_hall.frame, max_turns=10):
            if event.type == "run_started":
                assert job_hall.jobs.get(job.id).status == "running"
                assert job_hall.jobs.get(job.id).completed_at is None
        job = job_hall.jobs.get(job.id)
        assert (job.status, job.error) == ("completed", None)
        assert job_hall.jobs.result(job.id).output == "the result"

    job_hall.run(work)


def test_the_final_message_is_the_result_without_a_submitted_result(job_hall: JobHall) -> None:
    job_hall.script([say("just said")])

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.done()
        assert job_hall.jobs.result(job.id).as_wire() == {"jobId": job.id, "output": "just said", "artifacts": None}

    job_hall.run(work)


def test_an_error_after_the_result_does_not_discard_it(job_hall: JobHall) -> None:
    job_hall.script([submit("kept"), {"fail": 400}])

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.done()
        assert (job.status, job.error) == ("completed", None)
        assert "400" in (job.late_error or "")
        assert json.loads(job_hall.files(job.id)["meta.json"])["lateError"] == job.late_error
        assert job_hall.jobs.result(job.id).output == "kept"
        assert (await job_hall.client.runs.replay(job.run, job_hall.frame)).matches

    job_hall.run(work)


@pytest.mark.req("WD-17", "WD-18")
def test_only_completed_and_cancelled_jobs_are_deleted(job_hall: JobHall) -> None:
    async def work(job_hall: JobHall) -> None:
        job_hall.script([say()])
        completed = (await job_hall.done()).id
        job_hall.script([LATE])
        cancelled = (await job_hall.dispatch()).id
        await job_hall.jobs.cancel(cancelled)
        for job in (completed, cancelled):
            await job_hall.jobs.delete(job)
            assert not (job_hall.home.jobs / job).exists()
            for look in (job_hall.jobs.get, job_hall.jobs.status, job_hall.jobs.result):
                with pytest.raises(UnknownJob):
                    look(job)
        job_hall.script([{"fail": 400}])
        failed = (await job_hall.done()).id
        job_hall.script([LATE])
        running = (await job_hall.dispatch()).id
        for job, said in ((failed, "it failed"), (running, "is running")):
            with pytest.raises(NotDeletable, match=said):
                await job_hall.jobs.delete(job)
            assert (job_hall.home.jobs / job / "meta.json").exists()
        await job_hall.jobs.delete(failed, force=True)
        with pytest.raises(NotDeletable):
            await job_hall.jobs.delete(running, force=True)
        assert [job.id for job in job_hall.jobs.page().jobs] == [running]

    job_hall.run(work)


def test_the_run_of_a_deleted_job_is_not_resumed(job_hall: JobHall) -> None:
    job_hall.script([{"fail": 400}])

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.done()
        await job_hall.jobs.delete(job.id, force=True)
        with pytest.raises(GuildError, match="was deleted"):
            await job_hall.hall.main.prepare_resume(job.run, job_hall.frame)

    job_hall.run(work)


@pytest.mark.req("WD-31", "WD-34", "WD-6")
def test_a_worker_in_a_job_has_job_tools_read_tools_and_instructions(job_hall: JobHall) -> None:
    job_hall.worker(tools=["Bash", "Grep"], sandboxes={"data": {"path": "."}})
    job_hall.script([say()])

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.done(task="Forge it.", metal="iron", nested={"a": [1]}, maxTurns=9, artifacts=[])
        first = job_hall.hall.history.entries(job.run)[0].data
        names = [tool["name"] for tool in first.tools]
        assert {"update_summary", "log_question", "store_memory", "write_artifact", "submit_result"} < set(names)
        assert names.count("record_decision") == 1
        assert {"Read", "Grep", "Glob", "Bash"} < set(names)
        assert "memory_write" not in names, "a job has store_memory"
        assert not {"Write", "Edit", "sandbox_write_text"} & set(names)
        assert first.system_prompt.startswith("You forge things.\n\n")
        for tool in ("update_summary", "record_decision", "log_question", "store_memory", "submit_result"):
            assert f"- {tool}: " in first.system_prompt
        assert first.first_message.startswith("Forge it.\n\n")
        shown = json.loads(first.first_message.partition("as JSON:\n")[2])
        assert shown == {"metal": "iron", "nested": {"a": [1]}}
        assert first.bounds["max_turns"] == 9

    job_hall.run(work)


@pytest.mark.req("WD-31")
@pytest.mark.parametrize(
    ("declared", "named"),
    [
        ({"tools": ["Write"]}, "it has the tool Write"),
        ({"tools": ["Read", "Edit", "Write"]}, "it has the tool Write and the tool Edit"),
        ({"sandboxes": {"out": {"path": "out", "mode": "rw"}}}, r"it has a writable sandbox \(out\)"),
    ],
)
def test_a_worker_that_writes_is_refused_as_a_job(job_hall: JobHall, declared: Any, named: str) -> None:
    job_hall.worker(**declared)
    job_hall.script([say()])

    async def work(job_hall: JobHall) -> None:
        with pytest.raises(Refused, match=named):
            await job_hall.dispatch()
        assert not job_hall.home.jobs.exists()
        assert job_hall.hall.history.recent() == []

    job_hall.run(work)


HOSTILE: list[dict[str, Any]] = [
    {"description": ""},
    {"description": " \n"},
    {"description": "two\nlines"},
    {"description": "\x1b[31mred"},
    {"description": "x" * 1001},
    {"description": 3},
    {"task": ""},
    {"task": "a\0b"},
    {"task": "\ud800"},
    {"task": "x" * 1_000_001},
    {"task": None},
    {"config": []},
    {"config": None},
    {"config": "{}"},
    {"config": {"a": "x" * 100_001}},
    {"config": {"a": float("nan")}},
    {"config": {"a": {1, 2}}},
    {"config": {"a": "\ud800"}},
    {"config": {"maxTurns": 0}},
    {"config": {"maxTurns": "9"}},
    {"config": {"maxTurns": True}},
    {"config": {"maxTurns": 1.5}},
    {"config": {"maxBudgetUsd": -1}},
    {"config": {"maxBudgetUsd": "1"}},
    {"config": {"model": 3}},
    {"config": {"model": ""}},
    {"config": {"artifacts": "report.md"}},
    {"config": {"artifacts": ["../report.md"]}},
    {"config": {"artifacts": [3]}},
    {"config": {"artifacts": ["/etc/passwd"]}},
    {"config": {"artifacts": [f"{n}.md" for n in range(101)]}},
]


def test_an_invalid_dispatch_creates_nothing(job_hall: JobHall) -> None:
    job_hall.script([say()])
    deep: Any = []
    for _ in range(2000):
        deep = [deep]

    async def work(job_hall: JobHall) -> None:
        for wrong in (*HOSTILE, {"config": {"a": deep}}):
            asked: Any = {"description": "a key", "task": "Forge it.", "config": {}, **wrong}
            with pytest.raises(UsageError):
                await job_hall.jobs.dispatch("smith", Dispatch(**asked), job_hall.frame)
        for unusable in ({"model": "nobody:nothing"}, {"maxBudgetUsd": 1.0}):  # no such model; one without a price
            with pytest.raises(ModelUnusable):
                await job_hall.dispatch(**unusable)
        with pytest.raises(NotFound):
            await job_hall.jobs.dispatch("nobody", Dispatch(description="a", task="b"), job_hall.frame)
        job_hall.worker(status="retired")
        with pytest.raises(WorkerRetired):
            await job_hall.dispatch()
        assert job_hall.hall.history.recent() == []
        assert job_hall.jobs.page().jobs == []

    job_hall.run(work)
    assert not job_hall.home.jobs.exists() or list(job_hall.home.jobs.iterdir()) == []


@pytest.mark.req("WD-7")
def test_job_ids_are_unique(job_hall: JobHall) -> None:
    job_hall.script([say()])

    async def work(job_hall: JobHall) -> None:
        jobs = [await job_hall.done(description=f"job {n}") for n in range(5)]
        assert len({job.id for job in jobs}) == 5
        assert all(job.id.isascii() and "/" not in job.id and is_id(job.id, JOB) for job in jobs)

    job_hall.run(work)


@pytest.mark.parametrize(
    "id", ["", "x", "../..", "j-", "j-2345678923", "j-" + "2" * 500, "r-2345678923", "\0", "j-ABCDEFGHJK"]
)
def test_an_invalid_id_is_an_unknown_job(job_hall: JobHall, id: str) -> None:
    async def work(job_hall: JobHall) -> None:
        for look in (job_hall.jobs.get, job_hall.jobs.status, job_hall.jobs.result):
            with pytest.raises(UnknownJob):
                look(id)
        with pytest.raises(UnknownJob):
            await job_hall.jobs.cancel(id)
        with pytest.raises(UnknownJob):
            await job_hall.jobs.delete(id, force=True)

    job_hall.run(work)


def test_removing_the_directory_of_a_running_job_is_harmless(job_hall: JobHall) -> None:
    job_hall.script(
        [call("update_summary", summary="one"), {"sleep": 0.1, **call("update_summary", summary="two")}, say()]
    )

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.dispatch()
        await job_hall.until(lambda: job_hall.jobs.get(job.id).summary)
        shutil.rmtree(job_hall.home.jobs / job.id)
        await job_hall.until(lambda: not job_hall.hall.runs.is_alive(job.run))
        with pytest.raises(UnknownJob):
            job_hall.jobs.get(job.id)
        assert job_hall.jobs.page().jobs == []
        run = job_hall.hall.history.get(job.run)
        assert run.status == "failed"
        assert not (job_hall.home.jobs / job.id).exists()

    job_hall.run(work)


def test_memory_of_a_job_is_available_to_the_next_job(job_hall: JobHall) -> None:
    job_hall.script(
        [call("store_memory", key="door", content="It is green."), call("store_memory", key="../x", content="y"), say()]
    )

    async def work(job_hall: JobHall) -> None:
        first = await job_hall.done()
        results = [e.data.result for e in job_hall.hall.history.entries(first.run) if e.kind == "tool_ended"]
        assert [result["is_error"] for result in results] == [False, True]
        second = await job_hall.done()
        assert "It is green." in job_hall.hall.history.entries(second.run)[0].data.system_prompt

    job_hall.run(work)


def test_a_job_is_replayed_but_not_forked_or_used_as_a_script(job_hall: JobHall) -> None:
    job_hall.script([submit("a key"), say()])

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.done()
        assert job_hall.hall.history.get(job.run).output == "a key"
        assert (await job_hall.client.runs.replay(job.run, job_hall.frame)).matches
        with pytest.raises(GuildError, match="cannot fork"):
            await job_hall.client.runs.fork(job.run, 1, job_hall.frame)
        assert "Left out: the test" in await job_hall.client.runs.script(job.run)

    job_hall.run(work)


def test_an_unwritten_end_is_repaired_when_the_job_is_read(job_hall: JobHall) -> None:
    job_hall.script([call("update_summary", summary="one"), {"sleep": 0.1, **say()}])

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.dispatch()
        await job_hall.until(lambda: job_hall.jobs.get(job.id).summary)
        draft = job_hall.home.jobs / job.id / ".meta.json.new"
        draft.mkdir()  # in the way, as a full disk would be
        await job_hall.until(lambda: not job_hall.hall.runs.is_alive(job.run))
        assert job_hall.jobs.status(job.id).job.status == "running"
        draft.rmdir()
        assert job_hall.jobs.status(job.id).job.status == "completed"
        assert job_hall.jobs.result(job.id).output == "done"
        assert job_hall.jobs.get(job.id).status == "completed"

    job_hall.run(work)


def test_a_dispatch_without_a_directory_creates_no_job(job_hall: JobHall) -> None:
    job_hall.script([say()])

    async def work(job_hall: JobHall) -> None:
        job_hall.home.jobs.write_text("in the way")
        with pytest.raises(GuildError, match="cannot create the job"):
            await job_hall.dispatch()
        assert job_hall.hall.history.recent() == []
        assert job_hall.jobs.page().jobs == []

    job_hall.run(work)


def test_a_description_can_be_in_any_language(job_hall: JobHall) -> None:
    job_hall.script([say()])

    async def work(job_hall: JobHall) -> None:
        label = "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{PERSONAL COMPUTER}\N{NO-BREAK SPACE}" + "\N{HIRAGANA LETTER A}" * 990
        job = await job_hall.done(description=label)
        assert job_hall.jobs.page(filter="*\N{HIRAGANA LETTER A}").jobs == [job]
        assert job.description == label

    job_hall.run(work)
