"""Killed at any step of its life, a job is whole at the next start, or was never one; none stays running for ever."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.runs.model import ENDED

if TYPE_CHECKING:
    from pathlib import Path

    from tests.warm import WarmProcess

STRIDE = "1" if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else "8"
FILES = {
    *("task.md", "config.json", "meta.json", "status.md", "result.md", "questions.md", "decisions.json"),
    "artifacts/report.md",
}


def lives(warm: WarmProcess, folder: Path, scene: str) -> list[dict[str, Any]]:
    """Return the outcome of each job. The last job is undisturbed."""
    printed = warm.perform("tests.jobs.crash", folder, STRIDE, scene)
    found = [json.loads(line) for line in printed.splitlines()]
    assert [life["code"] for life in found] == [1 if scene == "full" else -9] * (len(found) - 1) + [0]
    for life in found:
        assert life["stray"] == [], life
        assert set(life["runs"]) <= ENDED, life
        assert len(life["jobs"]) <= 1, life
        if life["heard"] and scene in ("question", "cancel"):
            assert [job["jobId"] for job in life["jobs"]] == life["heard"][:1], life
    return found


@pytest.mark.req("WD-47")
@pytest.mark.timeout(180)
def test_a_job_killed_at_any_step_is_complete_or_absent(warm: WarmProcess, tmp_path: Path) -> None:
    every = lives(warm, tmp_path, "life")
    assert len(every) > 7
    assert every[-1]["jobs"] == []
    for life in every:
        heard, jobs = life["heard"], life["jobs"]
        if heard and "ended" not in heard:
            assert [job["jobId"] for job in jobs] == [heard[0]], life
        assert life["asks"] == ["Which door?"] * len(jobs), life
        for job in jobs:
            assert (job["status"], job["error"], job["output"]) == ("completed", None, "a key"), life
            assert job["summary"] == "half of it"
            assert job["questions"] == ["Which door?"]
            assert job["decisions"] == [{"question": "metal?", "decision": "iron", "reasoning": "there"}]
            assert set(job["files"]) == FILES


@pytest.mark.timeout(180)
def test_a_question_killed_at_any_step_is_asked_and_answered_once(warm: WarmProcess, tmp_path: Path) -> None:
    for life in lives(warm, tmp_path, "question"):
        assert life["asks"] == [], life
        for job in life["jobs"]:
            assert (job["status"], job["output"]) == ("completed", "a key"), life
            assert [(one["question"], one["answer"]) for one in job["asked"]] == [("Which door?", "the front one")], (
                life
            )
            assert [text for text in job["told"] if "front" in text] == ["The user answered: the front one"], life


@pytest.mark.timeout(180)
def test_a_cancel_killed_at_any_step_affects_only_its_job(warm: WarmProcess, tmp_path: Path) -> None:
    every = lives(warm, tmp_path, "cancel")
    assert every[-1]["heard"][1:] == ["cancelled"]
    for life in every:
        for job in life["jobs"]:
            assert job["status"] in ("completed", "cancelled"), life
            assert life["runs"] == [job["status"]], life
            assert (job["output"] == "a key") == (job["status"] == "completed"), life
            if life["heard"][1:]:
                assert job["status"] == life["heard"][1], life


@pytest.mark.timeout(180)
def test_a_job_on_a_full_disk_is_refused_or_reports_the_problem(warm: WarmProcess, tmp_path: Path) -> None:
    every = lives(warm, tmp_path, "full")
    assert any(life["heard"] == ["refused"] for life in every)
    for life in every:
        if life["heard"] == ["refused"]:
            assert life["jobs"] == [], life
            continue
        (job,) = life["jobs"]
        assert job["jobId"] == life["heard"][0], life
        assert job["status"] == "completed" or "No space left" in job["error"], life
        assert job["questions"] == ["Which door?"], life
        assert not any(str(tmp_path) in text for text in job["told"]), life
        assert life["runs"] == [job["status"]], life
