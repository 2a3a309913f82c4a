"""Snapshots of checkouts: store new, changed and ignored files of a checkout as git objects.

Git lists the changed paths, and this module reads the files by descriptor. Git itself would store a nested repository
as a submodule, and would follow a link that replaced a file after the listing.
Does not commit to a branch or write the index (`worktrees.py`).

Invariant: a snapshot follows no links.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from errno import ELOOP
from typing import TYPE_CHECKING

from guildhall.projects.git import repository
from guildhall.projects.git.repository import Git, GitResult, TreeEntry
from guildhall.projects.model import ARCHIVE_REFS, BRANCH_PREFIX, LORE, join_names

if TYPE_CHECKING:
    from pathlib import Path


_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_DEPTH = 200
_SPARSE = ("-c", "core.sparseCheckout=true")  # lists new files even outside of the sparse checkout
_RESERVED_NAME = "git does not allow this name"
_MAX_BATCH_BYTES = 32 * 1024**2
_LINK, _SUBMODULE = "120000", "160000"


class Snapshot:
    """The changes of a checkout. Small files are stored in batches, a large file by itself."""

    def __init__(self, git: Git) -> None:
        self.changes: list[TreeEntry] = []
        self.rejected: list[tuple[str, str]] = []  # paths that cannot be stored, each with the reason
        self._git = git
        self._batch: list[tuple[bytes, str, bytes]] = []
        self._batch_bytes = 0

    def add(self, path: bytes, mode: str, content: bytes) -> None:
        self._batch.append((path, mode, content))
        self._batch_bytes += len(content)
        if self._batch_bytes > _MAX_BATCH_BYTES:
            self.flush()

    def add_large(self, path: bytes, mode: str, descriptor: int) -> None:
        id = self._git.run("hash-object", "-w", "--stdin", input=descriptor).text
        self.changes.append(TreeEntry(path=path, mode=mode, object=id))

    def reject(self, path: bytes, reason: str) -> None:
        self.rejected.append((os.fsdecode(path), reason))

    def flush(self) -> None:
        ids = _store_blobs(self._git, [content for _, _, content in self._batch])
        for (path, mode, _), id in zip(self._batch, ids, strict=True):
            self.changes.append(TreeEntry(path=path, mode=mode, object=id))
        self._batch, self._batch_bytes = [], 0


def take_snapshot(git: Git, tree: Path, index: Path, wanted: Sequence[str] = ()) -> Snapshot:
    """Store the files of a checkout that are new or changed since its index was written. Do not change the index.

    Ignored files are left out, except artifacts and the `wanted` paths.
    """
    submodules = _list_submodules(git, tree, index)
    changed = _list_changed(git, tree, index, (LORE, *wanted))
    snapshot = snapshot_paths(git, tree, [path for path in changed if path.rstrip(b"/") not in submodules])
    for path in sorted(submodules):
        folder = tree / os.fsdecode(path)
        if folder.is_symlink() or (folder.is_dir() and any(folder.iterdir())):
            snapshot.reject(path, "it is a submodule, which has its own repository")
    return snapshot


def snapshot_paths(git: Git, tree: Path, paths: Iterable[bytes]) -> Snapshot:
    """Store the files of a checkout at some paths."""
    snapshot = Snapshot(git)
    with _open_folder(tree) as root:
        for path in paths:
            _add_path(root, path, snapshot)
    snapshot.flush()
    return snapshot


def list_ignored(git: Git, tree: Path, index: Path) -> list[bytes]:
    """Return the ignored paths in a checkout. A folder without tracked files ends in a slash."""
    options = ("--others", "--ignored", "--exclude-standard", "--directory")
    output = git.run(*_SPARSE, "ls-files", "-z", *options, tree=tree, index=index).stdout
    lore = f"{LORE}/".encode()
    return [path for path in output.split(b"\0") if path and not path.startswith(lore)]


def _list_changed(git: Git, tree: Path, index: Path, wanted: Sequence[str]) -> Iterable[bytes]:
    """Return the new, changed and deleted paths, and the `wanted` paths even if git ignores them.

    The path of a nested repository ends in a slash.
    """

    def list_files() -> list[GitResult]:
        variants = (("--modified", "--deleted", "--exclude-standard"), ("--", *wanted))
        command = (*_SPARSE, "ls-files", "-z", "--others")
        return [git.run(*command, *options, tree=tree, index=index) for options in variants]

    results = list_files()
    if any("could not open directory" in result.stderr for result in results):
        with _open_folder(tree) as root:
            _make_folders_readable(root, 0)
        results = list_files()
    return dict.fromkeys(path for result in results for path in result.stdout.split(b"\0") if path)


def _list_submodules(git: Git, tree: Path, index: Path) -> set[bytes]:
    output = git.run("ls-files", "-z", "--stage", tree=tree, index=index).stdout
    return {line.partition(b"\t")[2] for line in output.split(b"\0") if line.startswith(_SUBMODULE.encode())}


def _add_path(root: int, path: bytes, snapshot: Snapshot) -> None:
    """Add a file, a link, or all files of a nested repository."""
    *folders, name = path.rstrip(b"/").split(b"/")
    if any(map(_is_reserved, (*folders, name))):
        snapshot.reject(path, _RESERVED_NAME)
        return
    descriptors: list[int] = []
    try:
        parent = root
        for folder in folders:
            parent = os.open(folder, _OPEN_FOLDER, dir_fd=parent)
            descriptors.append(parent)
        _add_entry(parent, name, path.rstrip(b"/"), snapshot, 0)
    except OSError as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError) or error.errno == ELOOP:  # a folder became a link
            snapshot.changes.append(TreeEntry(path=path.rstrip(b"/")))
        else:
            snapshot.reject(path, error.strerror or "it cannot be read")
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _add_entry(parent: int, name: bytes, path: bytes, snapshot: Snapshot, depth: int) -> None:
    file_stat = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if stat.S_ISLNK(file_stat.st_mode):
        if name.lower() == b".gitmodules":
            snapshot.reject(path, _RESERVED_NAME)
        else:
            snapshot.add(path, _LINK, os.readlink(name, dir_fd=parent))
    elif stat.S_ISREG(file_stat.st_mode):
        _add_file(parent, name, path, snapshot)
    elif stat.S_ISDIR(file_stat.st_mode):
        _add_folder(parent, name, path, snapshot, depth)
    # Pipes, sockets and devices are skipped.


def _add_folder(parent: int, name: bytes, path: bytes, snapshot: Snapshot, depth: int) -> None:
    if depth > _MAX_DEPTH:
        snapshot.reject(path, f"it is nested deeper than {_MAX_DEPTH} folders")
        return
    with _open_folder(name, parent) as folder:
        for inner in sorted(os.fsencode(entry.name) for entry in os.scandir(folder)):
            if inner == b".git":
                continue
            if _is_reserved(inner):
                snapshot.reject(path + b"/" + inner, _RESERVED_NAME)
            else:
                _add_entry(folder, inner, path + b"/" + inner, snapshot, depth + 1)


def _add_file(parent: int, name: bytes, path: bytes, snapshot: Snapshot) -> None:
    try:
        descriptor = os.open(name, _OPEN_FILE, dir_fd=parent)
    except PermissionError:
        _make_readable(parent, name)
        descriptor = os.open(name, _OPEN_FILE, dir_fd=parent)
    with os.fdopen(descriptor, "rb") as file:
        file_stat = os.fstat(descriptor)
        mode = "100755" if file_stat.st_mode & stat.S_IXUSR else "100644"
        if not stat.S_ISREG(file_stat.st_mode):
            return
        if file_stat.st_size > _MAX_BATCH_BYTES:
            snapshot.add_large(path, mode, descriptor)
        else:
            snapshot.add(path, mode, file.read())


def _is_reserved(name: bytes) -> bool:
    """Return True if a name means `.git` on some file system, which git rejects."""
    text = "".join(char for char in os.fsdecode(name) if unicodedata.category(char) != "Cf").casefold()
    return text.partition(":")[0].rstrip(" .") in (".git", "git~1")


def _make_readable(parent: int, name: bytes) -> None:
    """Make a file readable for its owner. Do not follow links."""
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        file_stat = os.fstat(descriptor)
        if not stat.S_ISLNK(file_stat.st_mode):
            os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(file_stat.st_mode) | stat.S_IRWXU)  # noqa: PTH101
    finally:
        os.close(descriptor)


def _make_folders_readable(folder: int, depth: int) -> None:
    for entry in os.scandir(folder):
        if not entry.is_dir(follow_symlinks=False) or depth > _MAX_DEPTH:
            continue
        name = os.fsencode(entry.name)
        if stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode) & stat.S_IRWXU != stat.S_IRWXU:
            _make_readable(folder, name)
        with _open_folder(name, folder) as inner:
            _make_folders_readable(inner, depth + 1)


@contextmanager
def _open_folder(path: Path | bytes, parent: int | None = None) -> Generator[int]:
    descriptor = os.open(path, _OPEN_FOLDER, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _store_blobs(git: Git, contents: Iterable[bytes]) -> list[str]:
    """Store contents as objects, with one call of git, and return their ids."""
    parts: list[bytes] = []
    for number, data in enumerate(contents, start=1):
        parts += [b"blob\nmark :%d\ndata %d\n" % (number, len(data)), data, b"\nget-mark :%d\n" % number]
    if not parts:
        return []
    stream = b"".join([*parts, b"done\n"])
    return git.run("fast-import", "--quiet", "--cat-blob-fd=1", "--done", input=stream).text.split()


_MAX_FILES, _MAX_BYTES = 200, 10 * 1024**2  # of one ignored path that is archived
_MAX_TOTAL_FILES, _MAX_TOTAL_BYTES = 1_000, 32 * 1024**2  # of all archived paths of a checkout
_MAX_NAMES = 20


@dataclass(frozen=True, kw_only=True)
class UncommittedFiles:
    """The files of a removed checkout that are not on its branch."""

    ref: str | None = None  # of the commit that contains the archived files
    kept: tuple[str, ...] = ()  # ignored files that are archived
    lost: tuple[str, ...] = ()  # ignored files that are deleted, each with the reason
    folder: str | None = None  # that contains the moved files
    moved: tuple[str, ...] = ()  # files that git cannot store

    def text(self) -> str:
        """Return the text of the timeline entry."""
        parts: list[str] = []
        if self.kept:
            parts.append(f"ignored files kept at {self.ref}: {join_names(self.kept, _MAX_NAMES)}")
        if self.lost:
            parts.append(f"ignored files not kept: {join_names(self.lost, _MAX_NAMES)}")
        if self.moved:
            parts.append(f"files that git cannot store, moved to {self.folder}: {join_names(self.moved, _MAX_NAMES)}")
        return "; ".join(parts)


def archive_ignored(git: Git, tree: Path, index: Path, branch: str, tip: str) -> UncommittedFiles | None:
    """Store the ignored files of a checkout, and return their names, or None if it has none. Idempotent."""
    archived: list[bytes] = []
    lost: list[str] = []
    total_files = total_bytes = 0
    for path in list_ignored(git, tree, index):
        try:
            files, size = _measure(tree / os.fsdecode(path))
        except OSError as error:
            lost.append(f"{_decode(path)} ({error.strerror})")
            continue
        if not files:
            continue
        is_large = files > _MAX_FILES or size > _MAX_BYTES
        if is_large or total_files + files > _MAX_TOTAL_FILES or total_bytes + size > _MAX_TOTAL_BYTES:
            extent = f"{files:,} files, {size:,} bytes" if files <= _MAX_FILES else f"more than {_MAX_FILES} files"
            lost.append(f"{_decode(path)} ({extent})")
            continue
        total_files, total_bytes = total_files + files, total_bytes + size
        archived.append(path)
    snapshot = snapshot_paths(git, tree, archived)
    entries = [entry for entry in snapshot.changes if entry.object is not None]
    lost += [f"{name} ({reason})" for name, reason in snapshot.rejected]
    if not entries:
        return UncommittedFiles(lost=tuple(lost)) if lost else None
    ref = _archive_tree(git, repository.write_tree(git, tip, entries), branch, tip)
    return UncommittedFiles(ref=ref, kept=tuple(_decode(entry.path) for entry in entries), lost=tuple(lost))


def move_files(tree: Path, names: Sequence[str], target: Path) -> Path:
    """Move files that git cannot store out of a checkout, into a new folder `target-N`, and return that folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = next(path for n in range(1, 1000) if not (path := target.with_name(f"{target.name}-{n}")).exists())
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (tree / name.rstrip("/")).rename(path)
    return folder


def _archive_tree(git: Git, tree: str, branch: str, tip: str) -> str:
    ref = f"{ARCHIVE_REFS}ignored/{branch.removeprefix(BRANCH_PREFIX)}"
    before = git.resolve(ref)
    if before is not None and git.run("rev-parse", "--verify", f"{before}^{{tree}}").text == tree:
        return ref
    commit = repository.create_commit(git, tree, [tip], f"Ignored files of {branch}\n")
    if before is not None:
        ref = f"{ref}-{commit[:12]}"
    git.update_refs("keep ignored files", f"update {ref} {commit} {'0' * len(commit)}")
    return ref


def _measure(path: Path) -> tuple[int, int]:
    """Return the number of files at a path and their size in bytes. Stop counting above the maximum."""
    if path.is_symlink() or not path.is_dir():
        return 1, path.lstat().st_size

    def raise_error(error: OSError) -> None:
        raise error

    count = size = 0
    for folder, _, names in os.walk(path, onerror=raise_error):
        count += len(names)
        for name in names:
            size += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118 - there may be very many
        if count > _MAX_FILES or size > _MAX_BYTES:
            break
    return count, size


def _decode(path: bytes) -> str:
    return path.decode("utf-8", "replace")
