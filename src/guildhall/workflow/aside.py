"""A fresh start: what the room before has left beside the workflow's file is moved aside. Nothing is deleted."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict
from guildhall.room.document_stores import check_folder

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.room.model import RoomRecord

_SHOWN = ("channel.md", "_state")


def set_aside(room: RoomRecord) -> Path | None:
    """Moves the room's documents, and its channel as files; where the documents are now, if they are files.

    Each gets a number that no tag and no document can have: documents~1.
    """
    documents, projection = room.folder, room.projection
    found = [documents] if documents is not None else []
    found += [projection / name for name in _SHOWN] if projection is not None else []
    there = [path for path in found if path.exists() or path.is_symlink()]
    if not there:
        return documents
    number = next(n for n in count(1) if not any(_aside(path, n).exists() for path in found))
    for path in there:
        check_folder(path)
        try:
            path.rename(_aside(path, number))
        except OSError as error:
            raise Conflict(f"it cannot be moved aside: {error.strerror or error}", where=str(path)) from None
    return _aside(documents, number) if documents is not None and documents in there else documents


def _aside(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}~{number}")
