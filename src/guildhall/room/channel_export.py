"""The file export of a room (`provider: file`): channel.md, _state/inbox-state.json and _state/proposals.json.

The files are updated after each commit. channel.md is rebuilt when the room is opened, or when another program has
changed its size.
Does not export documents (`document_stores.py`).

Invariant: the hall never reads the exported files back. The database is the room.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from guildhall.core.atomic_file import replace_file
from guildhall.room import records
from guildhall.room.document_stores import check_folder

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

    from guildhall.room.model import Message
    from guildhall.store.engine import Store

CHANNEL = "channel.md"
STATE = "_state"
_PAGE_SIZE = 1_000  # messages
_HEADING = re.compile(r"^(?=#)", re.MULTILINE)
_ESCAPE = r"\\"
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class FileExport:
    """The exported files of one room. `update` blocks on the disk: call it from one thread at a time."""

    def __init__(self, folder: Path, store: Store, room: str) -> None:
        self._folder = folder
        self._store = store
        self._room = room
        self._last_exported: int | None = None  # number of the last message in channel.md, if known
        self._size_bytes = 0  # of channel.md
        self._states: dict[str, str] = {}  # exported texts by file name

    def update(self) -> None:
        """Write the changes since the last update to the files."""
        check_folder(self._folder / STATE)
        (self._folder / STATE).mkdir(parents=True, exist_ok=True)
        if self._last_exported is None or _file_size(self._folder / CHANNEL) != self._size_bytes:
            self._rebuild()
        else:
            since, self._last_exported = self._last_exported, None  # after an error, the next update rebuilds the file
            self._append(since)
        for name, state in self._store.read(self._read_states).items():
            text = json.dumps(state, indent=2, ensure_ascii=True) + "\n"
            if self._states.get(name) != text:
                _write_file(self._folder / STATE / name, [text])
                self._states[name] = text

    def _append(self, since: int) -> None:
        path = self._folder / CHANNEL
        while messages := self._read_messages(since):
            descriptor = os.open(path, _FLAGS | os.O_APPEND, 0o644)
            with os.fdopen(descriptor, "a", encoding="utf-8", newline="") as file:
                file.writelines(map(_format_message, messages))
            since = messages[-1].id
        self._last_exported, self._size_bytes = since, _file_size(path)

    def _rebuild(self) -> None:
        self._last_exported = None
        since = 0

        def entries() -> Iterable[str]:
            nonlocal since
            while messages := self._read_messages(since):
                yield from map(_format_message, messages)
                since = messages[-1].id

        _write_file(self._folder / CHANNEL, entries())
        self._last_exported, self._size_bytes = since, _file_size(self._folder / CHANNEL)

    def _read_messages(self, since: int) -> list[Message]:
        return self._store.read(
            lambda connection: records.list_messages(connection, self._room, since=since, limit=_PAGE_SIZE)
        )

    def _read_states(self, connection: Connection) -> dict[str, dict[str, Any]]:
        cursors = records.read_cursors(connection, self._room)
        proposals: dict[str, dict[str, Any]] = {}
        for proposal in records.list_proposals(connection, self._room):
            votes = records.list_votes(connection, self._room, proposal.number)
            proposals[proposal.id] = {**proposal.as_dict(), "votes": {vote.agent: vote.choice for vote in votes}}
        return {"inbox-state.json": {"readCursors": cursors}, "proposals.json": {"proposals": proposals}}


def _format_message(message: Message) -> str:
    """Return a message as Markdown, with escaped headings."""
    kind = "" if message.kind == "message" else f" ({message.kind})"
    return f"### {message.at} [{message.sender}]{kind}\n\n{_HEADING.sub(_ESCAPE, message.content)}\n\n"


def _write_file(path: Path, parts: Iterable[str]) -> None:
    replace_file(path, (part.encode() for part in parts), mode=0o644, single_writer=True)


def _file_size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return -1
