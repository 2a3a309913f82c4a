"""A worker with a shell in its worktree tries to reach the user's repository by every way that there is."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

import pytest

from guildhall.core.frame import Frame
from guildhall.hall.embedded import open_hall
from guildhall.runs.model import RunRequest
from tests.runs.places import put_script, put_worker

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.projects.branches import Branches
    from guildhall.projects.model import Project
    from guildhall.projects.worktrees import Worktrees
    from tests.projects.conftest import Repository

BRANCH = "claude/commission/c-one-1"


def attempts(repo: Path, home: Path, bare: Path) -> list[str]:
    """Each is to fail, or to change nothing: one of them that worked prints its own words."""
    git = repo / ".git"
    return [
        "git update-ref refs/heads/main HEAD^",
        "git update-ref -d refs/heads/topic",
        "git update-ref refs/heads/claude/main refs/heads/topic",
        "git branch -f main topic",
        "git branch mine",
        "git checkout -q -b mine",
        "git switch -q main",
        "git reset --hard main^",
        "git add -A",
        "git stash",
        "git -c user.name=n -c user.email=e commit -q --allow-empty -m mine",
        "git tag mine",
        "git config user.name Mallory",
        "git config core.hooksPath /tmp/hooks",
        "git remote add evil /tmp/evil",
        f"git push -q {bare} HEAD:refs/heads/evil",
        f"git push -q {repo} HEAD:refs/heads/evil",
        "git fetch -q . HEAD:refs/heads/evil",
        "git worktree add -q /tmp/other main",
        "git worktree remove --force --force .",
        "git gc -q",
        "git pack-refs --all",
        f"git --git-dir={git} update-ref refs/heads/main refs/heads/topic",
        f"git --git-dir={git} --work-tree={repo} checkout -q -f topic",
        f"git -C {repo} commit -q --allow-empty -m mine",
        f"GIT_DIR={git} GIT_INDEX_FILE={git}/index git rm -q --cached README.md",
        f"cd {repo} && echo mine > README.md && test -f src/cart.py",
        f"echo mine > {git}/HEAD",
        f"echo mine > {git}/refs/heads/main",
        f"echo mine >> {git}/config",
        f"echo '#!/bin/sh' > {git}/hooks/pre-commit",
        f"rm -rf {git}/objects",
        f"mv {git} {git}.away",
        f"ln -s {repo} out && cat out/secret.txt",
        f"ln -s {git} gitlink && echo mine > gitlink/config",
        f"cat {repo}/secret.txt",
        f"cat {home}/hall.db",
        f"ls {home}/workers",
        "echo 'gitdir: /tmp/x' > .git",
        "rm -f .git",
        "mv .git away",
        "cp .git copy && mv -f copy .git",
        f"python3 -c \"open('{git}/config', 'a').write('x')\"",
        f"mount --bind /tmp {git}",
        f"chmod -R 777 {git}",
    ]


def fingerprints(folder: Path) -> dict[str, str]:
    """All that a folder holds, byte by byte."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        mode = f"{path.lstat().st_mode:o}"
        if path.is_symlink():
            found[str(path)] = str(path.readlink())
        else:
            found[str(path)] = f"{mode} {hashlib.sha256(path.read_bytes()).hexdigest()}" if path.is_file() else mode
    return found


def users(folder: Path) -> dict[str, str]:
    """What of a repository is the user's: all but objects, and what the hall has there under its own names."""
    ours = ("/.git/objects", "/heads/claude", "/refs/guildhall", "/.git/worktrees/guildhall-")
    return {path: told for path, told in fingerprints(folder).items() if not any(part in path for part in ours)}


@pytest.mark.req("SYS-25", "SYS-22")
def test_nothing_of_the_users_is_reached(
    repo: Repository, worktrees: Worktrees, branches: Branches, shop: Project, home: Home, tmp_path: Path
) -> None:
    repo.git("branch", "topic")
    repo.commit({"README.md": "The newer shop\n"}, "Newer")
    repo.write("secret.txt", "not committed\n")
    repo.write("README.md", "changed, not added\n")
    bare = tmp_path / "bare.git"
    repo.git("clone", "-q", "--bare", str(repo.path), str(bare))
    repo.git("remote", "add", "origin", str(bare))
    tried = attempts(repo.path, home.path, bare)
    calls = [{"call": "Bash", "with": {"command": f"{one} && echo IT-WORKED"}} for one in tried]
    wanted = "mkdir -p src; echo 'total = 7' > src/cart.py; echo n > new.txt; git log -1 --format=%s"
    work = {"call": "Bash", "with": {"command": wanted}}
    call = {"call": "worker_call", "with": {"worker": "helper", "input": "go"}}
    put_worker(repo.path, "coder", tools=["Bash"], sandboxes=None, tool_rules=None, allow_workers=["helper"])
    put_worker(repo.path, "helper", tools=["Bash"], sandboxes=None, tool_rules=None)
    put_script(repo.path, runs=[[*calls, call, work, {"say": "done"}], [*calls[:3], {"say": "helped"}]])
    path = worktrees.make(shop, "c-one", BRANCH, "full")
    before = {**fingerprints(repo.path), **fingerprints(bare)}
    mine = users(repo.path)
    frame = Frame(cwd=repo.path, root=repo.path, worktree=path, env={"PATH": "/usr/bin:/bin"})
    told = asyncio.run(ran(home, frame))
    worked = [result for result in told if "IT-WORKED" in result]
    assert worked == [], worked
    assert sum("Newer" in result for result in told) == 1
    assert {**fingerprints(repo.path), **fingerprints(bare)} == before
    assert worktrees.commit(shop, "c-one", "Work", "coder")
    branches.squash(BRANCH, "Work", "coder")
    branches.keep(BRANCH)
    worktrees.remove(shop, "c-one")
    assert users(repo.path) == mine
    assert repo.at("claude/main", "src/cart.py") == "total = 7"
    repo.fsck()


async def ran(home: Home, frame: Frame) -> list[str]:
    """A run of the real hall in this frame; what its tools, and those of whom it called, gave back."""
    hall = await open_hall(home, {"PATH": "/usr/bin:/bin"})
    try:
        events = [event async for event in hall.run(RunRequest(worker="coder", input="go"), frame)]
        assert events[-1].data["status"] == "completed", events[-1].data
        told: list[str] = []
        for run in await hall.runs(everything=True, called=True):
            told += [str(entry.data) for entry in await hall.journal(run.id) if entry.kind == "tool_ended"]
        return told
    finally:
        await hall.close()
