"""What the tests of projects stand on: a real repository of a person's, and the hall's git for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from guildhall.projects.git.integration_branch import Branches
from guildhall.projects.git.repository import Git
from guildhall.projects.git.worktrees import Worktrees
from guildhall.projects.model import Project

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.core.paths import Home


@dataclass(frozen=True)
class Repository:
    """A repository of the person's, used as a person would."""

    path: Path

    def git(self, *args: str, cwd: Path | None = None, check: bool = True) -> str:
        env = {
            "PATH": os.environ["PATH"],
            "HOME": os.environ["HOME"],
            "GIT_AUTHOR_NAME": "Ada",
            "GIT_AUTHOR_EMAIL": "ada@shop.example",
            "GIT_COMMITTER_NAME": "Ada",
            "GIT_COMMITTER_EMAIL": "ada@shop.example",
        }
        told = subprocess.run(
            ["git", *args], cwd=cwd or self.path, env=env, capture_output=True, check=False, encoding="utf-8"
        )
        if check and told.returncode:
            raise AssertionError(f"git {args}: {told.stderr}")
        return told.stdout.strip()

    def write(self, name: str, text: str) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(text)

    def commit(self, files: dict[str, str], message: str = "A change") -> str:
        for name, text in files.items():
            self.write(name, text)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def at(self, ref: str, path: str) -> str:
        return self.git("show", f"{ref}:{path}")

    def fsck(self) -> None:
        told = self.git("fsck", "--full", "--strict", "--no-dangling")
        assert "error" not in told
        assert "missing" not in told


def repository(path: Path, files: Mapping[str, str] | None = None) -> Repository:
    """Create a repository. Files become its first commit. Repositories with equal files are created once and copied."""
    made = Repository(path)
    path.mkdir(parents=True, exist_ok=True)
    for name, text in (files or {}).items():
        made.write(name, text)
    for name, data in _begun(tuple((files or {}).items())).items():
        if data is None:
            (path / name).mkdir()
        else:
            (path / name).write_bytes(data)
    return made


@cache
def _begun(files: tuple[tuple[str, str], ...]) -> Mapping[str, bytes | None]:
    """Return the content of `.git` of a new repository, folders first."""
    with TemporaryDirectory() as folder:
        made = Repository(Path(folder))
        made.git("init", "-q", "-b", "main")
        if files:
            made.commit(dict(files), "Start")
        shutil.rmtree(made.path / ".git" / "hooks")
        paths = sorted(path for path in made.path.rglob("*") if ".git" in path.relative_to(folder).parts[:1])
        return {str(one.relative_to(folder)): one.read_bytes() if one.is_file() else None for one in paths}


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    files = {"README.md": "The shop\n", "src/cart.py": "total = 1\n", ".lore/plan.md": "The plan\n"}
    return repository(tmp_path / "shop", files)


@pytest.fixture
def shop(repo: Repository) -> Project:
    return Project(name="shop", path=repo.path, branch="main")


@pytest.fixture
def git(shop: Project, home: Home) -> Git:
    return Git(shop.path, home.git_dirs / shop.name)


@pytest.fixture
def branches(shop: Project, git: Git) -> Branches:
    return Branches(shop, git)


def follow(branches: Branches) -> str:
    """Follow the user's branch and return the outcome: made, nothing, forwarded or merged."""
    before = branches.git.resolve("claude/main")
    after = branches.update()
    if before is None or before == after:
        return "made" if before is None else "nothing"
    return "forwarded" if after == branches.git.resolve(branches.project.ref) else "merged"


@pytest.fixture
def worktrees(home: Home) -> Worktrees:
    return Worktrees(home, cache(lambda project: Git(project.path, home.git_dirs / project.name)))  # as the hall has it
