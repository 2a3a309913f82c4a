"""Worktrees: create, restore, commit and remove the hall's checkouts below its home.

A checkout is a linked worktree of the user's repository. This module writes the metadata of the worktree itself.
Does not merge (`integration_branch.py`) and does not read the content of files (`snapshot.py`).

Invariant: a crash leaves a complete checkout or none. A checkout is not removed before its content is committed.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.core.atomic_file import replace_file
from guildhall.core.errors import Conflict, GitFailed, GuildError, NotFound, UsageError
from guildhall.core.ids import NAME_RULE, is_name
from guildhall.projects.git import repository
from guildhall.projects.git.integration_branch import Branches
from guildhall.projects.git.snapshot import UncommittedFiles, archive_ignored, list_ignored, move_files, take_snapshot
from guildhall.projects.model import BRANCH_PREFIX, INTEGRATION, Project, Scope

if TYPE_CHECKING:
    from guildhall.core.paths import Home
    from guildhall.projects.git.repository import Git

_log = logging.getLogger("guildhall.projects")
_MAKING, _REMOVING, _EXPORT = ".making", ".removing", ".export-"  # suffixes of temporary folders


@dataclass(frozen=True, kw_only=True)
class CommitResult:
    """The outcome of a commit of a checkout."""

    commit: str | None = None  # None if nothing has changed
    rejected: tuple[tuple[str, str], ...] = ()  # paths that git cannot store, with the reasons


@dataclass(frozen=True, kw_only=True)
class Worktree:
    """The record of a checkout, in a JSON file beside the checkout."""

    project: str
    activity: str
    branch: str
    scope: Scope
    tip: str | None = None  # of the branch when the hall last moved it


class Worktrees:
    """All checkouts of a home."""

    def __init__(self, home: Home, git: Callable[[Project], Git]) -> None:
        self._home = home
        self._git = git

    def path(self, project: Project, activity: str) -> Path:
        """Return the path of an activity's checkout, which may not exist."""
        if not is_name(activity):
            raise UsageError(f"invalid name of an activity {activity[:60]!r}: {NAME_RULE}")
        return self._home.worktrees / project.name / activity

    def list_activities(self, project: str) -> list[str]:
        """Return the names of the activities that have a checkout of a project."""
        folder = self._home.worktrees / project
        paths = folder.iterdir() if folder.is_dir() else ()
        return sorted(path.name for path in paths if is_name(path.name) and path.is_dir())

    def check_out(self, project: Project, activity: str, branch: str, scope: Scope) -> Path:
        """Return the checkout of an activity, created or completed if necessary. A new branch starts at claude/main."""
        if not branch.startswith(BRANCH_PREFIX) or branch == INTEGRATION:
            raise UsageError(f"invalid branch {branch!r}: not the branch of an activity")
        path = self.path(project, activity)
        with self._lock(path):
            before = self._read_record(path)
            if before is not None and path.exists() and (before.branch, before.scope) != (branch, scope):
                self._remove(project, path, before)
            tip = self._ensure_branch(project, branch, before.tip if before and before.branch == branch else None)
            record = Worktree(project=project.name, activity=activity, branch=branch, scope=scope, tip=tip)
            self._write_record(path, record)
            self._check_out(project, path, record)
        return path

    def list_missing(self, project: Project) -> list[Worktree]:
        """Return the checkouts of a project whose folders were removed by hand."""
        missing: list[Worktree] = []
        for file in sorted((self._home.worktrees / project.name).glob("*.json")):
            path = file.with_suffix("")
            record = self._read_record(path)
            is_removing = _sibling(path, _REMOVING).exists() or not self._index_path(project, path).parent.exists()
            if record is not None and not path.exists() and not is_removing:
                missing.append(replace(record, activity=path.name))
        return missing

    def restore(self, project: Project, activity: str, branch: str, scope: Scope) -> bool:
        """Create a checkout if it is missing, and return True if it was. Errors are logged."""
        try:
            is_missing = not self.path(project, activity).is_dir()
            self.check_out(project, activity, branch, scope)
        except GuildError as error:
            _log.warning("worktree of %s in %s: %s", activity, project.name, error)
            return False
        if is_missing:
            _log.info("worktree of %s in %s was missing and was created again", activity, project.name)
        return is_missing

    def commit(
        self, project: Project, activity: str, message: str, author: str, wanted: Sequence[str] = ()
    ) -> CommitResult:
        """Commit a checkout on its branch. `wanted`: paths that are committed even if git ignores them."""
        path = self.path(project, activity)
        with self._lock(path):
            record = self._read_record(path)
            if record is None or not path.is_dir():
                raise NotFound("worktree not found", where=str(path))
            self._check_out(project, path, record)
            return self._commit(project, path, record, message, author, wanted)

    def list_ignored(self, project: Project, activity: str) -> list[str]:
        """Return the ignored paths in a checkout. A folder without tracked files ends in a slash."""
        path = self.path(project, activity)
        with self._lock(path):
            paths = list_ignored(self._git(project), path, self._index_path(project, path))
        return [name.decode("utf-8", "replace") for name in paths]

    def remove(self, project: Project, activity: str) -> UncommittedFiles | None:
        """Remove a checkout after committing its content. Return the files that are not on its branch, or None."""
        path = self.path(project, activity)
        with self._lock(path):
            record = self._read_record(path)
            if path.is_dir() and record is None:
                message = "cannot remove this folder: not a worktree of the hall"
                raise Conflict(message, where=str(path), hint="Move it elsewhere.")
            uncommitted = self._remove(project, path, record) if record is not None else None
            self._remove_temporary(path)
            return uncommitted

    def export_commit(self, project: Project, activity: str, commit: str) -> Path:
        """Return a temporary folder with all files of a commit. The caller removes it with `delete_folder`."""
        folder = _sibling(self.path(project, activity), f"{_EXPORT}{secrets.token_hex(6)}")
        git = self._git(project)
        folder.mkdir(parents=True)
        with git.scratch() as scratch:
            git.run("read-tree", "-m", "-u", commit, tree=folder, index=scratch / "index")
        return folder

    def _remove(self, project: Project, path: Path, record: Worktree) -> UncommittedFiles | None:
        uncommitted = None
        if path.is_dir():
            git = self._git(project)
            self._check_out(project, path, record)
            commit = self._commit(project, path, record, "Uncommitted files of the checkout", "Guildhall")
            tip = git.resolve(record.branch) or record.tip or Branches(project, git).ensure()
            uncommitted = archive_ignored(git, path, self._index_path(project, path), record.branch, tip)
            if names := tuple(dict.fromkeys(name for name, _ in commit.rejected)):
                folder = move_files(path, names, self._home.aside / project.name / path.name)
                uncommitted = replace(uncommitted or UncommittedFiles(), folder=str(folder), moved=names)
            if uncommitted is not None:
                _log.info("worktree of %s in %s: %s", path.name, project.name, uncommitted.text())
            path.rename(_sibling(path, _REMOVING))
        delete_folder(self._index_path(project, path).parent)
        self._remove_temporary(path)
        self._record_path(path).unlink(missing_ok=True)
        return uncommitted

    def _ensure_branch(self, project: Project, branch: str, tip: str | None) -> str:
        """Return the tip of a branch. Create it at its last known tip or at the integration branch if it is missing."""
        git = self._git(project)
        ref = f"refs/heads/{branch}"
        if (current := git.resolve(ref)) is not None:
            return current
        start = (git.resolve(tip) if tip else None) or Branches(project, git).ensure()
        try:
            git.update_refs("begin", f"update {ref} {start} {'0' * len(start)}")
        except GitFailed:
            if git.resolve(ref) is None:
                raise
        return git.resolve(ref) or start

    def _check_out(self, project: Project, path: Path, record: Worktree) -> None:
        git = self._git(project)
        index = self._index_path(project, path)
        self._write_metadata(path, index.parent, record)
        if not path.is_dir():
            making = _sibling(path, _MAKING)
            delete_folder(making)
            making.mkdir(parents=True)
            new_index = _new_index_path(index)
            sparse = ("-c", f"core.sparseCheckout={str(record.scope == 'sparse').lower()}")
            git.run(*sparse, "read-tree", "-m", "-u", record.tip or record.branch, tree=making, index=new_index)
            _write_file(making / ".git", f"gitdir: {index.parent}\n")
            new_index.replace(index)
            making.rename(path)
        self._write_git_file(path, index.parent)
        if not index.exists():
            self._rebuild_index(git, path, index, record)

    def _write_metadata(self, path: Path, folder: Path, record: Worktree) -> None:
        """Write git's metadata of a linked worktree. `locked` comes first, so that git does not prune it meanwhile."""
        try:
            folder.parent.mkdir(exist_ok=True)
            folder.mkdir(exist_ok=True)
        except FileNotFoundError:
            raise GitFailed(
                "repository not found",
                where=str(folder.parents[1]),
                hint="If you moved it, set its path under `projects:` in config.yaml, or move it back.",
            ) from None
        _write_file(folder / "locked", "Guildhall works here\n")
        _write_file(folder / "guildhall", f"{record.activity}\n")
        _write_file(folder / "commondir", "../..\n")
        _write_file(folder / "gitdir", f"{path / '.git'}\n")
        _write_file(folder / "HEAD", f"ref: refs/heads/{record.branch}\n")

    def _write_git_file(self, path: Path, folder: Path) -> None:
        """Write the `.git` file of a checkout. Rename anything else that has taken its place."""
        marker = path / ".git"
        if marker.is_symlink() or (marker.exists() and not marker.is_file()):
            number = next(n for n in range(1, 1000) if not os.path.lexists(path / f"git-found-{n}"))
            marker.rename(path / f"git-found-{number}")
        _write_file(marker, f"gitdir: {folder}\n")

    def _rebuild_index(self, git: Git, path: Path, index: Path, record: Worktree) -> None:
        """Create the lost index of a checkout from the tip of its branch, without changing files."""
        new_index = _new_index_path(index)
        tip = git.resolve(record.branch) or str(record.tip)
        git.run("read-tree", tip, index=new_index)
        if record.scope == "sparse":
            names = git.run("ls-files", "-z", index=new_index).stdout.split(b"\0")
            lines = b"".join(name + b"\0" for name in names if name and not name.startswith(b".lore/"))
            git.run("update-index", "-z", "--skip-worktree", "--stdin", index=new_index, tree=path, input=lines)
        new_index.replace(index)

    def _commit(
        self, project: Project, path: Path, record: Worktree, message: str, author: str, wanted: Sequence[str] = ()
    ) -> CommitResult:
        git = self._git(project)
        index = self._index_path(project, path)
        new_index = _new_index_path(index)
        shutil.copy2(index, new_index)  # with its time, by which git knows the files that may have changed
        snapshot = take_snapshot(git, path, new_index, wanted)
        if snapshot.changes:
            repository.update_index(git, new_index, snapshot.changes)
            git.run("update-index", "-q", "--refresh", tree=path, index=new_index, ok=(0, 1))
        tree = git.run("write-tree", index=new_index).text
        tip = git.resolve(record.branch) or record.tip or Branches(project, git).ensure()
        commit = None
        if tree != git.run("rev-parse", "--verify", f"{tip}^{{tree}}").text:
            tip = self._ensure_branch(project, record.branch, record.tip)
            commit = repository.create_commit(git, tree, [tip], message, author)
            git.update_refs("commit", f"update refs/heads/{record.branch} {commit} {tip}")
            self._write_record(path, replace(record, tip=commit))
        new_index.replace(index)
        return CommitResult(commit=commit, rejected=tuple(snapshot.rejected))

    def _index_path(self, project: Project, path: Path) -> Path:
        return self._git(project).common / "worktrees" / f"guildhall-{path.name}" / "index"

    # records, beside the checkouts

    def _record_path(self, path: Path) -> Path:
        return path.with_name(f"{path.name}.json")

    def _read_record(self, path: Path) -> Worktree | None:
        try:
            return Worktree(**json.loads(self._record_path(path).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def _write_record(self, path: Path, record: Worktree) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_file(self._record_path(path), json.dumps(asdict(record)))

    def _remove_temporary(self, path: Path) -> None:
        for suffix in (_MAKING, _REMOVING):
            delete_folder(_sibling(path, suffix))
        for folder in path.parent.glob(f".{path.name}{_EXPORT}*"):
            delete_folder(folder)

    @contextmanager
    def _lock(self, path: Path) -> Generator[None]:
        """Lock a checkout against other threads and processes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(_sibling(path, ".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _new_index_path(index: Path) -> Path:
    """Return the path of a new index, and delete the indexes of interrupted calls.

    The name is random, because a git of an interrupted call may still run.
    """
    for old in index.parent.glob("fresh-*"):
        old.unlink(missing_ok=True)
    return index.with_name(f"fresh-{secrets.token_hex(6)}")


def _sibling(path: Path, suffix: str) -> Path:
    return path.with_name(f".{path.name}{suffix}")


def _write_file(path: Path, text: str) -> None:
    """Replace a small file atomically, unless it has this text. A link at its path is replaced, not followed."""
    with suppress(OSError, ValueError):
        if not path.is_symlink() and path.read_text() == text:
            return
    replace_file(path, text.encode(), mode=0o644, exact_mode=True)


def delete_folder(folder: Path) -> None:
    """Delete a folder of the hall, even if parts of it are read-only."""
    if folder.is_symlink():
        folder.unlink()
        return

    def retry(function: Callable[..., Any], name: str, error: object) -> None:
        Path(name).parent.chmod(0o700)
        if not Path(name).is_symlink():
            Path(name).chmod(0o700)
        function(name)

    if folder.exists():
        shutil.rmtree(folder, onerror=retry)
