"""The documents of a room: checks permissions, and makes each change exactly once.

A change is logged as intended, then made, then logged as done in the transaction of its operation. After a crash, a
repeated call compares the document with the intended change, and continues.
Contents are stored in `document_stores.py`. Queries for the document log are in `document_records.py`.

Invariant: `Room.perform` performs one document operation at a time. Operations that change permissions wait for it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import Conflict, NotFound, Refused, UsageError
from guildhall.core.ids import PROPOSAL
from guildhall.core.text_checks import did_you_mean, format_count
from guildhall.room import ballots, channel
from guildhall.room import document_records as records
from guildhall.room import records as room_records
from guildhall.room.document_stores import DocumentInfo, DocumentStore, check_path
from guildhall.room.model import PERSON, SYSTEM, Actor, MessageText, check_line, check_text, content_hash
from guildhall.room.operation import READS, WRITES, begin_turn, operation
from guildhall.room.text import decision_text

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.room.operation import Effect, Turn
    from guildhall.store.engine import Store

DEFAULT_DOCUMENT = "notes.md"
DECISIONS = "decisions.md"  # the archive of proposals, which only the room writes
_ARCHIVE = "archive/"  # prefix of the key of a call that archives a proposal
_MAX_COMPARED_LINES = 1_000
_MAX_DIFFERENCE_CHARS = 4_000


@dataclass(frozen=True)
class Documents:
    """The documents of one room."""

    room: str
    contents: DocumentStore
    store: Store
    clock: Clock

    async def read(self, file: str | None = None) -> tuple[str, str, str]:
        """Return the path, the content and the hash of a document, without a log entry."""
        path = check_path(file or DEFAULT_DOCUMENT)
        content = await self.contents.read(path)
        if content is None:
            raise await self._not_found_error(path)
        return path, content, content_hash(content)

    async def digest(self, file: str | None = None) -> str | None:
        """Return the hash of a document, or None if it does not exist."""
        content = await self.contents.read(check_path(file or DEFAULT_DOCUMENT))
        return None if content is None else content_hash(content)

    def decision(self, number: int) -> str:
        """Return the entry of a proposal in the archive of decisions. Raise NotFound for an unknown proposal."""

        def read(connection: Connection) -> str:
            proposal = ballots.get_proposal(connection, self.room, str(number))
            return decision_text(proposal, room_records.list_votes(connection, self.room, number))

        return self.store.read(read)

    async def _not_found_error(self, path: str) -> NotFound:
        listed: list[DocumentInfo] = await self.contents.list()
        hint = did_you_mean(path, [info.path for info in listed]) or "The room has no documents yet."
        return NotFound(f"unknown document {path}", hint=hint)


@dataclass(frozen=True)
class DocumentCall(Documents):
    """One call of a document operation, before its transaction."""

    actor: Actor
    op: str

    async def change(self, file: str | None, content: str, base: str | None = None) -> Effect:
        """Change a document, and return the effect that records the change as done."""
        path = check_path(file or DEFAULT_DOCUMENT)
        check_text(content, "the content")
        base = check_line(base, "the base") if base else None
        self.store.read(lambda connection: _check_may_change(connection, self.room, self.actor, self.op, path))
        current = await self.contents.read(path)
        id, text, is_new = await self._intend(path, current, content, base)
        if text != current:
            await self.contents.write(path, text)
        return lambda turn: _record_change(turn, id, path, text, is_new=is_new)

    async def _intend(self, path: str, current: str | None, content: str, base: str | None) -> tuple[int, str, bool]:
        """Record a change before it is made. Return its number, the new content, and True if the document is new."""
        current_hash = None if current is None else content_hash(current)
        run, key = self.actor.run, self.actor.key
        intent = self.store.read(lambda c: records.find_intent(c, self.room, run, key)) if run and key else None
        if intent is not None and intent.content is not None and current_hash in (intent.before, intent.digest):
            return intent.id, intent.content, intent.before is None
        if intent is not None:
            await self.store.write(lambda connection: records.set_entry_status(connection, intent.id, "dropped"))
            if self.op != "document_write":
                hint = "Read the document, and repeat the change if it is missing."
                message = f"cannot repeat the interrupted call: {path} was edited by hand since then"
                raise Conflict(message, hint=hint)
        text = self._new_content(path, current, content, base)
        check_text(text, "the document")
        at = stamp(self.clock.now())
        values = {"before": current_hash, "digest": content_hash(text), "content": text, "status": "intended"}
        action = self.op.removeprefix("document_")

        def write(connection: Connection) -> int:
            if current_hash and records.find_content(connection, self.room, path, current_hash) is None:
                # The change replaces an edit by hand, which the log does not have yet.
                edit = {"digest": current_hash, "content": current, "status": "done"}
                records.add_entry(connection, self.room, path, records.EDIT, Actor(name="hand"), at, **edit)
            return records.add_entry(connection, self.room, path, action, self.actor, at, **values)

        return await self.store.write(write), text, current_hash is None

    def _new_content(self, path: str, current: str | None, content: str, base: str | None) -> str:
        if self.op == "document_create" and current is not None:
            raise Conflict(f"document {path} already exists", hint="Use document_write or document_append.")
        if self.op in ("document_append", "archive"):
            gap = "\n" if current and not current.endswith("\n") else ""
            return f"{current or ''}{gap}{content}"
        if self.op == "document_write":
            self.store.read(lambda connection: _check_base(connection, self.room, self.actor, path, current, base))
        return content


# Operations


def _change_text(result: Mapping[str, Any]) -> str:
    verb = "Created" if result["new"] else "Saved"
    return f"{verb} {result['path']} ({format_count(result['size'], 'byte')}), base {result['digest']}."


def _listing_text(result: Mapping[str, Any]) -> str:
    lines = [f"{document['path']}  {format_count(document['size'], 'byte')}" for document in result["documents"]]
    return "\n".join(lines) or "No documents."


@operation(READS, kind="document", render="[{path}, base {digest}]\n{content}".format_map)
async def document_read(call: DocumentCall, file: str | None = DEFAULT_DOCUMENT) -> Effect:
    """Read a shared document. The first line of the result has its `base`, which document_write needs.

    Args:
        file: The path of the document, such as notes.md or plan/week-1.md.
    """
    path, content, _ = await call.read(file)
    return lambda turn: _record_read(turn, path, content)


@operation(WRITES, kind="document", render=_change_text)
async def document_write(
    call: DocumentCall, content: str, file: str | None = DEFAULT_DOCUMENT, base: str | None = None
) -> Effect:
    """Replace the whole content of a shared document. Read it first and pass its `base`, unless it is new.

    Args:
        content: The whole new text.
        file: The path of the document, such as notes.md or plan/week-1.md.
        base: The base from document_read. If the document has changed since then, the write fails and shows the change.
    """
    return await call.change(file, content, base)


@operation(WRITES, kind="document", render=_change_text)
async def document_append(call: DocumentCall, content: str, file: str | None = DEFAULT_DOCUMENT) -> Effect:
    """Append text to a shared document. The document is created if it does not exist.

    Args:
        content: The text to append.
        file: The path of the document, such as notes.md or plan/week-1.md.
    """
    return await call.change(file, content)


@operation(WRITES, kind="document", render=_change_text)
async def document_create(call: DocumentCall, file: str, content: str) -> Effect:
    """Create a shared document. Fails if the document exists.

    Args:
        file: The path of the document, such as notes.md or plan/week-1.md. Missing folders are created.
        content: The text.
    """
    return await call.change(file, content)


@operation(READS, kind="document", render=_listing_text)
async def document_list(call: DocumentCall) -> Effect:
    """List the shared documents with their sizes."""
    listed = [{"path": info.path, "size": info.size} for info in await call.contents.list()]
    return lambda _: {"documents": listed}


@operation(WRITES)
def document_suggest(turn: Turn, suggestion: str, file: str | None = DEFAULT_DOCUMENT) -> dict[str, Any]:
    """Suggest a change of a shared document. The document owner is notified and decides.

    Args:
        suggestion: The change and its reason.
        file: The path of the document.
    """
    path = check_path(file or DEFAULT_DOCUMENT)
    check_text(suggestion, "the suggestion")
    owner = turn.room.owner
    if owner is None or owner == turn.actor.name:
        reason = "the documents have no owner" if owner is None else "you are the document owner"
        raise Refused(f"cannot suggest a change: {reason}", hint="Use document_write.")
    message = MessageText.quote(f"Suggestion for {path}:\n{suggestion}")
    posted = channel.post(turn, message, kind="suggestion", to=[owner])
    return {"text": f"Suggested to {owner} as message {posted.id}.", **posted.as_dict()}


def archive_actor(room: str, proposal: str) -> Actor:
    """Return the actor that archives a decided proposal, once."""
    return Actor.system(room, f"{_ARCHIVE}{proposal}")


@operation(kind="document")
async def archive(call: DocumentCall) -> Effect:
    """Add a decided proposal to decisions.md. The key of the call names the proposal."""
    prefix, _, digits = (call.actor.key or "").partition(f"{PROPOSAL}-")
    if prefix != _ARCHIVE or not (digits.isascii() and digits.isdigit()) or call.actor.name != SYSTEM:
        raise UsageError("cannot archive a decision: only the room archives decisions")
    number = int(digits)
    record_change = await call.change(DECISIONS, call.decision(number))

    def record_archived(turn: Turn) -> Mapping[str, Any] | None:
        room_records.change_proposal(turn.connection, turn.room.id, number, archived=True)
        return record_change(turn)

    return record_archived


def _check_may_change(connection: Connection, room: str, actor: Actor, op: str, path: str) -> None:
    """Raise Refused if the actor may not change the document. The user always may."""
    if actor.name in (PERSON, SYSTEM):
        return
    record = begin_turn(connection, room, actor, "").room
    if path == DECISIONS:
        raise Refused(f"cannot change {DECISIONS}: only the room writes it", hint="Use another document.")
    if record.owner is not None and record.owner != actor.name:
        hint = f"Use document_suggest: {record.owner} is notified, and decides."
        raise Refused(f"cannot change {path}: only the document owner {record.owner} can change documents", hint=hint)
    if (guard := ballots.find_guard(connection, room, op, path)) is not None:
        raise ballots.closed_error(guard, op if op in guard.guards else path)


def _check_base(
    connection: Connection, room: str, actor: Actor, path: str, current: str | None, base: str | None
) -> None:
    """Raise Conflict if a write would overwrite a change that the writer has not read."""
    if current is None:
        if base:
            raise Conflict(f"cannot write: document {path} no longer exists", hint="Omit the base to create it.")
        return
    current_hash = content_hash(current)
    seen = base or records.last_seen_hash(connection, room, path, actor.name)
    if seen == current_hash or (seen is None and records.is_room_version(connection, room, path, current_hash)):
        return
    seen = seen or records.last_seen_hash(connection, room, path, None)
    note = f"Its current base is {current_hash}."
    if seen is None:
        message = f"cannot write: document {path} exists and was not written in this room"
        raise Conflict(message, hint=f"Read it first. {note}")
    earlier = records.find_content(connection, room, path, seen)
    if earlier is None:
        raise Conflict(f"unknown base {seen[:40]!a} of {path}", hint=f"Read the document again. {note}")
    hint = f"Merge the change and write again. {note}\n{_difference(earlier, current, path)}"
    raise Conflict(f"cannot write: {path} has changed since you read it", hint=hint)


def _difference(earlier: str, current: str, path: str) -> str:
    before, after = (text.splitlines()[:_MAX_COMPARED_LINES] for text in (earlier, current))
    lines = difflib.unified_diff(before, after, f"{path} (as you read it)", f"{path} (now)", lineterm="")
    text = "\n".join(lines)
    return text if len(text) <= _MAX_DIFFERENCE_CHARS else f"{text[:_MAX_DIFFERENCE_CHARS]}\n[...]"


def _record_read(turn: Turn, path: str, content: str) -> dict[str, Any]:
    digest = content_hash(content)
    is_logged = records.find_content(turn.connection, turn.room.id, path, digest) is not None
    values = {"before": digest, "digest": digest, "content": None if is_logged else content, "status": "done"}
    records.add_entry(turn.connection, turn.room.id, path, "read", turn.actor, turn.at, **values)
    return {"path": path, "digest": digest, "content": content}


def _record_change(turn: Turn, id: int, path: str, text: str, *, is_new: bool) -> dict[str, Any]:
    records.set_entry_status(turn.connection, id, "done")
    turn.add_event("document", path=path, new=is_new, size=len(text.encode()))
    return {"path": path, "digest": content_hash(text), "size": len(text.encode()), "new": is_new}
