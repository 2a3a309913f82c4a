"""A room: the one way to do something in it. Each operation is one transaction; those concerned hear of it after."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from guildhall.core.clock import stamp
from guildhall.core.errors import GuildError, NotFound
from guildhall.room import channel, inbox, proposal_records, proposals, records
from guildhall.room.archive import archive
from guildhall.room.documents import Documents
from guildhall.room.model import Actor, Ears, Happened, Posted, Said
from guildhall.room.projection import Projection
from guildhall.room.proposals import DOCUMENT_OWNER, Draft
from guildhall.room.shelves import FileShelf, TableShelf
from guildhall.room.turn import begin, settled, take

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from sqlalchemy import Connection

    from guildhall.core.clock import Clock
    from guildhall.room.model import Mail, Message, Proposal, RoomRecord, Seat, Vote
    from guildhall.room.turn import Taken, Turn
    from guildhall.store.engine import Store

    Do = Callable[[Turn], Mapping[str, Any]]
    Check = Callable[[Connection], object]

T = TypeVar("T")


class Room:
    """One room of a hall. All who work in it share this object."""

    def __init__(self, id: str, store: Store, clock: Clock, ears: Ears) -> None:
        self.id = id
        self._store = store
        self._clock = clock
        self._ears = ears
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
        return self._store.read(lambda connection: proposal_records.all_of(connection, self.id))

    def votes(self, proposal: Proposal) -> list[Vote]:
        return self._store.read(lambda connection: proposal_records.votes_of(connection, self.id, proposal.number))

    def guard_of(self, tool: str) -> Proposal | None:
        """The proposal that keeps a tool closed, whoever brings the tool."""
        return self._store.read(lambda connection: proposals.guard_of(connection, self.id, tool))

    @property
    def documents(self) -> Documents:
        record = self.record()
        place, folder = record.documents, record.folder
        if self._documents is None or self._documents[0] != place:
            shelf = FileShelf(folder) if folder else TableShelf(self._store, self._clock, self.id)
            self._documents = (place, Documents(self, shelf, self._store))
        return self._documents[1]

    # Doing

    async def send(
        self, said: Said | str, actor: Actor, *, to: Sequence[str] = (), check: Check | None = None
    ) -> Posted:
        """Says something in the channel: a person, the kickoff, a schedule. `to` reaches agents without a mention.

        `check` raises where nothing is to be said any more: nobody can leave between it and the message.
        """
        spoken = Said.own(said) if isinstance(said, str) else said
        arguments = {"said": spoken.as_list(), "to": list(to)}
        result = await self.perform(
            "send", actor, arguments, lambda turn: channel.post(turn, spoken, to=to).as_dict(), check
        )
        return Posted.from_dict(result)

    async def elect_owner(self, actor: Actor, within: float | None = None) -> Proposal:
        """Opens the election of an owner of the documents. It wakes nobody: whoever opens it asks for votes.

        `within` is how many seconds there are to vote. Opened again by the same call, it is the same election.
        """
        draft = Draft(type="election", title=DOCUMENT_OWNER, timeout=within)
        result = await self.perform(
            "elect", actor, {"within": within}, lambda turn: {"id": proposals.create(turn, draft).id}
        )
        return self._proposal(result["id"])

    async def settle(self, proposal: str) -> Proposal:
        """Ends a proposal with the votes that there are, if it is still open."""
        await self._settle("settle", lambda turn: proposals.settle(turn, proposal), {"proposal": proposal})
        return self._proposal(proposal)

    async def vote(self, proposal: str, choice: str, actor: Actor, reason: str | None = None) -> Proposal:
        """Votes; the proposal as it is afterwards."""
        arguments = {"proposal": proposal, "choice": choice, "reason": reason}
        result = await self.perform(
            "vote", actor, arguments, lambda turn: {"id": proposals.vote(turn, proposal, choice, reason)[0].id}
        )
        return self._proposal(result["id"])

    async def settle_open(self) -> list[Proposal]:
        """Ends every open proposal with the votes that there are. See `proposals.settle_open` for one's own turn."""
        return await self._settle("settle", proposals.settle_open)

    async def expire(self) -> list[Proposal]:
        """Ends every proposal whose time is up."""
        return await self._settle("expire", proposals.expire)

    async def perform(
        self, op: str, actor: Actor, arguments: Mapping[str, Any], do: Do, check: Check | None = None
    ) -> Mapping[str, Any]:
        """Makes an operation, once: in the log and in effect together. What it is refused with is raised.

        Where `check` raises, in the same transaction, there is no operation, and nothing of it in the log.
        """
        taken = await self._to_its_end(self._take(op, actor, arguments, do, check))
        return settled(taken.result)

    # In a transaction of somebody else's

    def turn(self, connection: Connection, actor: Actor) -> Turn:
        """A turn in a transaction that somebody else has begun; after its commit `follow` is to be called."""
        return begin(connection, self.id, actor, self.now())

    async def follow(self, turn: Turn) -> None:
        """What follows a turn that is committed: those concerned are told, decisions archived, files brought up."""
        self._announce(turn)
        await self._to_its_end(self._bring_up(turn))

    def wake(self, agents: frozenset[str]) -> None:
        """Tells that agents have mail again: after the commit of `inbox.deliver_again` or `inbox.release`."""
        if agents:
            self._ears.wake(self.id, agents)

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
        self._ears.happened(Happened(type="trouble", room=self.id, actor="system", at=self.now(), data=data))

    def now(self) -> str:
        return stamp(self._clock.now())

    async def _take(self, op: str, actor: Actor, arguments: Mapping[str, Any], do: Do, check: Check | None) -> Taken:
        at = self.now()

        def write(connection: Connection) -> Taken:
            if check is not None:
                check(connection)
            return take(connection, self.id, op, actor, at, arguments, do)

        taken = await self._store.write(write)
        if taken.turn is not None:
            self._announce(taken.turn)
            await self._bring_up(taken.turn)
        return taken

    def _announce(self, turn: Turn) -> None:
        if turn.wakes:
            self._ears.wake(self.id, frozenset(turn.wakes))
        for happened in turn.happened:
            self._ears.happened(happened)

    async def _bring_up(self, turn: Turn) -> None:
        if any(happened.type == "proposal" and happened.data.get("result") for happened in turn.happened):
            await self._archive()
        if turn.room.projection is not None and turn.happened:
            await self.project()

    async def _archive(self) -> None:
        try:
            await archive(self._store, self.id, self.documents)
        except GuildError as error:  # the proposal stays decided, and is archived when the room is opened again
            self.trouble(f"a decision could not be archived: {error}")

    async def _settle(
        self, op: str, do: Callable[[Turn], list[Proposal]], arguments: Mapping[str, Any] | None = None
    ) -> list[Proposal]:
        result = await self.perform(
            op, Actor.system(), arguments or {}, lambda turn: {"ended": [proposal.id for proposal in do(turn)]}
        )
        return [self._proposal(id) for id in result["ended"]]

    def _proposal(self, id: str) -> Proposal:
        return self._store.read(lambda connection: proposals.proposal_in(connection, self.id, id))

    async def _to_its_end(self, doing: Coroutine[Any, Any, T]) -> T:
        """Waits for something that goes on even if whoever waits is cancelled: what is committed is also told."""
        task = asyncio.ensure_future(doing)
        self._going.add(task)
        task.add_done_callback(self._going.discard)
        return await asyncio.shield(task)
