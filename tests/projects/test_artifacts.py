"""Artifacts: their text, where they lie, and the tools for them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildhall.core.errors import GuildError, InvalidFile, Refused, UsageError
from guildhall.projects.artifacts import Artifacts, BranchStore, CheckoutStore, StoreWithRecords
from guildhall.projects.model import Artifact
from tests.runs.places import put_script, put_worker

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.projects.git.integration_branch import Branches
    from guildhall.projects.git.worktrees import Worktrees
    from guildhall.projects.model import Project
    from tests.conftest import Guild
    from tests.projects.conftest import Repository

TEXT = """\
---
title: Launch
date: 2026-11-16
status: draft
tags: [one, two]
owner: {name: Ada, since: 2}
---
# Launch

Go.
"""
BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("abcdefg"))
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@pytest.mark.req("SYS-2")
def test_front_matter_is_read_and_what_is_unknown_stays() -> None:
    artifact = Artifact.parse(TEXT)
    assert (artifact.title, artifact.date, artifact.status, artifact.tags) == (
        "Launch",
        "2026-11-16",
        "draft",
        ("one", "two"),
    )
    assert artifact.extra == {"owner": {"name": "Ada", "since": 2}}
    assert artifact.body == "# Launch\n\nGo.\n"
    assert Artifact.parse(artifact.render()) == artifact


@given(
    title=WORDS,
    status=WORDS,
    tags=st.lists(WORDS, max_size=3),
    body=WORDS,
    extra=st.dictionaries(WORDS, WORDS, max_size=2),
)
def test_whatever_is_written_reads_the_same(
    title: str, status: str, tags: list[str], body: str, extra: dict[str, str]
) -> None:
    kept = {name: value for name, value in extra.items() if name not in ("title", "date", "status", "tags")}
    artifact = Artifact(title=title, status=status, tags=tuple(tags), body=body, extra=kept)
    assert Artifact.parse(artifact.render()) == artifact


@pytest.mark.parametrize(
    "head",
    [
        "title: [a, b]",
        "tags: {a: b}",
        "tags: [[a]]",
        "- a",
        "title: a\ntitle: b",
        "title: 'open",
        BOMB,
        "a: " + "[" * 500,
        "x: " + "y" * 200_000,
    ],
)
def test_hostile_front_matter_is_an_error_and_no_more(head: str) -> None:
    with pytest.raises(InvalidFile):
        Artifact.parse(f"---\n{head}\n---\nbody\n", ".lore/x.md")


def test_nothing_in_front_matter_is_executed() -> None:
    with pytest.raises(InvalidFile):
        Artifact.parse("---\ntitle: !!python/object/apply:os.system ['true']\n---\n")


def test_a_text_without_front_matter_is_all_body() -> None:
    for text in ("", "just words", "---\nnever closed\n", " ---\na: b\n---\n"):
        assert Artifact.parse(text) == Artifact(body=text)


def test_on_the_integration_branch_each_write_is_a_commit(repo: Repository, branches: Branches) -> None:
    artifacts = Artifacts(BranchStore(branches, "writer"))
    assert artifacts.read("plan.md") == "The plan\n"
    artifacts.write("plans/launch.md", TEXT, date="2026-01-01")
    written = artifacts.write(".lore/plans/launch.md", "Gone.\n", date="2026-01-02", status="done")
    assert (written.title, written.date, written.status) == ("Launch", "2026-11-16", "done")
    assert "owner:" in repo.at("claude/main", ".lore/plans/launch.md")
    assert (
        repo.git("log", "--format=%an|%cn|%s", "main..claude/main").splitlines()
        == ["writer|Guildhall|Write .lore/plans/launch.md"] * 2
    )
    repo.commit({".lore/more.md": "---\ntitle: More\nstatus: new\n---\n", ".lore/picture.png": "x"})
    listed = artifacts.list()
    assert [(path, one.title, one.status) for path, one in listed.items()] == [
        (".lore/more.md", "More", "new"), (".lore/plan.md", "", ""), (".lore/plans/launch.md", "Launch", "done"),
    ]  # fmt: skip
    assert list(artifacts.list("plans")) == [".lore/plans/launch.md"]
    assert repo.git("status", "--porcelain") == ""


def test_in_a_worktree_they_lie_there(worktrees: Worktrees, shop: Project, repo: Repository) -> None:
    path = worktrees.check_out(shop, "c-one", "claude/commission/c-one-1", "sparse")
    artifacts = Artifacts(CheckoutStore(path))
    artifacts.write("report.md", "# Report\n", date="2026-01-01", tags=["a"])
    assert (
        path / ".lore" / "report.md"
    ).read_text() == '---\ntitle: report\ndate: "2026-01-01"\ntags: [a]\n---\n# Report\n'
    assert list(artifacts.list()) == [".lore/plan.md", ".lore/report.md"]
    (path / ".lore" / "out").symlink_to(repo.path)
    (path / ".lore" / "leak.md").symlink_to("/etc/passwd")
    for hostile in ("out/README.md", "leak.md"):
        with pytest.raises(GuildError):
            artifacts.read(hostile)
    with pytest.raises(GuildError):
        artifacts.write("out/x.md", "x", date="")
    assert not (repo.path / "x.md").exists()


@pytest.mark.parametrize(
    "path",
    ["", "..", "../x.md", "a/../../x.md", "/etc/x.md", ".hidden.md", "a/.git/x.md", "a//x.md", "-rf.md", "a\nb.md",
     "a\\b.md", "x.txt", "x" * 300 + ".md", "/".join("abcdefghijklmn") + ".md", "\ud800.md", "commissions/c-one.md",
     "meetings/t.md"],
)  # fmt: skip
def test_other_paths_are_refused(branches: Branches, path: str) -> None:
    artifacts = Artifacts(BranchStore(branches, "writer"))
    with pytest.raises((UsageError, Refused)):
        artifacts.write(path, "x", date="")
    assert not branches.exists("claude/main")


def test_too_much_is_refused(branches: Branches) -> None:
    with pytest.raises(Refused, match="1,000,0"):
        Artifacts(BranchStore(branches, "writer")).write("x.md", "y" * 1_000_001, date="")


@pytest.mark.req("SYS-2")
def test_a_run_in_a_registered_project_has_the_tools(guild: Guild, repo: Repository) -> None:
    put_worker(repo.path, "writer", sandboxes=None, tool_rules=None)
    put_worker(repo.path, "plain", sandboxes=None, tool_rules=None, base=False)
    write = {"call": "artifact_write", "with": {"path": "notes.md", "content": "# Notes\n", "title": "Note"}}
    put_script(repo.path, write, {"call": "artifact_list", "with": {}}, {"say": "done"})
    shown = guild("plan", "writer", cwd=repo.path).out
    assert "artifact_" not in shown
    guild("project", "add", repo.path)
    shown = guild("plan", "writer", cwd=repo.path).out
    assert all(name in shown for name in ("artifact_read", "artifact_write", "artifact_list"))
    assert "artifact_" not in guild("plan", "plain", cwd=repo.path).out
    ran = guild("run", "writer", "go", cwd=repo.path)
    assert ran.code == 0, ran.err
    assert repo.at("claude/main", ".lore/notes.md").startswith("---\ntitle: Note\n")
    assert repo.git("log", "-1", "--format=%an", "claude/main") == "writer"
    assert not (repo.path / ".lore" / "notes.md").exists()


def test_the_artifact_tools_include_the_records_of_the_hall(branches: Branches, tmp_path: Path) -> None:
    branches.write_records({".lore/meetings/t-one.md": b"Notes\n"}, "Notes", "Guildhall")
    (tmp_path / ".lore" / "meetings").mkdir(parents=True)
    (tmp_path / ".lore" / "meetings" / "t-one.md").write_text("Forged\n")
    (tmp_path / ".lore" / "plan.md").write_text("Plan\n")
    artifacts = Artifacts(StoreWithRecords(CheckoutStore(tmp_path), branches))
    assert list(artifacts.list()) == [".lore/meetings/t-one.md", ".lore/plan.md"]
    assert list(artifacts.list("meetings")) == [".lore/meetings/t-one.md"]
    assert list(artifacts.list("plans")) == []
    assert (artifacts.read("meetings/t-one.md"), artifacts.read("plan.md")) == ("Notes\n", "Plan\n")
