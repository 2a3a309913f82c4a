"""Sandboxed file access: reads, writes and lists files in the folders of a view, by the rules of each folder.

A path from the model becomes a `SandboxPath`: a folder and the names below it. Every operation walks these names by
descriptor (see `sandbox.path_walk`). Does not delete or rename files, or change their permissions.

Invariant: no name, link or concurrent replacement leads out of the folders of the view.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import time
import unicodedata
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError, NotFound, Refused
from guildhall.core.text import did_you_mean
from guildhall.sandbox.path_walk import (
    MAX_DEPTH,
    Entry,
    PathWalk,
    ViewIndex,
    file_identity,
    folder_path,
    is_below,
    translate_os_errors,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from guildhall.sandbox.view import Folder, View

_MAX_PATH_BYTES = 4096
_MAX_VISITED_FILES = 100_000
_CHUNK_BYTES = 1_048_576
_LOCK_TIMEOUT_S = 10.0
_LOCK_POLL_S = 0.005
TEMPORARY_SUFFIX = ".guild-tmp"  # of a file that is being written


def resolve_view(view: View) -> View:
    """Return the view with all links in its own paths resolved, because folders are never reached through links."""
    folders = tuple(replace(folder, path=folder.path.resolve()) for folder in view.folders)
    hidden = tuple(path.resolve() for path in view.hidden)
    # A link is protected under its own name, so that it cannot be replaced, and so is its target.
    both = (one for path in view.protected for one in (path.parent.resolve() / path.name, path.resolve()))
    shown = tuple(path.resolve() for path in view.shown)
    protected = tuple(dict.fromkeys(both))
    return replace(view, cwd=view.cwd.resolve(), folders=folders, hidden=hidden, protected=protected, shown=shown)


@dataclass(frozen=True, kw_only=True)
class SandboxPath:
    """A folder and a path below it, which may not exist."""

    folder: Folder
    parts: tuple[str, ...]
    display: str  # as requested


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
            raise Refused(f"outside the folders of this run: {path}", hint=self._folders_hint())
        root = folder_path(folder)
        # The path as written if it stays in the folder, so that `link/..` has its usual meaning.
        written = tuple(full[len(root) :].split("/"))
        parts = written if is_below(full, root) and _stays_inside(written) else tuple(plain[len(root) :].split("/"))
        return SandboxPath(folder=folder, parts=parts, display=path)

    def search_roots(self, path: str | None) -> list[SandboxPath]:
        """Return the path, else the working folder, or all folders if the working folder is in none of them."""
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
            raise Refused(f"{path} is absolute", hint=f"Use a path relative to the sandbox {folder.name!r}.")
        return SandboxPath(folder=folder, parts=tuple(path.split("/")), display=path)

    def display_path(self, location: SandboxPath) -> str:
        """Return the path as `locate` accepts it, relative to the working folder if it is below that."""
        full = os.path.normpath(f"{folder_path(location.folder)}/{'/'.join(location.parts)}")
        here = os.path.abspath(self.view.cwd)  # noqa: PTH100
        return full[len(here) :].lstrip("/") or "." if is_below(full, here) else full

    def read(self, location: SandboxPath, *, is_text: bool = False, max_bytes: int | None = None) -> Contents:
        """Read a file. A folder may permit `is_text` for some suffixes only.

        `max_bytes`: read one byte more than this at most, which shows that the file is larger.
        """
        with self.open_walk(location) as walk:
            end = walk.advance(location.parts, follow_last=True)
            if end.missing:
                raise walk.not_found_error(end.missing[0])
            if end.name is None:
                raise Refused(f"{location.display} is a folder, not a file", hint="Name a file in it.")
            folder = walk.current.folder
            for name in {_last_name(location), end.name}:
                check_suffix(folder, name, location.display, is_text=is_text)
            data = _read(walk, end.name, folder, location.display, max_bytes)
            return Contents(data=data, name=end.name, folder=folder)

    def write(self, location: SandboxPath, data: bytes) -> bool:
        """Write a file atomically and create missing folders. Return True if the file is new."""
        with self.open_walk(location) as walk:
            end = walk.advance(location.parts, follow_last=False)
            name = end.missing[-1] if end.missing else end.name
            if name is None or name == "..":
                raise Refused(f"{location.display} is a folder, not a file", hint="Name a file in it.")
            if ".." in end.missing:
                raise NotFound(f"{location.display} does not exist", hint="Leave out the '..'.")
            for missing in end.missing[:-1]:
                self._check_write(walk.folder_below(missing), name, len(data), location.display)
                walk.make_directory(missing)
            self._check_write(walk.current.folder, name, len(data), location.display)
            with _lock_folder(walk, location.display):
                return _write(walk, name, data, location.display)

    def edit(self, location: SandboxPath, change: Callable[[bytes], bytes]) -> None:
        """Replace the content of a file with `change(content)`. No other run writes the file in between."""
        with self.open_walk(location) as walk:
            end = walk.advance(location.parts, follow_last=False)
            if end.missing:
                raise walk.not_found_error(end.missing[0])
            if end.name is None:
                raise Refused(f"{location.display} is a folder, not a file", hint="Name a file in it.")
            folder = walk.current.folder
            check_suffix(folder, end.name, location.display, is_text=True)
            with _lock_folder(walk, location.display):
                data = change(_read(walk, end.name, folder, location.display, None))
                self._check_write(folder, end.name, len(data), location.display)
                _write(walk, end.name, data, location.display)

    def _check_write(self, folder: Folder, name: str, size: int, display: str) -> None:
        if not folder.is_writable:
            raise Refused(f"{_title(folder)} is read-only: {display} was not written", hint=self._writable_hint())
        check_suffix(folder, name, display, is_text=True)
        if size > folder.max_bytes:
            raise Refused(f"{display}: too large ({size:,} bytes, the limit is {folder.max_bytes:,})")

    def list_files(self, location: SandboxPath, *, skip: frozenset[str] = frozenset()) -> FileListing:
        return FileListing(self, location, skip)

    def is_file(self, location: SandboxPath) -> bool:
        """Return True if the location is a regular file that may be read. Links inside the folder are followed."""
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
        """Start a walk at the root of the folder."""
        self._index.refresh()
        with translate_os_errors(location.display):
            walk = PathWalk(location.folder, self._index, location.display)
            try:
                yield walk
            finally:
                walk.close()

    def _folder_of(self, path: str) -> Folder | None:
        """Return the innermost folder that contains the path. A named folder precedes an unnamed one."""
        around = [folder for folder in self.view.folders if is_below(path, folder_path(folder))]
        return max(around, key=lambda folder: (len(folder_path(folder)), folder.name is not None), default=None)

    def _folders_hint(self) -> str:
        if not self.view.folders:
            return "This run has no folders."
        named = [f"{folder_path(f)} ({'read and write' if f.is_writable else 'read only'})" for f in self.view.folders]
        return f"Stay inside: {', '.join(named)}."

    def _writable_hint(self) -> str:
        named = [_title(folder) for folder in self.view.folders if folder.is_writable]
        if named:
            return f"Write to {' or '.join(named)} instead."
        return "This run has no writable folder. A sandbox is writable with `mode: rw` in the worker file."


class FileListing:
    """The visible files at or below a location, sorted, with their relative paths. `skip`: names of folders.

    `is_truncated` is set if the limit of visited files or the maximum depth was reached.
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

    The comparison ignores case only. A trailing dot or space, or a similar letter, makes another suffix.
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
        raise Refused(f"{display}: {_title(folder)} permits only files ending in {allowed}")
    if is_text and not has_suffix(name, folder.text_suffixes):
        allowed = ", ".join(folder.text_suffixes)
        raise Refused(f"{display}: {_title(folder)} permits text only in files ending in {allowed}")


def _title(folder: Folder) -> str:
    return f"the sandbox {folder.name!r}" if folder.name is not None else f"the folder {folder.path}"


def _last_name(location: SandboxPath) -> str:
    named = [part for part in location.parts if part not in ("", ".")]
    return named[-1] if named else ""


def _stays_inside(parts: tuple[str, ...]) -> bool:
    """Return True if the names, without regard to links, never lead above their start."""
    depth = 0
    for part in parts:
        depth += 0 if part in ("", ".") else -1 if part == ".." else 1
        if depth < 0:
            return False
    return True


def _check_path(path: str) -> None:
    if not path.strip():
        raise Refused("invalid path: empty", hint="Name a file.")
    if "\0" in path:
        raise Refused("invalid path: contains a NUL character")
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        raise Refused("invalid path: contains a lone surrogate") from None
    if len(encoded) > _MAX_PATH_BYTES:
        raise Refused(f"invalid path: longer than {_MAX_PATH_BYTES:,} bytes")


def _check_regular(status: os.stat_result, display: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise Refused(f"{display} is a folder, not a file", hint="Name a file in it.")
    if not stat.S_ISREG(status.st_mode):
        raise Refused(f"{display} is not a regular file", hint="Devices, pipes, sockets and links cannot be used.")


def _read(walk: PathWalk, name: str, folder: Folder, display: str, max_bytes: int | None) -> bytes:
    before = walk.status(name)
    if before is None:
        raise walk.not_found_error(name)
    _check_regular(before, display)  # before it is opened: opening a device can have effects
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
            raise Refused(f"{display} is larger than the {limit:,} bytes allowed here")
        return bytes(data)
    finally:
        os.close(fd)


@contextmanager
def _lock_folder(walk: PathWalk, display: str) -> Generator[None]:
    """Lock the folder that a file is written in, against writes of other runs. Not all file systems have locks."""
    try:
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=walk.current.fd)
    except PermissionError:  # a folder that cannot be listed
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
                    hint = "Try again later."
                    raise Refused(
                        f"{display} was not written: another program has locked its folder", hint=hint
                    ) from None
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
            raise Refused(f"{display} is marked read-only", hint="Write to another file.")
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
        # Renaming replaces the name only: the target of a link and other names of the file stay as they are.
        os.replace(temporary, name, src_dir_fd=walk.current.fd, dst_dir_fd=walk.current.fd)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=walk.current.fd)
        raise
    return existing is None
