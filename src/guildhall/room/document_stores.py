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
from guildhall.room import document_records as records
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
        """Return the text, or None if the document does not exist. Raise InvalidFile if it is not text."""
        ...

    async def write(self, path: str, content: str) -> None:
        """Write a text atomically: a reader sees the old or the new text, even after a crash."""
        ...

    async def remove_partial_files(self) -> None:
        """Remove the partial files that a crash has left."""
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
        files, folder = self._open_root()
        if not self._path.is_dir():
            return None
        try:
            data = files.read(files.locate_in(folder, path)).data
        except NotFound:
            return None
        try:
            content = data.decode()
        except UnicodeDecodeError:
            content = "\0"
        if "\0" in content:
            hint = "Convert it to UTF-8, or use another document."
            raise InvalidFile(f"invalid document {path}: not text", hint=hint)
        return content

    def _write(self, path: str, data: bytes) -> None:
        files, folder = self._open_root()
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"cannot create the folder of the documents: {error.strerror}"
            hint = "Make the folder above it writable, or set another folder with `context.config.dir`."
            raise Conflict(message, where=str(self._path), hint=hint) from None
        files.write(files.locate_in(folder, path), data)

    def _list(self) -> list[DocumentInfo]:
        files, folder = self._open_root()
        if not self._path.is_dir():
            return []
        listed: list[DocumentInfo] = []
        for path, location in files.list_files(files.locate_in(folder, ".")):
            if _is_valid_path(path):
                size_bytes = (folder.path / "/".join(location.parts)).stat().st_size
                listed.append(DocumentInfo(path=path, size=size_bytes))
                if len(listed) == _MAX_LISTED:
                    break
        return sorted(listed, key=lambda info: info.path)

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
            raise Refused("cannot use a folder of the room: it is a symbolic link", where=str(part), hint=hint)


def check_path(path: str) -> str:
    """Return the normal form of a document's path. Raise UsageError if the path is not valid."""
    check_text(path, "the file name", max_bytes=_MAX_PATH_CHARS)
    plain = path.strip().removeprefix("./")
    if plain.startswith("/") or "\\" in plain:
        hint = "Use a relative path such as notes.md or plan/a.md."
        raise UsageError(f"invalid document path {plain[:80]!a}: not a relative path with '/'", hint=hint)
    if not _is_valid_path(plain):
        hint = "Use names joined by '/', none of them '..', hidden or longer than 200 bytes, such as plan/week-1.md."
        raise UsageError(f"invalid document path {plain[:80]!a}: a name in it is invalid, or it is too long", hint=hint)
    return plain


def _is_valid_path(path: str) -> bool:
    names = path.split("/")
    return len(path) <= _MAX_PATH_CHARS and len(names) <= _MAX_DEPTH and all(map(_is_valid_name, names))


def _is_valid_name(name: str) -> bool:
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size_bytes <= _MAX_NAME_BYTES and name[0] != "." and name.isprintable() and name == name.strip()
