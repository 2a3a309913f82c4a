"""The rooms of a hall: performs operations by name, announces them after their commit, and answers queries.

After a commit a room wakes agents with new mail, publishes events, archives decided proposals and exports files.
Opening a room repeats the steps that a crash has prevented.
Does not register operations (`operation.py`). A closed room is kept, and the next `open` creates another one.

Invariant: a committed operation is announced even if its caller is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import GuildError, NotFound, UsageError
from guildhall.core.ids import ROOM, new_id
from guildhall.core.text_checks import did_you_mean
from guildhall.room import ballots, channel, documents, inbox, records
from guildhall.room.channel_export import FileExport
from guildhall.room.document_stores import DatabaseDocumentStore, FileDocumentStore
from guildhall.room.documents import DocumentCall, Documents, archive_actor
from guildhall.room.model import (
    SYSTEM,
    Actor,
    Message,
    MessageText,
    PostResult,
    Proposal,
    RoomAgent,
    RoomEvent,
    RoomListener,
    RoomRecord,
    Vote,
    check_agent_name,
)
from guildhall.room.operation import REGISTERED, Operation, check_result, execute, recorded_result

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

    from guildhall.room.operation import Effect, ExtraEffect, OperationResult, Turn
    from guildhall.store.engine import Store

T = TypeVar("T")
_MODULES = frozenset(module.__name__ for module in (channel, documents, inbox, ballots))
OPERATIONS: Mapping[str, Operation] = {
    name: operation for name, operation in REGISTERED.items() if operation.function.__module__ in _MODULES
}


def find_operation(name: str) -> Operation:
    """Return an operation by its name. Raise NotFound for an unknown name."""
    if (operation := OPERATIONS.get(name)) is None:
        raise NotFound(f"unknown room operation {name[:80]!r}", hint=did_you_mean(name, OPERATIONS))
    return operation


def perform_in(
    connection: Connection, room: str, name: str, actor: Actor, at: str, /, **arguments: Any
) -> OperationResult:
    """Perform an operation in the caller's transaction. After the commit, pass the turn to `Room.announce`."""
    operation = find_operation(name)
    if operation.kind == "document":
        raise UsageError(f"cannot perform {name} inside a transaction: it accesses files")
    bound = operation.bind(arguments)
    return execute(connection, room, operation, actor, at, bound, partial(operation.function, **bound))


class Room:
    """One room of a hall. There is one object for each room."""

    def __init__(self, id: str, store: Store, clock: Clock, listener: RoomListener) -> None:
        self.id = id
        self._store = store
        self._clock = clock
        self._listener = listener
        self._documents_lock = asyncio.Lock()  # held by operations that change documents or permissions for them
        self._tasks: set[asyncio.Task[Any]] = set()
        self._documents: tuple[str, Documents] | None = None
        self._export: tuple[Path, FileExport] | None = None
        self._export_lock = asyncio.Lock()

    # Queries

    def read_record(self) -> RoomRecord:
        """Return the current row of the room. Raise NotFound if it does not exist."""
        found = self._store.read(lambda connection: records.find_room(connection, self.id))
        if found is None:
            raise NotFound(f"unknown room {self.id!r}")
        return found

    def list_agents(self) -> list[RoomAgent]:
        return self._store.read(lambda connection: records.list_agents(connection, self.id))

    def list_messages(self, *, since: int = 0, limit: int = 1_000, newest: bool = False) -> list[Message]:
        """Return messages after `since`, oldest first. `newest` selects the last `limit` messages, not the first."""
        return self._store.read(
            lambda connection: records.list_messages(connection, self.id, since=since, limit=limit, newest=newest)
        )

    def list_proposals(self) -> list[Proposal]:
        return self._store.read(lambda connection: records.list_proposals(connection, self.id))

    def list_votes(self, proposal: Proposal) -> list[Vote]:
        return self._store.read(lambda connection: records.list_votes(connection, self.id, proposal.number))

    def find_guard(self, tool: str) -> Proposal | None:
        """Return the proposal that keeps a tool closed, or None. The tool need not be a room tool."""
        return self._store.read(lambda connection: ballots.find_guard(connection, self.id, tool))

    @property
    def documents(self) -> Documents:
        record = self.read_record()
        if self._documents is None or self._documents[0] != record.documents:
            folder = record.documents_folder
            contents = FileDocumentStore(folder) if folder else DatabaseDocumentStore(self._store, self._clock, self.id)
            self._documents = (record.documents, Documents(self.id, contents, self._store, self._clock))
        return self._documents[1]

    def now(self) -> str:
        return stamp(self._clock.now())

    # Operations

    async def perform(
        self,
        name: str,
        actor: Actor,
        /,
        *,
        check: ExtraEffect | None = None,
        extra: ExtraEffect | None = None,
        **arguments: Any,
    ) -> Mapping[str, Any]:
        """Perform an operation once and return its result. Raise the error of a refused operation.

        If `check` raises, the operation is not performed and not logged. `extra` is a further effect in the same
        transaction.
        """
        operation = find_operation(name)
        bound = operation.bind(arguments)
        if operation.kind != "document":
            return await self._commit(operation, actor, bound, partial(operation.function, **bound), check, extra)
        async with self._documents_lock:
            recorded = self._store.read(lambda connection: recorded_result(connection, self.id, name, actor))
            if recorded is not None:
                return check_result(recorded)
            call = DocumentCall(**vars(self.documents), actor=actor, op=name)
            try:
                effect: Effect = await operation.function(call, **bound)
            except GuildError as error:
                effect = partial(_refuse, error)
            return await self._commit(operation, actor, bound, effect, check, extra)

    async def send(
        self, message: MessageText | str, actor: Actor, *, to: Sequence[str] = (), check: ExtraEffect | None = None
    ) -> PostResult:
        """Post a user message, the kickoff or a scheduled message. `to` addresses agents without a mention."""
        parts = (MessageText.own(message) if isinstance(message, str) else message).as_list()
        return PostResult.from_dict(await self.perform("send", actor, check=check, parts=parts, to=list(to)))

    async def elect_owner(self, actor: Actor, timeout_s: float | None = None) -> Proposal:
        """Open the election of the document owner, which ends after `timeout_s`. Return its proposal."""
        id = (await self.perform("open_owner_election", actor, timeout_s=timeout_s))["id"]
        return self._store.read(lambda connection: ballots.get_proposal(connection, self.id, id))

    async def announce(self, turn: Turn) -> None:
        """Announce a turn that the caller has committed, archive decisions, and export files."""
        self._publish(turn)
        await self._shield(self._follow_up(turn))

    async def recover(self) -> None:
        """Repeat the steps after a commit that a crash has prevented."""
        with suppress(GuildError):  # an operation on documents reports a folder that cannot be used
            async with self._documents_lock:
                await self.documents.contents.remove_partial_files()
        await self._archive()
        await self.export_files()

    async def export_files(self) -> None:
        """Update the files of `provider: file`, if the room has them."""
        folder = self.read_record().export_folder
        if folder is None:
            return
        async with self._export_lock:
            if self._export is None or self._export[0] != folder:
                self._export = (folder, FileExport(folder, self._store, self.id))
            try:
                await asyncio.to_thread(self._export[1].update)
            except (OSError, GuildError) as error:
                self.report_problem(f"cannot write the files of the room: {error}")

    def report_problem(self, message: str) -> None:
        """Publish a problem as an event. It is not logged."""
        data = {"message": message}
        self._listener.on_event(RoomEvent(type="trouble", room=self.id, actor=SYSTEM, at=self.now(), data=data))

    async def _commit(
        self,
        operation: Operation,
        actor: Actor,
        arguments: Mapping[str, Any],
        effect: Effect,
        check: ExtraEffect | None,
        extra: ExtraEffect | None,
    ) -> Mapping[str, Any]:
        """Commit the effect of an operation with its log entry, and announce it even if the caller is cancelled."""

        def write(at: str, connection: Connection) -> OperationResult:
            if check is not None:
                check(connection)
            return execute(connection, self.id, operation, actor, at, arguments, effect, extra)

        async def commit() -> OperationResult:
            async with self._documents_lock if operation.changes_access else nullcontext():
                performed = await self._store.write(partial(write, self.now()))
            if performed.turn is not None:
                self._publish(performed.turn)
                await self._follow_up(performed.turn)
            return performed

        return check_result((await self._shield(commit())).result)

    def _publish(self, turn: Turn) -> None:
        if turn.wakes:
            self._listener.wake(self.id, frozenset(turn.wakes))
        for event in turn.events:
            self._listener.on_event(event)

    async def _follow_up(self, turn: Turn) -> None:
        if any(event.type == "proposal" and event.data.get("result") for event in turn.events):
            await self._archive()
        if turn.room.export_folder is not None:
            await self.export_files()

    async def _archive(self) -> None:
        try:
            for proposal in self._store.read(lambda connection: records.unarchived_proposals(connection, self.id)):
                await self.perform("archive", archive_actor(self.id, proposal.id))
        except GuildError as error:  # the proposal stays decided, and is archived when the room is opened again
            self.report_problem(f"cannot archive a decision: {error}")

    async def _shield(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine that completes even if the caller is cancelled."""
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)


def _refuse(error: GuildError, _: Turn) -> NoReturn:
    raise error


@dataclass(frozen=True, kw_only=True)
class RoomSettings:
    """The settings of a room. `documents` is the folder of the documents, or None if the database has them."""

    documents: Path | None = None
    owner: str | None = None
    export_folder: Path | None = None
    max_hops: int | None = None
    max_repeats: int | None = None

    def open_arguments(self, agents: Sequence[str]) -> dict[str, Any]:
        """Return the arguments of `open` in the room's log."""
        given = {
            "owner_fixed": True if self.owner is not None else None,
            "projection": str(self.export_folder) if self.export_folder else None,
            "max_hops": self.max_hops,
            "max_repeats": self.max_repeats,
        }
        settings = {name: value for name, value in given.items() if value is not None}
        documents = f"file:{self.documents}" if self.documents else "sqlite"
        return {"seats": list(agents), "owner": self.owner, "documents": documents, "settings": settings}


class Rooms:
    """The rooms of one store."""

    def __init__(self, store: Store, clock: Clock, listener: RoomListener | None = None) -> None:
        self._store = store
        self._clock = clock
        self._listener = listener or RoomListener()
        self._rooms: dict[str, Room] = {}

    async def open(
        self, project: str, workflow: str, tag: str, agents: Sequence[str], settings: RoomSettings | None = None
    ) -> Room:
        """Return the room of a workflow and tag in a project, with these agents. Create it if it does not exist."""
        settings = settings or RoomSettings()
        for agent in agents:
            check_agent_name(agent)
        lowered = [agent.lower() for agent in agents]
        if duplicate := next((agent for agent in agents if lowered.count(agent.lower()) > 1), None):
            raise UsageError(f"duplicate agent name {duplicate!r}", hint="Rename one agent. Case does not count.")
        if settings.owner is not None and settings.owner not in agents:
            hint = did_you_mean(settings.owner, agents)
            raise NotFound(f"unknown document owner {settings.owner!r}", hint=hint)
        at = stamp(self._clock.now())
        arguments = settings.open_arguments(agents)

        def write(connection: Connection) -> str:
            current = records.current_room(connection, project, workflow, tag)
            id = new_id(ROOM) if current is None else current.id
            open_room(connection, id, (project, workflow, tag), at, arguments)
            records.add_log_entry(connection, id, "open", Actor.system(), at, arguments, {})
            return id

        room = self.room(await self._store.write(write))
        await room.recover()
        return room

    def room(self, id: str) -> Room:
        """Return a room by its id. The first use of an unknown room raises NotFound."""
        if id not in self._rooms:
            self._rooms[id] = Room(id, self._store, self._clock, self._listener)
        return self._rooms[id]

    def find(self, project: str, workflow: str, tag: str) -> Room | None:
        """Return the current room of a workflow and tag in a project, or None."""
        found = self._store.read(lambda connection: records.current_room(connection, project, workflow, tag))
        return self.room(found.id) if found else None

    async def close(self, id: str, *, documents: Path | None = None) -> None:
        """Close a room: the next `open` creates another one. `documents` is the folder that its documents moved to."""
        at = stamp(self._clock.now())
        moved = {"documents": f"file:{documents}"} if documents is not None else {}

        def write(connection: Connection) -> None:
            records.change_room(connection, id, closed_at=at, **moved)
            records.add_log_entry(connection, id, "close", Actor.person(), at, {}, {})

        await self._store.write(write)
        self._rooms.pop(id, None)


def open_room(
    connection: Connection, id: str, key: tuple[str, str, str], at: str, arguments: Mapping[str, Any]
) -> None:
    """Create a room, or change an existing one to these agents and settings. `key`: its project, workflow and tag."""
    values = {name: arguments[name] for name in ("documents", "owner", "settings")}
    found = records.find_room(connection, id)
    if found is None:
        names = dict(zip(("project", "workflow", "tag"), key, strict=True))
        records.add_room(connection, RoomRecord(id=id, **names, created_at=at, closed_at=None, roles={}, **values))
    else:
        # An elected owner stays while it is an agent and the workflow file names no owner.
        values["owner"] = values["owner"] or (found.owner if found.owner in arguments["seats"] else None)
        records.change_room(connection, id, **values)
    records.set_agents(connection, id, arguments["seats"], at)
