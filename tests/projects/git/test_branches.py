"""The integration branch: followed, written, squashed into, by compare-and-swap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import MergeConflict
from tests.projects.conftest import follow

if TYPE_CHECKING:
    from guildhall.projects.git.integration_branch import Branches
    from guildhall.projects.git.worktrees import Worktrees
    from guildhall.projects.model import Project
    from tests.projects.conftest import Repository

COMMISSION = "claude/commission/c-one-1"


@pytest.mark.req("SYS-24")
def test_it_follows_the_users_branch(repo: Repository, branches: Branches) -> None:
    start = repo.git("rev-parse", "main")
    assert follow(branches) == "made"
    assert branches.tip() == start
    assert follow(branches) == "nothing"
    moved = repo.commit({"README.md": "The new shop\n"})
    assert follow(branches) == "forwarded"
    assert branches.tip() == moved
    branches.write({".lore/notes.md": b"Notes\n"}, "Notes", "writer")
    again = repo.commit({"src/cart.py": "total = 2\n"})
    assert follow(branches) == "merged"
    assert repo.git("merge-base", "--is-ancestor", again, "claude/main") == ""
    assert repo.at("claude/main", ".lore/notes.md") == "Notes"
    assert repo.at("claude/main", "src/cart.py") == "total = 2"
    assert repo.git("status", "--porcelain") == ""
    repo.fsck()


def test_a_squash_is_one_commit(repo: Repository, branches: Branches, worktrees: Worktrees, shop: Project) -> None:
    path = worktrees.check_out(shop, "c-one", COMMISSION, "full")
    (path / "src" / "cart.py").write_text("total = 3\n")
    (path / "new.txt").write_text("new\n")
    first = worktrees.commit(shop, "c-one", "The work", "coder").commit
    assert first is not None
    before = branches.tip()
    squash = branches.squash(COMMISSION, "Carts count", "coder")
    assert branches.tip() == squash
    assert repo.git("rev-parse", f"{squash}^@") == before
    assert repo.git("log", "-1", "--format=%an|%cn", squash) == "coder|Guildhall"
    assert repo.at(squash, "src/cart.py") == "total = 3"
    assert branches.squash(COMMISSION, "Carts count", "coder") == squash
    branches.archive(COMMISSION)
    assert not branches.exists(COMMISSION)
    assert branches.squash(COMMISSION, "Carts count", "coder") == squash
    assert repo.git("rev-parse", "refs/guildhall/kept/commission/c-one-1") == first
    repo.fsck()


def test_a_conflict_changes_nothing(repo: Repository, branches: Branches, worktrees: Worktrees, shop: Project) -> None:
    path = worktrees.check_out(shop, "c-one", COMMISSION, "full")
    (path / "src" / "cart.py").write_text("total = 3\n")
    (path / ".lore" / "plan.md").write_text("Their plan\n")
    worktrees.commit(shop, "c-one", "The work", "coder")
    branches.write({"src/cart.py": b"total = 4\n", ".lore/plan.md": b"Our plan\n"}, "Meanwhile", "other")
    before = repo.git("for-each-ref")
    with pytest.raises(MergeConflict) as caught:
        branches.squash(COMMISSION, "Carts count", "coder")
    assert caught.value.files == ("src/cart.py",)
    assert repo.git("for-each-ref") == before
    branches.write({"src/cart.py": b"total = 1\n"}, "Back", "other")
    squash = branches.squash(COMMISSION, "Carts count", "coder")
    assert repo.at(squash, ".lore/plan.md") == "Their plan"


def test_two_that_never_moved_from_the_same_commit_are_two(
    repo: Repository, branches: Branches, worktrees: Worktrees, shop: Project
) -> None:
    other = "claude/meeting/t-one"
    worktrees.check_out(shop, "c-one", COMMISSION, "full")
    worktrees.check_out(shop, "t-one", other, "full")
    assert branches.tip(COMMISSION) == branches.tip(other)
    tip = branches.tip()
    assert branches.squash(COMMISSION, "Said", "coder") == branches.squash(other, "Said too", "coder") == tip


@pytest.mark.req("WKR-26")
def test_what_the_hall_writes_is_not_taken_from_a_branch(
    repo: Repository, branches: Branches, worktrees: Worktrees, shop: Project
) -> None:
    own = {f".lore/{name}": b"ours\n" for name in ("commissions/c-a.md", "commissions/c-b.md", "meetings/t-a.md")}
    branches.write(own, "Records", "Guildhall")
    path = worktrees.check_out(shop, "c-one", COMMISSION, "full")
    lore = path / ".lore"
    (lore / "commissions" / "c-a.md").write_text("forged\n")
    (lore / "commissions" / "c-b.md").unlink()
    (lore / "commissions" / "c-forged.md").write_text("forged\n")
    (lore / "meetings" / "t-a.md").unlink()
    (lore / "meetings").rmdir()
    (lore / "meetings").write_text("no folder\n")
    (lore / "report.md").write_text("report\n")
    worktrees.commit(shop, "c-one", "The work", "coder")
    branches.write({".lore/commissions/c-a.md": b"later\n"}, "Records", "Guildhall")
    squash = branches.squash(COMMISSION, "Work", "coder")
    names = repo.git("ls-tree", "-r", "--name-only", squash, ".lore").split()
    assert names == sorted([*own, ".lore/plan.md", ".lore/report.md"])
    assert repo.at(squash, ".lore/commissions/c-a.md") == "later"
    assert repo.at(squash, ".lore/meetings/t-a.md") == "ours"
    repo.fsck()
