"""Calls of agents in a room, and operations that a workflow performs there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

from guildhall.room import inbox, records
from guildhall.room.model import Actor
from guildhall.room.service import perform_in
from guildhall.room.tools import RoomTools, room_tools
from guildhall.tools.definition import argument_problem
from guildhall.tools.model import ToolCall, ToolResult

if TYPE_CHECKING:
    from guildhall.room.model import Mail, Proposal
    from guildhall.room.operation import OperationResult
    from guildhall.room.service import Room
    from guildhall.store.engine import Store

_KEYS = count(1)  # every call has its own key, unless the test sets one


def perform(store: Store, room: Room, name: str, actor: Actor, **arguments: Any) -> OperationResult:
    """Perform an operation as a workflow does, in its own transaction."""
    return store.submit(lambda c: perform_in(c, room.id, name, actor, room.now(), **arguments)).result(5)


def unread_mail(room: Room, agent: str) -> list[Mail]:
    """Return the mail that the agent would be shown."""
    return room.documents.store.read(lambda connection: inbox.unread_batch(connection, room.id, agent))


def count_unread(room: Room) -> dict[str, int]:
    """Return the number of unread messages of each agent that has some."""
    return room.documents.store.read(lambda connection: records.count_unread(connection, room.id))


async def vote(room: Room, proposal: str, choice: str, actor: Actor) -> Proposal:
    """Vote, and return the proposal afterwards."""
    id = (await room.perform("proposal_vote", actor, proposal=proposal, choice=choice))["id"]
    return next(one for one in room.list_proposals() if one.id == id)


async def end_proposals(room: Room, operation: Literal["end_proposals", "expire_proposals"]) -> list[Proposal]:
    """End open proposals, and return them."""
    ended = (await room.perform(operation, Actor.system()))["ended"]
    return [one for one in room.list_proposals() if one.id in ended]


@dataclass
class ToolCaller:
    """An agent that calls tools: `ToolCaller(room, "coder")("channel_send", message="...")` returns the text."""

    room: Room
    agent: str
    run: str = ""

    def call(self, name: str, /, key: str | None = None, **arguments: Any) -> ToolResult:
        return asyncio.run(self.call_async(name, key, **arguments))

    async def call_async(self, name: str, /, key: str | None = None, **arguments: Any) -> ToolResult:
        (tool,) = room_tools((name,))
        if problem := argument_problem(tool, arguments):  # the gate checks this before a call gets here
            return ToolResult.error(problem)
        run = self.run or f"r-{self.agent}"
        call = ToolCall(key=key or f"m{next(_KEYS)}/c", tool=name, arguments=arguments)
        return await RoomTools(self.room, self.agent, run).call(tool, call)

    def __call__(self, name: str, /, key: str | None = None, **arguments: Any) -> str:
        result = self.call(name, key, **arguments)
        assert not result.is_error, result.text
        return result.text

    def call_refused(self, name: str, /, **arguments: Any) -> str:
        result = self.call(name, **arguments)
        assert result.is_error, result.text
        return result.text
