"""What git ignores is neither merged nor lost: what is small is kept on no branch, what is large is named."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from guildhall.projects.git.worktrees import Worktrees
    from guildhall.projects.model import Project
    from tests.projects.conftest import Repository

BRANCH = "claude/commission/c-one-1"
KEPT = "refs/guildhall/kept/ignored/commission/c-one-1"


@pytest.mark.req("X-7")
def test_what_is_ignored_is_kept_when_the_checkout_goes(repo: Repository, worktrees: Worktrees, shop: Project) -> None:
    repo.commit({".gitignore": "dist/\nnode_modules/\n*.log\n"})
    path = worktrees.check_out(shop, "c-one", BRANCH, "full")
    for name in ("dist/deep/report.md", "src/a.log", "src/new.py"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("precious\n")
    (path / "dist" / "link").symlink_to("/etc/passwd")
    (path / "node_modules" / "empty").mkdir(parents=True)
    for number in range(201):
        (path / "node_modules" / f"{number}.js").write_text("")
    (path / "large.log").write_bytes(b"")
    os.truncate(path / "large.log", 11 * 1024**2)
    aside = worktrees.remove(shop, "c-one")
    assert aside is not None
    assert aside.ref == KEPT
    assert aside.kept == ("dist/deep/report.md", "dist/link", "src/a.log")
    assert aside.lost == ("large.log (1 files, 11,534,336 bytes)", "node_modules/ (more than 200 files)")
    assert repo.at(KEPT, "dist/deep/report.md") == "precious"
    assert repo.at(KEPT, "dist/link") == "/etc/passwd"
    assert repo.git("diff", "--name-only", BRANCH, KEPT).split() == list(aside.kept)
    assert repo.at(BRANCH, "src/new.py") == "precious"
    for part in (KEPT, "dist/deep/report.md", "not kept: large.log", "node_modules/"):
        assert part in aside.text()
    assert not path.exists()
    repo.fsck()


def test_a_worker_that_ignores_all_of_its_work(repo: Repository, worktrees: Worktrees, shop: Project) -> None:
    for text in ("one", "one", "two"):  # what is the same is kept once
        path = worktrees.check_out(shop, "c-one", BRANCH, "full")
        (path / ".gitignore").write_text("*\n")
        (path / "src" / "key.py").write_text(f"{text}\n")
        aside = worktrees.remove(shop, "c-one")
        assert aside is not None
        assert aside.kept == (".gitignore", "src/key.py")
        assert repo.at(str(aside.ref), "src/key.py") == text
    assert len(repo.git("for-each-ref", "refs/guildhall").splitlines()) == 2
    assert repo.git("diff", "--name-only", "main", BRANCH) == ""


def test_what_cannot_be_read_is_named(repo: Repository, worktrees: Worktrees, shop: Project) -> None:
    repo.commit({".gitignore": "dist/\n"})
    path = worktrees.check_out(shop, "c-one", BRANCH, "full")
    (path / "dist" / ".GIT").mkdir(parents=True)
    (path / "dist" / ".GIT" / "config").write_text("x")
    (path / "dist" / "there").write_text("x")
    aside = worktrees.remove(shop, "c-one")
    assert aside is not None
    assert aside.kept == ("dist/there",)
    assert "dist/.GIT" in aside.lost[0]


def test_nothing_ignored_nothing_kept(repo: Repository, worktrees: Worktrees, shop: Project) -> None:
    repo.commit({".gitignore": "dist/\n.lore/\n"})
    path = worktrees.check_out(shop, "c-one", BRANCH, "full")
    (path / "dist").mkdir()
    (path / ".lore" / "report.md").write_text("report\n")
    assert worktrees.remove(shop, "c-one") is None
    assert repo.git("for-each-ref", "refs/guildhall") == ""
    assert repo.at(BRANCH, ".lore/report.md") == "report"
