"""Path walk: follows a path by directory descriptors without leaving the folder in which it starts.

No step lets the kernel follow a link. The target of a link inside the folder is walked as a path. Does not decide which
files may be read or written (see `sandbox.files`).

Invariant: a file or link that is replaced between two steps cannot redirect the walk.
"""

from __future__ import annotations

import errno
import os
import stat
import unicodedata
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Literal

from guildhall.core.errors import GuildError, NotFound, Refused
from guildhall.core.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from pathlib import Path

    from guildhall.sandbox.view import Folder, View

MAX_DEPTH = 100
_MAX_LINKS = 40
_NAMES_FOR_HINT = 500
# O_PATH needs no right to list, opens no device and hangs on no FIFO; where it is missing, plain reading must do.
_ENTER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW

Identity = tuple[int, int]


def identity(status: os.stat_result) -> Identity:
    """Return the device and inode of a file, which do not depend on its name."""
    return status.st_dev, status.st_ino


class Borders:
    """Where the folders of a view begin, what is hidden and what is kept in them: by name and by what is on disk."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._hidden_paths = frozenset(
            text
            for path in view.hidden
            for text in (os.path.abspath(path), os.path.realpath(path))  # noqa: PTH100
        )
        self._kept_paths = frozenset(_alike(os.path.abspath(path)) for path in view.kept)  # noqa: PTH100
        self._roots = _roots(view)
        self.refresh()

    def refresh(self) -> None:
        """Read the identities of hidden and kept paths again: they may have been created since."""
        self._hidden = _identities(self._view.hidden)
        self._kept = _identities(self._view.kept)

    def hides(self, path: str, what: Identity | None = None) -> bool:
        return path in self._hidden_paths or what in self._hidden

    def lets_through(self, path: str, place: str) -> bool:
        """Return True if a folder at `place` is below a shown path that is below this hidden path."""
        return any(
            is_below(place, shown) and shown != path and is_below(shown, path)
            for shown in (os.path.abspath(one) for one in self._view.shown)  # noqa: PTH100
        )

    def hides_number(self, inode: int) -> bool:
        """Return True if a hidden file has this inode number on any device."""
        return any(number == inode for _, number in self._hidden)

    def keeps(self, path: str, what: Identity | None = None) -> bool:
        return _alike(path) in self._kept_paths or what in self._kept

    def folder_at(self, path: str, what: Identity | None = None) -> Folder | None:
        """The folder that begins here."""
        return self._roots.get(path) or (self._roots.get(what) if what else None)


def _identities(paths: Iterable[Path]) -> frozenset[Identity]:
    found: set[Identity] = set()
    for path in paths:
        with suppress(OSError):
            found.add(identity(path.stat()))
    return frozenset(found)


def _alike(path: str) -> str:
    """The path as a file system sees it that takes names for the same which differ in case or in unseen characters."""
    folded = unicodedata.normalize("NFC", path).casefold()
    return folded if folded.isascii() else "".join(char for char in folded if unicodedata.category(char) != "Cf")


def _roots(view: View) -> dict[str | Identity, Folder]:
    """Each folder by path and by identity. Of two at one place the named one counts: it was declared on purpose."""
    roots: dict[str | Identity, Folder] = {}
    for folder in sorted(view.folders, key=lambda folder: folder.name is None):
        roots.setdefault(place_of(folder), folder)
        with suppress(OSError):
            roots.setdefault(identity(folder.path.stat()), folder)
    return roots


def is_below(path: str, root: str) -> bool:
    """Return True if the path is the root or below it."""
    return path == root or path.startswith(root.rstrip("/") + "/")


def place_of(folder: Folder) -> str:
    """The folder's path as text, absolute and without detours."""
    return os.path.abspath(folder.path)  # noqa: PTH100 - links must stay visible


@dataclass(frozen=True)
class Level:
    """A directory on the way, open."""

    fd: int
    path: str
    folder: Folder  # the innermost folder around it: its rules hold here
    kept: bool = False  # nothing is changed here, whatever the folder permits


@dataclass(frozen=True)
class Arrival:
    """Where a walk ended: at a name in the last directory, or at that directory itself (no name).

    `missing` are the names that do not exist (the first is then the name too).
    """

    name: str | None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """Something in a directory, as it was when the directory was read."""

    name: str
    kind: Literal["folder", "file", "link", "other"]
    inode: int


def _entry(found: os.DirEntry[str]) -> Entry:
    if found.is_symlink():
        kind = "link"
    elif found.is_dir(follow_symlinks=False):
        kind = "folder"
    else:
        kind = "file" if found.is_file(follow_symlinks=False) else "other"
    return Entry(found.name, kind, found.inode())


class Trail:
    """The open directories from the root of a folder down to where the walk is."""

    def __init__(self, folder: Folder, borders: Borders, shown: str) -> None:
        self._borders = borders
        self._shown = shown
        self._levels = [Level(_open_root(folder, borders), place_of(folder), folder)]

    @property
    def here(self) -> Level:
        return self._levels[-1]

    def close(self) -> None:
        for level in self._levels:
            os.close(level.fd)

    def path_of(self, name: str) -> str:
        return f"{self.here.path.rstrip('/')}/{name}"

    def hides(self, name: str, what: Identity | None = None) -> bool:
        return self._borders.hides(self.path_of(name), what)

    def hides_entry(self, entry: Entry) -> bool:
        """Return True if an entry is a hidden file, under any name."""
        if self.hides(entry.name):
            return True
        if not self._borders.hides_number(entry.inode):
            return False
        status = self.status(entry.name)
        return status is None or self.hides(entry.name, identity(status))

    def folder_below(self, name: str) -> Folder:
        """The folder whose rules will hold in a directory of this name, once it is made."""
        return self._borders.folder_at(self.path_of(name)) or self.here.folder

    def up(self) -> None:
        """Back to the directory before; never above the folder."""
        if len(self._levels) == 1:
            raise Refused(f"{self._shown} leads out of the folder {self.here.path}")
        os.close(self._levels.pop().fd)

    def enter(self, name: str) -> bool:
        """Enter a directory. Return False if the name is not a directory or is a link."""
        try:
            fd = os.open(name, _ENTER, dir_fd=self.here.fd)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.ENOENT):
                return False
            raise
        what = identity(os.fstat(fd))
        if self.hides(name, what) or len(self._levels) > MAX_DEPTH:
            os.close(fd)
            reason = "is nested too deeply" if len(self._levels) > MAX_DEPTH else "is hidden from this run"
            raise Refused(f"{self._shown} {reason}")
        path = self.path_of(name)
        own = self._borders.folder_at(path, what)
        kept = own is None and (self.here.kept or self._borders.keeps(path, what))
        self._levels.append(Level(fd, path, own or self.here.folder, kept))
        return True

    def make(self, name: str) -> None:
        """Create a directory and enter it."""
        self.must_be_visible(name)
        self.must_be_free(name)
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=self.here.fd)
        if not self.enter(name):
            raise Refused(f"{self._shown} changed while it was being written", hint="Try again.")

    def must_be_visible(self, name: str, what: Identity | None = None) -> None:
        if self.hides(name, what):
            raise Refused(f"{self._shown} is hidden from this run")

    def must_be_free(self, name: str, what: Identity | None = None) -> None:
        """Raise Refused if the path is kept."""
        if self.here.kept or self._borders.keeps(self.path_of(name), what):
            hint = "Write elsewhere, and say what should be changed here: a person does it."
            raise Refused(f"{self._shown} decides what runs may do, so no run changes it", hint=hint)

    def status(self, name: str) -> os.stat_result | None:
        """Return the status of the name without following links, or None if it does not exist."""
        try:
            return os.stat(name, dir_fd=self.here.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def walk(self, parts: Sequence[str], *, follow: bool) -> Arrival:
        """Walk along the names. `follow`: follow a link at the end too."""
        pending = deque(part for part in parts if part not in ("", "."))
        links = 0
        while pending:
            name = pending.popleft()
            if name == "..":
                self.up()
                continue
            if self.enter(name):
                continue
            status = self.status(name)
            if status is None:
                return Arrival(name, (name, *pending))
            if not stat.S_ISLNK(status.st_mode):
                if pending:
                    raise Refused(f"{self._shown}: {name!r} is not a folder")
                return Arrival(name)
            if not pending and not follow:
                return Arrival(name)
            links += 1
            pending.extendleft(reversed(self._target(name, links)))
        return Arrival(None)

    def _target(self, name: str, links: int) -> list[str]:
        if links > _MAX_LINKS:
            raise Refused(f"{self._shown} goes through too many links")
        target = os.readlink(name, dir_fd=self.here.fd)
        if target.startswith("/"):
            hint = "Only relative links that stay inside the folder are followed."
            raise Refused(f"{self._shown}: {name!r} is a link to an absolute path", hint=hint)
        return [part for part in target.split("/") if part not in ("", ".")]

    def entries(self, limit: int) -> list[Entry]:
        """Return at most `limit` entries of the directory, sorted by name."""
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.here.fd)
        try:
            with os.scandir(fd) as found:  # its entries are good only while the descriptor is open
                return sorted((_entry(each) for each in islice(found, limit)), key=lambda entry: entry.name)
        finally:
            os.close(fd)

    def absent(self, name: str) -> NotFound:
        """The error for a name that is not there, with the nearest one that is."""
        names: list[str] = []
        with suppress(OSError):
            names = [e.name for e in self.entries(_NAMES_FOR_HINT) if not self.hides_entry(e)]
        return NotFound(f"there is no {self._shown}", hint=did_you_mean(name, names))


def _open_root(folder: Folder, borders: Borders) -> int:
    """The folder itself, reached from the top of the disk without a single link."""
    path = ""
    fd = os.open("/", _ENTER)
    place = place_of(folder)
    for name in place.strip("/").split("/"):
        if not name:
            continue
        path = f"{path}/{name}"
        try:
            below = os.open(name, _ENTER, dir_fd=fd)
        except OSError as error:
            raise _no_root(folder, path, error) from None
        finally:
            os.close(fd)
        fd = below
        if borders.hides(path, identity(os.fstat(fd))) and not borders.lets_through(path, place):
            os.close(fd)
            raise Refused(f"the folder {folder.path} is hidden from this run")
    return fd


def _no_root(folder: Folder, path: str, error: OSError) -> GuildError:
    if os.path.islink(path):  # noqa: PTH114
        hint = "Name the folder that the link leads to."
        return Refused(f"the folder {folder.path} is reached through a link, {path}", hint=hint)
    if error.errno == errno.ENOENT:
        return NotFound(f"the folder {folder.path} does not exist", hint="Make it, or name another.")
    return Refused(f"the folder {folder.path} cannot be opened: {os.strerror(error.errno or 0)}")


_REASONS = {
    errno.EACCES: "there is no permission for it",
    errno.EPERM: "there is no permission for it",
    errno.ENAMETOOLONG: "a name in it is too long",
    errno.ELOOP: "it changed while it was being opened; try again",
    errno.ENXIO: "it is not a regular file",
}


@contextmanager
def told(shown: str) -> Generator[None]:
    """Convert an OSError into NotFound or Refused with a reason."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise NotFound(f"there is no {shown}") from None
        reason = _REASONS.get(error.errno or 0) or os.strerror(error.errno or 0).lower()
        raise Refused(f"{shown}: {reason}") from None
