"""The rooms of a hall: opens, finds and closes rooms by workflow and tag.

Opening an existing room changes its agents and settings. An elected document owner stays while it is an agent of the
room and the workflow's file does not name another.
Does not delete anything: closing a room only makes the next `open` create a new room.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import NotFound, UsageError
from guildhall.core.ids import ROOM, new_id
from guildhall.core.text import did_you_mean
from guildhall.room import records
from guildhall.room.model import Actor, RoomListener, RoomRecord, check_seat
from guildhall.room.room import Room

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sqlalchemy import Connection

    from guildhall.store.engine import Store


@dataclass(frozen=True, kw_only=True)
class RoomSettings:
    """The settings of a room. `documents` is the folder of the documents, or None if the database has them."""

    documents: Path | None = None
    owner: str | None = None
    projection: Path | None = None
    max_hops: int | None = None
    max_repeats: int | None = None
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def place(self) -> str:
        """Where the documents are, as the room's row has it."""
        return f"file:{self.documents}" if self.documents else "sqlite"

    def as_opened(self, seats: Sequence[str]) -> dict[str, Any]:
        """Return the arguments of `open` in the room's log."""
        return {"seats": list(seats), "owner": self.owner, "documents": self.place, "settings": self.settings}

    @property
    def settings(self) -> dict[str, Any]:
        limits = {"max_hops": self.max_hops, "max_repeats": self.max_repeats}
        given = {"projection": str(self.projection) if self.projection else None, **limits}
        fixed = {"owner_fixed": True} if self.owner is not None else {}
        return {**self.more, **fixed, **{name: value for name, value in given.items() if value is not None}}


class Rooms:
    """The rooms of one store, one object for each."""

    def __init__(self, store: Store, clock: Clock, listener: RoomListener | None = None) -> None:
        self._store = store
        self._clock = clock
        self._listener = listener or RoomListener()
        self._rooms: dict[str, Room] = {}

    async def open(self, workflow: str, tag: str, seats: Sequence[str], settings: RoomSettings | None = None) -> Room:
        """Return the room of a workflow and tag with these agents. Create it if there is none."""
        settings = settings or RoomSettings()
        for agent in seats:
            check_seat(agent)
        lowered = [agent.lower() for agent in seats]
        if twice := next((agent for agent in seats if lowered.count(agent.lower()) > 1), None):
            raise UsageError(f"two agents cannot both be called {twice!r}", hint="Capitals make no difference here.")
        if settings.owner is not None and settings.owner not in seats:
            hint = did_you_mean(settings.owner, seats)
            raise NotFound(f"the owner of the documents, {settings.owner!r}, is not an agent", hint=hint)
        at = stamp(self._clock.now())
        id = await self._store.write(lambda connection: _open(connection, workflow, tag, seats, settings, at))
        room = self.room(id)
        await room.mend()
        return room

    def room(self, id: str) -> Room:
        """Return a room by its id. An unknown id is an error only when the room is used."""
        if id not in self._rooms:
            self._rooms[id] = Room(id, self._store, self._clock, self._listener)
        return self._rooms[id]

    def find(self, workflow: str, tag: str) -> Room | None:
        """Return the current room of a workflow and tag, or None."""
        found = self._store.read(lambda connection: records.current_room(connection, workflow, tag))
        return self.room(found.id) if found else None

    async def close(self, id: str, *, documents: Path | None = None) -> None:
        """Close a room: the next `open` creates another one. `documents` is the folder that they were moved to."""
        at = stamp(self._clock.now())
        moved = {"documents": f"file:{documents}"} if documents is not None else {}

        def write(connection: Connection) -> None:
            records.change_room(connection, id, closed_at=at, **moved)
            records.log(connection, id, "close", Actor.person(), at, {}, {})

        await self._store.write(write)
        self._rooms.pop(id, None)


def _open(
    connection: Connection, workflow: str, tag: str, seats: Sequence[str], settings: RoomSettings, at: str
) -> str:
    current = records.current_room(connection, workflow, tag)
    id = new_id(ROOM) if current is None else current.id
    arguments = settings.as_opened(seats)
    open_room(connection, id, workflow, tag, at, arguments)
    records.log(connection, id, "open", Actor.system(), at, arguments, {})
    return id


def open_room(connection: Connection, id: str, workflow: str, tag: str, at: str, arguments: Mapping[str, Any]) -> None:
    """Create a room, or change an existing one to these agents and settings."""
    documents, owner, settings = arguments["documents"], arguments["owner"], arguments["settings"]
    found = records.room(connection, id)
    if found is None:
        new = RoomRecord(
            id=id,
            workflow=workflow,
            tag=tag,
            created_at=at,
            closed_at=None,
            documents=documents,
            owner=owner,
            roles={},
            settings=settings,
        )
        records.add_room(connection, new)
    else:
        # An elected owner stays, unless it is no longer an agent here or the workflow's file names another one.
        owner = owner or (found.owner if found.owner in arguments["seats"] else None)
        records.change_room(connection, id, documents=documents, owner=owner, settings=settings)
    records.set_seats(connection, id, arguments["seats"], at)
