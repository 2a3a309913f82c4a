"""Worktrees: create, restore, commit and remove the hall's checkouts below its home.

To git, a checkout is a linked worktree of the user's repository. This module writes the worktree's metadata itself.
Does not merge (`integration.py`) and does not read the content of files (`snapshot.py`).

Invariant: a crash leaves a complete checkout or none. A checkout is not removed before its content is committed.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import shutil
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.core.atomic_file import replace_file
from guildhall.core.errors import Conflict, GitFailed, GuildError, NotFound, UsageError
from guildhall.core.ids import is_name
from guildhall.projects.git import repository as trees
from guildhall.projects.git.integration import Branches
from guildhall.projects.git.snapshot import Aside, Snapshot, ignored, move_out, put_aside, take
from guildhall.projects.model import INTEGRATION, OURS, Project, Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from guildhall.core.paths import Home
    from guildhall.projects.git.repository import Git

_log = logging.getLogger("guildhall.projects")
_MAKING, _REMOVING, _GLANCE = ".making", ".removing", ".glance-"
_BY = "Guildhall"


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What was committed of a checkout, if anything was new; and what cannot be, each path with the reason."""

    commit: str | None = None
    left: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Worktree:
    """One checkout as it should be: whose it is, on which branch, how much of the project it has."""

    project: str
    activity: str
    branch: str
    scope: Scope
    tip: str | None = None  # where the branch was when the hall last moved it


class Worktrees:
    """All checkouts of a home."""

    def __init__(self, home: Home, git: Callable[[Project], Git]) -> None:
        self._home = home
        self._git = git

    def path(self, project: Project, activity: str) -> Path:
        """Return the path of an activity's checkout, whether or not it exists."""
        if not is_name(activity):
            raise UsageError(f"{activity[:60]!r} cannot name an activity")
        return self._home.worktrees / project.name / activity

    def activities(self, project: str) -> list[str]:
        """Return the activities that have a checkout of a project."""
        folder = self._home.worktrees / project
        there = folder.iterdir() if folder.is_dir() else ()
        return sorted(one.name for one in there if is_name(one.name) and one.is_dir())

    def make(self, project: Project, activity: str, branch: str, scope: Scope) -> Path:
        """Return the checkout of an activity, created or completed if necessary. A new branch starts at claude/main."""
        if not branch.startswith(OURS) or branch == INTEGRATION:
            raise UsageError(f"{branch!r} is no branch of an activity")
        path = self.path(project, activity)
        with self._alone(path):
            before = self._record(path)
            if before is not None and path.exists() and (before.branch, before.scope) != (branch, scope):
                self._remove(project, path, before)
            tip = self._ensure_branch(project, branch, before.tip if before and before.branch == branch else None)
            wanted = Worktree(project=project.name, activity=activity, branch=branch, scope=scope, tip=tip)
            self._write_record(path, wanted)
            self._check_out(project, path, wanted)
        return path

    def missing(self, project: Project) -> list[Worktree]:
        """Return the checkouts of a project whose folders somebody has removed."""
        found: list[Worktree] = []
        for file in sorted((self._home.worktrees / project.name).glob("*.json")):
            path = file.with_suffix("")
            record = self._record(path)
            going = _beside(path, _REMOVING).exists() or not self._index(project, path).parent.exists()
            if record is not None and not path.exists() and not going:
                found.append(replace(record, activity=path.name))
        return found

    def restore(self, project: Project, activity: str, branch: str, scope: Scope) -> bool:
        """Create a checkout if it is missing, and return True if it was. Errors are logged."""
        try:
            is_missing = not self.path(project, activity).is_dir()
            self.make(project, activity, branch, scope)
        except GuildError as error:
            _log.warning("worktree of %s in %s: %s", activity, project.name, error)
            return False
        if is_missing:
            _log.info("worktree of %s in %s was missing and is there again", activity, project.name)
        return is_missing

    def commit(self, project: Project, activity: str, message: str, author: str) -> str | None:
        """Commit a checkout on its branch, and return the commit, or None if nothing has changed."""
        return self.keep(project, activity, message, author).commit

    def keep(self, project: Project, activity: str, message: str, author: str, wanted: Sequence[str] = ()) -> Kept:
        """Commit a checkout on its branch. `wanted`: paths that are committed even if git ignores them."""
        path = self.path(project, activity)
        with self._alone(path):
            record = self._record(path)
            if record is None or not path.is_dir():
                raise NotFound("there is no such worktree", where=str(path))
            self._check_out(project, path, record)
            new, taken = self._commit(project, path, record, message, author, wanted)
            return Kept(commit=new, left=tuple(taken.left))

    def ignored(self, project: Project, activity: str) -> list[str]:
        """Return the ignored paths in a checkout. A folder without tracked files ends in a slash."""
        path = self.path(project, activity)
        with self._alone(path):
            found = ignored(self._git(project), path, self._index(project, path))
        return [one.decode("utf-8", "replace") for one in found]

    def remove(self, project: Project, activity: str) -> Aside | None:
        """Remove a checkout after committing its content. Return the ignored files, which are stored, if any."""
        path = self.path(project, activity)
        with self._alone(path):
            record = self._record(path)
            if path.is_dir() and record is None:
                raise Conflict("it is not known what this folder is", where=str(path), hint="Move it elsewhere.")
            aside = self._remove(project, path, record) if record is not None else None
            self._sweep(path)
            return aside

    def glance(self, project: Project, activity: str, commit: str) -> Path:
        """Return a temporary folder with all files of a commit. The caller ends it with `end_glance`."""
        folder = _beside(self.path(project, activity), f"{_GLANCE}{secrets.token_hex(6)}")
        git = self._git(project)
        folder.mkdir(parents=True)
        with git.scratch() as scratch:
            git.run("read-tree", "-m", "-u", commit, tree=folder, index=scratch / "index")
        return folder

    def end_glance(self, folder: Path) -> None:
        _vanish(folder)

    # how

    def _remove(self, project: Project, path: Path, record: Worktree) -> Aside | None:
        aside = None
        if path.is_dir():
            git = self._git(project)
            self._check_out(project, path, record)
            _, taken = self._commit(project, path, record, "What was there in the end", _BY)
            tip = git.resolve(record.branch) or record.tip or Branches(project, git).ensure()
            aside = put_aside(git, path, self._index(project, path), record.branch, tip)
            if names := tuple(dict.fromkeys(name for name, _ in taken.left)):
                folder = move_out(path, names, self._home.aside / project.name / path.name)
                aside = replace(aside or Aside(), folder=str(folder), moved=names)
            if aside is not None:
                _log.info("worktree of %s in %s: %s", path.name, project.name, aside.told())
            path.rename(_beside(path, _REMOVING))
        _vanish(self._index(project, path).parent)
        self._sweep(path)
        self._record_path(path).unlink(missing_ok=True)
        return aside

    def _ensure_branch(self, project: Project, branch: str, tip: str | None) -> str:
        """Return the tip of a branch. Create it at its last known tip or at the integration branch if it is missing."""
        git = self._git(project)
        ref = f"refs/heads/{branch}"
        if (now := git.resolve(ref)) is not None:
            return now
        start = (git.resolve(tip) if tip else None) or Branches(project, git).ensure()
        try:
            git.move("begin", f"update {ref} {start} {'0' * len(start)}")
        except GitFailed:
            if git.resolve(ref) is None:
                raise
        return git.resolve(ref) or start

    def _check_out(self, project: Project, path: Path, wanted: Worktree) -> None:
        git = self._git(project)
        index = self._index(project, path)
        self._describe(path, index.parent, wanted)
        if not path.is_dir():
            making = _beside(path, _MAKING)
            _vanish(making)
            making.mkdir(parents=True)
            fresh = _fresh(index)
            sparse = ("-c", f"core.sparseCheckout={str(wanted.scope == 'sparse').lower()}")
            git.run(*sparse, "read-tree", "-m", "-u", wanted.tip or wanted.branch, tree=making, index=fresh)
            _put(making / ".git", f"gitdir: {index.parent}\n")
            fresh.replace(index)
            making.rename(path)
        self._mark(path, index.parent)
        if not index.exists():
            self._index_again(git, path, index, wanted)

    def _describe(self, path: Path, folder: Path, wanted: Worktree) -> None:
        """Write git's metadata of a linked worktree. `locked` comes first, so that git does not prune it meanwhile."""
        try:
            folder.parent.mkdir(exist_ok=True)
            folder.mkdir(exist_ok=True)
        except FileNotFoundError:
            raise GitFailed(
                "the project's repository is not there any more",
                where=str(folder.parents[1]),
                hint="Was it moved? Say where it is in `projects:` of config.yaml, or move it back.",
            ) from None
        _put(folder / "locked", "Guildhall works here\n")
        _put(folder / "guildhall", f"{wanted.activity}\n")
        _put(folder / "commondir", "../..\n")
        _put(folder / "gitdir", f"{path / '.git'}\n")
        _put(folder / "HEAD", f"ref: refs/heads/{wanted.branch}\n")

    def _mark(self, path: Path, folder: Path) -> None:
        """Write the `.git` file of a checkout. Rename anything else that has taken its place."""
        marker = path / ".git"
        if marker.is_symlink() or (marker.exists() and not marker.is_file()):
            number = next(n for n in range(1, 1000) if not os.path.lexists(path / f"git-found-{n}"))
            marker.rename(path / f"git-found-{number}")
        _put(marker, f"gitdir: {folder}\n")

    def _index_again(self, git: Git, path: Path, index: Path, wanted: Worktree) -> None:
        """Create the index of a checkout that has lost it, from the branch's tip, without touching files."""
        fresh = _fresh(index)
        tip = git.resolve(wanted.branch) or str(wanted.tip)
        git.run("read-tree", tip, index=fresh)
        if wanted.scope == "sparse":
            told = git.run("ls-files", "-z", index=fresh).out.split(b"\0")
            outside = [name for name in told if name and not name.startswith(b".lore/")]
            lines = b"".join(name + b"\0" for name in outside)
            git.run("update-index", "-z", "--skip-worktree", "--stdin", index=fresh, tree=path, input=lines)
        fresh.replace(index)

    def _commit(
        self, project: Project, path: Path, tree: Worktree, message: str, author: str, wanted: Sequence[str] = ()
    ) -> tuple[str | None, Snapshot]:
        git = self._git(project)
        index = self._index(project, path)
        fresh = _fresh(index)
        shutil.copy2(index, fresh)  # its time too: git knows by it which files may have changed unseen
        taken = take(git, path, fresh, wanted)
        if taken.changes:
            trees.put_in_index(git, fresh, taken.changes)
            git.run("update-index", "-q", "--refresh", tree=path, index=fresh, ok=(0, 1))
        made = git.run("write-tree", index=fresh).line
        now = git.resolve(tree.branch) or tree.tip or Branches(project, git).ensure()
        new = None
        if made != git.run("rev-parse", "--verify", f"{now}^{{tree}}").line:
            now = self._ensure_branch(project, tree.branch, tree.tip)
            new = trees.commit(git, made, [now], message, author)
            git.move("commit", f"update refs/heads/{tree.branch} {new} {now}")
            self._write_record(path, replace(tree, tip=new))
        fresh.replace(index)
        return new, taken

    def _index(self, project: Project, path: Path) -> Path:
        return self._git(project).common / "worktrees" / f"guildhall-{path.name}" / "index"

    # records, beside the checkouts

    def _record_path(self, path: Path) -> Path:
        return path.with_name(f"{path.name}.json")

    def _record(self, path: Path) -> Worktree | None:
        try:
            return Worktree(**json.loads(self._record_path(path).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def _write_record(self, path: Path, record: Worktree) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _put(self._record_path(path), json.dumps(asdict(record)))

    def _sweep(self, path: Path) -> None:
        for ending in (_MAKING, _REMOVING):
            _vanish(_beside(path, ending))
        for left in path.parent.glob(f".{path.name}{_GLANCE}*"):
            _vanish(left)

    @contextmanager
    def _alone(self, path: Path) -> Generator[None]:
        """Lock a checkout for this thread, against other threads and processes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _fresh(index: Path) -> Path:
    """Return the path of a new index, and delete those of interrupted calls. A git of theirs may still run."""
    for left in index.parent.glob("fresh-*"):
        left.unlink(missing_ok=True)
    return index.with_name(f"fresh-{secrets.token_hex(6)}")


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(f".{path.name}{ending}")


def _put(path: Path, text: str) -> None:
    """Writes a small file at once, if it does not say so already. A link in its place is replaced, not followed."""
    with suppress(OSError, ValueError):
        if not path.is_symlink() and path.read_text() == text:
            return
    replace_file(path, text.encode(), mode=0o644, exact_mode=True)


def _vanish(folder: Path) -> None:
    """Takes away a folder of ours, also one in which something was made read-only."""
    if folder.is_symlink():
        folder.unlink()
        return

    def once_more(function: Callable[..., Any], name: str, error: object) -> None:
        Path(name).parent.chmod(0o700)
        if not Path(name).is_symlink():
            Path(name).chmod(0o700)
        function(name)

    if folder.exists():
        shutil.rmtree(folder, onerror=once_more)
