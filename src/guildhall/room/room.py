"""A room: the one way to do something in it. Each operation is one transaction; those concerned hear of it after."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from guildhall.core.clock import stamp
from guildhall.core.errors import NotFound
from guildhall.room import channel, inbox, records
from guildhall.room.model import Ears, Posted, Said
from guildhall.room.turn import settled, take

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from sqlalchemy import Connection

    from guildhall.core.clock import Clock
    from guildhall.room.model import Actor, Mail, Message, RoomRecord, Seat
    from guildhall.room.turn import Taken, Turn
    from guildhall.store.engine import Store

T = TypeVar("T")


class Room:
    """One room of a hall. All who work in it share this object."""

    def __init__(self, id: str, store: Store, clock: Clock, ears: Ears) -> None:
        self.id = id
        self._store = store
        self._clock = clock
        self._ears = ears
        self._going: set[asyncio.Task[Any]] = set()

    # Looking

    def record(self) -> RoomRecord:
        """The room as it is now: its owner of documents, its roles, its settings."""
        found = self._store.read(lambda connection: records.room(connection, self.id))
        if found is None:
            raise NotFound(f"there is no room {self.id!r}")
        return found

    def seats(self) -> list[Seat]:
        return self._store.read(lambda connection: records.seats_of(connection, self.id))

    def messages(self, *, since: int = 0, limit: int = 1_000) -> list[Message]:
        """The channel after a message, oldest first."""
        return self._store.read(lambda connection: records.channel(connection, self.id, since=since, limit=limit))

    def unread(self, agent: str) -> list[Mail]:
        return self._store.read(lambda connection: inbox.unread(connection, self.id, agent))

    def waiting(self) -> dict[str, int]:
        """The agents that have unread mail, and how much."""
        return self._store.read(lambda connection: inbox.waiting(connection, self.id))

    # Doing

    async def send(self, said: Said | str, actor: Actor, *, to: Sequence[str] = ()) -> Posted:
        """Says something in the channel: a person, the kickoff, a schedule. `to` reaches agents without a mention."""
        spoken = Said.own(said) if isinstance(said, str) else said
        arguments = {"said": spoken.as_list(), "to": list(to)}
        result = await self.perform("send", actor, arguments, lambda turn: channel.post(turn, spoken, to=to).as_dict())
        return Posted.from_dict(result)

    async def perform(
        self, op: str, actor: Actor, arguments: Mapping[str, Any], do: Callable[[Turn], Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        """Makes an operation, once: in the log and in effect together. What it is refused with is raised."""
        taken = await self.take(op, actor, arguments, do)
        return settled(taken.result)

    async def take(
        self, op: str, actor: Actor, arguments: Mapping[str, Any], do: Callable[[Turn], Mapping[str, Any]]
    ) -> Taken:
        """The same, with a refusal as a result."""
        return await self._to_its_end(self._take(op, actor, arguments, do))

    def now(self) -> str:
        return stamp(self._clock.now())

    def announce(self, turn: Turn) -> None:
        """Tells what happened in a turn that is committed. For turns in transactions of others, too."""
        if turn.wakes:
            self._ears.wake(self.id, frozenset(turn.wakes))
        for happened in turn.happened:
            self._ears.happened(happened)

    def wake(self, agents: frozenset[str]) -> None:
        """Tells that agents have mail again: after the commit of `inbox.deliver_again` or `inbox.release`."""
        if agents:
            self._ears.wake(self.id, agents)

    async def _take(
        self, op: str, actor: Actor, arguments: Mapping[str, Any], do: Callable[[Turn], Mapping[str, Any]]
    ) -> Taken:
        at = self.now()

        def write(connection: Connection) -> Taken:
            return take(connection, self.id, op, actor, at, arguments, do)

        taken = await self._store.write(write)
        if taken.turn is not None:
            self.announce(taken.turn)
        return taken

    async def _to_its_end(self, doing: Coroutine[Any, Any, T]) -> T:
        """Waits for something that goes on even if whoever waits is cancelled: what is committed is also told."""
        task = asyncio.ensure_future(doing)
        self._going.add(task)
        task.add_done_callback(self._going.discard)
        return await asyncio.shield(task)
