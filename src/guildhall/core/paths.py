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
MEMBER_STATE = ".guild"  # in the folder of a member that takes work: its home
_MANIFEST = "guild-member.json"


@dataclass(frozen=True)
class Home:
    """The folder of one hall, `~/.guild-hall` unless GUILDHALL_HOME says otherwise."""

    path: Path
    keeps: Path | None = None  # where jobs and memory lie: of a member, the folder that is its own; None: in here

    @property
    def jobs(self) -> Path:
        return (self.keeps or self.path) / "jobs"

    @property
    def memory(self) -> Path:
        return (self.keeps or self.path) / "memory"

    @property
    def database(self) -> Path:
        return self.path / "hall.db"

    @property
    def lock(self) -> Path:
        return self.path / "hall.lock"

    @property
    def address(self) -> Path:
        """Where the process of the hall can be reached, while there is one."""
        return self.path / "hall.json"

    @property
    def start_lock(self) -> Path:
        """Held by the command that starts the process of the hall."""
        return self.path / "hall.start"

    @property
    def log(self) -> Path:
        return self.path / "hall.log"

    @property
    def programs(self) -> Path:
        """What programs of others have said of their versions; without it they are asked again."""
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
        """The hall's own checkouts of projects: a folder for each project, in it one for each activity."""
        return self.path / "worktrees"

    @property
    def aside(self) -> Path:
        """What workers have made and git cannot hold: a folder for each checkout that it was in."""
        return self.path / "aside"

    @property
    def desks(self) -> Path:
        """Where git works for the hall: a folder for each project."""
        return self.path / "desks"

    @staticmethod
    def locate(env: dict[str, str]) -> Home:
        """The home that the environment names."""
        named = env.get(HOME_VARIABLE)
        return Home.at(Path(named).expanduser().absolute() if named else Path.home() / ".guild-hall")

    @staticmethod
    def at(path: Path) -> Home:
        """The home at a path. That of a member lies in the member's folder, and its jobs and memory beside it."""
        of_member = path.name == MEMBER_STATE and (path.parent / _MANIFEST).is_file()
        return Home(path, keeps=path.parent if of_member else None)


def project_root(start: Path) -> Path:
    """The nearest folder upwards that holds settings, workers or members; `start` itself where there is none.

    The search stops at the top of a git checkout and at the user's home folder: what lies beyond is somebody else's.
    """
    for folder in (start, *start.parents):
        settings, others = folder / PROJECT_SETTINGS, (folder / "workers", folder / MEMBERS)
        if (settings.is_file() and not stands_in(settings)) or any(
            other.is_dir() and not stands_in(other) for other in others
        ):
            return folder
        if (folder / ".git").exists() or folder == Path.home():
            break
    return start


def stands_in(path: Path) -> bool:
    """Whether it is there only so that a confined program cannot make it: empty, and marked by the sticky bit."""
    try:
        status = path.lstat()
        if not status.st_mode & stat.S_ISVTX:
            return False
        return not any(path.iterdir()) if stat.S_ISDIR(status.st_mode) else status.st_size == 0
    except OSError:
        return False
