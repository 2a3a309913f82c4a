"""Replay of a room: repeats every operation of its log, in order, in an empty room.

The empty room has its own database and a clock with the times of the log. The log does not contain edits by hand: the
replay inserts an edited version where a result shows that it existed.
Does not change the real room. Does not compare the results (`workflow/replay.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import parse_stamp
from guildhall.core.errors import Conflict, GuildError
from guildhall.room import document_records, inbox, records
from guildhall.room.document_stores import check_path
from guildhall.room.documents import DEFAULT_DOCUMENT
from guildhall.room.model import LogEntry, Mail, RoomListener, content_hash
from guildhall.room.service import OPERATIONS, Room, open_room
from guildhall.room.tools import TOOLS, RoomTools, room_tools

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import Connection

    from guildhall.room.operation import Turn
    from guildhall.store.engine import Store
    from guildhall.tools.model import ToolCall, ToolResult

_DOCUMENT_CHANGES = ("document_write", "document_append", "document_create", "archive")
_IN_DATABASE = "sqlite"


@dataclass
class LogClock:
    """A clock that shows the time of a log entry."""

    at: str = "1970-01-01T00:00:00.000Z"

    def now(self) -> datetime:
        return parse_stamp(self.at)

    def monotonic(self) -> float:
        return self.now().timestamp()

    async def sleep(self, seconds: float) -> None:
        """Return at once."""


class _SilentRoom(Room):
    """A room without effects after a commit. The log contains these effects as operations."""

    async def _follow_up(self, turn: Turn) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class RepeatedOperation:
    """A repeated operation. `tool_result` is set if the operation was a tool call."""

    arguments: Mapping[str, Any]
    result: Mapping[str, Any]
    tool_result: ToolResult | None = None


class RoomReplay:
    """The replay of one room, from the beginning of its log."""

    def __init__(self, id: str, record: Store, scratch: Store) -> None:
        """`record` is the store of the real room, `scratch` an empty one."""
        self._record = record
        self._scratch = scratch
        self._clock = LogClock()
        self._last_place = 0  # in the log of the empty room
        self._has_files = False  # True if the documents were files, which people can edit
        self.room: Room = _SilentRoom(id, scratch, self._clock, RoomListener())

    def operations(self) -> list[LogEntry]:
        """Return the log of the real room."""
        return self._record.read(lambda connection: records.log_entries(connection, self.room.id))

    def read(self, query: Callable[[Connection], Any]) -> Any:
        """Return the result of a query of the empty room's database."""
        return self._scratch.read(query)

    async def repeat(self, entry: LogEntry, call: ToolCall | None = None) -> RepeatedOperation:
        """Repeat an operation of the log. `call` is the tool call that performed it, or None."""
        self._clock.at = entry.at
        if entry.op.startswith("document_") or entry.op == "archive":
            await self._restore_documents(entry)
        tool_result = None
        if call is not None and entry.op in TOOLS and entry.actor.run is not None:
            (tool,) = room_tools((entry.op,))
            tool_result = await RoomTools(self.room, entry.actor.name, entry.actor.run).call(tool, call)
        else:
            try:
                await self._perform(entry)
            except GuildError as error:
                if "error" not in entry.result:
                    raise
                return RepeatedOperation(arguments=entry.arguments, result={"error": error.as_dict()})
        return self._read_new_entry(entry, tool_result)

    def _read_new_entry(self, entry: LogEntry, tool_result: ToolResult | None) -> RepeatedOperation:
        """Return the new log entry of the repeated operation."""
        log = self._scratch.read(lambda c: records.log_entries(c, self.room.id, since=self._last_place))
        self._last_place = log[-1].place if log else self._last_place
        matching = [new for new in log if new.op == entry.op and new.actor == entry.actor]
        if not matching:
            return RepeatedOperation(arguments={}, result={}, tool_result=tool_result)
        result = matching[-1].result
        had_conflict = entry.op in _DOCUMENT_CHANGES and entry.result.get("error", {}).get("code") == "conflict"
        if self._has_files and had_conflict and result != entry.result:
            # The log does not have the edit by hand that caused the conflict.
            result, tool_result = entry.result, None
        return RepeatedOperation(arguments=matching[-1].arguments, result=result, tool_result=tool_result)

    async def _perform(self, entry: LogEntry) -> None:
        if entry.op == "open":
            await self._scratch.write(lambda connection: self._open(connection, entry))
        elif entry.op == "close":  # the replayed room stays open for comparisons
            await self._scratch.write(
                lambda c: records.add_log_entry(c, self.room.id, "close", entry.actor, entry.at, {}, {})
            )
        elif entry.op in OPERATIONS:
            arguments = self._scratch.read(lambda connection: _arguments(connection, self.room.id, entry))
            await self.room.perform(entry.op, entry.actor, **OPERATIONS[entry.op].bind(arguments))
        else:
            hint = "Replay it with the version of Guildhall that recorded it."
            raise Conflict(f"cannot replay the room: its log has an unknown operation {entry.op!r}", hint=hint)

    def _open(self, connection: Connection, entry: LogEntry) -> None:
        id, arguments = self.room.id, entry.arguments
        self._has_files = arguments["documents"] != _IN_DATABASE
        real = self._record.read(lambda record: records.find_room(record, id))
        assert real is not None
        settings = {name: value for name, value in arguments["settings"].items() if name != "projection"}
        without_files = {**arguments, "documents": _IN_DATABASE, "settings": settings}
        open_room(connection, id, (real.project, real.workflow, real.tag), entry.at, without_files)
        records.add_log_entry(connection, id, "open", entry.actor, entry.at, arguments, {})

    # Documents as files

    async def _restore_documents(self, entry: LogEntry) -> None:
        """Restore the versions that people had written before an operation on documents."""
        if not self._has_files:
            return
        if entry.op == "document_list":
            listed = entry.result.get("documents", [])
            await self._restore_sizes({document["path"]: document["size"] for document in listed})
            return
        path = entry.result.get("path") or _path_of(entry)
        if path is None:
            return
        if "content" in entry.result:
            await self._set_document(path, entry.result["content"])
        elif entry.op in _DOCUMENT_CHANGES and "digest" in entry.result:
            actor, digest = entry.actor, entry.result["digest"]
            before = self._record.read(lambda c: document_records.previous_hash(c, self.room.id, path, actor, digest))
            await self._set_document(path, None if before is None else self._find_content(path, before))
        elif entry.op == "document_read" and entry.result.get("error", {}).get("code") == "not_found":
            await self._set_document(path, None)

    def _find_content(self, path: str, digest: str) -> str | None:
        current = self._scratch.read(lambda c: document_records.read_document(c, self.room.id, path))
        if current is not None and content_hash(current) == digest:
            return current
        return self._record.read(lambda c: document_records.find_content(c, self.room.id, path, digest))

    async def _set_document(self, path: str, content: str | None) -> None:
        """Set the content of a document, or delete the document if the content is None."""

        def write(connection: Connection) -> None:
            if content is None:
                document_records.drop_document(connection, self.room.id, path)
            else:
                document_records.put_document(connection, self.room.id, path, content, self.room.now())

        await self._scratch.write(write)

    async def _restore_sizes(self, sizes: Mapping[str, int]) -> None:
        current_sizes = dict(self._scratch.read(lambda c: document_records.document_sizes(c, self.room.id)))
        for path in current_sizes.keys() - sizes.keys():
            await self._set_document(path, None)
        for path, size in sizes.items():
            if current_sizes.get(path) != size:
                await self._set_document(path, "?" * size)  # a later read has the content


def _path_of(entry: LogEntry) -> str | None:
    try:
        return check_path(entry.arguments.get("file") or DEFAULT_DOCUMENT)
    except GuildError:
        return None


def _arguments(connection: Connection, room: str, entry: LogEntry) -> dict[str, Any]:
    """Return the arguments for a repeated operation. The shown part of an inbox is computed again."""
    arguments = dict(entry.arguments)
    if entry.op == "inbox_shown":
        return {**arguments, **inbox.describe_batch(shown_mail(connection, room, entry))}
    if entry.op in ("acknowledge", "mark_dead") and entry.actor.run is not None:
        return {**arguments, "until": records.shown_inbox(connection, room, entry.actor.run).last_message_number}
    return arguments


def shown_mail(connection: Connection, room: str, entry: LogEntry) -> list[Mail]:
    """Return the unread mail in the input of a run, without later messages."""
    shown = entry.result.get("messages", ())
    return [mail for mail in inbox.unread_batch(connection, room, entry.actor.name) if mail.message.id in shown]
