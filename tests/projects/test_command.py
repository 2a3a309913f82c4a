"""`guild project add|rm|ls|check`, as a person types it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.projects.conftest import repository

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.projects.git.worktrees import Worktrees
    from guildhall.projects.model import Project
    from tests.conftest import Guild
    from tests.projects.conftest import Repository


@pytest.mark.req("SYS-35")
def test_registered_listed_checked_and_taken_out(guild: Guild, repo: Repository, home: Home) -> None:
    before = repo.git("for-each-ref"), repo.git("config", "--list")
    added = guild("project", "add", "--json", cwd=repo.path)
    assert added.code == 0
    assert added.json["path"] == str(repo.path)
    assert added.json["settings"]["max_commissions"] == 3
    home.settings.write_text(f"# mine\n{home.settings.read_text()}  broken:\n    pfad: /x\n")
    listed = guild("project", "ls", "--json").json
    assert [(one["name"], bool(one["error"])) for one in listed] == [("broken", True), ("shop", False)]
    assert "invalid" in guild("project", "ls").out
    checked = guild("check", "shop")
    assert (checked.code, checked.out) == (0, "ok       project shop\n")
    every = guild("check")
    assert every.code == 1
    assert "config.yaml:" in every.err
    assert "`guild project rm broken`" in every.err
    assert every.out.endswith("project shop\n")
    gone = guild("project", "rm", "shop")
    assert gone.code == 0
    assert home.settings.read_text() == "# mine\nprojects:\n  broken:\n    pfad: /x\n"
    missing = guild("project", "rm", "shopp")
    assert (missing.code, "unknown project 'shopp'" in missing.err) == (3, True)
    assert (repo.git("for-each-ref"), repo.git("config", "--list")) == before


def test_what_cannot_be_registered_says_why(guild: Guild, repo: Repository, home: Home, tmp_path: Path) -> None:
    def refused(path: Path, *more: str) -> str:
        ran = guild("project", "add", path, *more)
        assert ran.code in (1, 2, 3), ran
        assert not home.settings.exists()
        return ran.err

    (tmp_path / "plain").mkdir()
    empty = repository(tmp_path / "empty")
    repo.git("clone", "-q", "--bare", str(repo.path), str(tmp_path / "bare.git"))
    inside = repository(home.path / "inside")
    inside.commit({"a": "b"})
    detached = repository(tmp_path / "detached")
    detached.commit({"a": "b"})
    detached.git("checkout", "-q", "--detach")
    odd = repository(tmp_path / "odd name")
    odd.commit({"a": "b"})
    assert "not a git repository" in refused(tmp_path / "plain")
    assert "folder not found" in refused(tmp_path / "nowhere")
    assert "the branch 'main' does not exist or has no commit" in refused(empty.path)
    assert "bare" in refused(tmp_path / "bare.git")
    assert "home of Guildhall" in refused(inside.path)
    assert "detached HEAD" in refused(detached.path)
    assert "not the root of its repository" in refused(repo.path / "src")
    assert "invalid project name" in refused(odd.path)
    assert "the branch 'mian' does not exist" in refused(repo.path, "--branch", "mian")
    assert "Did you mean 'main'" in refused(repo.path, "--branch", "mian")
    assert "cannot use the branch claude/main" in refused(repo.path, "--branch", "claude/main")
    assert "the branch '-f' does not exist" in refused(repo.path, "--branch=-f")
    assert "invalid PATH: empty" in guild("project", "add", "").err
    assert "invalid project name ''" in refused(repo.path, "--name", "")
    assert "(65 characters)" in refused(repo.path, "--name", "x" * 65)
    repo.git("branch", "claude")
    assert "`git branch -m claude NAME`" in refused(repo.path)


def test_an_entry_that_is_wrong_can_be_taken_out(guild: Guild, home: Home) -> None:
    home.path.mkdir(parents=True)
    home.settings.write_text("hall: {}\nprojects:\n  a: 5\n  ../b: {path: /x}\n")
    assert guild("project", "rm", "a", "--json").json["name"] == "a"
    assert guild("project", "rm", "../b").code == 0
    assert guild("project", "ls", "--json").json == []
    home.settings.write_text("hall: {}\nprojects: [a]\n")
    for words in (("project", "ls"), ("check",), ("project", "rm", "a")):
        told = guild(*words)
        assert (told.code, "config.yaml:2: projects: expected" in told.err) == (2, True), told
    home.settings.write_text("projects: [a]\n")
    assert "In Guildhall `projects:` is a mapping" in guild("project", "add").err


def test_what_keeps_the_guild_from_working_is_told_with_the_way_out(guild: Guild, repo: Repository, home: Home) -> None:
    assert guild("project", "add", repo.path).code == 0
    repo.git("branch", "claude/main")
    repo.commit({"README.md": "Mine\n"})
    assert guild("check").code == 0  # it follows
    repo.git("switch", "-q", "claude/main")
    repo.commit({"README.md": "Theirs\n"})
    repo.git("switch", "-q", "main")
    told = guild("check", "--json")
    assert told.code == 1
    [one] = told.json[-1]["errors"]
    assert one["message"].endswith("conflict between main and claude/main: README.md")
    assert "`git merge claude/main`" in one["hint"]
    repo.git("branch", "-m", "main", "trunk")
    told = guild("check")
    assert (told.code, "Known: trunk." in told.err) == (1, True)
    assert "claude/" not in told.err


@pytest.mark.req("SYS-35")
def test_a_repository_that_was_moved_is_known_again(guild: Guild, repo: Repository, home: Home) -> None:
    guild("project", "add", repo.path)
    text = home.settings.read_text()
    home.settings.write_text(f"# mine\n{text}    max_meetings: 2 # enough\n")
    moved = repo.path.with_name("elsewhere")
    repo.path.rename(moved)
    missing = guild("check")
    assert (missing.code, str(repo.path) in missing.err, "`guild project add`" in missing.err) == (1, True, True)
    assert "already registered as 'shop'" in guild("project", "add", moved, "--name", "other").err
    again = guild("project", "add", moved)
    assert (again.code, again.out, "Moved shop" in again.err) == (0, "shop\n", True)
    new = f"# mine\n{text}    max_meetings: 2 # enough\n".replace(str(repo.path), str(moved))
    assert home.settings.read_text().replace('"', "") == new.replace('"', "")
    assert guild("check").out.endswith("ok       project shop\n")


@pytest.mark.req("X-7")
def test_a_project_with_a_worktree_is_not_taken_out(
    guild: Guild, repo: Repository, worktrees: Worktrees, shop: Project
) -> None:
    guild("project", "add", repo.path)
    worktrees.check_out(shop, "c-one", "claude/commission/c-one-1", "full")
    refused = guild("project", "rm", "shop")
    assert refused.code == 1
    assert "c-one" in refused.err
    worktrees.remove(shop, "c-one")
    assert guild("project", "rm", "shop").code == 0
    assert repo.git("rev-parse", "claude/commission/c-one-1")
