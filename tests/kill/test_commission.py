"""Crashes of a commission: killed at any point, it ends like an undisturbed one, without lost or repeated commits.

The command that dispatches is killed at a commit of the database or at a call of git; then a new hall starts.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from guildhall.core.paths import HOME_VARIABLE
from guildhall.hall.client.discovery import EMBEDDED_VARIABLE
from tests.projects.commissions.harness import ENDED, CommissionProject, say, submit, write

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.projects.commissions.model import Commission
    from tests.kill.harness import Driver

COMMITS = 16  # of the command below; the last case finds that there are no more
CALLS = 47  # of git
STRIDE = 8 if os.environ.get("HYPOTHESIS_PROFILE") != "deep" else 1
GIT = "guildhall.projects.git.repository:_run"
WRITTEN = 8  # the commit after which the file is there, and no result is submitted


class CommissionHarness:
    """A commission that is ready, and commands that are killed."""

    def __init__(self, folder: Path, home: Home, driver: Driver) -> None:
        self.project = CommissionProject.at(folder, home)
        self._folder = folder
        self._driver = driver
        self.project.script([write("src/key.py", "key = 1\n"), submit("Forged."), say()])

        async def made(shop: CommissionProject) -> str:
            return (await shop.create_commission(artifacts=("src/key.py",))).id

        self.id = self.project.run_in_hall(made)

    def kill_at(self, number: int, when: str, *words: str, function: str = "") -> bool:
        """Starts a command and kills it there; False: it ended before."""
        out = self._folder / "command.out"
        self._driver.start(
            words=list(words) or ["dispatch", self.id, "--wait"],
            number=number,
            when=when,
            function=function,
            grouped=False,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self._folder),
                HOME_VARIABLE: str(self.project.home.path),
                EMBEDDED_VARIABLE: "1",
            },
            cwd=str(self.project.repo.path),
            out=str(out),
            err=str(out.with_suffix(".err")),
        )
        pid = self._driver.stopped()
        if pid is not None:
            self._driver.kill(pid)
        return pid is not None

    def recover(self) -> Commission:
        """Return the outcome in the next hall. A commission that had not started is created again."""

        async def work(shop: CommissionProject) -> Commission:
            await shop.commissions.drain()
            if shop.commissions.get(self.id).status == "pending":
                await shop.commissions.dispatch(self.id, shop.frame)
            async with asyncio.timeout(10):
                while shop.commissions.get(self.id).status not in ENDED:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            return await shop.wait_ended(self.id)

        return self.project.run_in_hall(work, recover=True)

    def sound(self) -> None:
        """Nothing is broken, nothing is stuck, and the person's things are as they were."""
        repo = self.project.repo
        repo.fsck()
        assert repo.git("rev-parse", "main") == repo.git("rev-parse", "HEAD")
        assert repo.git("status", "--porcelain", "--untracked-files=no") == ""
        left = [path.name for path in (self.project.home.path / "worktrees" / "shop").iterdir() if path.is_dir()]
        assert left == []


@pytest.fixture
def harness(tmp_path: Path, home: Home, driver: Driver) -> CommissionHarness:
    return CommissionHarness(tmp_path, home, driver)


def done_once(harness: CommissionHarness) -> None:
    done = harness.recover()
    assert (done.status, done.result, done.attempt) == ("completed", "Forged.", 1), done.reason
    repo = harness.project.repo
    subjects = repo.git("log", "--format=%s", "claude/main", "^main").splitlines()
    assert subjects.count("A key") == 1
    assert repo.at("claude/main", "src/key.py") == "key = 1"
    assert "status: completed" in repo.at("guildhall/records", done.path)
    kept = repo.git("rev-parse", f"refs/guildhall/kept/commission/{harness.id}-1")
    assert repo.at(kept, "src/key.py") == "key = 1"
    assert not repo.git("for-each-ref", "refs/heads/claude/commission")
    harness.sound()


def test_the_sweep_goes_over_all_of_it(harness: CommissionHarness) -> None:
    assert not harness.kill_at(COMMITS + 1, "before")
    done_once(harness)


@pytest.mark.req("COM-27", "X-2")
@pytest.mark.parametrize("number", range(1, COMMITS + 1, 2))
def test_killed_at_a_commit(harness: CommissionHarness, number: int) -> None:
    assert harness.kill_at(number, "after")
    done_once(harness)


@pytest.mark.req("COM-27", "X-7")
@pytest.mark.parametrize("number", range(2, CALLS, STRIDE))
def test_killed_at_a_call_of_git(harness: CommissionHarness, number: int) -> None:
    assert harness.kill_at(number, "after", function=GIT)
    done_once(harness)


@pytest.mark.req("COM-14", "X-7")
@pytest.mark.parametrize(
    ("number", "function"), [(1, ""), (2, ""), (1, GIT), (4, GIT), (8, GIT), (12, GIT), (16, GIT), (20, GIT)]
)
def test_killed_while_it_is_cancelled(harness: CommissionHarness, number: int, function: str) -> None:
    assert harness.kill_at(WRITTEN, "after")
    harness.kill_at(number, "after", "stop", harness.id, function=function)
    found = harness.recover()
    assert found.status in ("cancelled", "completed")  # what was not yet cancelled went on
    ref = "claude/main" if found.status == "completed" else str(found.branch)
    assert harness.project.repo.at(ref, "src/key.py") == "key = 1"
    assert f"status: {found.status}" in harness.project.repo.at("guildhall/records", found.path)
    harness.sound()


@pytest.mark.req("WKR-27", "COM-27")
@pytest.mark.parametrize(("number", "function"), [(1, ""), (2, ""), (1, GIT), (6, GIT), (12, GIT)])
def test_killed_while_it_is_edited(harness: CommissionHarness, number: int, function: str) -> None:
    assert harness.kill_at(WRITTEN, "after")
    assert harness.kill_at(number, "after", "edit", harness.id, "--title", "Keys", "--wait", function=function)
    found = harness.recover()
    assert (found.status, found.title) in (("completed", "A key"), ("completed", "Keys")), "all of it, or nothing"
    assert found.attempt == (2 if found.title == "Keys" else 1)
    assert harness.project.repo.at("claude/main", "src/key.py") == "key = 1"
    harness.sound()


@pytest.mark.req("COM-27")
def test_killed_and_gone_on_with_by_hand(harness: CommissionHarness) -> None:
    assert harness.kill_at(WRITTEN, "after")
    assert not harness.kill_at(0, "", "resume", harness.id)
    assert harness.project.repo.at("claude/main", "src/key.py") == "key = 1"
    done_once(harness)
