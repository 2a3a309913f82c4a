"""The work of an activity comes home: each step finds out by itself that it was done before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import MergeConflict
from guildhall.projects.workspace import Workspace

if TYPE_CHECKING:
    from guildhall.projects.git.integration_branch import Branches
    from guildhall.projects.git.worktrees import Worktrees
    from guildhall.projects.model import Project
    from tests.projects.conftest import Repository

RECORD = {".lore/meetings/t-one.md": b"closed\n"}


@pytest.fixture
def place(shop: Project, branches: Branches, worktrees: Worktrees) -> Workspace:
    return Workspace(
        project=shop,
        branches=branches,
        worktrees=worktrees,
        activity="t-one",
        branch="claude/meeting/t-one",
        worker="coder",
    )


def test_it_lands_once_however_often_it_is_tried(repo: Repository, branches: Branches, place: Workspace) -> None:
    assert place.commit("Nobody was here").tip is None
    (place.check_out("full") / "new.txt").write_text("new\n")
    tip = place.commit("The work").tip
    assert tip == place.commit("The work").tip == place.tip()
    repo.commit({"README.md": "Mine\n"})
    for _ in range(2):
        place.merge("The meeting", RECORD)
    assert repo.git("log", "--first-parent", "--format=%an", "claude/main").split("\n")[0] == "coder"
    assert (repo.at("claude/main", "new.txt"), repo.at("claude/main", "README.md")) == ("new", "Mine")
    assert repo.git("rev-list", "--count", "--author=coder", "claude/main") == "1"
    for _ in range(2):
        assert place.remove(is_merged=True) is None
    assert (place.tip(), place.path.exists()) == (None, False)
    assert repo.git("rev-parse", "refs/guildhall/kept/meeting/t-one") == tip
    place.merge("The meeting", RECORD)  # also if it was removed before its merge was recorded
    assert repo.git("rev-list", "--count", "--author=coder", "claude/main") == "1"
    repo.fsck()


def test_what_does_not_fit_stays_where_it_is(repo: Repository, branches: Branches, place: Workspace) -> None:
    (place.check_out("full") / "src" / "cart.py").write_text("total = 3\n")
    place.commit("The work")
    branches.write({"src/cart.py": b"total = 4\n"}, "Meanwhile", "other")
    with pytest.raises(MergeConflict, match=r"src/cart\.py"):
        place.merge("The meeting", RECORD)
    assert branches.read(".lore/meetings/t-one.md") is None
    place.remove(is_merged=False)
    assert repo.at("claude/meeting/t-one", "src/cart.py") == "total = 3"


def test_what_does_not_fit_the_user_s_keeps_nobody_else_from_landing(
    repo: Repository, branches: Branches, place: Workspace
) -> None:
    branches.write({"README.md": b"Of the guild\n"}, "Theirs", "other")
    repo.commit({"README.md": "Of the user\n"})
    (place.check_out("full") / "new.txt").write_text("new\n")
    place.commit("The work")
    place.merge("The meeting", RECORD)
    assert (repo.at("claude/main", "new.txt"), repo.at("claude/main", "README.md")) == ("new", "Of the guild")
