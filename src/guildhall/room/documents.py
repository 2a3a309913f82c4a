"""The documents of a room: who may change them, and how a change is made exactly once.

A change is put on record first, then made, then settled. One that was cut off in between is taken up by the same call:
what lies there tells whether it had been made. All who work on the documents of a room take turns.
"""

from __future__ import annotations

import asyncio
import difflib
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import Conflict, GuildError, NotFound, Refused
from guildhall.core.nearest import did_you_mean
from guildhall.room import proposals
from guildhall.room import shared_records as records
from guildhall.room.model import PERSON, SYSTEM, Actor, check_line, check_text, pin
from guildhall.room.shelves import check_path
from guildhall.room.turn import begin, recorded, settled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from guildhall.room.room import Room
    from guildhall.room.shelves import Listed, Shelf
    from guildhall.room.turn import Turn
    from guildhall.store.engine import Store

DEFAULT = "notes.md"
DECISIONS = "decisions.md"  # the archive of proposals: written by the room, read by all
_SHOWN = 4_000  # characters of a difference


class Documents:
    """The documents of one room. `Mapping` results have `path`, `digest`, and what the operation adds."""

    def __init__(self, room: Room, shelf: Shelf, store: Store) -> None:
        self._room = room
        self._shelf = shelf
        self._store = store
        self._turns = asyncio.Lock()

    async def look(self, file: str | None = None) -> tuple[str, str, str]:
        """A document for a person who only looks, which leaves no trace: its path, its content, its hash."""
        path = check_path(file or DEFAULT)
        content = await self._shelf.read(path)
        if content is None:
            raise await self._missing(path)
        return path, content, pin(content)

    async def digest(self, file: str | None = None) -> str | None:
        """The hash of a document as it is now; None: there is none."""
        content = await self._shelf.read(check_path(file or DEFAULT))
        return None if content is None else pin(content)

    async def tidy(self) -> None:
        """Takes away what a crash has left half written."""
        async with self._turns:
            await self._shelf.tidy()

    async def listing(self) -> list[Listed]:
        """Every document, for a person who only looks."""
        return await self._shelf.list()

    async def read(self, actor: Actor, file: str | None = None) -> Mapping[str, Any]:
        """A document: `content`, and the hash to base a change on."""
        arguments = {"file": file}
        async with self._turns:
            if (before := self._before("document_read", actor)) is not None:
                return before
            try:
                path = check_path(file or DEFAULT)
                content = await self._shelf.read(path)
                if content is None:
                    raise await self._missing(path)
            except GuildError as error:
                return await self._refused("document_read", actor, arguments, error)
            return await self._room.perform(
                "document_read", actor, arguments, lambda turn: _looked(turn, path, content)
            )

    async def list(self, actor: Actor) -> Mapping[str, Any]:
        """Every document: `documents`, with path and size."""
        async with self._turns:
            if (before := self._before("document_list", actor)) is not None:
                return before
            try:
                found = await self._shelf.list()
            except GuildError as error:
                return await self._refused("document_list", actor, {}, error)
            listed = [{"path": one.path, "size": one.size} for one in found]
            return await self._room.perform("document_list", actor, {}, lambda _: {"documents": listed})

    async def write(self, actor: Actor, file: str | None, content: str, base: str | None = None) -> Mapping[str, Any]:
        """Replaces a document, or makes it. `base` is the hash of what it replaces, or what the writer last saw is."""
        arguments = {"file": file, "content": content, "base": base}
        return await self._change("document_write", actor, file, content, arguments, base=base)

    async def append(self, actor: Actor, file: str | None, content: str) -> Mapping[str, Any]:
        """Adds to the end of a document, on a line of its own; makes the document if there is none."""
        return await self._change("document_append", actor, file, content, {"file": file, "content": content})

    async def create(self, actor: Actor, file: str, content: str) -> Mapping[str, Any]:
        """Makes a document that is not there yet."""
        return await self._change("document_create", actor, file, content, {"file": file, "content": content})

    async def archive(self, actor: Actor, text: str) -> Mapping[str, Any]:
        """Adds to the record of decisions; for the room itself."""
        return await self._change("archive", actor, DECISIONS, text, {})

    async def _change(
        self,
        op: str,
        actor: Actor,
        file: str | None,
        content: str,
        arguments: Mapping[str, Any],
        *,
        base: str | None = None,
    ) -> Mapping[str, Any]:
        async with self._turns:
            if (before := self._before(op, actor)) is not None:
                return before
            try:
                path = check_path(file or DEFAULT)
                check_text(content, "the content")
                base = check_line(base, "the base") if base else None
                self._store.read(lambda connection: _may_change(connection, self._room.id, actor, op, path))
                current = await self._shelf.read(path)
                id, text, new = await self._intend(op, actor, path, current, content, base)
                if text != current:
                    await self._shelf.write(path, text)
            except GuildError as error:
                return await self._refused(op, actor, arguments, error)
            return await self._room.perform(op, actor, arguments, lambda turn: _changed(turn, id, path, text, new=new))

    async def _intend(
        self, op: str, actor: Actor, path: str, current: str | None, content: str, base: str | None
    ) -> tuple[int, str, bool]:
        """Puts a change on record before it is made; its number, what is to lie there, whether that is new."""
        held = None if current is None else pin(current)
        intent = self._store.read(lambda connection: _intent(connection, self._room.id, actor))
        if intent is not None and intent.content is not None and held in (intent.before, intent.digest):
            return intent.id, intent.content, intent.before is None
        if intent is not None:
            await self._store.write(lambda connection: records.settle_document(connection, intent.id, "dropped"))
            if op != "document_write":
                hint = "Read it, and make the change again if it is not there."
                raise Conflict(f"this was interrupted, and {path} has been changed by hand since", hint=hint)
        text = self._made(op, actor, path, current, content, base)
        check_text(text, "the document")
        at = self._room.now()
        values = {"before": held, "digest": pin(text), "content": text, "status": "intended"}
        action = op.removeprefix("document_")

        def note(connection: Connection) -> int:
            _note_edit(connection, self._room.id, path, current, at)
            return records.note_document(connection, self._room.id, path, action, actor, at, **values)

        return await self._store.write(note), text, held is None

    def _made(self, op: str, actor: Actor, path: str, current: str | None, content: str, base: str | None) -> str:
        if op == "document_create" and current is not None:
            raise Conflict(f"there is a document {path} already", hint="Use document_write or document_append.")
        if op in ("document_append", "archive"):
            gap = "\n" if current and not current.endswith("\n") else ""
            return f"{current or ''}{gap}{content}"
        if op == "document_write":
            self._store.read(lambda connection: _must_be_based(connection, self._room.id, actor, path, current, base))
        return content

    def _before(self, op: str, actor: Actor) -> Mapping[str, Any] | None:
        """The result of this very call, if it was made before."""
        found = self._store.read(lambda connection: recorded(connection, self._room.id, op, actor))
        return None if found is None else settled(found)

    async def _refused(
        self, op: str, actor: Actor, arguments: Mapping[str, Any], error: GuildError
    ) -> Mapping[str, Any]:
        def refuse(_: Turn) -> Mapping[str, Any]:
            raise error

        return await self._room.perform(op, actor, arguments, refuse)

    async def _missing(self, path: str) -> NotFound:
        listed: list[Listed] = await self._shelf.list()
        hint = did_you_mean(path, [one.path for one in listed]) or "There are no documents yet."
        return NotFound(f"there is no document {path}", hint=hint)


def _intent(connection: Connection, room: str, actor: Actor) -> records.Intent | None:
    if actor.run is None or actor.key is None:
        return None
    return records.intended(connection, room, actor.run, actor.key)


def _note_edit(connection: Connection, room: str, path: str, current: str | None, at: str) -> None:
    """Keeps what somebody else made of a document, now that it is about to go."""
    if current is None or records.content_of(connection, room, path, pin(current)) is not None:
        return
    values = {"digest": pin(current), "content": current, "status": "done"}
    records.note_document(connection, room, path, records.EDIT, Actor(name="hand"), at, **values)


def _may_change(connection: Connection, room: str, actor: Actor, op: str, path: str) -> None:
    """Raises unless the actor may change the document: a person always may."""
    if actor.name in (PERSON, SYSTEM):
        return
    record = begin(connection, room, actor, "").room
    if path == DECISIONS:
        raise Refused(f"{DECISIONS} is written by the room when a proposal is decided", hint="Use another document.")
    if record.owner is not None and record.owner != actor.name:
        hint = f"Use document_suggest: {record.owner} is told, and decides."
        raise Refused(f"only {record.owner} changes the documents of this room", hint=hint)
    if (guard := proposals.guard_of(connection, room, op, path)) is not None:
        raise proposals.closed_by(guard, op if op in guard.guards else path)


def _must_be_based(
    connection: Connection, room: str, actor: Actor, path: str, current: str | None, base: str | None
) -> None:
    """Raises where a write would undo a change that its writer has not seen."""
    if current is None:
        if base:
            raise Conflict(f"there is no document {path} any more", hint="Leave out the base to make it anew.")
        return
    held = pin(current)
    known = base or records.last_seen(connection, room, path, actor.name)
    if known == held or (known is None and records.written_here(connection, room, path, held)):
        return
    known = known or records.last_seen(connection, room, path, None)
    now = f"It has the base {held} now."
    if known is None:
        raise Conflict(f"there is a document {path}, and nobody here has written it", hint=f"Read it first. {now}")
    earlier = records.content_of(connection, room, path, known)
    if earlier is None:
        raise Conflict(f"{known[:40]!a} is not what {path} is based on", hint=f"Read it again. {now}")
    hint = f"Take the change over and write again. {now}\n{_difference(earlier, current, path)}"
    raise Conflict(f"{path} has been changed since you saw it", hint=hint)


def _difference(earlier: str, current: str, path: str) -> str:
    lines = difflib.unified_diff(
        earlier.splitlines()[:1_000],
        current.splitlines()[:1_000],
        f"{path} (as you saw it)",
        f"{path} (now)",
        lineterm="",
    )
    text = "\n".join(lines)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}\n[...]"


def _looked(turn: Turn, path: str, content: str) -> dict[str, Any]:
    held = pin(content)
    known = records.content_of(turn.connection, turn.room.id, path, held) is not None
    values = {"before": held, "digest": held, "content": None if known else content, "status": "done"}
    records.note_document(turn.connection, turn.room.id, path, "read", turn.actor, turn.at, **values)
    return {"path": path, "digest": held, "content": content}


def _changed(turn: Turn, id: int, path: str, text: str, *, new: bool) -> dict[str, Any]:
    records.settle_document(turn.connection, id, "done")
    turn.tell("document", path=path, new=new, size=len(text.encode()))
    return {"path": path, "digest": pin(text), "size": len(text.encode()), "new": new}
