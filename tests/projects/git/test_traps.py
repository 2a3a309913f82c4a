"""What a repository, a worker or a person can put in the way: nothing is executed, nothing is lost."""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import Conflict, GitFailed, MergeConflict, NotFound
from guildhall.projects.git.integration_branch import Branches
from guildhall.projects.git.repository import Git
from guildhall.projects.git.worktrees import Worktrees
from guildhall.projects.model import Project
from tests.projects.conftest import follow, repository

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import Guild
    from tests.projects.conftest import Repository

BRANCH = "claude/commission/c-one-1"
HOOKS = ("post-checkout", "pre-commit", "commit-msg", "reference-transaction", "post-commit", "post-merge",
         "post-index-change", "fsmonitor-watchman", "pre-push", "post-rewrite")  # fmt: skip


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """Write a program that leaves a trace when it is executed."""
    program = tmp_path / "evil"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/EXECUTED\ncat\n")
    program.chmod(0o755)
    return program


def arm(folder: Path, evil: Path) -> None:
    """Everything in a git directory by which git can be made to execute something."""
    (folder / "hooks").mkdir(exist_ok=True)
    for name in HOOKS:
        shutil.copy(evil, folder / "hooks" / name)
    lines = (
        f"[core]\n\tfsmonitor = {evil}\n\thooksPath = {folder}/hooks\n\teditor = {evil}",
        f"[core]\n\tpager = {evil}\n\tsshCommand = {evil}",
        f'[filter "evil"]\n\tclean = {evil}\n\tsmudge = {evil}\n\tprocess = {evil}\n\trequired = true',
        f'[merge "evil"]\n\tdriver = {evil} %A\n[diff "evil"]\n\tcommand = {evil}\n\ttextconv = {evil}',
        f"[diff]\n\texternal = {evil}\n[commit]\n\tgpgSign = true\n[gpg]\n\tprogram = {evil}",
        f"[credential]\n\thelper = !{evil}",
        f"[alias]\n\tls-files = !{evil}\n\tread-tree = !{evil}\n[uploadpack]\n\tpackObjectsHook = {evil}",
    )
    with (folder / "config").open("a") as file:
        file.write("\n".join(lines) + "\n")


ATTRIBUTES = "* filter=evil merge=evil diff=evil text eol=crlf ident\n"


def test_nothing_of_the_repositories_is_executed(
    repo: Repository, branches: Branches, worktrees: Worktrees, shop: Project, evil: Path, tmp_path: Path
) -> None:
    repo.commit({".gitattributes": ATTRIBUTES, "a.txt": "one\ntwo\n", "id.txt": "$Id$\n"})
    arm(repo.path / ".git", evil)
    path = worktrees.check_out(shop, "c-one", BRANCH, "full")
    assert (path / "a.txt").read_bytes() == b"one\ntwo\n"
    assert (path / "id.txt").read_bytes() == b"$Id$\n"
    assert worktrees.commit(shop, "c-one", "Nothing", "coder").commit is None
    (path / "a.txt").write_text("one\n2\n")
    nested = repository(path / "sub" / "nested")
    nested.commit({"work.txt": "nested work\n", "deep/er.txt": "deeper\n"})
    arm(nested.path / ".git", evil)
    (path / "sub" / "nested" / ".gitattributes").write_text(ATTRIBUTES)
    (path / ".git").unlink()
    replaced = repository(path)
    arm(replaced.path / ".git", evil)
    branches.write({"b.txt": b"b\n"}, "Meanwhile", "other")
    assert worktrees.commit(shop, "c-one", "Work", "coder").commit
    squash = branches.squash(BRANCH, "Work", "coder")
    assert "nested work" in branches.diff(BRANCH)
    branches.archive(BRANCH)
    worktrees.remove(shop, "c-one")
    assert not (tmp_path / "EXECUTED").exists()
    (repo.path / ".git" / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = false\n")
    assert repo.at(squash, "sub/nested/work.txt") == "nested work"
    assert repo.at(squash, "sub/nested/deep/er.txt") == "deeper"
    assert repo.at(squash, "a.txt") == "one\n2"
    assert ".git/" not in repo.git("ls-tree", "-r", "--name-only", squash)
    repo.fsck()


def test_the_users_merge_is_nobodys_program(repo: Repository, branches: Branches, evil: Path, tmp_path: Path) -> None:
    repo.commit({".gitattributes": ATTRIBUTES, "a.txt": "1\n2\n3\n4\n5\n6\n7\n8\n9\n"})
    branches.ensure()
    branches.write({"a.txt": b"one\n2\n3\n4\n5\n6\n7\n8\n9\n"}, "Ours", "writer")
    repo.commit({"a.txt": "1\n2\n3\n4\n5\n6\n7\n8\nnine\n"})
    arm(repo.path / ".git", evil)
    (repo.path / ".git" / "info" / "attributes").write_text(ATTRIBUTES)
    assert follow(branches) == "merged"
    assert branches.read("a.txt") == b"one\n2\n3\n4\n5\n6\n7\n8\nnine\n"
    assert not (tmp_path / "EXECUTED").exists()


def test_links_are_kept_as_links(
    repo: Repository, worktrees: Worktrees, branches: Branches, shop: Project, tmp_path: Path
) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key").write_text("secret words\n")
    path = worktrees.check_out(shop, "c-one", BRANCH, "full")
    (path / "out").symlink_to(tmp_path / "private")
    shutil.rmtree(path / "src")
    (path / "src").symlink_to(tmp_path / "private")
    (path / "loop").symlink_to("loop")
    commit = str(worktrees.commit(shop, "c-one", "Links", "coder").commit)
    assert repo.git("ls-tree", commit, "out", "src", "loop").count("120000 blob") == 3
    assert "secret" not in repo.git("log", "-p", "-1", commit)
    worktrees.remove(shop, "c-one")
    assert (tmp_path / "private" / "key").read_text() == "secret words\n"


def test_names_that_git_refuses_are_said_and_put_aside(
    worktrees: Worktrees, shop: Project, repo: Repository, home: Home
) -> None:
    path = worktrees.check_out(shop, "c-one", BRANCH, "full")
    for name in (".GIT", "git~1", ".git ", ".g\u200cit"):
        (path / name).mkdir()
        (path / name / "config").write_text("x")
    (path / "good").write_text("good\n")
    kept = worktrees.commit(shop, "c-one", "Work", "coder")
    assert kept.commit
    assert repo.at(BRANCH, "good") == "good"
    assert [reason for _, reason in kept.rejected] == ["git does not allow this name"] * 4
    aside = worktrees.remove(shop, "c-one")
    assert aside is not None
    assert len(aside.moved) == 4
    assert (home.aside / "shop/c-one-1/.GIT/config").read_text() == "x"
    assert f"files that git cannot store, moved to {home.aside}/shop/c-one-1: " in aside.text()
    assert not path.exists()


def test_what_the_owner_cannot_read_is_kept(worktrees: Worktrees, shop: Project, repo: Repository) -> None:
    path = worktrees.check_out(shop, "c-one", BRANCH, "full")
    (path / "closed").mkdir()
    (path / "closed" / "inside").write_text("inside\n")
    (path / "closed" / "inside").chmod(0)
    (path / "closed").chmod(0)
    worktrees.remove(shop, "c-one")
    assert repo.at(BRANCH, "closed/inside") == "inside"
    assert not path.exists()


def test_locks_that_were_left_are_no_hindrance(
    repo: Repository, branches: Branches, worktrees: Worktrees, shop: Project
) -> None:
    path = worktrees.check_out(shop, "c-one", BRANCH, "full")
    common = repo.path / ".git"
    locks = [common / "worktrees" / "guildhall-c-one" / "index.lock", common / "refs" / "heads" / f"{BRANCH}.lock",
             common / "refs" / "heads" / "claude" / "main.lock"]  # fmt: skip
    for lock in locks:
        lock.touch()
        os.utime(lock, (time.time() - 60,) * 2)
    (path / "new").write_text("new\n")
    assert worktrees.commit(shop, "c-one", "Work", "coder").commit
    assert branches.squash(BRANCH, "Work", "coder") == branches.tip()
    worktrees.remove(shop, "c-one")
    repo.fsck()


def test_the_environment_does_not_lead_elsewhere(
    repo: Repository,
    shop: Project,
    branches: Branches,
    worktrees: Worktrees,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    other = repository(tmp_path / "other")
    other.commit({"x": "y"})
    before = other.git("for-each-ref")
    for name, value in {
        "GIT_DIR": f"{other.path}/.git", "GIT_WORK_TREE": str(other.path), "GIT_INDEX_FILE": f"{other.path}/.git/index",
        "GIT_OBJECT_DIRECTORY": f"{other.path}/.git/objects", "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.bare",
        "GIT_CONFIG_VALUE_0": "true", "GIT_AUTHOR_NAME": "Mallory", "GIT_COMMON_DIR": f"{other.path}/.git",
        "GIT_EXEC_PATH": "/nowhere", "GIT_NAMESPACE": "x",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    path = worktrees.check_out(shop, "c-one", BRANCH, "full")
    (path / "new").write_text("new\n")
    commit = worktrees.commit(shop, "c-one", "Work", "coder").commit
    assert repo.git("log", "-1", "--format=%an|%ae|%cn|%ce", str(commit)) == (
        "coder|coder@guildhall.invalid|Guildhall|hall@guildhall.invalid"
    )
    assert other.git("for-each-ref") == before


@pytest.mark.parametrize("name", ["", "<>", "a\nb", "Ada <ada@x> Lovelace", "ünï", ".,", "x" * 500])
def test_any_worker_can_be_an_author(repo: Repository, branches: Branches, name: str) -> None:
    branches.ensure()
    commit = branches.write({".lore/x.md": b"x"}, "Write\0 it", name)
    assert repo.git("log", "-1", "--format=%cn", commit) == "Guildhall"
    repo.fsck()


def test_a_person_on_the_integration_branch_is_not_moved_under(
    repo: Repository, branches: Branches, tmp_path: Path
) -> None:
    branches.ensure()
    repo.git("checkout", "-q", "claude/main")
    with pytest.raises(Conflict, match="cannot move claude/main: it is checked out") as caught:
        branches.write({".lore/x.md": b"x"}, "Write", "writer")
    assert "git switch main" in str(caught.value)
    repo.git("checkout", "-q", "main")
    repo.git("worktree", "add", "-q", str(tmp_path / "look"), "claude/main")
    with pytest.raises(Conflict, match="is checked out") as caught:
        branches.write({".lore/x.md": b"x"}, "Write", "writer")
    assert str(tmp_path / "look") in str(caught.value)
    assert branches.read(".lore/plan.md") == b"The plan\n"


@pytest.mark.req("SYS-24")
def test_what_the_user_does_with_the_branch(
    repo: Repository, branches: Branches, worktrees: Worktrees, shop: Project
) -> None:
    second = repo.commit({"two": "2\n"})
    branches.ensure()
    repo.git("reset", "-q", "--hard", "HEAD^")  # rewound: what the hall has of it stays
    assert follow(branches) == "nothing"
    assert branches.tip() == second
    repo.git("checkout", "-q", "--detach")
    repo.git("commit", "-q", "--allow-empty", "-m", "detached")
    assert follow(branches) == "nothing"
    repo.git("branch", "-D", "main")
    with pytest.raises(NotFound, match="is missing or has no commit"):
        branches.update()
    repo.git("checkout", "-q", "--orphan", "main")
    repo.git("commit", "-q", "-m", "Another beginning")
    with pytest.raises(Conflict, match="no common history"):
        branches.update()
    assert branches.tip() == second


@pytest.mark.req("SYS-24")
def test_a_conflict_with_the_user_moves_nothing(repo: Repository, branches: Branches) -> None:
    branches.ensure()
    branches.write({"README.md": b"Ours\n"}, "Ours", "writer")
    repo.commit({"README.md": "Theirs\n"})
    before = repo.git("for-each-ref")
    with pytest.raises(MergeConflict) as caught:
        branches.update()
    assert caught.value.files == ("README.md",)
    assert repo.git("for-each-ref") == before
    repo.git("merge", "-q", "-s", "ours", "claude/main")
    assert follow(branches) == "forwarded"


@pytest.mark.req("SYS-24")
@pytest.mark.parametrize("moved_before", [False, True])
def test_the_user_squash_merges_and_goes_on(repo: Repository, branches: Branches, moved_before: bool) -> None:
    branches.ensure()
    branches.write({"src/cart.py": b"total = 2\n"}, "Two", "writer")
    pulled = branches.write({"src/cart.py": b"total = 3\n"}, "Three", "writer")
    branches.write({"later.txt": b"later\n"}, "Later", "writer")
    if moved_before:
        repo.commit({"other.txt": "other\n"})
    repo.git("merge", "-q", "--squash", pulled)
    repo.git("commit", "-q", "-m", "Pull request")
    tip = repo.commit({"src/cart.py": "total = 4\n"}, "The user continues")
    assert follow(branches) == "merged"
    assert branches.read("src/cart.py") == b"total = 4\n"
    assert branches.read("later.txt") == b"later\n"
    assert repo.git("merge-base", "--is-ancestor", tip, "claude/main") == ""
    assert repo.git("diff", "--name-only", "main...claude/main") == "later.txt"
    repo.fsck()


@pytest.mark.req("SYS-38")
def test_a_hall_that_starts_makes_again_what_is_missing(
    guild_hall: Guild, repo: Repository, worktrees: Worktrees, shop: Project, home: Home
) -> None:
    added = guild_hall("project", "add", repo.path)
    assert added.code == 0, added.err
    made = [worktrees.check_out(shop, name, f"claude/meeting/{name}", "full") for name in ("t-one", "t-two")]
    (made[0] / "work").write_text("work\n")
    worktrees.commit(shop, "t-one", "Work", "coder")
    worktrees.remove(shop, "t-two")
    guild_hall("hall", "stop")
    shutil.rmtree(made[0])
    assert guild_hall("dispatch", "nobody", "x").code == 3  # which starts a hall
    assert (made[0] / "work").read_text() == "work\n"
    assert not made[1].exists()
    assert "t-one in shop was missing and was created again" in home.log.read_text()


@pytest.mark.req("SYS-38", "X-7")
def test_what_was_removed_by_hand_is_made_again(
    repo: Repository, worktrees: Worktrees, shop: Project, branches: Branches
) -> None:
    path = worktrees.check_out(shop, "c-one", BRANCH, "full")
    (path / "work").write_text("work\n")
    tip = worktrees.commit(shop, "c-one", "Work", "coder").commit
    repo.git("worktree", "prune")
    shutil.rmtree(path)
    repo.git("worktree", "prune")
    assert worktrees.restore(shop, "c-one", BRANCH, "full")
    assert (path / "work").read_text() == "work\n"
    assert not worktrees.restore(shop, "c-one", BRANCH, "full")
    (path / "more").write_text("more\n")
    shutil.rmtree(repo.path / ".git" / "worktrees")
    repo.git("update-ref", "-d", f"refs/heads/{BRANCH}")
    commit = worktrees.commit(shop, "c-one", "More", "coder").commit
    assert repo.git("rev-parse", f"{commit}^") == tip
    assert repo.at(BRANCH, "more") == "more"
    assert repo.git("status", "--porcelain", cwd=path) == ""
    repo.fsck()


def test_a_checkout_that_cannot_be_made_again_is_logged(
    repo: Repository, worktrees: Worktrees, shop: Project, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    gone = Project(name="gone", path=tmp_path / "gone", branch="main")
    with caplog.at_level("INFO", "guildhall.projects"):
        assert not worktrees.restore(gone, "c-one", BRANCH, "full")
        assert worktrees.restore(shop, "c-two", BRANCH, "sparse")
    assert "c-one in gone" in caplog.text
    assert "c-two in shop was missing and was created again" in caplog.text


def test_submodules_stay_what_they_are(
    repo: Repository, worktrees: Worktrees, shop: Project, tmp_path: Path, branches: Branches, home: Home
) -> None:
    library = repository(tmp_path / "library")
    library.commit({"lib.py": "lib\n"})
    repo.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library.path), "lib")
    repo.commit({}, "With a submodule")
    path = worktrees.check_out(shop, "c-one", BRANCH, "full")
    assert list((path / "lib").iterdir()) == []
    assert worktrees.commit(shop, "c-one", "Nothing", "coder").commit is None
    (path / "new").write_text("new\n")
    commit = str(worktrees.commit(shop, "c-one", "Work", "coder").commit)
    assert repo.git("ls-tree", commit, "lib").startswith("160000 commit")
    (path / "lib" / "mine.py").write_text("mine\n")
    aside = worktrees.remove(shop, "c-one")
    assert aside is not None
    assert aside.moved == ("lib",)
    assert (home.aside / "shop/c-one-1/lib/mine.py").read_text() == "mine\n"
    assert repo.git("ls-tree", BRANCH, "lib").startswith("160000 commit")
    branches.squash(BRANCH, "Work", "coder")
    repo.fsck()


def test_what_is_ignored_is_not_work_but_artifacts_always_are(
    repo: Repository, worktrees: Worktrees, shop: Project
) -> None:
    repo.commit({".gitignore": "build/\n.lore/\n*.log\n"})
    path = worktrees.check_out(shop, "c-one", BRANCH, "full")
    (path / "build").mkdir()
    (path / "build" / "out.o").write_text("x")
    (path / ".lore" / "report.md").write_text("report\n")
    (path / "a.log").write_text("log\n")
    commit = str(worktrees.commit(shop, "c-one", "Work", "coder").commit)
    assert repo.git("show", "--name-only", "--format=", commit) == ".lore/report.md"


def test_a_large_file_is_kept_whole(repo: Repository, worktrees: Worktrees, shop: Project) -> None:
    path = worktrees.check_out(shop, "c-one", BRANCH, "full")
    with (path / "large.bin").open("wb") as file:
        file.seek(40 * 1024**2)
        file.write(b"end")
    commit = str(worktrees.commit(shop, "c-one", "Large", "coder").commit)
    assert repo.git("cat-file", "-s", f"{commit}:large.bin") == str(40 * 1024**2 + 3)


def test_a_repository_with_other_hashes(tmp_path: Path, worktrees: Worktrees) -> None:
    made = repository(tmp_path / "modern")
    shutil.rmtree(made.path / ".git")
    made.git("init", "-q", "-b", "main", "--object-format=sha256")
    made.commit({"a": "b\n"})
    project = Project(name="modern", path=made.path, branch="main")
    branches = Branches(project, Git(made.path, tmp_path / "desk"))
    branches.ensure()
    commit = branches.write({".lore/x.md": b"x"}, "Write", "writer")
    assert len(commit) == 64
    path = worktrees.check_out(project, "c-one", BRANCH, "full")
    (path / "a").unlink()
    worktrees.remove(project, "c-one")
    branches.squash(BRANCH, "Less", "coder")
    assert made.git("ls-tree", "-r", "--name-only", "claude/main") == ".lore/x.md"
    made.fsck()


def test_nothing_is_made_where_a_project_was(repo: Repository, shop: Project, home: Home) -> None:
    known = Git(shop.path, home.git_dirs / shop.name)  # by a hall that runs on
    worktrees = Worktrees(home, lambda _: known)
    path = worktrees.check_out(shop, "c-one", BRANCH, "full")
    (path / "new.txt").write_text("new\n")
    moved = repo.path.rename(repo.path.with_name("moved"))
    for work in (
        lambda: worktrees.commit(shop, "c-one", "Work", "coder").commit,
        lambda: worktrees.remove(shop, "c-one"),
        lambda: worktrees.check_out(shop, "c-two", f"{BRANCH}-2", "full"),
    ):
        with pytest.raises((GitFailed, NotFound)):
            work()
    assert not repo.path.exists()
    moved.rename(repo.path)
    worktrees.remove(shop, "c-one")
    assert repo.at(BRANCH, "new.txt") == "new"
