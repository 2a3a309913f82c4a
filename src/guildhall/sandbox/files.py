"""Sandboxed file access: reads, writes and lists files in the folders of a view, by the rules of each folder.

A path from the model becomes a `Spot`: a folder and the names below it. Every operation walks these names by
descriptor (see `sandbox.path_walk`). Does not delete or rename files, or change their permissions.

Invariant: no name, link or concurrent replacement leads out of the folders of the view.
"""

from __future__ import annotations

import os
import secrets
import stat
import unicodedata
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError, NotFound, Refused
from guildhall.core.text import did_you_mean
from guildhall.sandbox.path_walk import MAX_DEPTH, Borders, Entry, Trail, identity, is_below, place_of, told

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from guildhall.sandbox.view import Folder, View

_MAX_PATH = 4096
_MAX_VISITED = 100_000
_CHUNK = 1_048_576
HALF = ".guild-tmp"  # how the name of a file ends that is being written


def settled(view: View) -> View:
    """The view with every link in its own paths resolved, once and for all: folders are never reached through links."""
    folders = tuple(replace(folder, path=folder.path.resolve()) for folder in view.folders)
    hidden = tuple(path.resolve() for path in view.hidden)
    # Of a kept link both count: its name, which nothing may replace, and what it leads to.
    kept = tuple(dict.fromkeys(one for p in view.kept for one in (p.parent.resolve() / p.name, p.resolve())))
    shown = tuple(path.resolve() for path in view.shown)
    return replace(view, cwd=view.cwd.resolve(), folders=folders, hidden=hidden, kept=kept, shown=shown)


@dataclass(frozen=True, kw_only=True)
class Spot:
    """A place in a folder: nothing is known yet about what is there."""

    folder: Folder
    parts: tuple[str, ...]
    shown: str  # as it was asked for


@dataclass(frozen=True, kw_only=True)
class Contents:
    """A file as it was read."""

    data: bytes
    name: str
    folder: Folder


class Rooted:
    """The files of a view."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._borders = Borders(view)

    def spot(self, path: str) -> Spot:
        """The place that a path means: absolute, or from the folder that the run works in."""
        _must_be_sound(path)
        full = path if path.startswith("/") else f"{os.path.abspath(self.view.cwd)}/{path}"  # noqa: PTH100
        plain = "/" + os.path.normpath(full).lstrip("/")
        folder = self._folder_of(plain)
        if folder is None:
            raise Refused(f"outside the folders of this run: {path}", hint=self._folders_hint())
        root = place_of(folder)
        # As written where that stays in the folder, so that `link/..` means what it means to everyone else.
        written = tuple(full[len(root) :].split("/"))
        parts = written if is_below(full, root) and _stays(written) else tuple(plain[len(root) :].split("/"))
        return Spot(folder=folder, parts=parts, shown=path)

    def starts(self, path: str | None) -> list[Spot]:
        """Where a search begins: at the path, else in the working folder, else (it is in no folder) in all of them."""
        if path is not None:
            return [self.spot(path)]
        if self._folder_of(os.path.abspath(self.view.cwd)) is not None:  # noqa: PTH100
            return [self.spot(".")]
        return [Spot(folder=folder, parts=(), shown=place_of(folder)) for folder in self.view.folders]

    def sandbox(self, name: str) -> Folder:
        """The folder of that name."""
        named = {folder.name: folder for folder in self.view.folders if folder.name is not None}
        if name not in named:
            raise NotFound(f"there is no sandbox {name!r}", hint=did_you_mean(name, named))
        return named[name]

    def within(self, folder: Folder, path: str) -> Spot:
        """The place of a path in a sandbox."""
        _must_be_sound(path)
        if path.startswith("/"):
            raise Refused(f"{path} is absolute", hint=f"Give the path from the top of the sandbox {folder.name!r}.")
        return Spot(folder=folder, parts=tuple(path.split("/")), shown=path)

    def shown(self, spot: Spot) -> str:
        """The path of a spot as the other tools take it: from the working folder if it is below it."""
        full = os.path.normpath(f"{place_of(spot.folder)}/{'/'.join(spot.parts)}")
        here = os.path.abspath(self.view.cwd)  # noqa: PTH100
        return full[len(here) :].lstrip("/") or "." if is_below(full, here) else full

    def read(self, spot: Spot, *, text: bool = False, most: int | None = None) -> Contents:
        """The file's bytes; `text` says that it is read as text, which a folder may permit for some suffixes only.

        `most` is how many bytes are wanted: of a file that has more, one more is read and the rest is left.
        """
        with self.trail(spot) as trail:
            arrival = trail.walk(spot.parts, follow=True)
            if arrival.missing:
                raise trail.absent(arrival.missing[0])
            if arrival.name is None:
                raise Refused(f"{spot.shown} is a folder, not a file", hint="Name a file in it.")
            folder = trail.here.folder
            for name in {_last(spot), arrival.name}:
                must_suit(folder, name, spot.shown, text=text)
            data = _read(trail, arrival.name, folder, spot.shown, most)
            return Contents(data=data, name=arrival.name, folder=folder)

    def write(self, spot: Spot, data: bytes) -> bool:
        """Write a file atomically and create missing folders. Return True if the file is new."""
        with self.trail(spot) as trail:
            arrival = trail.walk(spot.parts, follow=False)
            name = arrival.missing[-1] if arrival.missing else arrival.name
            if name is None or name == "..":
                raise Refused(f"{spot.shown} is a folder, not a file", hint="Name a file in it.")
            if ".." in arrival.missing:
                raise NotFound(f"there is no {spot.shown}", hint="Leave out the '..'.")
            for missing in arrival.missing[:-1]:
                self._may_write(trail.folder_below(missing), name, len(data), spot.shown)
                trail.make(missing)
            self._may_write(trail.here.folder, name, len(data), spot.shown)
            return _write(trail, name, data, spot.shown)

    def _may_write(self, folder: Folder, name: str, size: int, shown: str) -> None:
        if not folder.writable:
            raise Refused(f"{_title(folder)} is read-only: {shown} was not written", hint=self._writable_hint())
        must_suit(folder, name, shown, text=True)
        if size > folder.max_bytes:
            raise Refused(f"{shown}: {size:,} bytes are more than the {folder.max_bytes:,} allowed here")

    def files(self, spot: Spot, *, skip: frozenset[str] = frozenset()) -> Survey:
        """The files at or below a spot that the folder's rules let be seen."""
        return Survey(self, spot, skip)

    def is_file(self, spot: Spot) -> bool:
        """Return True if the spot is a regular file that may be read. Links inside the folder are followed."""
        try:
            with self.trail(spot) as trail:
                arrival = trail.walk(spot.parts, follow=True)
                status = trail.status(arrival.name) if arrival.name else None
                return (
                    status is not None
                    and stat.S_ISREG(status.st_mode)
                    and not trail.hides(arrival.name or "", identity(status))
                    and suits(arrival.name or "", trail.here.folder.allowed_suffixes)
                )
        except GuildError:
            return False

    @contextmanager
    def trail(self, spot: Spot) -> Generator[Trail]:
        """A walk that begins at the top of the spot's folder."""
        self._borders.refresh()
        with told(spot.shown):
            trail = Trail(spot.folder, self._borders, spot.shown)
            try:
                yield trail
            finally:
                trail.close()

    def _folder_of(self, path: str) -> Folder | None:
        """The innermost folder around a path; a named one before an unnamed one."""
        holding = [folder for folder in self.view.folders if is_below(path, place_of(folder))]
        return max(holding, key=lambda folder: (len(place_of(folder)), folder.name is not None), default=None)

    def _folders_hint(self) -> str:
        if not self.view.folders:
            return "This run has no folders."
        named = [f"{place_of(f)} ({'read and write' if f.writable else 'read only'})" for f in self.view.folders]
        return f"Stay inside: {', '.join(named)}."

    def _writable_hint(self) -> str:
        named = [_title(folder) for folder in self.view.folders if folder.writable]
        if named:
            return f"Write to {' or '.join(named)} instead."
        return "Nothing in this run can be written. Only a sandbox with `mode: rw` in the worker's file can."


class Survey:
    """The files at or below a spot, in order, each with its way from there. `cut` says that there was more."""

    def __init__(self, rooted: Rooted, spot: Spot, skip: frozenset[str]) -> None:
        self.cut = False
        self._rooted = rooted
        self._spot = spot
        self._skip = skip
        self._left = _MAX_VISITED

    def __iter__(self) -> Iterator[tuple[str, Spot]]:
        with self._rooted.trail(self._spot) as trail:
            arrival = trail.walk(self._spot.parts, follow=True)
            if arrival.missing:
                raise trail.absent(arrival.missing[0])
            if arrival.name is None:
                yield from self._below(trail, ())
            elif self._rooted.is_file(self._spot):
                yield arrival.name, self._spot

    def _below(self, trail: Trail, way: tuple[str, ...]) -> Iterator[tuple[str, Spot]]:
        try:
            entries = trail.entries(self._left + 1)
        except PermissionError:
            return
        for entry in entries:
            if self._left <= 0:
                self.cut = True
                return
            self._left -= 1
            here = (*way, entry.name)
            if entry.kind == "folder":
                yield from self._inside(trail, entry.name, here)
            elif self._visible(trail, entry, here):
                yield "/".join(here), self._at(here)

    def _inside(self, trail: Trail, name: str, here: tuple[str, ...]) -> Iterator[tuple[str, Spot]]:
        if name in self._skip:
            return
        if len(here) >= MAX_DEPTH // 2:
            self.cut = True
            return
        try:
            entered = trail.enter(name)
        except (Refused, PermissionError):
            return
        if entered:
            try:
                yield from self._below(trail, here)
            finally:
                trail.up()

    def _visible(self, trail: Trail, entry: Entry, here: tuple[str, ...]) -> bool:
        if not suits(entry.name, trail.here.folder.allowed_suffixes) or trail.hides_entry(entry):
            return False
        return entry.kind == "file" or (entry.kind == "link" and self._rooted.is_file(self._at(here)))

    def _at(self, way: tuple[str, ...]) -> Spot:
        shown = "/".join((self._spot.shown.rstrip("/"), *way))
        return Spot(folder=self._spot.folder, parts=(*self._spot.parts, *way), shown=shown)


def suits(name: str, suffixes: tuple[str, ...]) -> bool:
    """Return True if a file name ends in one of the suffixes, or if there are no suffixes.

    Upper and lower case are alike; nothing else is. A trailing dot or space, or a letter that merely looks like the
    right one, is another name.
    """
    if not suffixes:
        return True
    return any(_ends(name, suffix if suffix.startswith(".") else f".{suffix}") for suffix in suffixes)


def _ends(name: str, suffix: str) -> bool:
    if not suffix.isascii():
        name, suffix = unicodedata.normalize("NFC", name), unicodedata.normalize("NFC", suffix)
    if len(name) <= len(suffix):
        return False
    end = name[-len(suffix) :]
    return end.isascii() == suffix.isascii() and end.lower() == suffix.lower()


def must_suit(folder: Folder, name: str, shown: str, *, text: bool) -> None:
    """Raise Refused if the folder does not permit the suffix of the file."""
    if not suits(name, folder.allowed_suffixes):
        allowed = ", ".join(folder.allowed_suffixes)
        raise Refused(f"{shown}: {_title(folder)} permits only files ending in {allowed}")
    if text and not suits(name, folder.text_suffixes):
        allowed = ", ".join(folder.text_suffixes)
        raise Refused(f"{shown}: {_title(folder)} permits text only in files ending in {allowed}")


def _title(folder: Folder) -> str:
    return f"the sandbox {folder.name!r}" if folder.name is not None else f"the folder {folder.path}"


def _last(spot: Spot) -> str:
    named = [part for part in spot.parts if part not in ("", ".")]
    return named[-1] if named else ""


def _stays(parts: tuple[str, ...]) -> bool:
    """Return True if the names, taken as text, never lead above their start."""
    depth = 0
    for part in parts:
        depth += 0 if part in ("", ".") else -1 if part == ".." else 1
        if depth < 0:
            return False
    return True


def _must_be_sound(path: str) -> None:
    if not path.strip():
        raise Refused("the path is empty", hint="Name a file.")
    if "\0" in path:
        raise Refused("the path holds a NUL character", hint="Leave it out.")
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        raise Refused("the path holds characters that no file name can have") from None
    if len(encoded) > _MAX_PATH:
        raise Refused(f"the path is longer than {_MAX_PATH:,} bytes")


def _must_be_regular(status: os.stat_result, shown: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise Refused(f"{shown} is a folder, not a file", hint="Name a file in it.")
    if not stat.S_ISREG(status.st_mode):
        raise Refused(f"{shown} is not a regular file", hint="Devices, pipes, sockets and links are left alone.")


def _read(trail: Trail, name: str, folder: Folder, shown: str, most: int | None) -> bytes:
    before = trail.status(name)
    if before is None:
        raise trail.absent(name)
    _must_be_regular(before, shown)  # looked at before it is opened: opening alone can set off a device
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=trail.here.fd)
    try:
        status = os.fstat(fd)
        _must_be_regular(status, shown)
        trail.must_be_visible(name, identity(status))
        limit = folder.max_bytes
        wanted = limit if most is None else min(limit, most)
        data = _drained(fd, wanted + 1) if status.st_size <= limit else None
        if data is None or len(data) > limit:
            raise Refused(f"{shown} is larger than the {limit:,} bytes allowed here")
        return data
    finally:
        os.close(fd)


def _drained(fd: int, limit: int) -> bytes:
    pieces: list[bytes] = []
    while limit > 0 and (piece := os.read(fd, min(limit, _CHUNK))):
        pieces.append(piece)
        limit -= len(piece)
    return b"".join(pieces)


def _write(trail: Trail, name: str, data: bytes, shown: str) -> bool:
    existing = trail.status(name)
    trail.must_be_visible(name, identity(existing) if existing else None)
    trail.must_be_free(name, identity(existing) if existing else None)
    if existing is not None:
        _must_be_regular(existing, shown)
        if not existing.st_mode & 0o222:
            raise Refused(f"{shown} is marked read-only", hint="Write to another file.")
    temporary = f".{secrets.token_hex(8)}{HALF}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    fd = os.open(temporary, flags, 0o600 if existing else 0o666, dir_fd=trail.here.fd)
    try:
        with os.fdopen(fd, "wb") as file:
            if existing is not None:
                _keep_rights(fd, existing)
            file.write(data)
            file.flush()
            os.fsync(fd)
        # Renaming replaces the name, never what a link or another name of the same file leads to.
        os.replace(temporary, name, src_dir_fd=trail.here.fd, dst_dir_fd=trail.here.fd)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=trail.here.fd)
        raise
    return existing is None


def _keep_rights(fd: int, existing: os.stat_result) -> None:
    with suppress(PermissionError):  # only root may give files away
        os.fchown(fd, existing.st_uid, existing.st_gid)
    os.fchmod(fd, stat.S_IMODE(existing.st_mode) & 0o777)
