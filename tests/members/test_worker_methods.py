"""The methods of `worker/*`, by hand over HTTP, of a member with a scripted model: every shape, every error."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.members.member_servers import make_member, serve_member, write_script

if TYPE_CHECKING:
    from pathlib import Path

REPORT = [
    {"call": "update_summary", "with": {"summary": "Half of it is done."}},
    {"call": "record_decision", "with": {"question": "Which?", "decision": "This.", "reasoning": "It is nearer."}},
    {"call": "log_question", "with": {"question": "Who pays?\n---\n# Or who does not?"}},
    {"call": "write_artifact", "with": {"path": "tables/prices.csv", "content": "a,1\n"}},
    {"call": "submit_result", "with": {"output": "All is well."}},
    {"say": "That was it."},
]
WAITS = [{"sleep": 60, "say": "late"}]
FAILS = [{"fail": 400}]


@pytest.mark.req("WD-3", "WD-15", "WD-9")
def test_worker_methods_follow_the_protocol(tmp_path: Path) -> None:
    folder = make_member(tmp_path / "clerk", answers=REPORT)

    async def work() -> None:
        async with serve_member(folder) as member:
            given = await member.worker("dispatch", description="Look at it", task="Look.\n", config={"maxTurns": 20})
            assert set(given) == {"jobId"}
            job = given["jobId"]
            shown = await member.ended(job)
            assert {**shown, "startedAt": "", "completedAt": ""} == {
                "jobId": job,
                "status": "completed",
                "description": "Look at it",
                "summary": "Half of it is done.",
                "questions": ["Who pays?\n---\n# Or who does not?"],
                "decisions": [{"question": "Which?", "decision": "This.", "reasoning": "It is nearer."}],
                "error": None,
                "startedAt": "",
                "completedAt": "",
            }
            assert shown["startedAt"] <= shown["completedAt"]
            assert await member.worker("list") == {"jobs": [{"jobId": job, "status": "completed"}]}
            row = {"jobId": job, "status": "completed", "description": "Look at it", "summary": "Half of it is done."}
            assert await member.worker("list", detail="detailed") == {"jobs": [row]}
            result = {"jobId": job, "output": "All is well.", "artifacts": ["artifacts/tables/prices.csv"]}
            assert await member.worker("result", jobId=job) == result
            assert (folder / "jobs" / job / result["artifacts"][0]).read_text() == "a,1\n"
            assert await member.worker("cancel", jobId=job) == {"jobId": job, "status": "completed"}
            assert await member.worker("delete", jobId=job) == {"jobId": job, "deleted": True}
            assert not (folder / "jobs" / job).exists()
            assert await member.worker("list") == {"jobs": []}

    asyncio.run(work())


@pytest.mark.req("WD-14", "WD-17", "WD-46")
def test_a_job_without_a_result_or_that_cannot_be_deleted_has_its_error_code(tmp_path: Path) -> None:
    folder = make_member(tmp_path / "clerk")
    waits = write_script(tmp_path / "waits.yaml", WAITS)
    fails = write_script(tmp_path / "fails.yaml", FAILS)

    async def work() -> None:
        async with serve_member(folder) as member:
            running = await member.dispatch(model=waits)
            error = await member.refused("result", {"jobId": running})
            assert (error["code"], error["data"]) == (-32000, {"jobId": running, "status": "running"})
            error = await member.refused("delete", {"jobId": running})
            assert (error["code"], "is running" in error["message"]) == (-32602, True)
            assert await member.worker("cancel", jobId=running) == {"jobId": running, "status": "cancelled"}
            assert await member.worker("cancel", jobId=running) == {"jobId": running, "status": "cancelled"}
            error = await member.refused("result", {"jobId": running})
            assert (error["code"], error["data"]) == (-32000, {"jobId": running, "status": "cancelled"})
            shown = await member.worker("status", jobId=running)
            assert (shown["status"], shown["error"], shown["summary"]) == ("cancelled", None, None)
            assert (shown["questions"], shown["decisions"]) == (None, None)

            failed = await member.dispatch(model=fails)
            shown = await member.ended(failed)
            assert shown["status"] == "failed"
            assert "400" in shown["error"]
            error = await member.refused("result", {"jobId": failed})
            assert (error["code"], error["data"]) == (-32000, {"jobId": failed, "status": "failed"})
            error = await member.refused("delete", {"jobId": failed})
            assert (error["code"], "it failed" in error["message"]) == (-32602, True)
            assert (folder / "jobs" / failed).is_dir()
            assert await member.worker("delete", jobId=running) == {"jobId": running, "deleted": True}
            for method in ("status", "result", "cancel", "delete"):
                for id in (running, "j-nothing", "", "../workers", "j-\0", "x" * 10_000, "\ud800", "."):
                    error = await member.refused(method, {"jobId": id})
                    assert error["code"] == -32602, (method, id, error)
                    assert error["message"]
            assert (folder / "workers").is_dir()

    asyncio.run(work())


WRONG: list[tuple[str, Any]] = [
    *((method, {}) for method in ("dispatch", "status", "result", "cancel", "delete")),
    *(
        (method, {"jobId": wrong})
        for method in ("status", "result", "cancel", "delete")
        for wrong in (7, ["x"], {}, True)
    ),
    ("status", {"job_id": "x"}),
    ("dispatch", {"description": "x"}),
    ("dispatch", {"task": "x"}),
    ("dispatch", {"description": "", "task": "x"}),
    ("dispatch", {"description": "x", "task": " \n"}),
    ("dispatch", {"description": "two\nlines", "task": "x"}),
    ("dispatch", {"description": 5, "task": "x"}),
    ("dispatch", {"description": "x", "task": ["x"]}),
    ("dispatch", {"description": "x" * 5_000, "task": "x"}),
    ("dispatch", {"description": "x", "task": "x" * 1_000_001}),
    ("dispatch", {"description": "x", "task": "half \ud800"}),
    ("dispatch", {"description": "x", "task": "nul \0"}),
    ("dispatch", {"description": "x", "task": "x", "config": []}),
    ("dispatch", {"description": "x", "task": "x", "config": "{}"}),
    ("dispatch", {"description": "x", "task": "x", "config": {"maxTurns": 0}}),
    ("dispatch", {"description": "x", "task": "x", "config": {"maxTurns": "9"}}),
    ("dispatch", {"description": "x", "task": "x", "config": {"maxTurns": True}}),
    ("dispatch", {"description": "x", "task": "x", "config": {"maxBudgetUsd": -1}}),
    ("dispatch", {"description": "x", "task": "x", "config": {"maxBudgetUsd": "1"}}),
    ("dispatch", {"description": "x", "task": "x", "config": {"artifacts": ["../x"]}}),
    ("dispatch", {"description": "x", "task": "x", "config": {"artifacts": "x"}}),
    ("dispatch", {"description": "x", "task": "x", "config": {"model": 5}}),
    ("dispatch", {"description": "x", "task": "x", "config": {"long": "x" * 200_000}}),
    ("dispatch", {"description": "x", "task": "x", "worker": "another"}),
    ("list", {"detail": "all"}),
    ("list", {"detail": 1}),
    ("list", {"filter": 5}),
    ("list", {"filter": ["*"]}),
    ("list", {"limit": 0}),
    ("list", {"limit": -1}),
    ("list", {"limit": "5"}),
    ("list", {"limit": 1.5}),
    ("list", {"limit": True}),
    ("list", {"cursor": 5}),
    ("list", {"cursor": "nonsense \ud800"}),
    ("list", {"filtre": "*"}),
]


def test_invalid_parameters_are_refused_without_effect(tmp_path: Path) -> None:
    folder = make_member(tmp_path / "clerk")

    async def work() -> None:
        async with serve_member(folder) as member:
            for method, params in WRONG:
                error = await member.refused(method, params)
                told = (method, str(params)[:100], error)
                assert error["code"] == -32602, told
                assert error["message"], told
            assert await member.worker("list") == {"jobs": []}
            assert not list((folder / "jobs").glob("*")) if (folder / "jobs").exists() else True
            assert "detail" in (await member.refused("list", {"detial": "simple"}))["message"]
            assert "jobs" in await member.worker("list", detail=None, filter=None, limit=None, cursor=None, _meta={})

    asyncio.run(work())


def test_jobs_are_listed_newest_first_by_pattern_and_page_by_page(tmp_path: Path) -> None:
    folder = make_member(tmp_path / "clerk")
    names = ["a/one", "a/two", "B one", "[odd]", "a/three"]

    async def work() -> None:
        async with serve_member(folder) as member:
            jobs = {name: await member.dispatch(description=name) for name in names}
            for job in jobs.values():
                await member.ended(job)
            newest = [jobs[name] for name in reversed(names)]

            async def listed(**params: Any) -> list[str]:
                return [row["jobId"] for row in (await member.worker("list", **params))["jobs"]]

            assert await listed() == newest
            assert await listed(filter="a*") == [jobs["a/three"], jobs["a/two"], jobs["a/one"]]
            assert await listed(filter="*one") == [jobs["B one"], jobs["a/one"]]
            assert await listed(filter="b*") == []
            assert await listed(filter="[[]odd]") == [jobs["[odd]"]]
            assert await listed(filter="one") == []
            seen: list[str] = []
            cursor = None
            for _ in range(3):
                page = await member.worker("list", limit=2, **({"cursor": cursor} if cursor else {}))
                seen += [row["jobId"] for row in page["jobs"]]
                cursor = page.get("nextCursor")
            assert (seen, cursor) == (newest, None)

    asyncio.run(work())


def test_worker_methods_accept_batches_and_notifications(tmp_path: Path) -> None:
    folder = make_member(tmp_path / "clerk")

    async def work() -> None:
        async with serve_member(folder) as member:
            quiet = {"jsonrpc": "2.0", "method": "worker/dispatch", "params": {"description": "quiet", "task": "x"}}
            reply = await member.post(json.dumps(quiet).encode())
            assert (reply.status_code, reply.content) == (202, b"")
            (row,) = (await member.worker("list"))["jobs"]
            await member.ended(row["jobId"])
            batch = [
                {"jsonrpc": "2.0", "id": "a", "method": "worker/status", "params": {"jobId": row["jobId"]}},
                {"jsonrpc": "2.0", "method": "worker/delete", "params": {"jobId": row["jobId"]}},
                {"jsonrpc": "2.0", "id": "b", "method": "worker/status", "params": {"jobId": row["jobId"]}},
                {"jsonrpc": "2.0", "id": "c", "method": "tools/list"},
            ]
            told = (await member.post(json.dumps(batch).encode())).json()
            assert [one["id"] for one in told] == ["a", "b", "c"]
            assert told[0]["result"]["status"] == "completed"
            assert told[1]["error"]["code"] == -32602
            assert told[2]["result"]["tools"][0]["name"] == "add" if told[2]["result"]["tools"] else True

    asyncio.run(work())


def test_an_answer_reaches_waiting_and_running_workers(tmp_path: Path) -> None:
    folder = make_member(tmp_path / "clerk")
    waits = write_script(
        tmp_path / "waits.yaml",
        [
            {"call": "log_question", "with": {"question": "Which of the two?\nA or B?", "wait": True}},
            {"expect": "The second\\.", "say": "the second, then"},
        ],
    )

    async def work() -> None:
        async with serve_member(folder) as member:
            job = await member.dispatch(model=waits)
            async with asyncio.timeout(10):
                while (shown := await member.worker("status", jobId=job))["questions"] is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert (shown["status"], shown["questions"]) == ("running", ["Which of the two?\nA or B?"])
            for wrong in ({}, {"answer": 5}, {"answer": "x", "question": "Which?"}, {"answer": " "}, {"answer": "a\0"}):
                assert (await member.refused("answer", {"jobId": job, **wrong}))["code"] == -32602
            given = await member.worker("answer", jobId=job, answer="The second.")
            assert given == {"jobId": job, "question": "Which of the two?\nA or B?", "answer": "The second."}
            ended = await member.ended(job)
            assert (ended["questions"], "waiting" in ended) == (None, False)
            assert (await member.worker("result", jobId=job))["output"] == "the second, then"
            assert (await member.refused("answer", {"jobId": job, "answer": "Again."}))["code"] == -32602
            assert (await member.refused("answer", {"jobId": "j-none", "answer": "x"}))["code"] == -32602

    asyncio.run(work())
