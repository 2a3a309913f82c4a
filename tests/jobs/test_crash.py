"""Killed at any step of its life, a job is whole at the next start, or was never one; none stays running for ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.runs.model import ENDED
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

STRIDE = "1" if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else "3"
FILES = {
    *("task.md", "config.json", "meta.json", "status.md", "result.md", "questions.md", "decisions.json"),
    "artifacts/report.md",
}


@pytest.mark.req("WD-47")
@pytest.mark.timeout(180)
def test_killed_at_any_step_a_job_is_whole_or_was_never_one(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.jobs.crash", str(tmp_path), STRIDE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lives = [json.loads(line) for line in done.stdout.splitlines()]
    assert lives[-1]["code"] == 0, "the last life is one that nobody has disturbed"
    assert lives[-1]["jobs"] == []
    assert len(lives) > 15
    assert {life["code"] for life in lives[:-1]} == {-9}
    for life in lives:
        judge(life)


def judge(life: dict[str, Any]) -> None:
    heard, jobs = life["heard"], life["jobs"]
    assert life["stray"] == [], life
    assert set(life["runs"]) <= ENDED, life
    if not heard:
        assert len(jobs) <= 1, life
    elif "ended" not in heard:
        assert [job["jobId"] for job in jobs] == [heard[0]], life
    assert life["asks"] == ["Which door?"] * len(jobs), life
    for job in jobs:
        assert (job["status"], job["error"], job["output"]) == ("completed", None, "a key"), life
        assert job["summary"] == "half of it"
        assert job["questions"] == ["Which door?"]
        assert job["decisions"] == [{"question": "metal?", "decision": "iron", "reasoning": "there"}]
        assert set(job["files"]) == FILES
