"""The service of rooms: the messages, documents and proposals of workflows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.errors import NotFound
from guildhall.hall.client.interface import Rooms
from guildhall.hall.client.model import Document, Voted
from guildhall.workflow import looking, records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guildhall.hall.composition.hall import Hall
    from guildhall.room.document_stores import Listed as DocumentListed
    from guildhall.room.model import Message
    from guildhall.room.room import Room
    from guildhall.store.engine import Store
    from guildhall.workflow.instance import Instance, Sent
    from guildhall.workflow.target import Target


class RoomService(Rooms):
    def __init__(self, hall: Hall) -> None:
        self._hall = hall

    async def messages(self, run: str, *, since: int = 0) -> Sequence[Message]:
        store, instance = find_instance(self._hall, run)
        return store.read(lambda connection: looking.said(connection, instance, since=since))

    async def send(self, target: Target, text: str) -> Sent:
        return await self._hall.workflow_databases.of_team(target).workflows.steering.send(text, target)

    async def documents(self, target: Target) -> Sequence[DocumentListed]:
        return await self._room(target).documents.listing()

    async def read_document(self, target: Target, *, file: str | None = None) -> Document:
        path, content, digest = await self._room(target).documents.look(file)
        return Document(path=path, content=content, digest=digest)

    async def write_document(
        self, target: Target, content: str, *, file: str | None = None, base: str | None = None
    ) -> Document:
        from guildhall.room.model import Actor

        room = self._room(target)
        base = base or await room.documents.digest(file)
        await room.perform("document_write", Actor.person(), file=file, content=content, base=base)
        return await self.read_document(target, file=file)

    async def append_document(self, target: Target, content: str, *, file: str | None = None) -> Document:
        from guildhall.room.model import Actor

        await self._room(target).perform("document_append", Actor.person(), file=file, content=content)
        return await self.read_document(target, file=file)

    async def proposals(self, target: Target) -> Sequence[Voted]:
        room = self._room(target)
        return [Voted(proposal=one, votes=room.votes(one)) for one in room.proposals()]

    def _room(self, target: Target) -> Room:
        part = self._hall.workflow_databases.of_team(target)
        instance = part.store.read(lambda connection: looking.named(connection, target))
        return part.rooms.room(instance.room)


def find_instance(hall: Hall, run: str) -> tuple[Store, Instance]:
    """Return the workflow that a run belongs to, and its database. Raise NotFound if it belongs to none."""
    part = hall.where(run)
    root = part.history.get(run).root
    found = part.store.read(lambda connection: records.find(connection, root))
    if found is None:
        raise NotFound(f"the run {run} belongs to no workflow", hint=f"See guild show {run}.")
    return part.store, found
