"""Killed at any instant of what it does to a repository, the hall has lost nothing, and does it again."""

from __future__ import annotations

import os
import shutil
import signal
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.projects.git.integration_branch import Branches
    from guildhall.projects.git.worktrees import Worktrees
    from guildhall.projects.model import Project
    from tests.projects.conftest import Repository

BRANCH = "claude/commission/c-one-1"
# Of each operation, spread over the time that it takes; HYPOTHESIS_PROFILE=deep kills more often.
KILLS = 12 if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else 3
ALSO = {".lore/commissions/c-one.md": b"done\n"}


class Scene:
    """A repository with a commission in it, just before an operation; it can be put back to that."""

    def __init__(
        self, repo: Repository, home: Home, worktrees: Worktrees, branches: Branches, shop: Project, store: Path
    ) -> None:
        self.repo, self.home, self.worktrees, self.branches, self.shop = repo, home, worktrees, branches, shop
        self._store = store

    def save(self) -> None:
        for place in (self.repo.path, self.home.path):
            shutil.copytree(place, self._store / place.name, symlinks=True)

    def back(self) -> None:
        for place in (self.repo.path, self.home.path):
            shutil.rmtree(place)
            shutil.copytree(self._store / place.name, place, symlinks=True)

    def make(self) -> None:
        self.worktrees.check_out(self.shop, "c-one", BRANCH, "full")

    def work(self) -> None:
        path = self.worktrees.path(self.shop, "c-one")
        for number in range(20):
            (path / f"new-{number}").write_text(f"{number}\n")
        (path / "src" / "cart.py").write_text("total = 2\n")

    def commit(self) -> None:
        self.worktrees.commit(self.shop, "c-one", "Work", "coder")

    def follow(self) -> None:
        self.branches.update()

    def squash(self) -> None:
        self.branches.squash(BRANCH, "Work", "coder")
        self.branches.write_records(ALSO, "Work", "coder")

    def keep(self) -> None:
        self.branches.archive(BRANCH)

    def remove(self) -> None:
        self.worktrees.remove(self.shop, "c-one")

    def time_passes(self) -> None:
        """Make a lock of a killed git process look old, so that it counts as stale."""
        for lock in (self.repo.path / ".git").rglob("*.lock"):
            os.utime(lock, (time.time() - 120,) * 2)

    def commits(self) -> set[str]:
        return set(self.repo.git("rev-list", "--all").split())

    def state(self) -> dict[str, object]:
        """Return the refs with their content and number of commits, and the files of the worktree."""
        trees = self.repo.git("for-each-ref", "--format=%(refname) %(tree)")
        count = self.repo.git("rev-list", "--all", "--count")
        path = self.worktrees.path(self.shop, "c-one")
        files = sorted(str(one.relative_to(path)) for one in path.rglob("*")) if path.exists() else None
        listed = sorted(line.split()[-1] for line in self.repo.git("worktree", "list").splitlines())
        return {"trees": trees, "count": count, "files": files, "listed": listed}


def killed(operation: Callable[[], None], after: float | None) -> float:
    """Does it in a process that is killed, with all that it has started; how long that took. None: it is let be."""
    start = time.monotonic()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            operation()
        finally:
            os._exit(0)
    if after is not None:
        time.sleep(min(after, 0.2))
        with_group(pid)
    os.waitpid(pid, 0)
    return time.monotonic() - start


def with_group(pid: int) -> None:
    for send in (os.killpg, os.kill):
        try:
            send(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


STEPS = ("make", "work", "commit", "follow", "squash", "keep", "remove")


@pytest.mark.req("X-7", "SYS-22")
@pytest.mark.parametrize("name", ["make", "commit", "follow", "squash", "keep", "remove"])
def test_killed_and_done_again_it_is_as_if_nothing_had_been(
    name: str, repo: Repository, home: Home, worktrees: Worktrees, branches: Branches, shop: Project, tmp_path: Path
) -> None:
    scene = Scene(repo, home, worktrees, branches, shop, tmp_path / "store")
    branches.ensure()
    for step in STEPS[: STEPS.index(name)]:
        getattr(scene, step)()
    if name == "follow":
        branches.write({".lore/x.md": b"x\n"}, "Ours", "writer")
        repo.commit({"users.txt": "the user's\n"})
    if name == "remove":
        (worktrees.path(shop, "c-one") / "last.txt").write_text("the last words\n")
    scene.save()
    before = scene.commits()
    operation = getattr(scene, name)
    took = killed(operation, None)
    expected = scene.state()
    for number in range(KILLS):
        scene.back()
        killed(operation, took * number / KILLS)
        assert before <= scene.commits()
        scene.time_passes()
        operation()
        assert scene.state() == expected, f"killed after {number} of {KILLS}"
        operation()
        assert scene.state() == expected
    repo.fsck()
    if name == "remove":
        assert repo.at(BRANCH, "last.txt") == "the last words"
