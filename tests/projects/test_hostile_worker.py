"""A worker with a shell in its worktree tries to reach the user's repository by every way that there is."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from tests.runs.places import journal, put_worker

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import Guild
    from tests.projects.conftest import Repository


def attempts(repo: Path, home: Path, bare: Path) -> list[str]:
    """Commands that must fail or change nothing. A successful one prints its own text."""
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
    """Return the content of a folder, byte by byte."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        mode = f"{path.lstat().st_mode:o}"
        if path.is_symlink():
            found[str(path)] = str(path.readlink())
        else:
            found[str(path)] = f"{mode} {hashlib.sha256(path.read_bytes()).hexdigest()}" if path.is_file() else mode
    return found


def users(folder: Path) -> dict[str, str]:
    """Return the user's part of a repository: everything but objects and the hall's own refs."""
    ours = ("/.git/objects", "/heads/claude", "/refs/guildhall", "/.git/worktrees/guildhall-")
    return {path: told for path, told in fingerprints(folder).items() if not any(part in path for part in ours)}


@pytest.mark.req("SYS-25", "SYS-22")
def test_nothing_of_the_users_is_reached(guild: Guild, repo: Repository, home: Home, tmp_path: Path) -> None:
    repo.git("worktree", "add", "-q", "-b", "topic", str(tmp_path / "own"))
    repo.commit({"README.md": "The newer shop\n"}, "Newer")
    repo.write("secret.txt", "not committed\n")
    repo.write("README.md", "changed, not added\n")
    bare = tmp_path / "bare.git"
    repo.git("clone", "-q", "--bare", str(repo.path), str(bare))
    repo.git("remote", "add", "origin", str(bare))
    tried = attempts(repo.path, home.path, bare)
    calls = [{"call": "Bash", "with": {"command": f"{one} && echo IT-WORKED"}} for one in tried]
    wanted = "mkdir -p src; echo 'total = 7' > src/cart.py; echo n > new.txt; git log --format=%s; git branch --list"
    work = [{"call": "Bash", "with": {"command": wanted}}, {"call": "submit_result", "with": {"output": "Seven."}}]
    call = {"call": "worker_call", "with": {"worker": "helper", "input_data": "go"}}
    free = {"model": "script:answers.yaml", "tools": ["Bash"], "sandboxes": None, "tool_rules": None}
    put_worker(repo.path, "coder", checkout="full", allow_workers=["helper"], **free)
    put_worker(repo.path, "helper", **free)
    answers = {"coder": [[*calls, call, *work, {"say": "done"}]], "helper": [[*calls[:3], {"say": "helped"}]]}
    repo.write("answers.yaml", json.dumps({"workers": answers}))
    assert guild("project", "add", repo.path).code == 0
    mine, theirs = users(repo.path), {**fingerprints(bare), **fingerprints(tmp_path / "own")}
    words = ("dispatch", "coder", "--project", "shop", "--title", "Work", "go", "--wait", "--json")
    done = guild(*words, cwd=repo.path)
    assert (done.code, done.json["status"]) == (0, "completed"), done
    assert users(repo.path) == mine
    assert {**fingerprints(bare), **fingerprints(tmp_path / "own")} == theirs
    told = [str(entry["data"]) for entry in journal(guild, done.json["run"]) if entry["kind"] == "tool_ended"]
    assert len(told) == len(tried) + 3 + 3, "all of it was tried, some of it by the helper, too"
    worked = [result for result in told if "IT-WORKED" in result]
    assert worked == [], worked
    id = done.json["commission"]
    (seen,) = (result for result in told if f"* claude/commission/{id}-1" in result)
    assert "Newer" in seen, "the user's work, on a branch of its own"
    # What it did is one commit on the integration branch; its own branch is gone, and kept out of the way.
    assert repo.at("claude/main", "src/cart.py") == "total = 7"
    assert repo.git("log", "-1", "--format=%an %s", "claude/main") == "coder Work"
    refs = repo.git("for-each-ref", "--format=%(refname)").split()
    ours = [f"refs/guildhall/kept/commission/{id}-1", "refs/guildhall/records", "refs/heads/claude/main"]
    assert [ref for ref in refs if "claude" in ref or "guildhall" in ref] == ours
    repo.fsck()
