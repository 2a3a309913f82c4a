"""Completion is a contract: what a job must give is checked before it is called completed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import InvalidFile
from tests.jobs.job_hall import call, say, submit

if TYPE_CHECKING:
    from tests.jobs.job_hall import JobHall

REPORT = call("write_artifact", path="report.md", content="# Report")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "parts": {"type": "array", "items": {"$ref": "#/$defs/part"}}},
    "required": ["title"],
    "additionalProperties": False,
    "$defs": {"part": {"type": "object", "required": ["name"]}},
}


def results(job_hall: JobHall, run: str | None) -> list[tuple[bool, str]]:
    """Return the tool results as pairs of is_error and text."""
    ends = [e.data.result for e in job_hall.hall.history.entries(run) if e.kind in ("tool_ended", "tool_refused")]
    return [(end["is_error"], end["content"][0]["text"]) for end in ends]


@pytest.mark.req("X-6", "WD-15")
def test_a_result_with_missing_artifacts_is_rejected_with_their_names(job_hall: JobHall) -> None:
    job_hall.worker(completion={"artifacts": ["report.md"]})
    job_hall.script(
        [
            submit("early"),
            REPORT,
            submit("again"),
            call("write_artifact", path="b/a.csv", content=""),
            submit("whole"),
            say(),
        ]
    )

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.done(artifacts=["artifacts/b/a.csv"])
        told = results(job_hall, job.run)
        assert [error for error, _ in told] == [True, False, True, False, False]
        assert "report.md is missing; the artifact b/a.csv is missing" in told[0][1]
        assert "report.md" not in told[2][1]
        assert (job.status, job_hall.jobs.result(job.id).output) == ("completed", "whole")
        assert job_hall.jobs.result(job.id).artifacts == ["artifacts/b/a.csv", "artifacts/report.md"]

    job_hall.run(work)


@pytest.mark.req("X-6")
def test_a_job_without_its_required_artifacts_fails(job_hall: JobHall) -> None:
    job_hall.script([say("I think it is done")])

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.done(artifacts=["report.md"])
        assert job.status == "failed"
        assert "the artifact report.md is missing" in (job.error or "")
        assert job_hall.files(job.id)["result.md"] == "I think it is done"
        assert job_hall.hall.history.get(job.run).error["code"] == "not_fulfilled"
        assert (await job_hall.client.runs.replay(job.run, job_hall.frame)).matches
        # What is missing can be given by hand.
        job_hall.jobs._index.directory(job.id).write_artifact("report.md", "by hand")
        async for _ in job_hall.client.runs.resume(job.run, job_hall.frame):
            pass
        await job_hall.until(lambda: job_hall.jobs.get(job.id).status == "completed")
        assert job_hall.jobs.result(job.id).output == "I think it is done"

    job_hall.run(work)


@pytest.mark.req("X-6")
@pytest.mark.parametrize(
    "tried", [submit(" "), call("submit_result", result="a key"), submit("a key", artifacts=["x.md"])]
)
def test_a_final_message_does_not_replace_a_rejected_result(job_hall: JobHall, tried: dict[str, Any]) -> None:
    job_hall.script([tried, say("done")])

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.done()
        ((_, why),) = results(job_hall, job.run)
        assert (job.status, job_hall.files(job.id)["result.md"]) == ("failed", "done")
        assert why in (job.error or "")
        assert (await job_hall.client.runs.replay(job.run, job_hall.frame)).matches

    job_hall.run(work)


@pytest.mark.req("X-6")
def test_a_result_must_match_the_schema_of_the_tool(job_hall: JobHall) -> None:
    (job_hall.project / "report.json").write_text(json.dumps(SCHEMA))
    job_hall.worker(output_schema_ref="report.json")
    good = {"title": "Keys", "parts": [{"name": "bit"}]}
    job_hall.script([submit("text"), submit({"parts": []}), submit({"title": "x", "parts": [{}]}), submit(good), say()])

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.done()
        assert [error for error, _ in results(job_hall, job.run)] == [True, True, True, False]
        assert json.loads(job_hall.jobs.result(job.id).output) == good
        first = job_hall.hall.history.entries(job.run)[0].data
        assert first.output_schema is None
        (tool,) = [tool for tool in first.tools if tool["name"] == "submit_result"]
        assert tool["input_schema"]["properties"]["output"]["required"] == ["title"]
        assert tool["input_schema"]["$defs"] == SCHEMA["$defs"]
        assert (await job_hall.client.runs.replay(job.run, job_hall.frame)).matches

    job_hall.run(work)


@pytest.mark.parametrize(
    ("last", "status"),
    [
        ('{"title": "Keys"}', "completed"),
        ('```json\n{"title": "Keys"}\n```', "completed"),
        ('{"name": "Keys"}', "failed"),
        ("Keys", "failed"),
        ("[" * 5000, "failed"),
    ],
)
def test_a_final_message_must_match_the_schema(job_hall: JobHall, last: str, status: str) -> None:
    (job_hall.project / "report.json").write_text(json.dumps(SCHEMA))
    job_hall.worker(output_schema_ref="report.json")
    job_hall.script([say(last)])

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.done()
        assert job.status == status
        if status == "completed":
            assert json.loads(job_hall.files(job.id)["result.md"]) == {"title": "Keys"}
        else:
            assert job_hall.files(job.id)["result.md"] == last

    job_hall.run(work)


def test_a_recursive_schema_is_checked(job_hall: JobHall) -> None:
    tree = {"type": "object", "properties": {"of": {"$ref": "#"}, "name": {"type": "string"}}, "required": ["name"]}
    (job_hall.project / "tree.json").write_text(json.dumps(tree))
    job_hall.worker(output_schema_ref="tree.json")
    job_hall.script([submit({"name": "a", "of": {}}), submit({"name": "a", "of": {"name": "b"}}), say()])

    async def work(job_hall: JobHall) -> None:
        job = await job_hall.done()
        told = results(job_hall, job.run)
        assert [error for error, _ in told] == [True, False]
        assert "'name' is a required property" in told[0][1]
        assert job.status == "completed"

    job_hall.run(work)


def test_an_invalid_artifact_path_in_a_worker_file_is_reported(job_hall: JobHall) -> None:
    job_hall.worker(completion={"artifacts": ["../report.md"]})

    async def work(job_hall: JobHall) -> None:
        with pytest.raises(InvalidFile, match="completion"):
            await job_hall.dispatch()

    job_hall.run(work)
