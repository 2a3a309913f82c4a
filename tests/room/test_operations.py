"""The table of operations: tools, users, the hall and a replay perform each operation by its name."""

from __future__ import annotations

import asyncio
import inspect
import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import GuildError, NotFound, UsageError
from guildhall.room import inbox, records
from guildhall.room.model import Actor
from guildhall.room.operation import REGISTERED
from guildhall.room.replay import RoomReplay
from guildhall.room.service import OPERATIONS, Room, Rooms, RoomSettings, perform_in
from guildhall.room.tools import TOOLS, room_tools
from guildhall.store.engine import scratch
from guildhall.tools.model import ToolCall
from tests.room.conftest import PERSON, TEAM
from tests.room.tool_calls import unread_mail
from tests.test_hostile import TEXTS, WRONG

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from guildhall.store.engine import Store

CODER = Actor(name="coder", run="r-1", key="m1/c1")
SYSTEM = Actor.system()
# With an owner, with a key of another room, after the proposal was cancelled.
REFUSED = {"open_owner_election", "archive"}
LIFECYCLE_ENTRIES = {"open", "close"}  # log entries that are not operations in a room
# For each operation: an actor, and valid arguments in the room of `prepare`.
GOOD: dict[str, tuple[Actor, dict[str, Any]]] = {
    "channel_send": (CODER, {"message": "@reviewer look"}),
    "channel_read": (CODER, {}),
    "inbox_read": (CODER, {}),
    "inbox_ack": (Actor(name="coder", run="r-shown", key="m1/c1"), {"until": 1}),
    "status_set": (CODER, {"task": "tests"}),
    "team_list": (CODER, {}),
    "document_read": (CODER, {"file": "plan.md"}),
    "document_write": (CODER, {"content": "new", "file": "new.md"}),
    "document_append": (CODER, {"content": "more", "file": "plan.md"}),
    "document_list": (CODER, {}),
    "document_create": (CODER, {"file": "other.md", "content": "x"}),
    "document_suggest": (Actor(name="reviewer", run="r-2", key="m1/c1"), {"suggestion": "shorter"}),
    "proposal_create": (CODER, {"type": "approval", "title": "ship it"}),
    "proposal_vote": (CODER, {"proposal": "p-1", "choice": "x"}),
    "proposal_status": (CODER, {}),
    "proposal_cancel": (PERSON, {"proposal": "p-1"}),
    "resource_create": (CODER, {"content": "long"}),
    "resource_read": (CODER, {"id": ""}),  # filled in by the test
    "no_action": (CODER, {}),
    "more_tools": (CODER, {}),
    "post_answer": (Actor(name="coder", run="r-shown", key="answer"), {"text": "done"}),
    "send": (PERSON, {"parts": [["@coder go", False]], "to": []}),
    "post_notice": (SYSTEM, {"text": "could not", "to": ["coder"], "hops": 1}),
    "open_owner_election": (SYSTEM, {"timeout_s": 60.0}),
    "end_proposals": (SYSTEM, {}),
    "expire_proposals": (SYSTEM, {}),
    "archive": (Actor.system("room", "archive/p-1"), {}),
    "inbox_shown": (
        Actor(name="reviewer", run="r-3", key="inbox"),
        {"left": 0, "messages": [1], "until": 1, "hops": 0},
    ),
    "acknowledge": (Actor(name="reviewer"), {"agent": "reviewer", "until": 1}),
    "mark_dead": (SYSTEM, {"agent": "coordinator", "until": 1}),
    "redeliver": (PERSON, {"agent": None}),
    "hold_messages": (SYSTEM, {"exempt": []}),
    "stop_holding": (SYSTEM, {}),
    "drop_held": (PERSON, {}),
    "release_messages": (PERSON, {}),
}


async def prepare(rooms: Rooms, owner: str | None = "coder") -> tuple[Room, str]:
    """Return a room with a message, a document, an open proposal and a resource."""
    room = await rooms.open("/project", "review", "main", TEAM, RoomSettings(owner=owner))
    await room.send("@all hello", PERSON)
    await room.perform("document_create", Actor(name="coder"), file="plan.md", content="first\n")
    await room.perform("proposal_create", Actor(name="coordinator"), type="decision", title="which", options=["x", "y"])
    kept = await room.perform("resource_create", Actor(name="coder"), content="kept")
    await room.perform("inbox_read", Actor(name="coder", run="r-shown", key="m0/c1"))
    return room, kept["id"]


def arguments_of(name: str, resource: str) -> tuple[Actor, dict[str, Any]]:
    actor, arguments = GOOD[name]
    return actor, {"id": resource} if name == "resource_read" else arguments


def test_every_registered_operation_is_in_the_table():
    assert OPERATIONS == REGISTERED
    assert OPERATIONS.keys() == GOOD.keys()  # the tests below must cover every operation


def test_the_tools_are_exactly_the_operations_with_capabilities():
    assert {name: one.capabilities for name, one in OPERATIONS.items() if one.capabilities is not None} == TOOLS
    assert [one.name for one in room_tools()] == list(TOOLS)


def test_no_operation_has_an_argument_that_perform_reserves():
    own = {name for name in inspect.signature(Room.perform).parameters if name != "arguments"}
    for operation in OPERATIONS.values():
        assert not own & {*list(inspect.signature(operation.function).parameters)[1:]}


@pytest.mark.parametrize("name", sorted(GOOD))
def test_an_operation_is_performed_and_logged_by_its_name(rooms: Rooms, store: Store, name: str):
    async def work() -> tuple[Room, Mapping[str, Any], Mapping[str, Any]]:
        room, resource = await prepare(rooms, owner=None if name == "open_owner_election" else "coder")
        actor, arguments = arguments_of(name, resource)
        if name in (
            "redeliver",
            "stop_holding",
            "drop_held",
            "release_messages",
        ):  # need held or dead messages
            await room.perform("mark_dead", SYSTEM, agent="coder", until=9)
            await room.perform("hold_messages", SYSTEM, exempt=[])
        return room, arguments, await room.perform(name, actor, **arguments)

    room, arguments, result = asyncio.run(work())
    last = store.read(lambda c: records.log_entries(c, room.id))[-1]
    assert (last.op, last.result) == (name, json.loads(json.dumps(result)))
    operation = OPERATIONS[name]
    assert last.arguments == operation.logged_arguments(operation.bind(arguments))


@pytest.mark.parametrize("name", sorted(name for name, (actor, _) in GOOD.items() if actor.key is not None))
def test_an_operation_with_a_key_has_one_effect(rooms: Rooms, store: Store, name: str):
    async def work() -> None:
        room, resource = await prepare(rooms)
        actor, arguments = arguments_of(name, resource)
        first = await room.perform(name, actor, **arguments)
        log = store.read(lambda c: records.log_entries(c, room.id))
        assert await room.perform(name, actor, **arguments) == json.loads(json.dumps(first))
        assert store.read(lambda c: records.log_entries(c, room.id)) == log

    asyncio.run(work())


@pytest.mark.req("X-1")
def test_a_replay_performs_every_operation_through_the_same_entry_point(
    rooms: Rooms, store: Store, monkeypatch: pytest.MonkeyPatch
):
    async def perform_all() -> Room:
        room, resource = await prepare(rooms)
        for name in GOOD:
            actor, arguments = arguments_of(name, resource)
            if name == "inbox_shown":
                arguments = {"left": 0, **inbox.describe_batch(unread_mail(room, actor.name))}
            try:
                await room.perform(name, _with_own_key(actor, name), **arguments)
            except GuildError:
                assert name in REFUSED
        return room

    room = asyncio.run(perform_all())
    log = store.read(lambda c: records.log_entries(c, room.id))
    performed: list[str] = []
    perform = Room.perform

    async def record_and_perform(self: Room, name: str, actor: Actor, /, **arguments: Any) -> Mapping[str, Any]:
        performed.append(name)
        return await perform(self, name, actor, **arguments)

    monkeypatch.setattr(Room, "perform", record_and_perform)

    async def replay(empty: Store) -> None:
        again = RoomReplay(room.id, store, empty)
        for entry in again.operations():
            is_tool_call = entry.op in TOOLS and entry.actor.run is not None
            call = (
                ToolCall(key=entry.actor.key or "", tool=entry.op, arguments=entry.arguments) if is_tool_call else None
            )
            repeated = await again.repeat(entry, call)
            assert (entry.op, repeated.arguments, repeated.result) == (entry.op, entry.arguments, entry.result)

    with scratch() as empty:
        asyncio.run(replay(empty))
    assert performed == [entry.op for entry in log if entry.op not in LIFECYCLE_ENTRIES]
    assert set(performed) >= GOOD.keys() - {"drop_held", "release_messages"}  # they had nothing to change


def _with_own_key(actor: Actor, name: str) -> Actor:
    """Return the actor with a key for this operation."""
    if actor.key is None or name in ("archive", "inbox_ack", "inbox_shown"):
        return actor
    return Actor(name=actor.name, run=actor.run, key=f"{actor.key}/{name}")


def hostile_arguments(name: str, good: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield {**good, "sender": "reviewer"}
    yield {**good, "turn": None}
    yield {**good, "x" * 100_000: 1}
    for parameter in good:
        yield {key: value for key, value in good.items() if key != parameter}
        if isinstance(good[parameter], str):
            yield from ({**good, parameter: text} for text in TEXTS)
            yield from ({**good, parameter: value} for value in WRONG if isinstance(value, str))


@pytest.mark.req("AW-19")
@pytest.mark.parametrize("name", sorted(GOOD))
def test_hostile_arguments_of_an_operation_raise_or_are_harmless(rooms: Rooms, store: Store, name: str):
    async def work() -> None:
        other = await rooms.open("/project", "review", "other", TEAM)
        before = store.read(lambda c: records.log_entries(c, other.id))
        room, resource = await prepare(rooms)
        actor, good = arguments_of(name, resource)
        for arguments in hostile_arguments(name, good):
            try:
                result = await room.perform(name, Actor(name=actor.name), **arguments)
            except GuildError as error:
                str(error).encode()
            else:
                json.dumps(result).encode()
        for entry in store.read(lambda c: records.log_entries(c, room.id)):
            json.dumps([entry.arguments, entry.result]).encode()
        assert store.read(lambda c: records.log_entries(c, other.id)) == before

    asyncio.run(work())


def test_an_unknown_operation_is_refused(rooms: Rooms, store: Store):
    room = asyncio.run(rooms.open("/project", "review", "main", TEAM))
    before = store.read(lambda c: records.log_entries(c, room.id))
    for name in ("channel_sent", "open", "close", "__class__", "", "x" * 10_000, "\ud800"):
        with pytest.raises(NotFound, match="unknown room operation"):
            asyncio.run(room.perform(name, PERSON))
    with pytest.raises(NotFound, match="Did you mean 'channel_send'"):
        asyncio.run(room.perform("channel_sent", PERSON))
    assert store.read(lambda c: records.log_entries(c, room.id)) == before


def test_a_document_operation_cannot_be_part_of_another_transaction(rooms: Rooms, store: Store):
    room = asyncio.run(rooms.open("/project", "review", "main", TEAM))
    with pytest.raises(UsageError, match="inside a transaction"):
        store.submit(lambda c: perform_in(c, room.id, "document_list", PERSON, room.now())).result(5)


def test_a_further_effect_is_refused_with_its_operation(rooms: Rooms, store: Store):
    room = asyncio.run(rooms.open("/project", "review", "main", TEAM))
    done: list[str] = []
    good = {"parts": [["@coder go", False]], "to": []}
    asyncio.run(room.perform("send", PERSON, extra=lambda _: done.append("first"), **good))
    wrong = {"parts": [["@nobody", False]], "to": []}
    with pytest.raises(NotFound):
        asyncio.run(room.perform("send", PERSON, extra=lambda _: done.append("second"), **wrong))
    assert done == ["first"]

    def fail(_: object) -> None:
        raise UsageError("not now")

    with pytest.raises(UsageError, match="not now"):
        asyncio.run(room.perform("send", PERSON, extra=fail, **good))
    assert len(room.list_messages()) == 1  # the refused operation left only its log entry
    assert store.read(lambda c: records.log_entries(c, room.id))[-1].result["error"]["message"] == "not now"


def test_an_operation_whose_check_fails_is_not_logged(rooms: Rooms, store: Store):
    room = asyncio.run(rooms.open("/project", "review", "main", TEAM))
    before = store.read(lambda c: records.log_entries(c, room.id))

    def check(_: object) -> None:
        raise UsageError("it is over")

    with pytest.raises(UsageError, match="it is over"):
        asyncio.run(room.perform("send", PERSON, check=check, parts=[["hi", False]], to=[]))
    assert store.read(lambda c: records.log_entries(c, room.id)) == before
