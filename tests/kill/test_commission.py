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
from tests.projects.commissions.workshop import RESTS, Workshop, say, submit, write

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.projects.commissions.model import Commission
    from tests.kill.scene import Driver

COMMITS = 15  # of the command below; the last case finds that there are no more
CALLS = 47  # of git
STRIDE = 8 if os.environ.get("HYPOTHESIS_PROFILE") != "deep" else 1
GIT = "guildhall.projects.git.repository:_run"
WRITTEN = 8  # the commit after which the file is there, and no result is submitted


class Bench:
    """A commission that is ready, and commands that are killed."""

    def __init__(self, folder: Path, home: Home, driver: Driver) -> None:
        self.workshop = Workshop.at(folder, home)
        self._folder = folder
        self._driver = driver
        self.workshop.script([write("src/key.py", "key = 1\n"), submit("Forged."), say()])

        async def made(shop: Workshop) -> str:
            return (await shop.new(artifacts=("src/key.py",))).id

        self.id = self.workshop.inside(made)

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
                HOME_VARIABLE: str(self.workshop.home.path),
                EMBEDDED_VARIABLE: "1",
            },
            cwd=str(self.workshop.repo.path),
            out=str(out),
            err=str(out.with_suffix(".err")),
        )
        pid = self._driver.stopped()
        if pid is not None:
            self._driver.kill(pid)
        return pid is not None

    def recover(self) -> Commission:
        """Return the outcome in the next hall. A commission that had not started is created again."""

        async def work(shop: Workshop) -> Commission:
            await shop.commissions.drain()
            if shop.commissions.get(self.id).status == "pending":
                await shop.commissions.dispatch(self.id, shop.frame)
            async with asyncio.timeout(10):
                while shop.commissions.get(self.id).status not in RESTS:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            return await shop.quiet(self.id)

        return self.workshop.inside(work, recover=True)

    def sound(self) -> None:
        """Nothing is broken, nothing is stuck, and the person's things are as they were."""
        repo = self.workshop.repo
        repo.fsck()
        assert repo.git("rev-parse", "main") == repo.git("rev-parse", "HEAD")
        assert repo.git("status", "--porcelain", "--untracked-files=no") == ""
        left = [path.name for path in (self.workshop.home.path / "worktrees" / "shop").iterdir() if path.is_dir()]
        assert left == []


@pytest.fixture
def bench(tmp_path: Path, home: Home, driver: Driver) -> Bench:
    return Bench(tmp_path, home, driver)


def done_once(bench: Bench) -> None:
    done = bench.recover()
    assert (done.status, done.result, done.attempt) == ("completed", "Forged.", 1), done.reason
    repo = bench.workshop.repo
    subjects = repo.git("log", "--format=%s", "claude/main", "^main").splitlines()
    assert subjects.count("A key") == 1
    assert repo.at("claude/main", "src/key.py") == "key = 1"
    assert "status: completed" in repo.at("claude/main", done.path)
    kept = repo.git("rev-parse", f"refs/guildhall/kept/commission/{bench.id}-1")
    assert repo.at(kept, "src/key.py") == "key = 1"
    assert not repo.git("for-each-ref", "refs/heads/claude/commission")
    bench.sound()


def test_the_sweep_goes_over_all_of_it(bench: Bench) -> None:
    assert not bench.kill_at(COMMITS + 1, "before")
    done_once(bench)


@pytest.mark.req("COM-27", "X-2")
@pytest.mark.parametrize("number", range(1, COMMITS + 1, 2))
def test_killed_at_a_commit(bench: Bench, number: int) -> None:
    assert bench.kill_at(number, "after")
    done_once(bench)


@pytest.mark.req("COM-27", "X-7")
@pytest.mark.parametrize("number", range(2, CALLS, STRIDE))
def test_killed_at_a_call_of_git(bench: Bench, number: int) -> None:
    assert bench.kill_at(number, "after", function=GIT)
    done_once(bench)


@pytest.mark.req("COM-14", "X-7")
@pytest.mark.parametrize(
    ("number", "function"), [(1, ""), (2, ""), (1, GIT), (4, GIT), (8, GIT), (12, GIT), (16, GIT), (20, GIT)]
)
def test_killed_while_it_is_cancelled(bench: Bench, number: int, function: str) -> None:
    assert bench.kill_at(WRITTEN, "after")
    bench.kill_at(number, "after", "stop", bench.id, function=function)
    found = bench.recover()
    assert found.status in ("cancelled", "completed")  # what was not yet cancelled went on
    ref = "claude/main" if found.status == "completed" else str(found.branch)
    assert bench.workshop.repo.at(ref, "src/key.py") == "key = 1"
    assert f"status: {found.status}" in bench.workshop.repo.at("claude/main", found.path)
    bench.sound()


@pytest.mark.req("WKR-27", "COM-27")
@pytest.mark.parametrize(("number", "function"), [(1, ""), (2, ""), (1, GIT), (6, GIT), (12, GIT)])
def test_killed_while_it_is_edited(bench: Bench, number: int, function: str) -> None:
    assert bench.kill_at(WRITTEN, "after")
    assert bench.kill_at(number, "after", "edit", bench.id, "--title", "Keys", "--wait", function=function)
    found = bench.recover()
    assert (found.status, found.title) in (("completed", "A key"), ("completed", "Keys")), "all of it, or nothing"
    assert found.attempt == (2 if found.title == "Keys" else 1)
    assert bench.workshop.repo.at("claude/main", "src/key.py") == "key = 1"
    bench.sound()


@pytest.mark.req("COM-27")
def test_killed_and_gone_on_with_by_hand(bench: Bench) -> None:
    assert bench.kill_at(WRITTEN, "after")
    assert not bench.kill_at(0, "", "resume", bench.id)
    assert bench.workshop.repo.at("claude/main", "src/key.py") == "key = 1"
    done_once(bench)
