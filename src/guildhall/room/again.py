"""A room played again: what is on record of it is done once more, in order, in an empty room.

The empty room is in a database of its own and has its documents there: nothing of the real one is touched. Its time is
that of the record. What people did to documents from outside is not on record as done by anybody: it is put in place
where the record shows that it was there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import moment
from guildhall.core.errors import Conflict, GuildError
from guildhall.room import channel, inbox, proposal_records, proposals, records, shared_records
from guildhall.room.archive import archive_one
from guildhall.room.documents import DEFAULT
from guildhall.room.model import Ears, RoomRecord, Said, pin
from guildhall.room.room import Room
from guildhall.room.shelves import check_path
from guildhall.room.toolbox import TOOLS, Desk, room_tools
from guildhall.room.turn import take

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from sqlalchemy import Connection

    from guildhall.room.model import Actor, Operation
    from guildhall.room.turn import Turn
    from guildhall.store.engine import Store
    from guildhall.tools.model import ToolCall, ToolResult

    Do = Callable[[Turn], Mapping[str, Any]]

_CHANGES = ("document_write", "document_append", "document_create", "archive")
_IN_DATABASE = "sqlite"


class Then:
    """A clock that says when something was done."""

    def __init__(self) -> None:
        self._at = "1970-01-01T00:00:00.000Z"

    def turn_to(self, at: str) -> None:
        self._at = at

    def now(self) -> datetime:
        return moment(self._at)

    def monotonic(self) -> float:
        return self.now().timestamp()

    async def sleep(self, seconds: float) -> None:
        """Nothing is waited for."""


class _Still(Room):
    """A room in which nothing follows by itself: what followed then is on record too."""

    async def _bring_up(self, turn: Turn) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class Made:
    """An operation that was made again; `given` is what the caller of a tool is given."""

    arguments: Mapping[str, Any]
    result: Mapping[str, Any]
    given: ToolResult | None = None


class RoomAgain:
    """One room, played again from the beginning."""

    def __init__(self, id: str, record: Store, scratch: Store) -> None:
        """`record` is where the real room is, `scratch` an empty database."""
        self._record = record
        self._scratch = scratch
        self._clock = Then()
        self._until = 0  # the last place in its log
        self._files = False  # whether documents were files, which others can change
        self.room: Room = _Still(id, scratch, self._clock, Ears())

    def operations(self) -> list[Operation]:
        """What is on record, in order."""
        return self._record.read(lambda connection: records.history(connection, self.room.id))

    def read(self, look: Callable[[Connection], Any]) -> Any:
        return self._scratch.read(look)

    async def make(self, then: Operation, call: ToolCall | None = None) -> Made:
        """Does what was done. `call` is the call of a tool with which it was done, where it was one."""
        self._clock.turn_to(then.at)
        if then.op.startswith("document_") or then.op == "archive":
            await self._as_it_lay(then)
        given = None
        if call is not None and then.op in TOOLS and then.actor.run is not None:
            tool = room_tools(self.room, then.actor.name, (then.op,))[0]
            given = await Desk(self.room, then.actor.name, then.actor.run).execute(tool, call)
        else:
            try:
                await self._do(then)
            except GuildError as error:
                if "error" not in then.result:
                    raise
                return Made(arguments=then.arguments, result={"error": error.as_dict()})
        return await self._made(then, given)

    async def _made(self, then: Operation, given: ToolResult | None) -> Made:
        """What the log of the empty room has now in the place of what was done then."""
        log = self._scratch.read(lambda c: records.history(c, self.room.id, since=self._until))
        self._until = log[-1].place if log else self._until
        mine = [one for one in log if one.op == then.op and one.actor == then.actor]
        if not mine:
            return Made(arguments={}, result={}, given=given)
        result = mine[-1].result
        if self._files and _changed_outside(then, result):
            result = then.result
            given = None
        return Made(arguments=mine[-1].arguments, result=result, given=given)

    # How each is done again

    async def _do(self, then: Operation) -> None:
        do = {
            "open": self._open,
            "close": self._close,
            "send": self._send,
            "vote": self._vote,
            "elect": self._elect,
            "archive": self._archive,
        }.get(then.op)
        if do is not None:
            await do(then)
        elif then.op in _WITHIN:
            await self._scratch.write(lambda connection: _WITHIN[then.op](connection, self.room.id, then))
        elif then.op in _TURNS:
            turn = _TURNS[then.op](then)
            await self._scratch.write(
                lambda c: take(c, self.room.id, then.op, then.actor, then.at, then.arguments, turn)
            )
        elif then.op.startswith("document_"):
            await self._document(then)
        else:
            raise Conflict(f"the room's record has an operation {then.op!r}, of which this version knows nothing")

    async def _open(self, then: Operation) -> None:
        said = then.arguments
        self._files = said["documents"] != _IN_DATABASE
        settings = {name: value for name, value in said["settings"].items() if name != "projection"}
        await self._scratch.write(lambda connection: self._opened(connection, then, settings))

    def _opened(self, connection: Connection, then: Operation, settings: Mapping[str, Any]) -> None:
        said, id = then.arguments, self.room.id
        found = records.room(connection, id)
        if found is None:
            real = self._record.read(lambda record: records.room(record, id))
            assert real is not None
            new = RoomRecord(
                id=id,
                workflow=real.workflow,
                tag=real.tag,
                created_at=then.at,
                closed_at=None,
                documents=_IN_DATABASE,
                owner=said["owner"],
                roles={},
                settings=settings,
            )
            records.add_room(connection, new)
        else:
            owner = said["owner"] or (found.owner if found.owner in said["seats"] else None)
            records.change_room(connection, id, owner=owner, settings=settings)
        records.set_seats(connection, id, said["seats"], then.at)
        records.log(connection, id, then.op, then.actor, then.at, said, {})

    async def _close(self, then: Operation) -> None:
        """The record of it stays open to be looked at."""
        await self._scratch.write(
            lambda c: records.log(c, self.room.id, then.op, then.actor, then.at, then.arguments, {})
        )

    async def _send(self, then: Operation) -> None:
        await self.room.send(Said.from_list(then.arguments["said"]), then.actor, to=then.arguments["to"])

    async def _vote(self, then: Operation) -> None:
        said = then.arguments
        await self.room.vote(said["proposal"], said["choice"], then.actor, said["reason"])

    async def _elect(self, then: Operation) -> None:
        await self.room.elect_owner(then.actor, then.arguments["within"])

    async def _archive(self, then: Operation) -> None:
        number = (then.actor.key or "").rpartition("-")[2]
        proposal = self._scratch.read(
            lambda c: proposal_records.find(c, self.room.id, int(number)) if number.isdigit() else None
        )
        if proposal is not None:
            await archive_one(self._scratch, self.room.id, self.room.documents, proposal)

    async def _document(self, then: Operation) -> None:
        """By a person, who has no run."""
        documents, said = self.room.documents, then.arguments
        if then.op == "document_list":
            await documents.list(then.actor)
        else:
            await getattr(documents, then.op.removeprefix("document_"))(then.actor, **said)

    # Documents as files

    async def _as_it_lay(self, then: Operation) -> None:
        """Puts in place what others had made of the documents when something was done to them."""
        if not self._files:
            return
        if then.op == "document_list":
            await self._listed({one["path"]: one["size"] for one in then.result.get("documents", [])})
            return
        path = then.result.get("path") or _path_of(then)
        if path is None:
            return
        if "content" in then.result:
            await self._put(path, then.result["content"])
        elif then.op in _CHANGES and "digest" in then.result:
            actor, digest = then.actor, then.result["digest"]
            before = self._record.read(lambda c: shared_records.before_change(c, self.room.id, path, actor, digest))
            await self._put(path, None if before is None else self._content(path, before))
        elif then.op == "document_read" and then.result.get("error", {}).get("code") == "not_found":
            await self._put(path, None)

    def _content(self, path: str, digest: str) -> str | None:
        held = self._scratch.read(lambda c: shared_records.document(c, self.room.id, path))
        if held is not None and pin(held) == digest:
            return held
        return self._record.read(lambda c: shared_records.content_of(c, self.room.id, path, digest))

    async def _put(self, path: str, content: str | None) -> None:
        def write(connection: Connection) -> None:
            if content is None:
                shared_records.drop_document(connection, self.room.id, path)
            else:
                shared_records.put_document(connection, self.room.id, path, content, self.room.now())

        await self._scratch.write(write)

    async def _listed(self, sizes: Mapping[str, int]) -> None:
        held = dict(self._scratch.read(lambda c: shared_records.document_sizes(c, self.room.id)))
        for path in held.keys() - sizes.keys():
            await self._put(path, None)
        for path, size in sizes.items():
            if held.get(path) != size:
                await self._put(path, "?" * size)  # what it says shows when somebody reads it


def _path_of(then: Operation) -> str | None:
    try:
        return check_path(then.arguments.get("file") or DEFAULT)
    except GuildError:
        return None


def _changed_outside(then: Operation, now: Mapping[str, Any]) -> bool:
    """Whether something was refused because of what others had made of a document, which is not on record."""
    return then.op in _CHANGES and now != then.result and then.result.get("error", {}).get("code") == "conflict"


def _shown(connection: Connection, room: str, then: Operation) -> None:
    batch = shown_then(connection, room, then)
    run, left = then.actor.run or "", then.arguments.get("left", 0)
    inbox.shown(connection, room, then.actor.name, run, batch, then.at, left=left)


def shown_then(connection: Connection, room: str, then: Operation) -> list[Any]:
    """The mail that a run was shown in its first message: what has come since it looked was not there yet."""
    shown = then.result.get("messages", ())
    return [mail for mail in inbox.unread(connection, room, then.actor.name) if mail.message.id in shown]


def _acknowledged(connection: Connection, room: str, then: Operation) -> None:
    until = _until(connection, room, then.actor, then)
    inbox.acknowledge(connection, room, then.arguments["agent"], until, at=then.at, run=then.actor.run)


def _buried(connection: Connection, room: str, then: Operation) -> None:
    until = _until(connection, room, then.actor, then)
    inbox.bury(connection, room, then.arguments["agent"], until, at=then.at, run=then.actor.run)


def _until(connection: Connection, room: str, actor: Actor, then: Operation) -> int:
    return inbox.seen(connection, room, actor.run).until if actor.run else then.arguments["until"]


def _delivered_again(connection: Connection, room: str, then: Operation) -> None:
    inbox.deliver_again(connection, room, then.arguments["agent"], at=then.at)


def _released(connection: Connection, room: str, then: Operation) -> None:
    inbox.release(connection, room, at=then.at)


def _held(connection: Connection, room: str, then: Operation) -> None:
    inbox.hold(connection, room, but=then.arguments["but"], at=then.at)


def _held_no_more(connection: Connection, room: str, then: Operation) -> None:
    inbox.hold_no_more(connection, room, at=then.at)


def _dropped(connection: Connection, room: str, then: Operation) -> None:
    inbox.drop(connection, room, at=then.at)


_WITHIN: dict[str, Callable[[Connection, str, Operation], None]] = {
    "inbox_shown": _shown,
    "acknowledged": _acknowledged,
    "buried": _buried,
    "delivered_again": _delivered_again,
    "released": _released,
    "held": _held,
    "held_no_more": _held_no_more,
    "dropped": _dropped,
}


def _tell(then: Operation) -> Do:
    return lambda turn: channel.tell(turn, **then.arguments)


def _settle(then: Operation) -> Do:
    def settle(turn: Turn) -> dict[str, Any]:
        one = then.arguments.get("proposal")
        ended = proposals.settle_open(turn) if one is None else proposals.settle(turn, one)
        return {"ended": [proposal.id for proposal in ended]}

    return settle


def _expire(_: Operation) -> Do:
    return lambda turn: {"ended": [one.id for one in proposals.expire(turn)]}


_TURNS: dict[str, Callable[[Operation], Do]] = {"tell": _tell, "settle": _settle, "expire": _expire}
