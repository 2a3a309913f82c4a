"""Completion is a contract: what a job must give is checked before it is called completed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import InvalidFile
from tests.jobs.shop import call, say, submit

if TYPE_CHECKING:
    from tests.jobs.shop import Shop

REPORT = call("write_artifact", path="report.md", content="# Report")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "parts": {"type": "array", "items": {"$ref": "#/$defs/part"}}},
    "required": ["title"],
    "additionalProperties": False,
    "$defs": {"part": {"type": "object", "required": ["name"]}},
}


def results(shop: Shop, run: str | None) -> list[tuple[bool, str]]:
    """Return the tool results as pairs of is_error and text."""
    ends = [e.data.result for e in shop.hall.history.entries(run) if e.kind in ("tool_ended", "tool_refused")]
    return [(end["is_error"], end["content"][0]["text"]) for end in ends]


@pytest.mark.req("X-6", "WD-15")
def test_a_result_without_its_artifacts_is_not_taken_and_the_model_is_told_which(shop: Shop) -> None:
    shop.worker(completion={"artifacts": ["report.md"]})
    shop.script(
        [
            submit("early"),
            REPORT,
            submit("again"),
            call("write_artifact", path="b/a.csv", content=""),
            submit("whole"),
            say(),
        ]
    )

    async def work(shop: Shop) -> None:
        job = await shop.done(artifacts=["artifacts/b/a.csv"])
        told = results(shop, job.run)
        assert [error for error, _ in told] == [True, False, True, False, False]
        assert "report.md is missing; the artifact b/a.csv is missing" in told[0][1]
        assert "report.md" not in told[2][1]
        assert (job.status, shop.jobs.result(job.id).output) == ("completed", "whole")
        assert shop.jobs.result(job.id).artifacts == ["artifacts/b/a.csv", "artifacts/report.md"]

    shop.inside(work)


@pytest.mark.req("X-6")
def test_a_job_that_ends_without_what_it_had_to_give_has_failed(shop: Shop) -> None:
    shop.script([say("I think it is done")])

    async def work(shop: Shop) -> None:
        job = await shop.done(artifacts=["report.md"])
        assert job.status == "failed"
        assert "the artifact report.md is missing" in (job.error or "")
        assert shop.files(job.id)["result.md"] == "I think it is done"
        assert shop.hall.history.get(job.run).error["code"] == "not_fulfilled"
        assert (await shop.client.runs.replay(job.run, shop.frame)).matches
        # What is missing can be given by hand.
        shop.jobs._index.folder(job.id).write_artifact("report.md", "by hand")
        async for _ in shop.client.runs.resume(job.run, shop.frame):
            pass
        await shop.until(lambda: shop.jobs.get(job.id).status == "completed")
        assert shop.jobs.result(job.id).output == "I think it is done"

    shop.inside(work)


@pytest.mark.req("X-6")
@pytest.mark.parametrize(
    "tried", [submit(" "), call("submit_result", result="a key"), submit("a key", artifacts=["x.md"])]
)
def test_a_last_word_does_not_stand_for_a_result_that_was_not_taken(shop: Shop, tried: dict[str, Any]) -> None:
    shop.script([tried, say("done")])

    async def work(shop: Shop) -> None:
        job = await shop.done()
        ((_, why),) = results(shop, job.run)
        assert (job.status, shop.files(job.id)["result.md"]) == ("failed", "done")
        assert why in (job.error or "")
        assert (await shop.client.runs.replay(job.run, shop.frame)).matches

    shop.inside(work)


@pytest.mark.req("X-6")
def test_a_result_fits_its_schema_which_the_tool_shows(shop: Shop) -> None:
    (shop.project / "report.json").write_text(json.dumps(SCHEMA))
    shop.worker(output_schema_ref="report.json")
    good = {"title": "Keys", "parts": [{"name": "bit"}]}
    shop.script([submit("text"), submit({"parts": []}), submit({"title": "x", "parts": [{}]}), submit(good), say()])

    async def work(shop: Shop) -> None:
        job = await shop.done()
        assert [error for error, _ in results(shop, job.run)] == [True, True, True, False]
        assert json.loads(shop.jobs.result(job.id).output) == good
        first = shop.hall.history.entries(job.run)[0].data
        assert first.output_schema is None
        (tool,) = [tool for tool in first.tools if tool["name"] == "submit_result"]
        assert tool["input_schema"]["properties"]["output"]["required"] == ["title"]
        assert tool["input_schema"]["$defs"] == SCHEMA["$defs"]
        assert (await shop.client.runs.replay(job.run, shop.frame)).matches

    shop.inside(work)


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
def test_a_last_answer_is_held_to_the_schema_too(shop: Shop, last: str, status: str) -> None:
    (shop.project / "report.json").write_text(json.dumps(SCHEMA))
    shop.worker(output_schema_ref="report.json")
    shop.script([say(last)])

    async def work(shop: Shop) -> None:
        job = await shop.done()
        assert job.status == status
        if status == "completed":
            assert json.loads(shop.files(job.id)["result.md"]) == {"title": "Keys"}
        else:
            assert shop.files(job.id)["result.md"] == last

    shop.inside(work)


def test_a_schema_that_refers_to_itself_is_held_all_the_same(shop: Shop) -> None:
    tree = {"type": "object", "properties": {"of": {"$ref": "#"}, "name": {"type": "string"}}, "required": ["name"]}
    (shop.project / "tree.json").write_text(json.dumps(tree))
    shop.worker(output_schema_ref="tree.json")
    shop.script([submit({"name": "a", "of": {}}), submit({"name": "a", "of": {"name": "b"}}), say()])

    async def work(shop: Shop) -> None:
        job = await shop.done()
        told = results(shop, job.run)
        assert [error for error, _ in told] == [True, False]
        assert "'name' is a required property" in told[0][1]
        assert job.status == "completed"

    shop.inside(work)


def test_a_file_that_demands_what_cannot_be_is_told(shop: Shop) -> None:
    shop.worker(completion={"artifacts": ["../report.md"]})

    async def work(shop: Shop) -> None:
        with pytest.raises(InvalidFile, match="completion"):
            await shop.dispatch()

    shop.inside(work)
