"""A job from its dispatch to its result, as its directory and the wire show it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import NotFinished
from guildhall.core.ids import JOB, is_id
from tests.jobs.shop import call, say, submit

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
