"""What a run sees that has a checkout of its own: that, nothing else of the home, and not the user's folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import GuildError, ToolUnavailable
from guildhall.core.request_frame import Frame
from guildhall.runs.assembly.tools_and_folders import make_view
from guildhall.sandbox.files import SandboxFiles
from guildhall.workers.registry import Registry
from tests.sandbox.test_jail import KINDS, run_confined

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.projects.git.worktrees import Worktrees
    from guildhall.projects.model import Project
    from guildhall.sandbox.jail import Kind
    from guildhall.sandbox.view import View
    from tests.projects.conftest import Repository

WORKER = "name: coder\ninstructions: Code.\ncheckout: full\ntools: [Read, Grep, Write, Bash]\n"


@pytest.fixture
def frame(repo: Repository, worktrees: Worktrees, shop: Project, home: Home) -> Frame:
    repo.write("secret.txt", "the user's own, not committed\n")
    (home.path / "hall.json").parent.mkdir(parents=True, exist_ok=True)
    (home.path / "hall.json").write_text("token")
    path = worktrees.check_out(shop, "c-one", "claude/commission/c-one-1", "full")
    worktrees.check_out(shop, "c-two", "claude/commission/c-two-1", "full")
    return Frame(cwd=repo.path, root=repo.path, worktree=path)


def view(frame: Frame, home: Home, more: str = "") -> View:
    home.workers.mkdir(parents=True, exist_ok=True)
    (home.workers / "coder.yaml").write_text(WORKER + more)
    worker = Registry(frame.root, home).find("coder", frame.cwd)
    return make_view(worker, worker.sandbox_folders(frame), frame, home)


def test_file_tools_see_the_worktree_and_nothing_else(frame: Frame, home: Home, repo: Repository) -> None:
    assert frame.worktree is not None
    files = SandboxFiles(view(frame, home))
    assert files.read(files.locate("src/cart.py")).data == b"total = 1\n"
    assert files.write(files.locate("new/file.txt"), b"made\n")
    assert (frame.worktree / "new" / "file.txt").read_text() == "made\n"
    (frame.worktree / "out").symlink_to(repo.path)
    (frame.worktree / "up").symlink_to("../c-two")
    others = (
        str(repo.path / "secret.txt"), str(repo.path / ".git" / "config"), str(home.path / "hall.json"),
        str(frame.worktree.with_name("c-two") / "README.md"), "../c-two/README.md", "../../../hall.json",
        "up/README.md", "out/README.md",
    )  # fmt: skip
    for path in others:
        with pytest.raises(GuildError):
            files.read(files.locate(path))
        with pytest.raises(GuildError):
            files.write(files.locate(path), b"x")
    for path in (".git", ".GIT", "./.git"):
        with pytest.raises(GuildError, match=r"protected, because|is a folder|does not exist"):
            files.write(files.locate(path), b"gitdir: /elsewhere\n")
    assert (frame.worktree / ".git").read_text().startswith("gitdir: ")


@pytest.mark.parametrize("above", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_programs_see_the_worktree_and_history_and_nothing_else(
    frame: Frame, home: Home, repo: Repository, kind: Kind, above: bool
) -> None:
    """`above`: a sandbox to read holds the home and the user's folder, too."""
    assert frame.worktree is not None
    over = repo.path.parents[1]
    seen = view(frame, home, f"sandboxes: {{all: {{path: {over}, mode: ro}}}}\n" if above else "")
    script = f"""
    cat src/cart.py; echo more >> src/cart.py && echo written
    git log --format=%s -1; git status --short; git diff --stat | tail -1
    cat {repo.path}/secret.txt || echo no secret
    cat {home.path}/hall.json || echo no token
    ls {frame.worktree.parent}/c-two 2>/dev/null || echo no other
    echo x > .git || echo no pointer
    echo x >> {repo.path}/.git/config || echo no config
    git update-ref refs/heads/main HEAD~0 2>/dev/null && echo moved; git commit -qam mine 2>/dev/null || echo no commit
    touch {home.path}/x; touch {repo.path}/x; true
    """
    code, out = run_confined(seen, script, kind)
    lines = out.splitlines()
    expected = [
        "total = 1", "written", "Start", " M src/cart.py", " 1 file changed, 1 insertion(+)", "no secret", "no token",
        "no other", "no pointer", "no config", "no commit",
    ]  # fmt: skip
    assert [line for line in lines if line in expected] == expected, out
    assert "moved" not in lines
    assert not (home.path / "x").exists()  # what it made below its own /tmp is gone with it
    assert not (repo.path / "x").exists()
    assert code == 0


def test_sandboxes_of_the_project_are_those_of_the_worktree(frame: Frame, home: Home, tmp_path: Path) -> None:
    assert frame.worktree is not None
    (tmp_path / "elsewhere").mkdir()
    more = f"sandboxes: {{src: {{path: src, mode: rw}}, other: {{path: {tmp_path}/elsewhere, mode: ro}}}}\n"
    folders = {folder.name: folder.path for folder in view(frame, home, more).folders}
    assert folders["src"] == frame.worktree / "src"
    assert folders["other"] == tmp_path / "elsewhere"
    with pytest.raises(ToolUnavailable, match="outside of the project"):
        view(frame, home, f"sandboxes: {{other: {{path: {tmp_path}/elsewhere, mode: rw}}}}\n")
    with pytest.raises(ToolUnavailable, match="does not exist"):
        view(frame, home, "sandboxes: {gone: {path: gone, mode: ro}}\n")
    (frame.worktree / "trap").symlink_to("/etc")
    with pytest.raises(ToolUnavailable, match="outside of the worktree"):
        view(frame, home, "sandboxes: {trap: {path: trap, mode: rw}}\n")
