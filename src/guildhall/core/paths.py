"""Paths: the files and folders of a home, and the root of a project.

The home is `~/.guild-hall` unless GUILDHALL_HOME names another folder. This module does not create folders.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

HOME_VARIABLE = "GUILDHALL_HOME"
PROJECT_SETTINGS = "guildhall.yaml"
MEMBERS = "guild-members"  # folder of members, in a project and in the home
MEMBER_STATE = ".guild"  # the home of a member with workers, in its folder
_MANIFEST = "guild-member.json"


@dataclass
class Home:
    """The folder of a hall and the paths in it."""

    path: Path
    data_dir: Path | None = None  # folder of `jobs` and `memory`; None if they are in `path`

    def __post_init__(self) -> None:
        self.jobs = (self.data_dir or self.path) / "jobs"
        self.memory = (self.data_dir or self.path) / "memory"
        self.database = self.path / "hall.db"
        self.lock = self.path / "hall.lock"
        self.address = self.path / "hall.json"  # address and token of the running hall
        self.start_lock = self.path / "hall.start"  # held by the command that starts the hall
        self.log = self.path / "hall.log"
        self.programs = self.path / "programs.json"  # cache of the versions of programs
        self.settings = self.path / "config.yaml"
        self.workers = self.path / "workers"
        self.toolboxes = self.path / "toolboxes"
        self.packages = self.path / "packages"
        self.worktrees = self.path / "worktrees"  # checkouts: PROJECT/ACTIVITY
        self.aside = self.path / "aside"  # files that git cannot store, in one folder per checkout
        self.git_dirs = self.path / "git"  # the git directories that the hall works in, one per project

    @staticmethod
    def locate(env: dict[str, str]) -> Home:
        """Return the home that the environment names, or the default."""
        named = env.get(HOME_VARIABLE)
        return Home.at(Path(named).expanduser().absolute() if named else Path.home() / ".guild-hall")

    @staticmethod
    def at(path: Path) -> Home:
        """Return the home at a path. The jobs and the memory of a member are in the parent folder of its home."""
        is_member_home = path.name == MEMBER_STATE and (path.parent / _MANIFEST).is_file()
        return Home(path, data_dir=path.parent if is_member_home else None)


def project_root(start: Path) -> Path:
    """Return the nearest parent folder with settings, workers or members, or `start` if there is no such folder.

    The search stops at the root of a git checkout and at the user's home folder.
    """
    for folder in (start, *start.parents):
        if _has_project_files(folder):
            return folder
        if (folder / ".git").exists() or folder == Path.home():
            break
    return start


def _has_project_files(folder: Path) -> bool:
    settings, others = folder / PROJECT_SETTINGS, (folder / "workers", folder / MEMBERS)
    return (settings.is_file() and not is_placeholder(settings)) or any(
        other.is_dir() and not is_placeholder(other) for other in others
    )


def is_same_project(one: Path, other: Path) -> bool:
    """Return True if one of the folders contains the other and no further project or git checkout starts in between."""
    inner, outer = (one, other) if one.is_relative_to(other) else (other, one)
    between = takewhile(lambda folder: folder != outer, (inner, *inner.parents))
    is_inside = inner.is_relative_to(outer)
    return is_inside and not any(_has_project_files(folder) or (folder / ".git").exists() for folder in between)


def is_placeholder(path: Path) -> bool:
    """Return True if the path is an empty file or folder with the sticky bit, which confinement leaves behind."""
    try:
        status = path.lstat()
        if not status.st_mode & stat.S_ISVTX:
            return False
        return not any(path.iterdir()) if stat.S_ISDIR(status.st_mode) else status.st_size == 0
    except OSError:
        return False
