"""The folder of one scope: one file `<key>.md` an entry.

People edit these files, so anything may lie there. Only regular files with a name and a size that an entry can have are
entries; links are never followed, pipes never opened, and what is no entry is told and otherwise left alone. Names that
begin with a dot are the shelf's own, `archive/` is what compaction put away.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from stat import S_ISREG
from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict, InvalidFile, NotFound
from guildhall.core.nearest import did_you_mean
from guildhall.memory.model import MAX_BYTES, SUFFIX, Entry, Listed, Listing, Skipped, is_key

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from guildhall.memory.model import Place

ARCHIVE = "archive"
_DRAFT = ".new"  # one name is enough: whoever writes holds the lock
_LOCK = ".lock"
_COMPACTING = ".compacting"
_CUT = -len(SUFFIX)
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TOO_LARGE = f"it is larger than {MAX_BYTES:,} bytes"
_NOT_REGULAR = "it is not a regular file"


@dataclass(frozen=True, kw_only=True)
class Scan:
    """What a look at the folder found: (age, key, bytes) of each entry, in no order.

    The age is the time of the last change in ns, negative: sorted, the newest is the first.
    """

    entries: list[tuple[int, str, int]]
    skipped: list[Skipped]


class Shelf:
    """The entries of one scope."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.folder = place.folder

    def path(self, key: str) -> Path:
        return self.folder / f"{key}{SUFFIX}"

    # Looking

    def scan(self) -> Scan:
        """What lies there, without opening any of it. A folder that is not there holds nothing."""
        scan = Scan(entries=[], skipped=[])
        try:
            descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return scan
        except OSError as error:
            raise Conflict(f"the memory cannot be read: {error.strerror}", where=str(self.folder)) from None
        try:
            self._scan(descriptor, scan)
        finally:
            os.close(descriptor)
        return scan

    def _scan(self, descriptor: int, scan: Scan) -> None:
        # By the folder's descriptor, in one plain loop: there may be many, and this is done for every run.
        add = scan.entries.append
        with os.scandir(descriptor) as found:
            for item in found:
                try:
                    status = item.stat(follow_symlinks=False)
                except FileNotFoundError:  # gone since
                    continue
                name, size = item.name, status.st_size
                key = name[:_CUT]
                if size <= MAX_BYTES and is_key(key) and name[_CUT:] == SUFFIX and S_ISREG(status.st_mode):
                    add((-status.st_mtime_ns, key, size))
                elif reason := _why_not(name, status):
                    scan.skipped.append(Skipped(scope=self.place.scope, name=name, reason=reason))

    def list(self) -> Listing:
        """The entries, newest first, and what is there beside them."""
        scan = self.scan()
        return Listing(
            entries=tuple(
                Listed(scope=self.place.scope, key=key, modified=-age, size=size)
                for age, key, size in sorted(scan.entries)
            ),
            skipped=tuple(sorted(scan.skipped, key=lambda skipped: skipped.name)),
        )

    def find(self, key: str) -> Entry | None:
        """An entry as it is now; None: there is none. InvalidFile: what is there is no text of an entry's size."""
        path = f"{self.folder}/{key}{SUFFIX}"
        try:
            descriptor = os.open(path, _READ)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            link = error.errno == errno.ELOOP
            raise _no_entry(path, "it is a link" if link else f"it cannot be read: {error.strerror}") from None
        try:
            status = os.fstat(descriptor)
            if not S_ISREG(status.st_mode):
                raise _no_entry(path, _NOT_REGULAR)
            data = os.read(descriptor, min(status.st_size, MAX_BYTES) + 1)
        except OSError as error:
            raise _no_entry(path, f"it cannot be read: {error.strerror}") from None
        finally:
            os.close(descriptor)
        if len(data) > MAX_BYTES:
            raise _no_entry(path, _TOO_LARGE)
        try:
            content = data.decode()
        except UnicodeDecodeError:
            raise _no_entry(path, "it is not UTF-8 text") from None
        if "\0" in content:
            raise _no_entry(path, "it is not text")
        return Entry(
            scope=self.place.scope,
            key=key,
            modified=status.st_mtime_ns,
            size=status.st_size,
            content=content,
            inode=status.st_ino,
        )

    def read(self, key: str) -> Entry:
        """An entry; NotFound where there is none."""
        entry = self.find(key)
        if entry is None:
            raise self.missing(key)
        return entry

    def missing(self, key: str) -> NotFound:
        hint = did_you_mean(key, {known for _, known, _ in self.scan().entries})
        return NotFound(f"there is no entry {key!r} in the {self.place.scope} memory", hint=hint)

    def unchanged(self, entry: Entry) -> bool:
        """Whether the file is still the one that was read."""
        try:
            now = self.path(entry.key).lstat()
        except FileNotFoundError:
            return False
        return (now.st_ino, now.st_mtime_ns, now.st_size) == (entry.inode, entry.modified, entry.size)

    # Changing: with the lock held

    @contextmanager
    def locked(self) -> Generator[None]:
        """Keeps out everyone else who changes this shelf, in this process and in others, for a moment."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = _open_lock(self.folder / _LOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
            finally:
                os.close(descriptor)
        except OSError as error:
            raise Conflict(f"the memory cannot be changed: {error.strerror}", where=str(self.folder)) from None

    @contextmanager
    def compacting(self) -> Generator[bool]:
        """One compaction at a time; False: there is one. The system lets go of it when its process dies."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = _open_lock(self.folder / _COMPACTING)
        except OSError as error:
            raise Conflict(f"the memory cannot be changed: {error.strerror}", where=str(self.folder)) from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                free = True
            except OSError:
                free = False
            yield free
        finally:
            os.close(descriptor)

    def draft(self, data: bytes, modified: int | None = None) -> None:
        """Puts the bytes on the disk, where nobody looks yet."""
        write_new(self.folder / _DRAFT, data, modified, os.O_TRUNC)

    def publish(self, key: str) -> None:
        """Makes the draft the entry's content, in one step."""
        (self.folder / _DRAFT).replace(self.path(key))

    def take(self, key: str) -> None:
        """Takes an entry off the shelf."""
        self.path(key).unlink(missing_ok=True)


def write_new(path: Path, data: bytes, modified: int | None = None, how: int = os.O_EXCL) -> None:
    """Writes a private file that a power cut finds whole, or leaves none."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | how, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if modified is not None:
                os.utime(descriptor, ns=(modified, modified))
            os.fsync(descriptor)
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _why_not(name: str, status: os.stat_result) -> str | None:
    """Why something in the folder is no entry; None for what is ours."""
    if name.startswith(".") or name == ARCHIVE:
        return None
    if not name.endswith(SUFFIX) or not is_key(name.removesuffix(SUFFIX)):
        return "its name is not that of an entry"
    return _TOO_LARGE if S_ISREG(status.st_mode) else _NOT_REGULAR


def _no_entry(path: str, reason: str) -> InvalidFile:
    return InvalidFile(f"this is no memory entry: {reason}", where=path, hint="Correct the file, or move it away.")
