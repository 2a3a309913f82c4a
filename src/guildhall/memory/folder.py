"""Memory folder: reads and writes the files of a memory scope, with a file `<key>.md` for each entry.

The user may edit these files, so a folder can contain anything. Only regular files with a valid name and size are
entries. Other files are reported and left alone: symbolic links are never followed, and pipes are never opened. Names
that begin with a dot are internal. `archive/` holds the entries that a compaction replaced.

Does not log changes: `memory.service` does, through `memory.records`.

Invariant: readers never see a partial entry. A content is written to a draft, which then replaces the entry atomically.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from stat import S_ISREG
from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict, InvalidFile, NotFound
from guildhall.core.ids import digest
from guildhall.core.text_checks import did_you_mean
from guildhall.memory.model import MAX_ENTRY_BYTES, SUFFIX, EntryInfo, Listing, MemoryEntry, Scope, SkippedFile, is_key

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.core.request_frame import Frame
    from guildhall.workers.model import Worker

ARCHIVE = "archive"
_DRAFT = ".new"  # one name is enough: only the holder of the lock writes
_LOCK = ".lock"
_COMPACTION_LOCK = ".compacting"
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TOO_LARGE = f"larger than {MAX_ENTRY_BYTES:,} bytes"
_NOT_REGULAR = "not a regular file"
_SUFFIX_START = -len(SUFFIX)
# 64 bits: a cloned repository can choose its path, and must not be able to hit the folder of another worker.
_HASH_CHARS = 16

# (-mtime_ns, key, size): sorts newest first. A plain tuple, because a scan of 10,000 entries may cost at most 1.5 times
# their stat calls (bench/m08_memory.py), and a NamedTuple would exceed that.
ScannedEntry = tuple[int, str, int]


@dataclass(frozen=True, kw_only=True)
class FolderScan:
    """Entries of a folder in no particular order, and the files that are not entries."""

    entries: list[ScannedEntry]
    skipped: list[SkippedFile]


@dataclass(frozen=True, kw_only=True)
class MemoryFolder:
    """The folder of one scope, as one worker or the user sees it. It need not exist."""

    scope: Scope
    path: Path
    name: str  # path below the memory folder of the home, such as workers/reviewer-1f2e; identifies it in the log

    def entry_path(self, key: str) -> Path:
        return self.path / f"{key}{SUFFIX}"

    # Reading

    def scan(self) -> FolderScan:
        """Find all entries without opening their files."""
        scan = FolderScan(entries=[], skipped=[])
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return scan
        except OSError as error:
            hint = "Check the permissions of the folder."
            message = f"cannot read the memory folder: {error.strerror}"
            raise Conflict(message, where=str(self.path), hint=hint) from None
        try:
            self._scan_directory(descriptor, scan)
        finally:
            os.close(descriptor)
        return scan

    def _scan_directory(self, descriptor: int, scan: FolderScan) -> None:
        # Hot path, run for every prompt: stat relative to the descriptor, and few calls per entry.
        add_entry = scan.entries.append
        with os.scandir(descriptor) as items:
            for item in items:
                try:
                    file_stat = item.stat(follow_symlinks=False)
                except FileNotFoundError:  # deleted meanwhile
                    continue
                name, size = item.name, file_stat.st_size
                key = name[:_SUFFIX_START]
                has_key = name[_SUFFIX_START:] == SUFFIX and is_key(key)
                if has_key and size <= MAX_ENTRY_BYTES and S_ISREG(file_stat.st_mode):
                    add_entry((-file_stat.st_mtime_ns, key, size))
                elif not (name.startswith(".") or name == ARCHIVE):
                    reason = _TOO_LARGE if S_ISREG(file_stat.st_mode) else _NOT_REGULAR
                    scan.skipped.append(self._skipped_file(name, reason if has_key else "not a valid entry name"))

    def list_entries(self) -> Listing:
        """Return the entries, newest first, and the files that are not entries."""
        scan = self.scan()
        return Listing(
            entries=tuple(
                EntryInfo(scope=self.scope, key=key, mtime_ns=-negative_mtime, size=size)
                for negative_mtime, key, size in sorted(scan.entries)
            ),
            skipped=tuple(sorted(scan.skipped, key=lambda file: file.name)),
        )

    def load(self, key: str) -> MemoryEntry | SkippedFile | None:
        """Return the entry, None if there is no file, or a SkippedFile if the file is not a valid entry."""
        name = f"{key}{SUFFIX}"
        try:
            descriptor = os.open(f"{self.path}/{name}", _READ_FLAGS)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            return self._skipped_file(name, "a symbolic link" if error.errno == errno.ELOOP else _read_error(error))
        try:
            file_stat = os.fstat(descriptor)
            if not S_ISREG(file_stat.st_mode):
                return self._skipped_file(name, _NOT_REGULAR)
            data = os.read(descriptor, min(file_stat.st_size, MAX_ENTRY_BYTES) + 1)
        except OSError as error:
            return self._skipped_file(name, _read_error(error))
        finally:
            os.close(descriptor)
        if len(data) > MAX_ENTRY_BYTES:
            return self._skipped_file(name, _TOO_LARGE)
        try:
            content = data.decode()
        except UnicodeDecodeError:
            return self._skipped_file(name, "not UTF-8 text")
        if "\0" in content:
            return self._skipped_file(name, "contains a NUL character")
        return MemoryEntry(
            scope=self.scope,
            key=key,
            mtime_ns=file_stat.st_mtime_ns,
            size=file_stat.st_size,
            content=content,
            inode=file_stat.st_ino,
        )

    def find(self, key: str) -> MemoryEntry | None:
        """Return the entry, or None if there is no file. Raise InvalidFile if the file is not a valid entry."""
        entry = self.load(key)
        if isinstance(entry, SkippedFile):
            hint = "Correct the file, or move it out of the memory folder."
            raise InvalidFile(f"not a memory entry: {entry.reason}", where=f"{self.path}/{entry.name}", hint=hint)
        return entry

    def read(self, key: str) -> MemoryEntry:
        """Return the entry. Raise NotFound if there is no file."""
        entry = self.find(key)
        if entry is None:
            raise self.not_found_error(key)
        return entry

    def not_found_error(self, key: str) -> NotFound:
        hint = did_you_mean(key, {known for _, known, _ in self.scan().entries})
        return NotFound(f"unknown memory entry '{self.scope}/{key}'", hint=hint or f"The {self.scope} memory is empty.")

    def is_unchanged(self, entry: MemoryEntry) -> bool:
        """Return True if the file was neither replaced nor edited since the entry was read."""
        try:
            file_stat = self.entry_path(entry.key).lstat()
        except FileNotFoundError:
            return False
        version = (file_stat.st_ino, file_stat.st_mtime_ns, file_stat.st_size)
        return version == (entry.inode, entry.mtime_ns, entry.size)

    def _skipped_file(self, name: str, reason: str) -> SkippedFile:
        return SkippedFile(scope=self.scope, name=name, reason=reason)

    # Writing: the caller holds the lock

    @contextmanager
    def lock(self) -> Generator[None]:
        """Exclude all other writers of the folder, in any process. OS errors of the block are raised as Conflict."""
        with self._os_errors_as_conflict():
            descriptor = self._open_lock(_LOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
            finally:
                os.close(descriptor)

    @contextmanager
    def compaction_lock(self) -> Generator[bool]:
        """Try to exclude other compactions, and yield False if one is running. Writers are not excluded."""
        with self._os_errors_as_conflict():
            descriptor = self._open_lock(_COMPACTION_LOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_acquired = True
        except OSError:
            is_acquired = False
        try:
            yield is_acquired
        finally:
            os.close(descriptor)

    def write_draft(self, data: bytes, mtime_ns: int | None = None) -> None:
        """Write the next content of an entry to disk, invisible to readers."""
        write_private_file(self.path / _DRAFT, data, mtime_ns, os.O_TRUNC)

    def publish_draft(self, key: str) -> None:
        """Replace the entry by the draft, atomically."""
        (self.path / _DRAFT).replace(self.entry_path(key))

    def delete(self, key: str) -> None:
        self.entry_path(key).unlink(missing_ok=True)

    def _open_lock(self, name: str) -> int:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    @contextmanager
    def _os_errors_as_conflict(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            hint = "Check the permissions of the folder and the free disk space."
            message = f"cannot change the memory folder: {error.strerror}"
            raise Conflict(message, where=str(self.path), hint=hint) from None


def memory_folders(home: Home, worker: Worker | None, frame: Frame) -> Mapping[Scope, MemoryFolder]:
    """Return the folders that a worker may use, or the shared ones if no worker is given.

    A worker's folder is named after the path of its file, not after its name: the `reviewer` of a cloned repository
    must not read the memory of the `reviewer` at home. All workers of a member share one folder inside the member, so
    that it moves with the member.
    """
    if home.data_dir is not None:
        return {"worker": MemoryFolder(scope="worker", path=home.memory, name="member")}
    project = (worker.project_root(frame) if worker else frame.root).resolve()
    names: dict[Scope, str] = {"global": "global", "project": f"projects/{_folder_name(project.name, str(project))}"}
    if worker is not None:
        # The file of a workflow has several workers, and the file of a package always has the same name.
        is_named_by_file = worker.scope not in ("workflow", "package")
        label = worker.path.stem if is_named_by_file else worker.name
        names["worker"] = f"workers/{_folder_name(label, worker.identity)}"
    return {scope: MemoryFolder(scope=scope, path=home.memory / name, name=name) for scope, name in names.items()}


def write_private_file(path: Path, data: bytes, mtime_ns: int | None = None, flags: int = os.O_EXCL) -> None:
    """Write a file that only its owner can read, and sync it to disk. Leave no file if that fails."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if mtime_ns is not None:
                os.utime(descriptor, ns=(mtime_ns, mtime_ns))
            os.fsync(descriptor)
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise


def _folder_name(label: str, origin: str) -> str:
    readable = "".join(char if char.isascii() and (char.isalnum() or char in "_-") else "-" for char in label)[:40]
    return f"{readable or 'root'}-{digest(origin.encode('utf-8', 'surrogateescape'))[:_HASH_CHARS]}"


def _read_error(error: OSError) -> str:
    return f"unreadable ({error.strerror})"
