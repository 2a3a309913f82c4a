"""A draft is run by its name only: dispatch, schedules and commissions refuse it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.projects.commissions.harness import CommissionProject
from tests.runs.places import DONE, put_script, put_worker

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import Guild, GuildWithHall

HINT = "guild worker set scribe active"


def write_draft(project: Path) -> None:
    put_worker(project, sandboxes=None, tool_rules=None, status="draft")
    put_script(project, DONE)


@pytest.mark.req("DO-14")
def test_a_draft_is_run_by_its_name_and_refused_by_dispatch(guild: Guild, project: Path) -> None:
    write_draft(project)
    assert guild("run", "scribe", "go").code == 0
    refused = guild("dispatch", "scribe", "go", "--wait")
    assert refused.code == 4
    assert "is a draft and cannot be used by dispatch" in refused.err
    assert HINT in refused.err
    assert guild("ls", "jobs", "--json").json["jobs"] == []
    assert guild("worker", "set", "scribe", "active").code == 0
    assert guild("dispatch", "scribe", "go", "--wait").code == 0


@pytest.mark.req("DO-14")
def test_a_workflow_that_wakes_a_draft_by_a_schedule_is_refused(guild: Guild, project: Path) -> None:
    write_draft(project)
    flow = {"name": "flow", "agents": {"ann": {"worker": "scribe", "wakeup": "5m"}}, "kickoff": "@ann go"}
    (project / "flow.yaml").write_text(json.dumps(flow))
    refused = guild("run", "flow.yaml")
    assert refused.code == 4
    assert "the worker 'scribe' is a draft and cannot be used by a schedule" in refused.err
    assert HINT in refused.err


@pytest.mark.req("DO-14")
def test_a_started_draft_gets_no_schedule(guild_hall: GuildWithHall, project: Path) -> None:
    write_draft(project)
    guild = guild_hall
    assert guild("start", "scribe", "--background").code == 0
    refused = guild("schedule", "scribe", "set", "2s")
    assert refused.code == 4
    assert "is a draft and cannot be used by a schedule" in refused.err
    assert guild("stop", "scribe").code == 0


@pytest.mark.req("DO-14")
def test_a_draft_gets_no_commission(guild: Guild, tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = CommissionProject.at(tmp_path, home)
    monkeypatch.chdir(harness.repo.path)
    harness.worker(status="draft")
    for words in ("--hold", "--wait"):
        refused = guild("dispatch", "smith", "Forge a key.", "--project", "shop", words)
        assert refused.code == 4
        assert "is a draft and cannot be used by dispatch" in refused.err
    assert guild("ls", "commissions", "--json").json["commissions"] == []
