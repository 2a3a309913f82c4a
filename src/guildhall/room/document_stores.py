"""Document stores: hold the documents of a room by path, as files in a folder or as rows in the database.

People and other programs can read and edit the files at any time.
Does not check permissions and does not log changes (`documents.py`).

Invariant: a store reads and replaces only regular text files below its folder, and follows no links. A write is atomic.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import Conflict, InvalidFile, NotFound, Refused, UsageError
from guildhall.room import shared_records as records
from guildhall.room.model import MAX_TEXT, check_text
from guildhall.sandbox.files import TEMPORARY_SUFFIX, SandboxFiles
from guildhall.sandbox.view import Folder, View

if TYPE_CHECKING:
    from guildhall.store.engine import Store

_LONGEST_NAME = 200  # bytes of one part of a path: a temporary file beside it has a longer name
_LONGEST_PATH = 500  # characters
_DEEPEST = 16
_MOST = 10_000  # documents that are listed
_HALF_WRITTEN = re.compile(rf"\.[0-9a-f]{{16}}{re.escape(TEMPORARY_SUFFIX)}")
_OWN = ".workflow"  # from here on a path is ours, and no part of it may be a link


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A document in a listing."""

    path: str
    size: int  # bytes


class Shelf(Protocol):
    """Texts by path. The paths that come here have passed `check_path`."""

    async def read(self, path: str) -> str | None:
        """Return the text, or None if there is no document. Raise InvalidFile if it is not text."""
        ...

    async def write(self, path: str, content: str) -> None:
        """Write a text atomically: a reader, also after a crash, sees the old or the new text."""
        ...

    async def tidy(self) -> None:
        """Remove half-written files that a crash has left."""
        ...

    async def list(self) -> list[Listed]:
        """Return every document, by path."""
        ...


@dataclass(frozen=True)
class FileShelf:
    """Documents as files beneath a folder, which is made when the first is written."""

    _path: Path

    async def read(self, path: str) -> str | None:
        return await asyncio.to_thread(self._read, path)

    async def write(self, path: str, content: str) -> None:
        await asyncio.to_thread(self._write, path, content.encode())

    async def list(self) -> list[Listed]:
        return await asyncio.to_thread(self._list)

    async def tidy(self) -> None:
        await asyncio.to_thread(self._tidy)

    def _read(self, path: str) -> str | None:
        rooted, folder = self._rooted()
        if not self._path.is_dir():
            return None
        try:
            data = rooted.read(rooted.locate_in(folder, path)).data
        except NotFound:
            return None
        try:
            content = data.decode()
        except UnicodeDecodeError:
            content = "\0"
        if "\0" in content:
            raise InvalidFile(f"{path} is not text", hint="It can be neither read nor changed here.")
        return content

    def _write(self, path: str, data: bytes) -> None:
        rooted, folder = self._rooted()
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Conflict(f"the documents have no folder: {error.strerror}", where=str(self._path)) from None
        rooted.write(rooted.locate_in(folder, path), data)

    def _list(self) -> list[Listed]:
        rooted, folder = self._rooted()
        if not self._path.is_dir():
            return []
        found: list[Listed] = []
        for path, spot in rooted.list_files(rooted.locate_in(folder, ".")):
            if is_path(path):
                found.append(Listed(path=path, size=(folder.path / "/".join(spot.parts)).stat().st_size))
                if len(found) == _MOST:
                    break
        return sorted(found, key=lambda listed: listed.path)

    def _tidy(self) -> None:
        check_folder(self._path)
        for folder, _, names in os.walk(self._path):
            for name in names:
                if _HALF_WRITTEN.fullmatch(name):
                    with contextlib.suppress(OSError):
                        (Path(folder) / name).unlink()

    def _rooted(self) -> tuple[SandboxFiles, Folder]:
        check_folder(self._path)
        folder = Folder(path=self._path, name="documents", is_writable=True, max_bytes=MAX_TEXT)
        return SandboxFiles(View(cwd=self._path, folders=(folder,))), folder


@dataclass(frozen=True)
class TableShelf:
    """Documents in the database: nothing on the disk."""

    _store: Store
    _clock: Clock
    _room: str

    async def read(self, path: str) -> str | None:
        return self._store.read(lambda connection: records.document(connection, self._room, path))

    async def write(self, path: str, content: str) -> None:
        at = stamp(self._clock.now())
        await self._store.write(lambda connection: records.put_document(connection, self._room, path, content, at))

    async def tidy(self) -> None:
        pass  # what is not committed has never been

    async def list(self) -> list[Listed]:
        found = self._store.read(lambda connection: records.document_sizes(connection, self._room))
        return [Listed(path=path, size=size) for path, size in found[:_MOST]]


def check_folder(path: Path) -> None:
    """Raises where a folder of ours would be reached through a link: a project may hold one that leads elsewhere."""
    own = [index for index, part in enumerate(path.parts) if part == _OWN]
    first = own[0] if own else len(path.parts) - 1
    for depth in range(first + 1, len(path.parts) + 1):
        part = Path(*path.parts[:depth])
        if part.is_symlink():
            hint = "Put a folder in its place, or name another with `context.config.dir`."
            raise Refused("a folder of the room is a link", where=str(part), hint=hint)


def check_path(path: str) -> str:
    """The path of a document as it is kept: relative, without detours. Raises unless it is one."""
    check_text(path, "the file name", most=_LONGEST_PATH)
    plain = path.strip().removeprefix("./")
    if plain.startswith("/") or "\\" in plain:
        raise UsageError(f"{plain[:80]!a} is not a path in the documents", hint="Give one like notes.md or plan/a.md.")
    if not is_path(plain):
        hint = "Use names joined by '/', none of them '..', hidden or longer than 200 bytes; such as plan/week-1.md."
        raise UsageError(f"{plain[:80]!a} cannot name a document", hint=hint)
    return plain


def is_path(path: str) -> bool:
    parts = path.split("/")
    return len(path) <= _LONGEST_PATH and len(parts) <= _DEEPEST and all(map(_is_part, parts))


def _is_part(part: str) -> bool:
    try:
        size = len(part.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= _LONGEST_NAME and part[0] != "." and part.isprintable() and part == part.strip()
