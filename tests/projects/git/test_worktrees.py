"""The hall's own checkouts: made, committed, taken away without losing anything."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from guildhall.core.paths import Home
    from guildhall.projects.git.worktrees import Worktrees
    from guildhall.projects.model import Project
    from tests.projects.conftest import Repository

BRANCH = "claude/commission/c-one-1"


@pytest.mark.req("SYS-28")
def test_full_has_everything_and_sparse_the_artifacts_only(
    repo: Repository, worktrees: Worktrees, shop: Project, home: Home
) -> None:
    full = worktrees.check_out(shop, "c-one", BRANCH, "full")
    sparse = worktrees.check_out(shop, "t-one", "claude/meeting/t-one", "sparse")
    assert home.path in full.parents
    assert sorted(one.name for one in full.iterdir()) == [".git", ".lore", "README.md", "src"]
    assert sorted(one.name for one in sparse.iterdir()) == [".git", ".lore"]
    assert repo.git("status", "--porcelain", cwd=full) == ""
    assert repo.git("status", "--porcelain", cwd=sparse) == ""
    assert repo.git("branch", "--show-current", cwd=sparse) == "claude/meeting/t-one"
    (sparse / ".lore" / "notes.md").write_text("Notes\n")
    (sparse / "README.md").write_text("Made where none was checked out\n")
    commit = worktrees.commit(shop, "t-one", "Notes", "writer").commit
    assert repo.git("show", "--name-only", "--format=", str(commit)) == ".lore/notes.md\nREADME.md"
    assert repo.at(str(commit), "src/cart.py") == "total = 1"
    assert worktrees.commit(shop, "t-one", "Notes", "writer").commit is None
    assert worktrees.check_out(shop, "c-one", BRANCH, "full") == full
    repo.fsck()


@pytest.mark.req("X-7")
def test_what_changes_in_the_second_of_the_checkout_is_seen_in_the_next_one(
    repo: Repository, worktrees: Worktrees, shop: Project
) -> None:
    while time.time() % 1 > 0.5:  # git compares times in whole seconds: all of this has to be in one
        time.sleep(0.05)
    path = worktrees.check_out(shop, "c-one", BRANCH, "full")
    (path / "src" / "cart.py").write_text("total = 2\n")  # as long as before
    second = int(time.time())
    while int(time.time()) == second:
        time.sleep(0.05)
    assert repo.at(str(worktrees.commit(shop, "c-one", "Work", "coder").commit), "src/cart.py") == "total = 2"


def test_all_that_lies_there_is_committed(repo: Repository, worktrees: Worktrees, shop: Project) -> None:
    path = worktrees.check_out(shop, "c-one", BRANCH, "full")
    for name in ("-f", "--help", "new\nline", "ünï", "a b", "*", ":(glob)x"):
        (path / name).write_text(name)
    (path / "link").symlink_to("/etc/passwd")
    (path / "tool").write_text("#!/bin/sh\n")
    (path / "tool").chmod(0o755)
    (path / "src" / "cart.py").unlink()
    (path / "README.md").unlink()
    (path / "README.md").mkdir()
    (path / "README.md" / "inside").write_text("now a folder\n")
    os.mkfifo(path / "pipe")
    commit = str(worktrees.commit(shop, "c-one", "All of it", "coder").commit)
    told = repo.git("ls-tree", "-r", "-z", commit).split("\0")
    found = {line.partition("\t")[2]: line[:6] for line in told if line}
    assert found == {
        ".lore/plan.md": "100644", "-f": "100644", "--help": "100644", "new\nline": "100644", "ünï": "100644",
        "a b": "100644", "*": "100644", ":(glob)x": "100644", "link": "120000", "tool": "100755",
        "README.md/inside": "100644",
    }  # fmt: skip
    assert repo.git("status", "--porcelain", cwd=path) == ""
    repo.fsck()


@pytest.mark.req("X-7")
def test_what_is_not_committed_is_committed_before_it_goes(
    repo: Repository, worktrees: Worktrees, shop: Project
) -> None:
    path = worktrees.check_out(shop, "c-one", BRANCH, "full")
    (path / "work.txt").write_text("work\n")
    worktrees.remove(shop, "c-one")
    assert not path.exists()
    assert repo.at(BRANCH, "work.txt") == "work"
    assert "worktrees" not in repo.git("worktree", "list")
    worktrees.remove(shop, "c-one")
    again = worktrees.check_out(shop, "c-one", BRANCH, "full")
    assert (again / "work.txt").read_text() == "work\n"
