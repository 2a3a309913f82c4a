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
from tests.jobs.shop import LATE, call, say, submit

if TYPE_CHECKING:
    from tests.jobs.shop import Shop


@pytest.mark.req("WD-5", "WD-20", "WD-21")
def test_a_dispatch_is_answered_at_once_and_the_work_goes_on(shop: Shop) -> None:
    shop.script(
        [
            call("update_summary", summary="half of it"),
            call("record_decision", question="Which metal?", decision="iron", reasoning="it is there"),
            call("log_question", question="For which door?\n\n---\n## really"),
            call("write_artifact", path="plans/key.md", content="# Key\n"),
            submit("a key", artifacts=["plans/key.md"]),
            say(),
        ]
    )

    async def work(shop: Shop) -> None:
        job = await shop.dispatch("Forge a key.\n", "a key for Ada", metal="iron", maxTurns=20)
        assert job.status == "running"
        assert is_id(job.id, JOB)
        with pytest.raises(NotFinished) as error:
            shop.jobs.result(job.id)
        assert error.value.as_dict()["status"] == "running"
        ended = await shop.ended(job.id)
        assert (ended.status, ended.error, ended.late_error) == ("completed", None, None)
        assert shop.jobs.result(job.id).as_wire() == {
            "jobId": job.id,
            "output": "a key",
            "artifacts": ["artifacts/plans/key.md"],
        }
        shown = shop.jobs.status(job.id).as_wire()
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
        files = shop.files(job.id)
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

    shop.inside(work)


@pytest.mark.req("WD-14", "WD-44")
def test_a_job_that_fails_says_why_and_has_no_result(shop: Shop) -> None:
    shop.script([{"fail": 400}])

    async def work(shop: Shop) -> None:
        job = await shop.done()
        assert (job.status, job.completed_at is not None) == ("failed", True)
        assert "400" in (job.error or "")
        assert shop.jobs.status(job.id).as_wire()["error"] == job.error
        with pytest.raises(NotFinished) as error:
            shop.jobs.result(job.id)
        assert (error.value.job, error.value.status) == (job.id, "failed")

    shop.inside(work)


@pytest.mark.req("WD-32", "WD-44")
@pytest.mark.parametrize(
    ("config", "price", "said"), [({"maxTurns": 2}, None, "max_turns"), ({"maxBudgetUsd": 0.01}, 1000.0, "max_budget")]
)
def test_turns_and_dollars_of_the_dispatch_bound_the_job(shop: Shop, config: Any, price: Any, said: str) -> None:
    turn = {**call("update_summary", summary="more"), "usage": {"input": 5, "output": 5}}
    shop.script([turn] * 5, price={"input": price, "output": price} if price else None)

    async def work(shop: Shop) -> None:
        job = await shop.done(**config)
        assert job.status == "failed"
        assert said in (job.error or "")

    shop.inside(work)


def test_a_failed_job_goes_on_under_the_same_id(shop: Shop) -> None:
    shop.script([call("update_summary", summary="one"), call("update_summary", summary="two"), submit(), say()])

    async def work(shop: Shop) -> None:
        job = await shop.done(maxTurns=2)
        assert (job.status, job.summary) == ("failed", "two")
        async for event in shop.client.runs.resume(job.run, shop.frame, max_turns=10):
            if event.type == "run_started":
                assert shop.jobs.get(job.id).status == "running"
                assert shop.jobs.get(job.id).completed_at is None
        job = shop.jobs.get(job.id)
        assert (job.status, job.error) == ("completed", None)
        assert shop.jobs.result(job.id).output == "the result"

    shop.inside(work)


def test_a_result_that_was_not_submitted_is_the_last_answer(shop: Shop) -> None:
    shop.script([say("just said")])

    async def work(shop: Shop) -> None:
        job = await shop.done()
        assert shop.jobs.result(job.id).as_wire() == {"jobId": job.id, "output": "just said", "artifacts": None}

    shop.inside(work)


def test_an_error_after_the_result_does_not_discard_it(shop: Shop) -> None:
    shop.script([submit("kept"), {"fail": 400}])

    async def work(shop: Shop) -> None:
        job = await shop.done()
        assert (job.status, job.error) == ("completed", None)
        assert "400" in (job.late_error or "")
        assert json.loads(shop.files(job.id)["meta.json"])["lateError"] == job.late_error
        assert shop.jobs.result(job.id).output == "kept"
        assert (await shop.client.runs.replay(job.run, shop.frame)).matches

    shop.inside(work)


@pytest.mark.req("WD-17", "WD-18")
def test_completed_and_cancelled_jobs_are_deleted_and_no_others(shop: Shop) -> None:
    async def work(shop: Shop) -> None:
        shop.script([say()])
        completed = (await shop.done()).id
        shop.script([LATE])
        cancelled = (await shop.dispatch()).id
        await shop.jobs.cancel(cancelled)
        for job in (completed, cancelled):
            await shop.jobs.delete(job)
            assert not (shop.home.jobs / job).exists()
            for look in (shop.jobs.get, shop.jobs.status, shop.jobs.result):
                with pytest.raises(UnknownJob):
                    look(job)
        shop.script([{"fail": 400}])
        failed = (await shop.done()).id
        shop.script([LATE])
        running = (await shop.dispatch()).id
        for job, said in ((failed, "it failed"), (running, "is running")):
            with pytest.raises(NotDeletable, match=said):
                await shop.jobs.delete(job)
            assert (shop.home.jobs / job / "meta.json").exists()
        await shop.jobs.delete(failed, force=True)
        with pytest.raises(NotDeletable):
            await shop.jobs.delete(running, force=True)
        assert [job.id for job in shop.jobs.page().jobs] == [running]

    shop.inside(work)


def test_the_run_of_a_job_that_was_deleted_does_not_go_on(shop: Shop) -> None:
    shop.script([{"fail": 400}])

    async def work(shop: Shop) -> None:
        job = await shop.done()
        await shop.jobs.delete(job.id, force=True)
        with pytest.raises(GuildError, match="was deleted"):
            await shop.hall.main.prepare_resume(job.run, shop.frame)

    shop.inside(work)


@pytest.mark.req("WD-31", "WD-34", "WD-6")
def test_a_worker_in_a_job_has_its_tools_and_reads_and_is_told_how(shop: Shop) -> None:
    shop.worker(tools=["Bash", "Grep"], sandboxes={"data": {"path": "."}})
    shop.script([say()])

    async def work(shop: Shop) -> None:
        job = await shop.done(task="Forge it.", metal="iron", nested={"a": [1]}, maxTurns=9, artifacts=[])
        first = shop.hall.history.entries(job.run)[0].data
        names = [tool["name"] for tool in first.tools]
        assert {"update_summary", "log_question", "store_memory", "write_artifact", "submit_result"} < set(names)
        assert names.count("record_decision") == 1
        assert {"Read", "Grep", "Glob", "Bash", "memory_read"} < set(names)
        assert not {"Write", "Edit", "sandbox_write_text"} & set(names)
        assert first.system_prompt.startswith("You forge things.\n\n")
        for tool in ("update_summary", "record_decision", "log_question", "store_memory", "submit_result"):
            assert f"- {tool}: " in first.system_prompt
        assert first.first_message.startswith("Forge it.\n\n")
        shown = json.loads(first.first_message.partition("as JSON:\n")[2])
        assert shown == {"metal": "iron", "nested": {"a": [1]}}
        assert first.bounds["max_turns"] == 9

    shop.inside(work)


@pytest.mark.req("WD-31")
@pytest.mark.parametrize(
    ("declared", "named"),
    [
        ({"tools": ["Write"]}, "it has the tool Write"),
        ({"tools": ["Read", "Edit", "Write"]}, "it has the tool Write and the tool Edit"),
        ({"sandboxes": {"out": {"path": "out", "mode": "rw"}}}, r"it has a writable sandbox \(out\)"),
    ],
)
def test_a_worker_that_writes_takes_no_job(shop: Shop, declared: Any, named: str) -> None:
    shop.worker(**declared)
    shop.script([say()])

    async def work(shop: Shop) -> None:
        with pytest.raises(Refused, match=named):
            await shop.dispatch()
        assert not shop.home.jobs.exists()
        assert shop.hall.history.recent() == []

    shop.inside(work)


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


def test_what_cannot_be_a_dispatch_is_refused_before_anything_is_made(shop: Shop) -> None:
    shop.script([say()])
    deep: Any = []
    for _ in range(2000):
        deep = [deep]

    async def work(shop: Shop) -> None:
        for wrong in (*HOSTILE, {"config": {"a": deep}}):
            asked: Any = {"description": "a key", "task": "Forge it.", "config": {}, **wrong}
            with pytest.raises(UsageError):
                await shop.jobs.dispatch("smith", Dispatch(**asked), shop.frame)
        for unusable in ({"model": "nobody:nothing"}, {"maxBudgetUsd": 1.0}):  # no such model; one without a price
            with pytest.raises(ModelUnusable):
                await shop.dispatch(**unusable)
        with pytest.raises(NotFound):
            await shop.jobs.dispatch("nobody", Dispatch(description="a", task="b"), shop.frame)
        shop.worker(status="retired")
        with pytest.raises(WorkerRetired):
            await shop.dispatch()
        assert shop.hall.history.recent() == []
        assert shop.jobs.page().jobs == []

    shop.inside(work)
    assert not shop.home.jobs.exists() or list(shop.home.jobs.iterdir()) == []


@pytest.mark.req("WD-7")
def test_ids_are_never_the_same(shop: Shop) -> None:
    shop.script([say()])

    async def work(shop: Shop) -> None:
        jobs = [await shop.done(description=f"job {n}") for n in range(5)]
        assert len({job.id for job in jobs}) == 5
        assert all(job.id.isascii() and "/" not in job.id and is_id(job.id, JOB) for job in jobs)

    shop.inside(work)


@pytest.mark.parametrize(
    "id", ["", "x", "../..", "j-", "j-2345678923", "j-" + "2" * 500, "r-2345678923", "\0", "j-ABCDEFGHJK"]
)
def test_an_id_that_is_none_is_an_unknown_job(shop: Shop, id: str) -> None:
    async def work(shop: Shop) -> None:
        for look in (shop.jobs.get, shop.jobs.status, shop.jobs.result):
            with pytest.raises(UnknownJob):
                look(id)
        with pytest.raises(UnknownJob):
            await shop.jobs.cancel(id)
        with pytest.raises(UnknownJob):
            await shop.jobs.delete(id, force=True)

    shop.inside(work)


def test_a_directory_that_is_taken_away_while_the_job_runs_harms_nobody(shop: Shop) -> None:
    shop.script([call("update_summary", summary="one"), {"sleep": 0.1, **call("update_summary", summary="two")}, say()])

    async def work(shop: Shop) -> None:
        job = await shop.dispatch()
        await shop.until(lambda: shop.jobs.get(job.id).summary)
        shutil.rmtree(shop.home.jobs / job.id)
        await shop.until(lambda: not shop.hall.runs.is_alive(job.run))
        with pytest.raises(UnknownJob):
            shop.jobs.get(job.id)
        assert shop.jobs.page().jobs == []
        run = shop.hall.history.get(job.run)
        assert run.status == "failed"
        assert not (shop.home.jobs / job.id).exists()

    shop.inside(work)


def test_what_a_job_stores_is_known_to_the_next_one(shop: Shop) -> None:
    shop.script(
        [call("store_memory", key="door", content="It is green."), call("store_memory", key="../x", content="y"), say()]
    )

    async def work(shop: Shop) -> None:
        first = await shop.done()
        results = [e.data.result for e in shop.hall.history.entries(first.run) if e.kind == "tool_ended"]
        assert [result["is_error"] for result in results] == [False, True]
        second = await shop.done()
        assert "It is green." in shop.hall.history.entries(second.run)[0].data.system_prompt

    shop.inside(work)


def test_a_job_is_no_script_and_no_fork_and_its_replay_is_the_same(shop: Shop) -> None:
    shop.script([submit("a key"), say()])

    async def work(shop: Shop) -> None:
        job = await shop.done()
        assert shop.hall.history.get(job.run).output == "a key"
        assert (await shop.client.runs.replay(job.run, shop.frame)).matches
        with pytest.raises(GuildError, match="cannot fork"):
            await shop.client.runs.fork(job.run, 1, shop.frame)
        assert "Left out: the test" in await shop.client.runs.script(job.run)

    shop.inside(work)


def test_an_end_that_could_not_be_written_down_is_made_good_when_the_job_is_looked_at(shop: Shop) -> None:
    shop.script([call("update_summary", summary="one"), {"sleep": 0.1, **say()}])

    async def work(shop: Shop) -> None:
        job = await shop.dispatch()
        await shop.until(lambda: shop.jobs.get(job.id).summary)
        draft = shop.home.jobs / job.id / ".meta.json.new"
        draft.mkdir()  # in the way, as a full disk would be
        await shop.until(lambda: not shop.hall.runs.is_alive(job.run))
        assert shop.jobs.status(job.id).job.status == "running"
        draft.rmdir()
        assert shop.jobs.status(job.id).job.status == "completed"
        assert shop.jobs.result(job.id).output == "done"
        assert shop.jobs.get(job.id).status == "completed"

    shop.inside(work)


def test_where_no_directory_can_be_made_there_is_no_job(shop: Shop) -> None:
    shop.script([say()])

    async def work(shop: Shop) -> None:
        shop.home.jobs.write_text("in the way")
        with pytest.raises(GuildError, match="cannot create the job"):
            await shop.dispatch()
        assert shop.hall.history.recent() == []
        assert shop.jobs.page().jobs == []

    shop.inside(work)


def test_a_label_may_be_in_any_language(shop: Shop) -> None:
    shop.script([say()])

    async def work(shop: Shop) -> None:
        label = "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{PERSONAL COMPUTER}\N{NO-BREAK SPACE}" + "\N{HIRAGANA LETTER A}" * 990
        job = await shop.done(description=label)
        assert shop.jobs.page(filter="*\N{HIRAGANA LETTER A}").jobs == [job]
        assert job.description == label

    shop.inside(work)
