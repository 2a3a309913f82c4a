"""Path walk: follows a path by directory descriptors without leaving the folder in which it starts.

The kernel follows no link. A relative link inside the folder is followed name by name.
Does not decide which files may be read or written (see `sandbox.files`).

Invariant: a file or link that is replaced between two steps cannot redirect the walk.
"""

from __future__ import annotations

import errno
import os
import stat
import unicodedata
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Literal

from guildhall.core.errors import GuildError, NotFound, Refused
from guildhall.core.text_checks import did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.sandbox.view import Folder, View

MAX_DEPTH = 100
_MAX_LINKS = 40
_MAX_HINT_NAMES = 500
# O_PATH needs no permission to list, opens no device and does not block on a FIFO. Systems without it read instead.
_ENTER_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW

Identity = tuple[int, int]


def file_identity(status: os.stat_result) -> Identity:
    """Return the device and inode of a file, which do not depend on its name."""
    return status.st_dev, status.st_ino


class ViewIndex:
    """The folders and the hidden and protected paths of a view, by path and by file identity."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._hidden_paths = frozenset(
            text
            for path in view.hidden
            for text in (os.path.abspath(path), os.path.realpath(path))  # noqa: PTH100
        )
        self._protected_paths = frozenset(_fold(os.path.abspath(path)) for path in view.protected)  # noqa: PTH100
        self._roots: dict[str | Identity, Folder] = {}
        # Of two folders with the same path, the named folder counts: it was declared on purpose.
        for folder in sorted(view.folders, key=lambda folder: folder.name is None):
            self._roots.setdefault(folder_path(folder), folder)
            with suppress(OSError):
                self._roots.setdefault(file_identity(folder.path.stat()), folder)
        self.refresh()

    def refresh(self) -> None:
        """Read the identities of hidden and protected paths again: they may have been created since."""
        self._hidden = _identities(self._view.hidden)
        self._protected = _identities(self._view.protected)

    def is_hidden(self, path: str, identity: Identity | None = None) -> bool:
        return path in self._hidden_paths or identity in self._hidden

    def shows_below(self, hidden: str, path: str) -> bool:
        """Return True if the path is at or below a shown path, which is below the hidden path."""
        return any(
            is_below(path, shown) and shown != hidden and is_below(shown, hidden)
            for shown in map(os.path.abspath, self._view.shown)
        )

    def has_hidden_inode(self, inode: int) -> bool:
        """Return True if a hidden file has this inode number on any device."""
        return any(number == inode for _, number in self._hidden)

    def is_protected(self, path: str, identity: Identity | None = None) -> bool:
        return _fold(path) in self._protected_paths or identity in self._protected

    def folder_at(self, path: str, identity: Identity | None = None) -> Folder | None:
        """Return the folder whose root is this directory, or None."""
        return self._roots.get(path) or (self._roots.get(identity) if identity else None)


def _identities(paths: Iterable[Path]) -> frozenset[Identity]:
    identities: set[Identity] = set()
    for path in paths:
        with suppress(OSError):
            identities.add(file_identity(path.stat()))
    return frozenset(identities)


def _fold(path: str) -> str:
    """Return a path for comparison as on a file system that ignores case and invisible characters."""
    folded = unicodedata.normalize("NFC", path).casefold()
    return folded if folded.isascii() else "".join(char for char in folded if unicodedata.category(char) != "Cf")


def is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def folder_path(folder: Folder) -> str:
    """Return the normalised absolute path of a folder, with its links."""
    return os.path.abspath(folder.path)  # noqa: PTH100 - resolving would hide the links


@dataclass(frozen=True)
class Level:
    """An open directory of a walk."""

    fd: int
    path: str
    folder: Folder  # the innermost folder around it, whose rules apply
    is_protected: bool = False  # read-only even if the folder is writable


@dataclass(frozen=True)
class WalkResult:
    """The end of a walk: a name in the last directory, or None for the directory itself.

    `missing` are the names that do not exist. The first of them is `name`.
    """

    name: str | None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """A directory entry, as it was when the directory was read."""

    name: str
    kind: Literal["folder", "file", "link", "other"]
    inode: int


def _read_entry(raw: os.DirEntry[str]) -> Entry:
    if raw.is_symlink():
        kind = "link"
    elif raw.is_dir(follow_symlinks=False):
        kind = "folder"
    else:
        kind = "file" if raw.is_file(follow_symlinks=False) else "other"
    return Entry(raw.name, kind, raw.inode())


class PathWalk:
    """A walk from the root of a folder: the stack of open directories. `display` names the path in errors."""

    def __init__(self, folder: Folder, index: ViewIndex, display: str) -> None:
        self._index = index
        self._display = display
        self._levels = [Level(_open_root(folder, index), folder_path(folder), folder)]

    @property
    def current(self) -> Level:
        return self._levels[-1]

    def close(self) -> None:
        for level in self._levels:
            os.close(level.fd)

    def path_of(self, name: str) -> str:
        return f"{self.current.path.rstrip('/')}/{name}"

    def is_hidden(self, name: str, identity: Identity | None = None) -> bool:
        return self._index.is_hidden(self.path_of(name), identity)

    def is_hidden_entry(self, entry: Entry) -> bool:
        """Return True if an entry is a hidden file, under any name."""
        if self.is_hidden(entry.name):
            return True
        if not self._index.has_hidden_inode(entry.inode):
            return False
        status = self.status(entry.name)
        return status is None or self.is_hidden(entry.name, file_identity(status))

    def folder_below(self, name: str) -> Folder:
        """Return the folder whose rules apply in the subdirectory of this name, which may not exist yet."""
        return self._index.folder_at(self.path_of(name)) or self.current.folder

    def leave(self) -> None:
        """Return to the parent directory. Raise Refused at the root of the folder."""
        if len(self._levels) == 1:
            raise Refused(f"cannot access {self._display}: the path leads out of the folder {self.current.path}")
        os.close(self._levels.pop().fd)

    def enter(self, name: str) -> bool:
        """Enter a directory. Return False if the name is not a directory or is a link."""
        try:
            fd = os.open(name, _ENTER_FLAGS, dir_fd=self.current.fd)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.ENOENT):
                return False
            raise
        identity = file_identity(os.fstat(fd))
        if self.is_hidden(name, identity) or len(self._levels) > MAX_DEPTH:
            os.close(fd)
            self.check_visible(name, identity)
            raise Refused(f"cannot access {self._display}: more than {MAX_DEPTH} nested folders")
        path = self.path_of(name)
        inner = self._index.folder_at(path, identity)
        is_protected = inner is None and (self.current.is_protected or self._index.is_protected(path, identity))
        self._levels.append(Level(fd, path, inner or self.current.folder, is_protected))
        return True

    def make_directory(self, name: str) -> None:
        self.check_visible(name)
        self.check_not_protected(name)
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=self.current.fd)
        if not self.enter(name):
            raise Refused(f"cannot write {self._display}: the path changed meanwhile", hint="Try again.")

    def check_visible(self, name: str, identity: Identity | None = None) -> None:
        if self.is_hidden(name, identity):
            hint = "Use another path. Guildhall hides its own data, and the user's checkout while you have your own."
            raise Refused(f"cannot access {self._display}: Guildhall hides it from workers", hint=hint)

    def check_not_protected(self, name: str, identity: Identity | None = None) -> None:
        if self.current.is_protected or self._index.is_protected(self.path_of(name), identity):
            hint = "Write to another file, and tell the user what to change in this one."
            raise Refused(f"cannot write {self._display}: protected, because it defines what runs may do", hint=hint)

    def status(self, name: str) -> os.stat_result | None:
        """Return the status of the name without following links, or None if it does not exist."""
        try:
            return os.stat(name, dir_fd=self.current.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def advance(self, parts: Sequence[str], *, follow_last: bool) -> WalkResult:
        """Walk along the names, and follow links. `follow_last`: follow a link at the end too."""
        pending = deque(part for part in parts if part not in ("", "."))
        links = 0
        while pending:
            name = pending.popleft()
            if name == "..":
                self.leave()
                continue
            if self.enter(name):
                continue
            status = self.status(name)
            if status is None:
                return WalkResult(name, (name, *pending))
            if not stat.S_ISLNK(status.st_mode):
                if pending:
                    raise Refused(f"cannot access {self._display}: {name!r} is not a folder")
                return WalkResult(name)
            if not pending and not follow_last:
                return WalkResult(name)
            links += 1
            if links > _MAX_LINKS:
                message = f"cannot access {self._display}: more than {_MAX_LINKS} symbolic links"
                raise Refused(message, hint="The links may form a loop. Use the path of the target.")
            pending.extendleft(reversed(self._link_target(name)))
        return WalkResult(None)

    def _link_target(self, name: str) -> list[str]:
        target = os.readlink(name, dir_fd=self.current.fd)
        if target.startswith("/"):
            hint = "Use a path without this link. Only relative links are followed."
            raise Refused(f"cannot access {self._display}: {name!r} is a link to an absolute path", hint=hint)
        return [part for part in target.split("/") if part not in ("", ".")]

    def entries(self, limit: int) -> list[Entry]:
        """Return at most `limit` entries of the directory, sorted by name."""
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.current.fd)
        try:
            with os.scandir(fd) as scanned:  # the entries are valid only while the descriptor is open
                return sorted(map(_read_entry, islice(scanned, limit)), key=lambda entry: entry.name)
        finally:
            os.close(fd)

    def not_found_error(self, name: str) -> NotFound:
        """Return the error for a missing name, with similar names of the directory as a hint."""
        names: list[str] = []
        with suppress(OSError):
            names = [entry.name for entry in self.entries(_MAX_HINT_NAMES) if not self.is_hidden_entry(entry)]
        return NotFound(f"{self._display} does not exist", hint=did_you_mean(name, names))


def _open_root(folder: Folder, index: ViewIndex) -> int:
    """Open a folder from the root of the file system. Raise Refused if a part of its path is a link or hidden."""
    path = ""
    fd = os.open("/", _ENTER_FLAGS)
    root = folder_path(folder)
    for name in root.strip("/").split("/"):
        if not name:
            continue
        path = f"{path}/{name}"
        try:
            child_fd = os.open(name, _ENTER_FLAGS, dir_fd=fd)
        except OSError as error:
            raise _root_error(folder, path, error) from None
        finally:
            os.close(fd)
        fd = child_fd
        if index.is_hidden(path, file_identity(os.fstat(fd))) and not index.shows_below(path, root):
            os.close(fd)
            hint = f"Use a folder outside {path}."
            raise Refused(f"cannot access {folder.path}: Guildhall hides {path} from workers", hint=hint)
    return fd


def _root_error(folder: Folder, path: str, error: OSError) -> GuildError:
    if os.path.islink(path):  # noqa: PTH114
        hint = "Use the path of the folder that the link leads to."
        return Refused(f"cannot open the folder {folder.path}: {path} is a link", hint=hint)
    if error.errno == errno.ENOENT:
        return NotFound(f"the folder {folder.path} does not exist", hint="Create it, or use another folder.")
    return Refused(f"cannot open the folder {folder.path}: {os.strerror(error.errno or 0)}")


_REASONS = {
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ENAMETOOLONG: "a name in the path is too long",
    errno.ELOOP: "the path changed while it was being opened; try again",
    errno.ENXIO: "not a regular file",
}


@contextmanager
def translate_os_errors(display: str) -> Generator[None]:
    """Convert an OSError into NotFound or Refused with a reason."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise NotFound(f"{display} does not exist") from None
        reason = _REASONS.get(error.errno or 0) or os.strerror(error.errno or 0).lower()
        raise Refused(f"cannot access {display}: {reason}") from None
