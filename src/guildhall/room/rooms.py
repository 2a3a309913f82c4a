"""The rooms of a hall: opened by workflow and tag, found again, closed for a fresh one. Nothing is deleted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import stamp
from guildhall.core.errors import NotFound, UsageError
from guildhall.core.ids import ROOM, new_id
from guildhall.core.nearest import did_you_mean
from guildhall.room import records
from guildhall.room.model import Actor, Ears, RoomRecord, check_seat
from guildhall.room.room import Room

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sqlalchemy import Connection

    from guildhall.core.clock import Clock
    from guildhall.store.engine import Store


@dataclass(frozen=True, kw_only=True)
class Furnishing:
    """How a room is furnished. `documents`: the folder they lie in; None: in the database."""

    documents: Path | None = None
    owner: str | None = None
    projection: Path | None = None
    max_hops: int | None = None
    max_repeats: int | None = None
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def place(self) -> str:
        """Where the documents are, as the record has it."""
        return f"file:{self.documents}" if self.documents else "sqlite"

    def as_opened(self, seats: Sequence[str]) -> dict[str, Any]:
        """The arguments with which it is opened, as the log has them."""
        return {"seats": list(seats), "owner": self.owner, "documents": self.place, "settings": self.settings}

    @property
    def settings(self) -> dict[str, Any]:
        limits = {"max_hops": self.max_hops, "max_repeats": self.max_repeats}
        given = {"projection": str(self.projection) if self.projection else None, **limits}
        fixed = {"owner_fixed": True} if self.owner is not None else {}
        return {**self.more, **fixed, **{name: value for name, value in given.items() if value is not None}}


class Rooms:
    """Every room of one store. Each is one object, so that all who work in it take turns."""

    def __init__(self, store: Store, clock: Clock, ears: Ears | None = None) -> None:
        self._store = store
        self._clock = clock
        self._ears = ears or Ears()
        self._rooms: dict[str, Room] = {}

    async def open(self, workflow: str, tag: str, seats: Sequence[str], furnishing: Furnishing | None = None) -> Room:
        """The room of a workflow and tag, with these agents seated in this order; made if there is none."""
        how = furnishing or Furnishing()
        for agent in seats:
            check_seat(agent)
        lowered = [agent.lower() for agent in seats]
        if twice := next((agent for agent in seats if lowered.count(agent.lower()) > 1), None):
            raise UsageError(f"two agents cannot both be called {twice!r}", hint="Capitals make no difference here.")
        if how.owner is not None and how.owner not in seats:
            hint = did_you_mean(how.owner, seats)
            raise NotFound(f"the owner of the documents, {how.owner!r}, is not an agent", hint=hint)
        at = stamp(self._clock.now())
        id = await self._store.write(lambda connection: _open(connection, workflow, tag, seats, how, at))
        room = self.room(id)
        await room.mend()
        return room

    def room(self, id: str) -> Room:
        """A room by its id. Whether there is one shows when it is used."""
        if id not in self._rooms:
            self._rooms[id] = Room(id, self._store, self._clock, self._ears)
        return self._rooms[id]

    def find(self, workflow: str, tag: str) -> Room | None:
        """The current room of a workflow and tag."""
        found = self._store.read(lambda connection: records.current_room(connection, workflow, tag))
        return self.room(found.id) if found else None

    async def close(self, id: str, *, documents: Path | None = None) -> None:
        """Closes a room: the next `open` makes a fresh one. What was said in it stays.

        `documents` is the folder that they were moved to, where they were moved.
        """
        at = stamp(self._clock.now())
        moved = {"documents": f"file:{documents}"} if documents is not None else {}

        def write(connection: Connection) -> None:
            records.change_room(connection, id, closed_at=at, **moved)
            records.log(connection, id, "close", Actor.person(), at, {}, {})

        await self._store.write(write)
        self._rooms.pop(id, None)


def _open(connection: Connection, workflow: str, tag: str, seats: Sequence[str], how: Furnishing, at: str) -> str:
    documents = how.place
    found = records.current_room(connection, workflow, tag)
    if found is None:
        found = RoomRecord(
            id=new_id(ROOM),
            workflow=workflow,
            tag=tag,
            created_at=at,
            closed_at=None,
            documents=documents,
            owner=how.owner,
            roles={},
            settings=how.settings,
        )
        records.add_room(connection, found)
    else:
        # An owner that was elected stays, unless it has no seat any more or the file names another.
        owner = how.owner or (found.owner if found.owner in seats else None)
        records.change_room(connection, found.id, documents=documents, owner=owner, settings=how.settings)
    records.set_seats(connection, found.id, seats, at)
    records.log(connection, found.id, "open", Actor.system(), at, how.as_opened(seats), {})
    return found.id
