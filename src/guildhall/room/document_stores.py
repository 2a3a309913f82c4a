"""Document stores: read and write the documents of a room, as files in a folder or as rows in the database.

People and other programs can read and edit the files at any time.
Does not check permissions or log changes (`documents.py`).

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
from guildhall.room.model import MAX_TEXT_BYTES, check_text
from guildhall.sandbox.files import TEMPORARY_SUFFIX, SandboxFiles
from guildhall.sandbox.view import Folder, View

if TYPE_CHECKING:
    from guildhall.store.engine import Store

_MAX_NAME_BYTES = 200  # for a part of a path; the names of temporary files are longer
_MAX_PATH_CHARS = 500
_MAX_DEPTH = 16
_MAX_LISTED = 10_000  # documents
_PARTIAL_FILE = re.compile(rf"\.[0-9a-f]{{16}}{re.escape(TEMPORARY_SUFFIX)}")
_WORKFLOW_FOLDER = ".workflow"  # this folder and the folders below must not be links


@dataclass(frozen=True, kw_only=True)
class DocumentInfo:
    """A document in a listing."""

    path: str
    size: int  # bytes


class DocumentStore(Protocol):
    """The contents of documents, by path. Callers have checked the paths with `check_path`."""

    async def read(self, path: str) -> str | None:
        """Return the text, or None if there is no document. Raise InvalidFile if it is not text."""
        ...

    async def write(self, path: str, content: str) -> None:
        """Write a text atomically: a reader sees the old or the new text, even after a crash."""
        ...

    async def remove_partial_files(self) -> None:
        """Remove files that a crash left half-written."""
        ...

    async def list(self) -> list[DocumentInfo]:
        """Return every document, ordered by path."""
        ...


@dataclass(frozen=True)
class FileDocumentStore:
    """Documents as files in a folder. The first write creates the folder."""

    _path: Path

    async def read(self, path: str) -> str | None:
        return await asyncio.to_thread(self._read, path)

    async def write(self, path: str, content: str) -> None:
        await asyncio.to_thread(self._write, path, content.encode())

    async def list(self) -> list[DocumentInfo]:
        return await asyncio.to_thread(self._list)

    async def remove_partial_files(self) -> None:
        await asyncio.to_thread(self._remove_partial_files)

    def _read(self, path: str) -> str | None:
        rooted, folder = self._open_root()
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
            raise InvalidFile(f"{path} is not text", hint="Room tools read and change only text.")
        return content

    def _write(self, path: str, data: bytes) -> None:
        rooted, folder = self._open_root()
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"cannot create the folder of the documents: {error.strerror}"
            raise Conflict(message, where=str(self._path)) from None
        rooted.write(rooted.locate_in(folder, path), data)

    def _list(self) -> list[DocumentInfo]:
        rooted, folder = self._open_root()
        if not self._path.is_dir():
            return []
        found: list[DocumentInfo] = []
        for path, spot in rooted.list_files(rooted.locate_in(folder, ".")):
            if is_path(path):
                found.append(DocumentInfo(path=path, size=(folder.path / "/".join(spot.parts)).stat().st_size))
                if len(found) == _MAX_LISTED:
                    break
        return sorted(found, key=lambda listed: listed.path)

    def _remove_partial_files(self) -> None:
        check_folder(self._path)
        for folder, _, names in os.walk(self._path):
            for name in names:
                if _PARTIAL_FILE.fullmatch(name):
                    with contextlib.suppress(OSError):
                        (Path(folder) / name).unlink()

    def _open_root(self) -> tuple[SandboxFiles, Folder]:
        check_folder(self._path)
        folder = Folder(path=self._path, name="documents", is_writable=True, max_bytes=MAX_TEXT_BYTES)
        return SandboxFiles(View(cwd=self._path, folders=(folder,))), folder


@dataclass(frozen=True)
class DatabaseDocumentStore:
    """Documents as rows of the database."""

    _store: Store
    _clock: Clock
    _room: str

    async def read(self, path: str) -> str | None:
        return self._store.read(lambda connection: records.read_document(connection, self._room, path))

    async def write(self, path: str, content: str) -> None:
        at = stamp(self._clock.now())
        await self._store.write(lambda connection: records.put_document(connection, self._room, path, content, at))

    async def remove_partial_files(self) -> None:
        pass  # a transaction leaves nothing behind

    async def list(self) -> list[DocumentInfo]:
        found = self._store.read(lambda connection: records.document_sizes(connection, self._room))
        return [DocumentInfo(path=path, size=size) for path, size in found[:_MAX_LISTED]]


def check_folder(path: Path) -> None:
    """Raise Refused if a folder of the room is reached through a link, which could lead out of the project."""
    own = [index for index, part in enumerate(path.parts) if part == _WORKFLOW_FOLDER]
    first = own[0] if own else len(path.parts) - 1
    for depth in range(first + 1, len(path.parts) + 1):
        part = Path(*path.parts[:depth])
        if part.is_symlink():
            hint = "Replace it by a folder, or set another one with `context.config.dir`."
            raise Refused("a folder of the room is a symbolic link", where=str(part), hint=hint)


def check_path(path: str) -> str:
    """Return the normal form of a document's path. Raise UsageError if the path is not valid."""
    check_text(path, "the file name", max_bytes=_MAX_PATH_CHARS)
    plain = path.strip().removeprefix("./")
    if plain.startswith("/") or "\\" in plain:
        hint = "Use a relative path such as notes.md or plan/a.md."
        raise UsageError(f"invalid document path: {plain[:80]!a}", hint=hint)
    if not is_path(plain):
        hint = "Use names joined by '/', none of them '..', hidden or longer than 200 bytes; such as plan/week-1.md."
        raise UsageError(f"invalid document path: {plain[:80]!a}", hint=hint)
    return plain


def is_path(path: str) -> bool:
    parts = path.split("/")
    return len(path) <= _MAX_PATH_CHARS and len(parts) <= _MAX_DEPTH and all(map(_is_part, parts))


def _is_part(part: str) -> bool:
    try:
        size = len(part.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= _MAX_NAME_BYTES and part[0] != "." and part.isprintable() and part == part.strip()
