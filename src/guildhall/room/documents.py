"""The documents of a room: checks permissions, and makes each change exactly once.

A change is recorded as intended, then made, then recorded as done in the transaction of its operation. After a crash,
a repeated call continues: the content of the document shows whether the change was made.
Does not store the content (`document_stores.py`) or the SQL of the document log (`shared_records.py`).

Invariant: `Room.perform` performs one document operation at a time, and excludes operations that change permissions.
So the log has no such operation between the permission check of a change and its entry.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import Conflict, NotFound, Refused, UsageError
from guildhall.core.ids import PROPOSAL
from guildhall.core.text import did_you_mean
from guildhall.room import channel, voting
from guildhall.room import records as room_records
from guildhall.room import shared_records as records
from guildhall.room.document_stores import Listed, Shelf, check_path
from guildhall.room.model import PERSON, SYSTEM, Actor, Said, check_line, check_text, pin
from guildhall.room.operation import READS, WRITES, begin, operation
from guildhall.room.text import decision_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from guildhall.room.operation import Effect, Turn
    from guildhall.store.engine import Store

DEFAULT = "notes.md"
DECISIONS = "decisions.md"  # the archive of proposals: only the room writes it
_ARCHIVE = "archive/"  # before the id of a proposal, in the key of the call that archives it
_MAX_DIFFERENCE = 4_000  # characters


@dataclass(frozen=True)
class Documents:
    """The documents of one room."""

    room: str
    shelf: Shelf
    store: Store
    clock: Clock

    async def look(self, file: str | None = None) -> tuple[str, str, str]:
        """Return the path, the content and the hash of a document, without a log entry."""
        path = check_path(file or DEFAULT)
        content = await self.shelf.read(path)
        if content is None:
            raise await self._missing(path)
        return path, content, pin(content)

    async def digest(self, file: str | None = None) -> str | None:
        """Return the hash of a document, or None if there is no such document."""
        content = await self.shelf.read(check_path(file or DEFAULT))
        return None if content is None else pin(content)

    async def tidy(self) -> None:
        """Remove half-written files that a crash has left."""
        await self.shelf.tidy()

    async def listing(self) -> list[Listed]:
        """Return every document, without a log entry."""
        return await self.shelf.list()

    def decision(self, number: int) -> str:
        """Return the entry of a proposal in the archive of decisions. Raise NotFound if there is no such proposal."""

        def read(connection: Connection) -> str:
            proposal = voting.proposal_in(connection, self.room, str(number))
            return decision_text(proposal, room_records.votes_of(connection, self.room, number))

        return self.store.read(read)

    async def _missing(self, path: str) -> NotFound:
        listed: list[Listed] = await self.shelf.list()
        hint = did_you_mean(path, [one.path for one in listed]) or "There are no documents yet."
        return NotFound(f"there is no document {path}", hint=hint)


@dataclass(frozen=True)
class DocumentCall(Documents):
    """One call of a document operation, before its transaction."""

    actor: Actor
    op: str

    async def change(self, file: str | None, content: str, base: str | None = None) -> Effect:
        """Change a document, and return the effect that records the change as done."""
        path = check_path(file or DEFAULT)
        check_text(content, "the content")
        base = check_line(base, "the base") if base else None
        self.store.read(lambda connection: _may_change(connection, self.room, self.actor, self.op, path))
        current = await self.shelf.read(path)
        id, text, new = await self._intend(path, current, content, base)
        if text != current:
            await self.shelf.write(path, text)
        return lambda turn: _changed(turn, id, path, text, new=new)

    async def _intend(self, path: str, current: str | None, content: str, base: str | None) -> tuple[int, str, bool]:
        """Record a change before it is made. Return its number, the new content, and whether the document is new."""
        held = None if current is None else pin(current)
        run, key = self.actor.run, self.actor.key
        intent = self.store.read(lambda c: records.intended(c, self.room, run, key)) if run and key else None
        if intent is not None and intent.content is not None and held in (intent.before, intent.digest):
            return intent.id, intent.content, intent.before is None
        if intent is not None:
            await self.store.write(lambda connection: records.settle_document(connection, intent.id, "dropped"))
            if self.op != "document_write":
                hint = "Read it, and make the change again if it is not there."
                raise Conflict(f"this was interrupted, and {path} has been changed by hand since", hint=hint)
        text = self._made(path, current, content, base)
        check_text(text, "the document")
        at = stamp(self.clock.now())
        values = {"before": held, "digest": pin(text), "content": text, "status": "intended"}
        action = self.op.removeprefix("document_")

        def note(connection: Connection) -> int:
            if current is not None and records.content_of(connection, self.room, path, pin(current)) is None:
                edit = {"digest": held, "content": current, "status": "done"}  # by hand, and about to be replaced
                records.note_document(connection, self.room, path, records.EDIT, Actor(name="hand"), at, **edit)
            return records.note_document(connection, self.room, path, action, self.actor, at, **values)

        return await self.store.write(note), text, held is None

    def _made(self, path: str, current: str | None, content: str, base: str | None) -> str:
        if self.op == "document_create" and current is not None:
            raise Conflict(f"there is a document {path} already", hint="Use document_write or document_append.")
        if self.op in ("document_append", "archive"):
            gap = "\n" if current and not current.endswith("\n") else ""
            return f"{current or ''}{gap}{content}"
        if self.op == "document_write":
            self.store.read(lambda connection: _must_be_based(connection, self.room, self.actor, path, current, base))
        return content


# Operations


def _reading_text(result: Mapping[str, Any]) -> str:
    return f"[{result['path']}, base {result['digest']}]\n{result['content']}"


def _change_text(result: Mapping[str, Any]) -> str:
    verb = "made" if result["new"] else "written"
    return f"{result['path']} was {verb} ({result['size']:,} bytes), base {result['digest']}."


def _listing_text(result: Mapping[str, Any]) -> str:
    lines = [f"{one['path']}  {one['size']:,} bytes" for one in result["documents"]]
    return "\n".join(lines) or "There are no documents yet."


@operation(READS, kind="document", show=_reading_text)
async def document_read(call: DocumentCall, file: str | None = DEFAULT) -> Effect:
    """Read a document of the team. The first line names its base, which document_write takes.

    Args:
        file: Its path, such as notes.md or plan/week-1.md.
    """
    path, content, _ = await call.look(file)
    return lambda turn: _looked(turn, path, content)


@operation(WRITES, kind="document", show=_change_text)
async def document_write(
    call: DocumentCall, content: str, file: str | None = DEFAULT, base: str | None = None
) -> Effect:
    """Write a document of the team: all of it is replaced. Read it first, unless it is new.

    Args:
        content: The whole new text.
        file: Its path, such as notes.md or plan/week-1.md.
        base: The base that document_read showed; if the document has changed since, you are told how.
    """
    return await call.change(file, content, base)


@operation(WRITES, kind="document", show=_change_text)
async def document_append(call: DocumentCall, content: str, file: str | None = DEFAULT) -> Effect:
    """Add to the end of a document of the team; it is made if there is none.

    Args:
        content: What to add.
        file: Its path, such as notes.md or plan/week-1.md.
    """
    return await call.change(file, content)


@operation(WRITES, kind="document", show=_change_text)
async def document_create(call: DocumentCall, file: str, content: str) -> Effect:
    """Make a new document of the team.

    Args:
        file: Its path, such as notes.md or plan/week-1.md. Folders are made as needed.
        content: Its text.
    """
    return await call.change(file, content)


@operation(READS, kind="document", show=_listing_text)
async def document_list(call: DocumentCall) -> Effect:
    """List the documents of the team, with their sizes."""
    listed = [{"path": one.path, "size": one.size} for one in await call.listing()]
    return lambda _: {"documents": listed}


@operation(WRITES)
def document_suggest(turn: Turn, suggestion: str, file: str | None = DEFAULT) -> dict[str, Any]:
    """Suggest a change of a document to its owner, who is told and decides.

    Args:
        suggestion: What to change, and why.
        file: The document that it is about.
    """
    path = check_path(file or DEFAULT)
    check_text(suggestion, "the suggestion")
    owner = turn.room.owner
    if owner is None or owner == turn.actor.name:
        why = "the documents have no owner" if owner is None else "you are the owner of the documents"
        raise Refused(f"{why}: there is nobody to suggest it to", hint="Write it yourself: document_write.")
    said = Said.quote(f"A suggestion for {path}:\n{suggestion}")
    posted = channel.post(turn, said, kind="suggestion", to=[owner])
    return {"text": f"Suggested to {owner} as message {posted.id}.", **posted.as_dict()}


def archiver(room: str, proposal: str) -> Actor:
    """Return the actor that archives a decided proposal, once."""
    return Actor.system(room, f"{_ARCHIVE}{proposal}")


@operation(kind="document")
async def archive(call: DocumentCall) -> Effect:
    """Add a decided proposal to decisions.md. The key of the call names the proposal."""
    prefix, _, digits = (call.actor.key or "").partition(f"{PROPOSAL}-")
    if prefix != _ARCHIVE or not (digits.isascii() and digits.isdigit()) or call.actor.name != SYSTEM:
        raise UsageError("archive: only the room archives a decision")
    number = int(digits)
    done = await call.change(DECISIONS, call.decision(number))

    def record(turn: Turn) -> Mapping[str, Any] | None:
        room_records.change(turn.connection, turn.room.id, number, archived=True)
        return done(turn)

    return record


def _may_change(connection: Connection, room: str, actor: Actor, op: str, path: str) -> None:
    """Raise Refused if the actor may not change the document. The user always may."""
    if actor.name in (PERSON, SYSTEM):
        return
    record = begin(connection, room, actor, "").room
    if path == DECISIONS:
        raise Refused(f"{DECISIONS} is written by the room when a proposal is decided", hint="Use another document.")
    if record.owner is not None and record.owner != actor.name:
        hint = f"Use document_suggest: {record.owner} is told, and decides."
        raise Refused(f"only {record.owner} changes the documents of this room", hint=hint)
    if (guard := voting.guard_of(connection, room, op, path)) is not None:
        raise voting.closed_by(guard, op if op in guard.guards else path)


def _must_be_based(
    connection: Connection, room: str, actor: Actor, path: str, current: str | None, base: str | None
) -> None:
    """Raise Conflict if a write would undo a change that the writer has not seen."""
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
    return text if len(text) <= _MAX_DIFFERENCE else f"{text[:_MAX_DIFFERENCE]}\n[...]"


def _looked(turn: Turn, path: str, content: str) -> dict[str, Any]:
    held = pin(content)
    known = records.content_of(turn.connection, turn.room.id, path, held) is not None
    values = {"before": held, "digest": held, "content": None if known else content, "status": "done"}
    records.note_document(turn.connection, turn.room.id, path, "read", turn.actor, turn.at, **values)
    return {"path": path, "digest": held, "content": content}


def _changed(turn: Turn, id: int, path: str, text: str, *, new: bool) -> dict[str, Any]:
    records.settle_document(turn.connection, id, "done")
    turn.add_event("document", path=path, new=new, size=len(text.encode()))
    return {"path": path, "digest": pin(text), "size": len(text.encode()), "new": new}
