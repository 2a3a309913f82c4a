"""Killed between any two entries of its record, the manager makes nothing twice: what a call made, it finds again."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from tests.kill.test_commission import CommissionHarness
from tests.projects.commissions.harness import call, say, submit, write
from tests.projects.manager.manager_runs import ID, write_script

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.kill.harness import Driver
    from tests.projects.commissions.harness import CommissionProject

COMMITS = 37  # of the command below; the last case finds that there are no more
STRIDE = 6 if os.environ.get("HYPOTHESIS_PROFILE") != "deep" else 1
RUN = ("run", "manager", "Go.", "--override-model", "script:script.yaml")
MADE = {"title": "A lock", "worker": "smith", "prompt": "Forge it.", "artifacts": ["src/lock.py"]}


@pytest.fixture
def harness(tmp_path: Path, home: Home, driver: Driver) -> CommissionHarness:
    made = CommissionHarness(tmp_path, home, driver)
    write_script(
        made.project,
        call("create_commission", **MADE),
        {"expect": f"(?P<id>{ID}) is pending", **call("dispatch_commission", id="${id}")},
        call("wait_for_commissions", ids=["${id}"]),
        call("open_pull_request", title="A lock", body="It was forged."),
        smith=[[write("src/lock.py", "lock = 1\n"), submit("Forged."), say()]],
    )
    return made


def made_once(harness: CommissionHarness) -> None:
    async def work(shop: CommissionProject) -> None:
        async with asyncio.timeout(15):
            while any(run.status not in ("completed", "failed") for run in shop.hall.history.recent()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await shop.commissions.drain()
        (manager,) = [run for run in shop.hall.history.recent() if run.worker == "manager"]
        assert (manager.status, manager.output) == ("completed", "managed"), manager
        (made,) = [one for one in await shop.commissions.list_commissions() if one.by == "manager"]
        assert (made.status, made.attempt) == ("completed", 1), made

    harness.project.run_in_hall(work, recover=True)
    repo = harness.project.repo
    subjects = repo.git("log", "--format=%s", "claude/main", "^main").splitlines()
    assert [subjects.count(one) for one in ("A lock", "Review")] == [1, 0]
    recorded = repo.git("log", "--format=%s", "guildhall/records").splitlines()
    assert len([one for one in recorded if one.startswith("Review ")]) == 1
    assert len(repo.git("for-each-ref", "refs/heads/claude/review").splitlines()) == 1
    harness.sound()


def test_the_sweep_goes_over_all_of_it(harness: CommissionHarness) -> None:
    assert not harness.kill_at(COMMITS + 1, "before", *RUN)
    made_once(harness)


@pytest.mark.req("WKR-27", "X-2")
@pytest.mark.parametrize("number", range(2, COMMITS + 1, STRIDE))
def test_killed_at_a_commit(harness: CommissionHarness, number: int) -> None:
    assert harness.kill_at(number, "after", *RUN)
    made_once(harness)
