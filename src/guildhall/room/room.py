"""The room: performs operations by name, announces them after their commit, and answers queries.

After a commit it wakes agents with new mail, publishes events, archives decided proposals and exports files. Opening a
room repeats the steps that a crash has prevented.
Does not know the effect of an operation (`operation.py` has the table). Does not create or close rooms (`service.py`).

Invariant: a committed operation is announced even if its caller is cancelled.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import GuildError, NotFound
from guildhall.room import inbox, records, voting
from guildhall.room.document_stores import FileShelf, TableShelf
from guildhall.room.documents import Documents, archiver
from guildhall.room.file_export import Projection
from guildhall.room.model import (
    Actor,
    Mail,
    Message,
    Posted,
    Proposal,
    RoomEvent,
    RoomListener,
    RoomRecord,
    Said,
    Seat,
    Vote,
)
from guildhall.room.operation import begin, execute, raise_refusal
from guildhall.room.tools import find_operation

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from sqlalchemy import Connection

    from guildhall.room.operation import Also, Effect, Operation, Performed, Turn
    from guildhall.store.engine import Store

    Check = Callable[[Connection], object]

T = TypeVar("T")


class Room:
    """One room of a hall. There is one object for each room."""

    def __init__(self, id: str, store: Store, clock: Clock, listener: RoomListener) -> None:
        self.id = id
        self.access = asyncio.Lock()  # held by operations on documents, and by those that change who may write them
        self._store = store
        self._clock = clock
        self._listener = listener
        self._going: set[asyncio.Task[Any]] = set()
        self._documents: tuple[str, Documents] | None = None
        self._projection: tuple[str, Projection] | None = None
        self._projecting = asyncio.Lock()

    # Looking

    def record(self) -> RoomRecord:
        """The room as it is now: its owner of documents, its roles, its settings."""
        found = self._store.read(lambda connection: records.room(connection, self.id))
        if found is None:
            raise NotFound(f"there is no room {self.id!r}")
        return found

    def seats(self) -> list[Seat]:
        return self._store.read(lambda connection: records.seats_of(connection, self.id))

    def messages(self, *, since: int = 0, limit: int = 1_000, newest: bool = False) -> list[Message]:
        """The channel after a message, oldest first: the first of it, or the newest."""
        return self._store.read(
            lambda connection: records.channel(connection, self.id, since=since, limit=limit, newest=newest)
        )

    def unread(self, agent: str) -> list[Mail]:
        return self._store.read(lambda connection: inbox.unread(connection, self.id, agent))

    def waiting(self) -> dict[str, int]:
        """The agents that have unread mail, and how much."""
        return self._store.read(lambda connection: inbox.waiting(connection, self.id))

    def proposals(self) -> list[Proposal]:
        return self._store.read(lambda connection: records.all_of(connection, self.id))

    def votes(self, proposal: Proposal) -> list[Vote]:
        return self._store.read(lambda connection: records.votes_of(connection, self.id, proposal.number))

    def guard_of(self, tool: str) -> Proposal | None:
        """The proposal that keeps a tool closed, whoever brings the tool."""
        return self._store.read(lambda connection: voting.guard_of(connection, self.id, tool))

    @property
    def documents(self) -> Documents:
        record = self.record()
        place, folder = record.documents, record.folder
        if self._documents is None or self._documents[0] != place:
            shelf = FileShelf(folder) if folder else TableShelf(self._store, self._clock, self.id)
            self._documents = (place, Documents(self, shelf, self._store))
        return self._documents[1]

    # Operations

    async def perform(
        self, name: str, actor: Actor, /, *, check: Check | None = None, also: Also | None = None, **arguments: Any
    ) -> Mapping[str, Any]:
        """Perform an operation once and return its result. Raise the error of a refused one.

        If `check` raises, the operation is not performed and not logged. `also` is a further effect in the same
        transaction.
        """
        operation = find_operation(name)
        bound = operation.bind(arguments)
        if operation.kind == "document":
            return await self.documents.perform(operation, actor, bound, check, also)
        return await self.commit(operation, actor, bound, partial(operation.function, **bound), check, also)

    async def commit(
        self,
        operation: Operation,
        actor: Actor,
        arguments: Mapping[str, Any],
        effect: Effect,
        check: Check | None = None,
        also: Also | None = None,
    ) -> Mapping[str, Any]:
        """Commit the effect of an operation with its log entry, and announce it even if the caller is cancelled."""
        performed = await self._to_its_end(self._commit(operation, actor, arguments, effect, check, also))
        return raise_refusal(performed.result)

    async def send(
        self, said: Said | str, actor: Actor, *, to: Sequence[str] = (), check: Check | None = None
    ) -> Posted:
        """Post a message of the user, the kickoff or a schedule. `to` addresses agents without a mention."""
        spoken = Said.own(said) if isinstance(said, str) else said
        return Posted.from_dict(await self.perform("send", actor, check=check, said=spoken.as_list(), to=list(to)))

    async def elect_owner(self, actor: Actor, within: float | None = None) -> Proposal:
        """Open the election of the document owner and return it. `within` is the time to vote in seconds."""
        return self._proposal((await self.perform("elect", actor, within=within))["id"])

    async def vote(self, proposal: str, choice: str, actor: Actor, reason: str | None = None) -> Proposal:
        """Vote, and return the proposal afterwards."""
        return self._proposal(
            (await self.perform("vote", actor, proposal=proposal, choice=choice, reason=reason))["id"]
        )

    async def settle(self, proposal: str) -> Proposal:
        """End a proposal with the votes that there are, if it is open, and return it."""
        await self.perform("settle", Actor.system(), proposal=proposal)
        return self._proposal(proposal)

    async def settle_open(self) -> list[Proposal]:
        """End every open proposal with the votes that there are, and return these proposals."""
        return self._ended(await self.perform("settle", Actor.system()))

    async def expire(self) -> list[Proposal]:
        """End every proposal whose time is up, and return these proposals."""
        return self._ended(await self.perform("expire", Actor.system()))

    # In a transaction of the caller

    def turn(self, connection: Connection, actor: Actor) -> Turn:
        """Return a turn in a transaction of the caller, who calls `follow` after the commit."""
        return begin(connection, self.id, actor, self.now())

    async def follow(self, turn: Turn) -> None:
        """Announce a committed turn, archive decisions, and export files."""
        self._announce(turn)
        await self._to_its_end(self._bring_up(turn))

    def wake(self, agents: frozenset[str]) -> None:
        """Announce that agents have mail."""
        if agents:
            self._listener.wake(self.id, agents)

    async def mend(self) -> None:
        """Makes up for what a crash has kept from following its commit. For whoever opens the room."""
        with suppress(GuildError):  # a folder that cannot be used is told when it is
            await self.documents.tidy()
        await self._archive()
        await self.project()

    async def project(self) -> None:
        """Brings the files of `provider: file` up to date, if the room has them."""
        folder = self.record().projection
        if folder is None:
            return
        async with self._projecting:
            if self._projection is None or self._projection[0] != str(folder):
                self._projection = (str(folder), Projection(folder, self._store, self.id))
            try:
                await asyncio.to_thread(self._projection[1].update)
            except (OSError, GuildError) as error:
                self.trouble(f"the room's files cannot be written: {error}")

    def trouble(self, message: str) -> None:
        """Tells that something could not be done; nothing is on record of that."""
        data = {"message": message}
        self._listener.on_event(RoomEvent(type="trouble", room=self.id, actor="system", at=self.now(), data=data))

    def now(self) -> str:
        return stamp(self._clock.now())

    async def _commit(
        self,
        operation: Operation,
        actor: Actor,
        arguments: Mapping[str, Any],
        effect: Effect,
        check: Check | None,
        also: Also | None,
    ) -> Performed:
        def write(at: str, connection: Connection) -> Performed:
            if check is not None:
                check(connection)
            return execute(connection, self.id, operation, actor, at, arguments, effect, also)

        async with self.access if operation.changes_access else nullcontext():
            performed = await self._store.write(partial(write, self.now()))
        if performed.turn is not None:
            self._announce(performed.turn)
            await self._bring_up(performed.turn)
        return performed

    def _announce(self, turn: Turn) -> None:
        if turn.wakes:
            self._listener.wake(self.id, frozenset(turn.wakes))
        for event in turn.events:
            self._listener.on_event(event)

    async def _bring_up(self, turn: Turn) -> None:
        if any(event.type == "proposal" and event.data.get("result") for event in turn.events):
            await self._archive()
        if turn.events and turn.room.projection is not None:
            await self.project()

    async def _archive(self) -> None:
        try:
            for proposal in self._store.read(lambda connection: records.unarchived(connection, self.id)):
                await self.perform("archive", archiver(self.id, proposal.id))
        except GuildError as error:  # the proposal stays decided, and is archived when the room is opened again
            self.trouble(f"a decision could not be archived: {error}")

    def _ended(self, result: Mapping[str, Any]) -> list[Proposal]:
        return [self._proposal(id) for id in result["ended"]]

    def _proposal(self, id: str) -> Proposal:
        return self._store.read(lambda connection: voting.proposal_in(connection, self.id, id))

    async def _to_its_end(self, doing: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine that completes even if the caller is cancelled: a committed operation is announced."""
        task = asyncio.ensure_future(doing)
        self._going.add(task)
        task.add_done_callback(self._going.discard)
        return await asyncio.shield(task)
