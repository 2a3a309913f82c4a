"""Paths: names the files and folders of a home, and finds the home of the environment and the root of a project.

The home is `~/.guild-hall` unless GUILDHALL_HOME names another folder. Does not create folders.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

HOME_VARIABLE = "GUILDHALL_HOME"
PROJECT_SETTINGS = "guildhall.yaml"
MEMBERS = "guild-members"  # of a project, and of the home
MEMBER_STATE = ".guild"  # the home of a member with workers, in its folder
_MANIFEST = "guild-member.json"


@dataclass(frozen=True)
class Home:
    """The folder of one hall, `~/.guild-hall` unless GUILDHALL_HOME says otherwise."""

    path: Path
    data_dir: Path | None = None  # folder of `jobs` and `memory`, if not this one

    @property
    def jobs(self) -> Path:
        return (self.data_dir or self.path) / "jobs"

    @property
    def memory(self) -> Path:
        return (self.data_dir or self.path) / "memory"

    @property
    def database(self) -> Path:
        return self.path / "hall.db"

    @property
    def lock(self) -> Path:
        return self.path / "hall.lock"

    @property
    def address(self) -> Path:
        """Return the file with the address and the token of the running hall."""
        return self.path / "hall.json"

    @property
    def start_lock(self) -> Path:
        """Return the lock of the command that starts the hall."""
        return self.path / "hall.start"

    @property
    def log(self) -> Path:
        return self.path / "hall.log"

    @property
    def programs(self) -> Path:
        """Return the cache of the versions of programs."""
        return self.path / "programs.json"

    @property
    def settings(self) -> Path:
        return self.path / "config.yaml"

    @property
    def workers(self) -> Path:
        return self.path / "workers"

    @property
    def toolboxes(self) -> Path:
        return self.path / "toolboxes"

    @property
    def packages(self) -> Path:
        return self.path / "packages"

    @property
    def worktrees(self) -> Path:
        """Return the folder of checkouts: PROJECT/ACTIVITY."""
        return self.path / "worktrees"

    @property
    def aside(self) -> Path:
        """Return the folder for files that git cannot store, one folder per checkout."""
        return self.path / "aside"

    @property
    def git_dirs(self) -> Path:
        """Return the folder of the git directories that the hall works in, one per project."""
        return self.path / "git"

    @staticmethod
    def locate(env: dict[str, str]) -> Home:
        """Return the home that the environment names, or the default."""
        named = env.get(HOME_VARIABLE)
        return Home.at(Path(named).expanduser().absolute() if named else Path.home() / ".guild-hall")

    @staticmethod
    def at(path: Path) -> Home:
        """Return the home at a path. The jobs and memory of a member are beside its home."""
        of_member = path.name == MEMBER_STATE and (path.parent / _MANIFEST).is_file()
        return Home(path, data_dir=path.parent if of_member else None)


def project_root(start: Path) -> Path:
    """Return the nearest parent folder with settings, workers or members, or `start` if there is no such folder.

    The search stops at the root of a git checkout and at the user's home folder.
    """
    for folder in (start, *start.parents):
        settings, others = folder / PROJECT_SETTINGS, (folder / "workers", folder / MEMBERS)
        if (settings.is_file() and not is_placeholder(settings)) or any(
            other.is_dir() and not is_placeholder(other) for other in others
        ):
            return folder
        if (folder / ".git").exists() or folder == Path.home():
            break
    return start


def is_placeholder(path: Path) -> bool:
    """Return True if the path is a placeholder: empty, with the sticky bit."""
    try:
        status = path.lstat()
        if not status.st_mode & stat.S_ISVTX:
            return False
        return not any(path.iterdir()) if stat.S_ISDIR(status.st_mode) else status.st_size == 0
    except OSError:
        return False
