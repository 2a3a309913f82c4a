"""Sandboxed file access: reads, writes and lists files in the folders of a view, by the rules of each folder.

A path from the model becomes a `SandboxPath`, which is a folder and the names below it. Every operation walks these
names by descriptor (see `sandbox.path_walk`).
Does not delete or rename files, or change their permissions.

Invariant: no name, link or concurrent replacement leads out of the folders of the view.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import time
import unicodedata
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError, NotFound, Refused
from guildhall.core.text_checks import did_you_mean
from guildhall.sandbox.path_walk import (
    MAX_DEPTH,
    Entry,
    PathWalk,
    ViewIndex,
    WalkResult,
    file_identity,
    folder_path,
    is_below,
    translate_os_errors,
)

if TYPE_CHECKING:
    from guildhall.sandbox.view import Folder, View

_MAX_PATH_BYTES = 4096
_MAX_VISITED_FILES = 100_000
_CHUNK_BYTES = 1_048_576
_LOCK_TIMEOUT_S = 10.0
_LOCK_POLL_S = 0.005
TEMPORARY_SUFFIX = ".guild-tmp"  # suffix of a file that is being written


def resolve_view(view: View) -> View:
    """Return the view with all links in its paths resolved, because a walk follows no link to a folder of the view."""
    folders = tuple(replace(folder, path=folder.path.resolve()) for folder in view.folders)
    hidden = tuple(path.resolve() for path in view.hidden)
    # A link is protected under its own name, so that it cannot be replaced, and so is its target.
    both = ((path.parent.resolve() / path.name, path.resolve()) for path in view.protected)
    protected = tuple(dict.fromkeys(path for pair in both for path in pair))
    shown = tuple(path.resolve() for path in view.shown)
    return replace(view, cwd=view.cwd.resolve(), folders=folders, hidden=hidden, protected=protected, shown=shown)


@dataclass(frozen=True, kw_only=True)
class SandboxPath:
    """A folder and a path below it, which may not exist."""

    folder: Folder
    parts: tuple[str, ...]
    display: str  # the path as requested, for messages


@dataclass(frozen=True, kw_only=True)
class Contents:
    data: bytes
    name: str
    folder: Folder


class SandboxFiles:
    def __init__(self, view: View) -> None:
        self.view = view
        self._index = ViewIndex(view)

    def locate(self, path: str) -> SandboxPath:
        """Resolve a path, which is absolute or relative to the working folder. Raise Refused if no folder has it."""
        _check_path(path)
        full = path if path.startswith("/") else f"{os.path.abspath(self.view.cwd)}/{path}"  # noqa: PTH100
        plain = "/" + os.path.normpath(full).lstrip("/")
        folder = self._folder_of(plain)
        if folder is None:
            raise Refused(f"cannot access {path}: outside the folders of this run", hint=self._folders_hint())
        root = folder_path(folder)
        # The path as written if it stays in the folder, so that `link/..` has its usual meaning.
        written = tuple(full[len(root) :].split("/"))
        parts = written if is_below(full, root) and _stays_inside(written) else tuple(plain[len(root) :].split("/"))
        return SandboxPath(folder=folder, parts=parts, display=path)

    def search_roots(self, path: str | None) -> list[SandboxPath]:
        """Return the location of the path, or of the working folder without a path.

        Return all folders if no folder contains the working folder.
        """
        if path is not None:
            return [self.locate(path)]
        if self._folder_of(os.path.abspath(self.view.cwd)) is not None:  # noqa: PTH100
            return [self.locate(".")]
        return [SandboxPath(folder=folder, parts=(), display=folder_path(folder)) for folder in self.view.folders]

    def find_sandbox(self, name: str) -> Folder:
        named = {folder.name: folder for folder in self.view.folders if folder.name is not None}
        if name not in named:
            raise NotFound(f"unknown sandbox {name!r}", hint=did_you_mean(name, named))
        return named[name]

    def locate_in(self, folder: Folder, path: str) -> SandboxPath:
        """Resolve a path relative to the root of a folder."""
        _check_path(path)
        if path.startswith("/"):
            hint = f"Use a path relative to the sandbox {folder.name!r}."
            raise Refused(f"invalid path {path}: absolute", hint=hint)
        return SandboxPath(folder=folder, parts=tuple(path.split("/")), display=path)

    def display_path(self, location: SandboxPath) -> str:
        """Return a path that `locate` accepts. It is relative if the location is in the working folder."""
        full = os.path.normpath(f"{folder_path(location.folder)}/{'/'.join(location.parts)}")
        here = os.path.abspath(self.view.cwd)  # noqa: PTH100
        return full[len(here) :].lstrip("/") or "." if is_below(full, here) else full

    def read(self, location: SandboxPath, *, is_text: bool = False, max_bytes: int | None = None) -> Contents:
        """Read a file. `is_text`: the name must have one of the folder's `text_suffixes`.

        `max_bytes`: read at most one byte more than this. The extra byte shows that the file is larger.
        """
        with self.open_walk(location) as walk:
            end = walk.advance(location.parts, follow_last=True)
            name = _existing_file(walk, end, location.display)
            folder = walk.current.folder
            for shown in {_last_name(location), name}:
                check_suffix(folder, shown, location.display, is_text=is_text)
            data = _read(walk, name, folder, location.display, max_bytes)
            return Contents(data=data, name=name, folder=folder)

    def write(self, location: SandboxPath, data: bytes) -> bool:
        """Write a file atomically and create missing folders. Return True if the file is new."""
        with self.open_walk(location) as walk:
            end = walk.advance(location.parts, follow_last=False)
            name = end.missing[-1] if end.missing else end.name
            if name is None or name == "..":
                raise _folder_error(location.display)
            if ".." in end.missing:
                raise NotFound(f"{location.display} does not exist", hint="Use a path without '..'.")
            for missing in end.missing[:-1]:
                self._check_write(walk.folder_below(missing), name, len(data), location.display)
                walk.make_directory(missing)
            self._check_write(walk.current.folder, name, len(data), location.display)
            with _lock_folder(walk, location.display):
                return _write(walk, name, data, location.display)

    def edit(self, location: SandboxPath, change: Callable[[bytes], bytes]) -> None:
        """Replace the content of a file by `change(content)`. No other run writes the file in between."""
        with self.open_walk(location) as walk:
            end = walk.advance(location.parts, follow_last=False)
            name = _existing_file(walk, end, location.display)
            folder = walk.current.folder
            check_suffix(folder, name, location.display, is_text=True)
            with _lock_folder(walk, location.display):
                data = change(_read(walk, name, folder, location.display, None))
                self._check_write(folder, name, len(data), location.display)
                _write(walk, name, data, location.display)

    def _check_write(self, folder: Folder, name: str, size: int, display: str) -> None:
        if not folder.is_writable:
            raise Refused(f"cannot write {display}: {_title(folder)} is read-only", hint=self._writable_hint())
        check_suffix(folder, name, display, is_text=True)
        if size > folder.max_bytes:
            limit = f"{_title(folder)} permits {folder.max_bytes:,} bytes for each file"
            hint = "Write less, or several smaller files."
            raise Refused(f"cannot write {display}: it has {size:,} bytes, and {limit}", hint=hint)

    def list_files(self, location: SandboxPath, *, skip: frozenset[str] = frozenset()) -> FileListing:
        return FileListing(self, location, skip)

    def is_file(self, location: SandboxPath) -> bool:
        """Return True if the location is a regular file that may be read. Follow links inside the folder."""
        try:
            with self.open_walk(location) as walk:
                end = walk.advance(location.parts, follow_last=True)
                status = walk.status(end.name) if end.name else None
                return (
                    status is not None
                    and stat.S_ISREG(status.st_mode)
                    and not walk.is_hidden(end.name or "", file_identity(status))
                    and has_suffix(end.name or "", walk.current.folder.allowed_suffixes)
                )
        except GuildError:
            return False

    @contextmanager
    def open_walk(self, location: SandboxPath) -> Generator[PathWalk]:
        """Start a walk at the root of the location's folder."""
        self._index.refresh()
        with translate_os_errors(location.display):
            walk = PathWalk(location.folder, self._index, location.display)
            try:
                yield walk
            finally:
                walk.close()

    def _folder_of(self, path: str) -> Folder | None:
        """Return the innermost folder that contains the path. Of two folders with one path, return the named one."""
        enclosing = [folder for folder in self.view.folders if is_below(path, folder_path(folder))]
        return max(enclosing, key=lambda folder: (len(folder_path(folder)), folder.name is not None), default=None)

    def _folders_hint(self) -> str:
        if not self.view.folders:
            return "This run has no folders."
        named = [f"{folder_path(f)} ({'read and write' if f.is_writable else 'read only'})" for f in self.view.folders]
        return f"Use a path inside: {', '.join(named)}."

    def _writable_hint(self) -> str:
        named = [_title(folder) for folder in self.view.folders if folder.is_writable]
        if named:
            return f"Write to {' or '.join(named)} instead."
        return "This run has no writable folder. Return the content in your answer."


class FileListing:
    """The visible files at or below a location, sorted, with their relative paths. `skip`: names of skipped folders.

    `is_truncated` is True after a limit was reached: the number of visited files, or the depth.
    """

    def __init__(self, files: SandboxFiles, location: SandboxPath, skip: frozenset[str]) -> None:
        self.is_truncated = False
        self._files = files
        self._location = location
        self._skip = skip
        self._remaining = _MAX_VISITED_FILES

    def __iter__(self) -> Iterator[tuple[str, SandboxPath]]:
        with self._files.open_walk(self._location) as walk:
            end = walk.advance(self._location.parts, follow_last=True)
            if end.missing:
                raise walk.not_found_error(end.missing[0])
            if end.name is None:
                yield from self._list_below(walk, ())
            elif self._files.is_file(self._location):
                yield end.name, self._location

    def _list_below(self, walk: PathWalk, parent: tuple[str, ...]) -> Iterator[tuple[str, SandboxPath]]:
        try:
            entries = walk.entries(self._remaining + 1)
        except PermissionError:
            return
        for entry in entries:
            if self._remaining <= 0:
                self.is_truncated = True
                return
            self._remaining -= 1
            parts = (*parent, entry.name)
            if entry.kind == "folder":
                yield from self._list_folder(walk, entry.name, parts)
            elif self._is_visible(walk, entry, parts):
                yield "/".join(parts), self._at(parts)

    def _list_folder(self, walk: PathWalk, name: str, parts: tuple[str, ...]) -> Iterator[tuple[str, SandboxPath]]:
        if name in self._skip:
            return
        if len(parts) >= MAX_DEPTH // 2:
            self.is_truncated = True
            return
        try:
            entered = walk.enter(name)
        except (Refused, PermissionError):
            return
        if entered:
            try:
                yield from self._list_below(walk, parts)
            finally:
                walk.leave()

    def _is_visible(self, walk: PathWalk, entry: Entry, parts: tuple[str, ...]) -> bool:
        if not has_suffix(entry.name, walk.current.folder.allowed_suffixes) or walk.is_hidden_entry(entry):
            return False
        return entry.kind == "file" or (entry.kind == "link" and self._files.is_file(self._at(parts)))

    def _at(self, parts: tuple[str, ...]) -> SandboxPath:
        display = "/".join((self._location.display.rstrip("/"), *parts))
        return SandboxPath(folder=self._location.folder, parts=(*self._location.parts, *parts), display=display)


def has_suffix(name: str, suffixes: tuple[str, ...]) -> bool:
    """Return True if a file name ends in one of the suffixes, or if there are no suffixes.

    The comparison ignores only case. A trailing dot or space, or a similar letter, makes another suffix.
    """
    if not suffixes:
        return True
    return any(_ends_with(name, suffix if suffix.startswith(".") else f".{suffix}") for suffix in suffixes)


def _ends_with(name: str, suffix: str) -> bool:
    if not suffix.isascii():
        name, suffix = unicodedata.normalize("NFC", name), unicodedata.normalize("NFC", suffix)
    if len(name) <= len(suffix):
        return False
    end = name[-len(suffix) :]
    return end.isascii() == suffix.isascii() and end.lower() == suffix.lower()


def check_suffix(folder: Folder, name: str, display: str, *, is_text: bool) -> None:
    if not has_suffix(name, folder.allowed_suffixes):
        allowed = ", ".join(folder.allowed_suffixes)
        raise Refused(f"cannot access {display}: {_title(folder)} permits only files ending in {allowed}")
    if is_text and not has_suffix(name, folder.text_suffixes):
        allowed = ", ".join(folder.text_suffixes)
        raise Refused(f"cannot access {display}: {_title(folder)} permits text only in files ending in {allowed}")


def _title(folder: Folder) -> str:
    return f"the sandbox {folder.name!r}" if folder.name is not None else f"the folder {folder.path}"


def _last_name(location: SandboxPath) -> str:
    named = [part for part in location.parts if part not in ("", ".")]
    return named[-1] if named else ""


def _stays_inside(parts: tuple[str, ...]) -> bool:
    """Return True if the names never lead above their start. Links are not considered."""
    depth = 0
    for part in parts:
        depth += 0 if part in ("", ".") else -1 if part == ".." else 1
        if depth < 0:
            return False
    return True


def _check_path(path: str) -> None:
    if not path.strip():
        raise Refused("invalid path: empty", hint="Pass the path of a file or folder.")
    if "\0" in path:
        raise Refused("invalid path: contains a NUL character")
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        raise Refused("invalid path: contains a lone surrogate") from None
    if len(encoded) > _MAX_PATH_BYTES:
        raise Refused(f"invalid path: longer than {_MAX_PATH_BYTES:,} bytes")


def _folder_error(display: str) -> Refused:
    return Refused(f"{display} is a folder, not a file", hint="Pass the path of a file in the folder.")


def _existing_file(walk: PathWalk, end: WalkResult, display: str) -> str:
    """Return the name at which a walk ended. Raise NotFound or Refused if the name is missing or a folder."""
    if end.missing:
        raise walk.not_found_error(end.missing[0])
    if end.name is None:
        raise _folder_error(display)
    return end.name


def _check_regular(status: os.stat_result, display: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise _folder_error(display)
    if not stat.S_ISREG(status.st_mode):
        raise Refused(f"cannot access {display}: not a regular file", hint="Use a file, not a device, pipe or socket.")


def _read(walk: PathWalk, name: str, folder: Folder, display: str, max_bytes: int | None) -> bytes:
    before = walk.status(name)
    if before is None:
        raise walk.not_found_error(name)
    _check_regular(before, display)  # before the file is opened, because opening a device can have effects
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=walk.current.fd)
    try:
        status = os.fstat(fd)
        _check_regular(status, display)
        walk.check_visible(name, file_identity(status))
        limit = folder.max_bytes
        wanted = limit if max_bytes is None else min(limit, max_bytes)
        data = bytearray()
        # In chunks, because a file that grows must not be read as a whole.
        while status.st_size <= limit and (chunk := os.read(fd, min(wanted + 1 - len(data), _CHUNK_BYTES))):
            data += chunk
        if status.st_size > limit or len(data) > limit:
            raise Refused(f"cannot read {display}: {_title(folder)} permits {limit:,} bytes for each file")
        return bytes(data)
    finally:
        os.close(fd)


@contextmanager
def _lock_folder(walk: PathWalk, display: str) -> Generator[None]:
    """Lock the current folder against writes of other runs. On a file system without locks, do not lock it."""
    try:
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=walk.current.fd)
    except PermissionError:  # the folder cannot be listed, and therefore not be locked
        yield
        return
    try:
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    message = f"cannot write {display}: another program has locked the folder for {_LOCK_TIMEOUT_S:g} s"
                    raise Refused(message, hint="Try again later.") from None
                time.sleep(_LOCK_POLL_S)
            except OSError:
                break
        yield
    finally:
        os.close(fd)


def _write(walk: PathWalk, name: str, data: bytes, display: str) -> bool:
    existing = walk.status(name)
    identity = file_identity(existing) if existing else None
    walk.check_visible(name, identity)
    walk.check_not_protected(name, identity)
    if existing is not None:
        _check_regular(existing, display)
        if not existing.st_mode & 0o222:
            raise Refused(f"cannot write {display}: its mode is read-only", hint="Write to another file.")
    temporary = f".{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    fd = os.open(temporary, flags, 0o600 if existing else 0o666, dir_fd=walk.current.fd)
    try:
        with os.fdopen(fd, "wb") as file:
            if existing is not None:
                with suppress(PermissionError):  # only root can change the owner
                    os.fchown(fd, existing.st_uid, existing.st_gid)
                os.fchmod(fd, stat.S_IMODE(existing.st_mode) & 0o777)
            file.write(data)
            file.flush()
            os.fsync(fd)
        # Renaming replaces only the name: the target of a link and other names of the file are unchanged.
        os.replace(temporary, name, src_dir_fd=walk.current.fd, dst_dir_fd=walk.current.fd)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=walk.current.fd)
        raise
    return existing is None
