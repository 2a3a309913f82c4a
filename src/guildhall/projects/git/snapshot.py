"""Snapshots of checkouts: store new, changed and ignored files of a checkout as git objects.

Git lists the changed paths, and this module reads the files by descriptor. Git itself would store a nested repository
as a mere pointer, and would follow a link that replaced a file after the listing.
Does not commit to a branch or write the index (`worktrees.py`).

Invariant: a snapshot executes nothing and follows no links.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from contextlib import contextmanager
from dataclasses import dataclass
from errno import ELOOP
from typing import TYPE_CHECKING

from guildhall.projects.git import repository as trees
from guildhall.projects.git.repository import Completed, Entry, Git
from guildhall.projects.model import KEPT, LORE, OURS, join_names

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from pathlib import Path


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DEEPEST = 200
_SPARSE = ("-c", "core.sparseCheckout=true")  # so that a file is seen that was made where none was checked out
_UNFIT = "git can hold nothing of this name"
_LARGE = 32 * 1024**2  # bytes
_LINK, _SUBMODULE = "120000", "160000"


class Snapshot:
    """The changes of a checkout. Contents are stored many at a time, and a large one by itself."""

    def __init__(self, git: Git) -> None:
        self.changes: list[Entry] = []
        self.left: list[tuple[str, str]] = []  # paths that cannot be stored, each with the reason
        self._git = git
        self._waiting: list[tuple[bytes, str, bytes]] = []
        self._bytes = 0

    def gone(self, path: bytes) -> None:
        self.changes.append(Entry(path=path))

    def put(self, path: bytes, mode: str, content: bytes) -> None:
        self._waiting.append((path, mode, content))
        self._bytes += len(content)
        if self._bytes > _LARGE:
            self.store()

    def put_large(self, path: bytes, mode: str, descriptor: int) -> None:
        id = self._git.run("hash-object", "-w", "--stdin", input=descriptor).line
        self.changes.append(Entry(path=path, mode=mode, object=id))

    def store(self) -> None:
        ids = _store(self._git, [content for _, _, content in self._waiting])
        for (path, mode, _), id in zip(self._waiting, ids, strict=True):
            self.changes.append(Entry(path=path, mode=mode, object=id))
        self._waiting, self._bytes = [], 0


def take(git: Git, tree: Path, index: Path, wanted: Sequence[str] = ()) -> Snapshot:
    """Store everything that is new or changed in a checkout since its index was written. Keep the index as it is.

    Ignored files are left out, except artifacts and the `wanted` paths.
    """
    links = _submodules(git, tree, index)
    changed = _changed(git, tree, index, (LORE, *wanted))
    taken = take_these(git, tree, [path for path in changed if path.rstrip(b"/") not in links])
    taken.left += _in_submodules(tree, links)
    return taken


def take_these(git: Git, tree: Path, paths: Iterable[bytes]) -> Snapshot:
    """Store the files of a checkout at some paths."""
    found = Snapshot(git)
    with _opened(tree) as root:
        for path in paths:
            _look(root, path, found)
    found.store()
    return found


def ignored(git: Git, tree: Path, index: Path) -> list[bytes]:
    """Return the ignored paths in a checkout. A folder without tracked files ends in a slash."""
    which = ("--others", "--ignored", "--exclude-standard", "--directory")
    told = git.run(*_SPARSE, "ls-files", "-z", *which, tree=tree, index=index).out
    lore = f"{LORE}/".encode()
    return [path for path in told.split(b"\0") if path and not path.startswith(lore)]


def _changed(git: Git, tree: Path, index: Path, wanted: Sequence[str]) -> Iterable[bytes]:
    """Return the new, changed and deleted paths. A nested repository ends in a slash."""

    def told() -> list[Completed]:
        ways = (("--modified", "--deleted", "--exclude-standard"), ("--", *wanted))  # these whether ignored or not
        return [git.run(*_SPARSE, "ls-files", "-z", "--others", *way, tree=tree, index=index) for way in ways]

    said = told()
    if any("could not open directory" in one.said for one in said):
        with _opened(tree) as root:
            _make_readable(root, 0)
        said = told()
    return dict.fromkeys(path for one in said for path in one.out.split(b"\0") if path)


def _submodules(git: Git, tree: Path, index: Path) -> set[bytes]:
    told = git.run("ls-files", "-z", "--stage", tree=tree, index=index).out
    return {line.partition(b"\t")[2] for line in told.split(b"\0") if line.startswith(_SUBMODULE.encode())}


def _in_submodules(tree: Path, links: set[bytes]) -> list[tuple[str, str]]:
    left: list[tuple[str, str]] = []
    for path in sorted(links):
        folder = tree / os.fsdecode(path)
        if folder.is_symlink() or (folder.is_dir() and any(folder.iterdir())):
            left.append((os.fsdecode(path), "it is a submodule, which has its own repository"))
    return left


def _look(root: int, path: bytes, found: Snapshot) -> None:
    """Read a file, a link, or all files of a nested repository."""
    *above, name = path.rstrip(b"/").split(b"/")
    if any(map(_unfit, (*above, name))):
        found.left.append((os.fsdecode(path), _UNFIT))
        return
    opened: list[int] = []
    try:
        parent = root
        for part in above:
            parent = os.open(part, _FOLDER, dir_fd=parent)
            opened.append(parent)
        _look_at(parent, name, path.rstrip(b"/"), found, 0)
    except OSError as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError) or error.errno == ELOOP:  # a link in the way
            found.gone(path.rstrip(b"/"))
        else:
            found.left.append((os.fsdecode(path), error.strerror or "it cannot be read"))
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _look_at(parent: int, name: bytes, path: bytes, found: Snapshot, depth: int) -> None:
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        if name.lower() == b".gitmodules":
            found.left.append((os.fsdecode(path), _UNFIT))
        else:
            found.put(path, _LINK, os.readlink(name, dir_fd=parent))
    elif stat.S_ISREG(status.st_mode):
        _read(parent, name, path, found)
    elif stat.S_ISDIR(status.st_mode):
        _look_below(parent, name, path, found, depth)
    # Pipes, sockets and devices have no content.


def _look_below(parent: int, name: bytes, path: bytes, found: Snapshot, depth: int) -> None:
    if depth > _DEEPEST:
        found.left.append((os.fsdecode(path), "it is nested too deeply"))
        return
    folder = os.open(name, _FOLDER, dir_fd=parent)
    try:
        for inner in sorted(os.fsencode(entry.name) for entry in os.scandir(folder)):
            if inner == b".git":
                continue
            if _unfit(inner):
                found.left.append((os.fsdecode(path + b"/" + inner), _UNFIT))
            else:
                _look_at(folder, inner, path + b"/" + inner, found, depth + 1)
    finally:
        os.close(folder)


def _read(parent: int, name: bytes, path: bytes, found: Snapshot) -> None:
    try:
        descriptor = os.open(name, _FILE, dir_fd=parent)
    except PermissionError:
        _open_up(parent, name)
        descriptor = os.open(name, _FILE, dir_fd=parent)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        mode = "100755" if status.st_mode & stat.S_IXUSR else "100644"
        if not stat.S_ISREG(status.st_mode):
            return
        if status.st_size > _LARGE:
            found.put_large(path, mode, descriptor)
        else:
            found.put(path, mode, file.read())


def _unfit(name: bytes) -> bool:
    """Return True if git refuses a name, because on some system it would mean the folder `.git`."""
    text = "".join(one for one in os.fsdecode(name) if unicodedata.category(one) != "Cf").casefold()
    return text.partition(":")[0].rstrip(" .") in (".git", "git~1")


def _open_up(parent: int, name: bytes) -> None:
    """Make a file readable for its owner, which is this process. Do not follow links."""
    held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        status = os.fstat(held)
        if not stat.S_ISLNK(status.st_mode):
            os.chmod(f"/proc/self/fd/{held}", stat.S_IMODE(status.st_mode) | stat.S_IRWXU)  # noqa: PTH101
    finally:
        os.close(held)


def _make_readable(folder: int, depth: int) -> None:
    """Make every folder of a checkout readable for its owner."""
    for entry in os.scandir(folder):
        if not entry.is_dir(follow_symlinks=False) or depth > _DEEPEST:
            continue
        name = os.fsencode(entry.name)
        if stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode) & stat.S_IRWXU != stat.S_IRWXU:
            _open_up(folder, name)
        inner = os.open(name, _FOLDER, dir_fd=folder)
        try:
            _make_readable(inner, depth + 1)
        finally:
            os.close(inner)


@contextmanager
def _opened(folder: Path) -> Generator[int]:
    descriptor = os.open(folder, _FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _store(git: Git, contents: Iterable[bytes]) -> list[str]:
    """Store contents as objects, with one call of git, and return their ids."""
    parts: list[bytes] = []
    for number, data in enumerate(contents, start=1):
        parts += [b"blob\nmark :%d\ndata %d\n" % (number, len(data)), data, b"\nget-mark :%d\n" % number]
    if not parts:
        return []
    return git.run(
        "fast-import", "--quiet", "--cat-blob-fd=1", "--done", input=b"".join([*parts, b"done\n"])
    ).line.split()


_MOST_FILES, _MOST_BYTES = 200, 10 * 1024**2  # of a file or folder that is kept
_ALL_FILES, _ALL_BYTES = 1_000, 32 * 1024**2  # of all that is kept of one checkout
_MAX_NAMES = 20


@dataclass(frozen=True, kw_only=True)
class Aside:
    """What git ignores of a checkout: what was kept, at which ref, and what was not, with the reason."""

    ref: str | None = None
    kept: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    folder: str | None = None
    moved: tuple[str, ...] = ()  # there, because git cannot hold it

    def told(self) -> str:
        """For the timeline."""
        parts = ["git ignores some of what was made"] if self.kept or self.lost else []
        parts += [f"kept at {self.ref}: {join_names(self.kept, _MAX_NAMES)}"] if self.kept else []
        parts += [f"not kept: {join_names(self.lost, _MAX_NAMES)}"] if self.lost else []
        if self.moved:
            parts.append(
                f"git cannot hold some of what was made; it is in {self.folder}: {join_names(self.moved, _MAX_NAMES)}"
            )
        return "; ".join(parts)


def put_aside(git: Git, tree: Path, index: Path, branch: str, tip: str) -> Aside | None:
    """Store the ignored files of a checkout, and return None if there are none. A repeated call finds them again."""
    wanted: list[bytes] = []
    lost: list[str] = []
    files = size = 0
    for path in ignored(git, tree, index):
        try:
            count, length = _measured(tree / os.fsdecode(path))
        except OSError as error:
            lost.append(f"{_shown(path)} ({error.strerror})")
            continue
        if not count:
            continue
        large = count > _MOST_FILES or length > _MOST_BYTES
        if large or files + count > _ALL_FILES or size + length > _ALL_BYTES:
            extent = f"{count:,} files, {length:,} bytes" if count <= _MOST_FILES else f"more than {_MOST_FILES} files"
            lost.append(f"{_shown(path)} ({extent})")
            continue
        files, size = files + count, size + length
        wanted.append(path)
    taken = take_these(git, tree, wanted)
    there = [entry for entry in taken.changes if entry.object is not None]
    lost += [f"{name} ({reason})" for name, reason in taken.left]
    if not there:
        return Aside(lost=tuple(lost)) if lost else None
    made = trees.with_entries(git, tip, there)
    ref = _kept(git, made, branch, tip)
    return Aside(ref=ref, kept=tuple(_shown(entry.path) for entry in there), lost=tuple(lost))


def move_out(tree: Path, names: Sequence[str], place: Path) -> Path:
    """Move files that git cannot store out of a checkout, and return their new folder."""
    place.parent.mkdir(parents=True, exist_ok=True)
    folder = next(one for n in range(1, 1000) if not (one := place.with_name(f"{place.name}-{n}")).exists())
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (tree / name.rstrip("/")).rename(target)
    return folder


def _kept(git: Git, tree: str, branch: str, tip: str) -> str:
    ref = f"{KEPT}ignored/{branch.removeprefix(OURS)}"
    before = git.resolve(ref)
    if before is not None and git.run("rev-parse", "--verify", f"{before}^{{tree}}").line == tree:
        return ref
    commit = trees.commit(git, tree, [tip], f"What git ignores of {branch}\n")
    if before is not None:
        ref = f"{ref}-{commit[:12]}"
    git.move("keep what is ignored", f"update {ref} {commit} {'0' * len(commit)}")
    return ref


def _measured(path: Path) -> tuple[int, int]:
    """Return the number of files at a path and their bytes. Stop counting above the maximum."""
    if path.is_symlink() or not path.is_dir():
        return 1, path.lstat().st_size

    def stop(error: OSError) -> None:
        raise error

    count = size = 0
    for folder, _, names in os.walk(path, onerror=stop):
        count += len(names)
        for name in names:
            size += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118 - there may be very many
        if count > _MOST_FILES or size > _MOST_BYTES:
            break
    return count, size


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "replace")
