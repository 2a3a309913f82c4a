"""A room played again: its log applied, in order, to an empty room. The first thing that comes out otherwise is told.

Nothing but the two databases is touched. Documents that were files are in the scratch database; what somebody edited by
hand meanwhile is taken from what the room saw of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import SystemClock, moment
from guildhall.core.errors import GuildError, NotFound
from guildhall.room import channel, inbox, proposals, records, shared_records
from guildhall.room.model import Actor, Said, pin
from guildhall.room.rooms import Furnishing, Rooms
from guildhall.room.shelves import TableShelf, check_path
from guildhall.room.toolbox import TOOLS, Desk, room_tools
from guildhall.tools.model import ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from sqlalchemy import Connection

    from guildhall.room.room import Room
    from guildhall.store.engine import Store

    Row = Mapping[str, Any]

_BY_ITSELF = frozenset({"archive", "open", "close"})  # the room does these when the others are done


@dataclass(frozen=True, kw_only=True)
class Difference:
    """An operation that came out otherwise, by its place in the log."""

    place: int
    op: str
    actor: str
    recorded: Sequence[Any]
    replayed: Sequence[Any]


class _Recorded(SystemClock):
    """It is always when the operation was made."""

    at = ""

    def now(self) -> datetime:
        return moment(self.at)


async def replay(source: Store, room: str, scratch: Store) -> Difference | None:
    """Plays a room of one store again in another, which is empty; None: it came out the same."""
    log = source.read(lambda connection: records.history(connection, room))
    if not log:
        raise NotFound(f"there is no room {room!r}")
    playing = _Playing(source, room, scratch)
    for row in log:
        if (difference := await playing.step(row)) is not None:
            return difference
    return None


class _Playing:
    def __init__(self, source: Store, id: str, scratch: Store) -> None:
        self._source = source
        self._id = id
        self._scratch = scratch
        self._clock = _Recorded()
        self._rooms = Rooms(scratch, self._clock)
        self._room: Room | None = None
        self._place = 0

    async def step(self, row: Row) -> Difference | None:
        self._clock.at = row["at"]
        if row["op"] == "open":
            self._room = await self._open(row["arguments"])
        if row["op"] in _BY_ITSELF or self._room is None:
            return None
        if row["op"].startswith("document_") and not await self._edited_by_hand(self._room, row):
            return None
        await self._again(self._room, row)
        found = self._made(self._room)
        expected = (row["op"], row["actor"], row["result"])
        if found == [expected]:
            return None
        return Difference(place=row["place"], op=row["op"], actor=row["actor"], recorded=[expected], replayed=found)

    async def _open(self, arguments: Mapping[str, Any]) -> Room:
        settings = {name: value for name, value in arguments["settings"].items() if name != "projection"}
        furnishing = Furnishing(owner=arguments["owner"], more=settings)
        return await self._rooms.open("replay", self._id, arguments["seats"], furnishing)

    def _made(self, room: Room) -> list[tuple[str, str, Any]]:
        """What the last operation left in the log."""
        rows = self._scratch.read(lambda connection: records.history(connection, room.id, since=self._place))
        self._place = rows[-1]["place"] if rows else self._place
        return [(row["op"], row["actor"], row["result"]) for row in rows if row["op"] not in _BY_ITSELF]

    async def _again(self, room: Room, row: Row) -> None:
        op, given = row["op"], row["arguments"]
        actor = Actor(name=row["actor"], run=row["run"], key=row["key"])
        try:
            if op in TOOLS:
                (tool,) = room_tools(room, actor.name, (op,))
                call = ToolCall(key=actor.key or "", tool=op, arguments=given)
                await Desk(room, actor.name, actor.run or "").execute(tool, call)
            elif op == "send":
                await room.send(Said.from_list(given["said"]), actor, to=given["to"])
            elif op == "elect":
                await room.elect_owner(given["within"])
            elif op == "vote":
                await room.vote(given["proposal"], given["choice"], actor, given["reason"])
            else:
                await self._scratch.write(lambda connection: _quietly(connection, room, actor, row))
                await room.mend()
        except GuildError:
            return  # it was refused, and that is on record

    async def _edited_by_hand(self, room: Room, row: Row) -> bool:
        """Puts a document as the operation found it; False: what it found is not known, or lies elsewhere."""
        result, key = row["result"], row["key"]
        if "error" in result or row["op"] in ("document_list", "document_suggest") or key is None:
            return row["op"] == "document_suggest"
        shelf = TableShelf(self._scratch, self._clock, room.id)
        path = check_path(result["path"])
        there = await shelf.read(path)
        if row["op"] == "document_read":
            before = result["content"]
        else:
            intent = self._source.read(lambda c: shared_records.intended(c, self._id, row["run"], key, status="done"))
            if intent is None or intent.before == (None if there is None else pin(there)):
                return True
            digest = intent.before
            before = self._source.read(
                lambda c: shared_records.content_of(c, self._id, path, digest) if digest else None
            )
            if before is None:
                await shelf.write(path, intent.content or "")
                return False
        if before != there:
            await shelf.write(path, before)
        return True


def _quietly(connection: Connection, room: Room, actor: Actor, row: Row) -> None:
    """What is done inside transactions of others."""
    op, given, at = row["op"], row["arguments"], row["at"]
    if op == "inbox_shown":
        batch = inbox.unread(connection, room.id, actor.name)
        inbox.shown(connection, room.id, actor.name, actor.run or "", batch, at)
    elif op == "acknowledged":
        inbox.acknowledge(connection, room.id, given["agent"], given["until"], at=at, run=actor.run)
    elif op == "buried":
        inbox.bury(connection, room.id, given["agent"], given["until"], at=at, run=actor.run)
    elif op == "delivered_again":
        inbox.deliver_again(connection, room.id, given["agent"], at=at)
    elif op == "released":
        inbox.release(connection, room.id, at=at)
    elif op == "notice":
        channel.notice(room.turn(connection, actor), given["text"], to=given["to"], hops=given["hops"])
    elif op in ("settle", "expire"):
        (proposals.settle_open if op == "settle" else proposals.expire)(room.turn(connection, actor))
