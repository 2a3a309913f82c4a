"""Replay of a room: its log, applied to an empty room, makes the same room, and an altered log is detected."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.room import inbox, records
from guildhall.room.model import Actor, MessageText, TextPart
from guildhall.room.replay import RoomReplay
from guildhall.room.service import Rooms, RoomSettings
from guildhall.room.tools import TOOLS
from guildhall.store.engine import scratch
from guildhall.tools.model import ToolCall
from tests.room.conftest import PERSON, TEAM
from tests.room.tool_calls import ToolCaller, end_proposals, perform, unread_mail, vote

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from guildhall.room.service import Room
    from guildhall.store.engine import Store


async def first_difference(source: Store, room: str, empty: Store) -> tuple[Any, Any] | None:
    """Repeat every operation of a room in an empty room, and return the first different one with its repetition."""
    again = RoomReplay(room, source, empty)
    for then in again.operations():
        is_tool_call = then.op in TOOLS and then.actor.run is not None
        call = ToolCall(key=then.actor.key or "", tool=then.op, arguments=then.arguments) if is_tool_call else None
        made = await again.repeat(then, call)
        if made.result != then.result:
            return then, made
    return None


@pytest.fixture
def empty() -> Generator[Store]:
    with scratch() as store:
        yield store


@pytest.fixture
def folder(project: Path) -> Path:
    return project / ".workflow" / "review" / "main"


def fill_room(rooms: Rooms, store: Store, folder: Path) -> Room:
    """Return a room in which several agents used every operation, some of them refused."""
    settings = RoomSettings(documents=folder / "documents", export_folder=folder, max_hops=2)
    room = asyncio.run(rooms.open("/project", "review", "main", TEAM, settings))
    coordinator, reviewer, coder = (ToolCaller(room, name) for name in TEAM)
    election = asyncio.run(room.elect_owner(Actor.system("w-1", "elect"), 60))
    asyncio.run(vote(room, election.id, "coder", Actor(name="reviewer")))
    asyncio.run(end_proposals(room, "end_proposals"))
    text = MessageText((TextPart("Diff:\n"), TextPart("+@coder", is_quoted=True), TextPart("\n@reviewer look")))
    asyncio.run(room.send(text, Actor.system("w-1", "kickoff")))
    batch = unread_mail(room, "reviewer")
    first = Actor(name="reviewer", run="r-reviewer", key="inbox")
    perform(store, room, "inbox_shown", first, left=0, **inbox.describe_batch(batch))
    reviewer("channel_send", message="@coder one, @codr")
    reviewer.call_refused("channel_send", message="@codr")
    reviewer.call_refused("document_write", content="not mine")
    reviewer("document_suggest", suggestion="but this")
    coder("inbox_read")
    coder("document_write", content="first\n")
    (folder / "documents" / "notes.md").write_text("first\nby hand\n")
    coder.call_refused("document_write", content="second\n")
    coder("document_read")
    coder("document_append", content="third\n")
    (folder / "documents" / "notes.md").write_text("by hand again\n")
    coder("document_append", content="fourth\n")
    coder("document_list")
    coder("proposal_create", type="decision", title="q", options=["x", "y"], tie_break="random")
    for caller, choice in ((coordinator, "x"), (coder, "y")):
        caller("proposal_vote", proposal="p-2", choice=choice)
    perform(store, room, "end_proposals", Actor.system("w-1"))
    asyncio.run(room.recover())
    coder("document_read", file="decisions.md")
    coder("channel_send", message="@reviewer two " + "x" * 5_000)
    coder("channel_send", message="@all three")
    coder("status_set", task="t")
    coordinator("team_list")
    coordinator("channel_read")
    coder("resource_create", content="kept")
    coder("inbox_ack", until=unread_mail(room, "coder")[0].message.id)
    until = store.read(lambda c: records.shown_inbox(c, room.id, "r-reviewer")).last_message_number
    perform(store, room, "acknowledge", Actor(name="reviewer", run="r-reviewer"), agent="reviewer", until=until)
    batch = unread_mail(room, "coordinator")
    first = Actor(name="coordinator", run="r-x", key="inbox")
    perform(store, room, "inbox_shown", first, left=0, **inbox.describe_batch(batch))
    until = batch[-1].message.id
    perform(store, room, "mark_dead", Actor.system("r-x"), agent="coordinator", until=until)
    perform(store, room, "post_notice", Actor.system("r-x"), text="could not", to=["coder"], hops=1)
    perform(store, room, "redeliver", PERSON, agent="coordinator")
    perform(store, room, "release_messages", PERSON)
    asyncio.run(room.send("again", PERSON, to=["all"]))
    return asyncio.run(rooms.open("/project", "review", "main", (*TEAM, "late"), settings))


@pytest.mark.req("X-1")
def test_a_room_is_replayed_from_its_log(rooms: Rooms, store: Store, empty: Store, folder: Path):
    room = fill_room(rooms, store, folder)
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert asyncio.run(first_difference(store, room.id, empty)) is None
    again = Rooms(empty, rooms._clock).find("/project", "review", "main")
    assert again is not None
    assert again.list_messages() == room.list_messages()
    assert again.list_proposals() == room.list_proposals()
    assert [unread_mail(again, name) for name in TEAM] == [unread_mail(room, name) for name in TEAM]
    assert again.list_agents() == room.list_agents()
    assert (again.read_record().owner, again.read_record().roles) == (
        room.read_record().owner,
        room.read_record().roles,
    )
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE room_log SET result = json_set(result, '$.text', 'other') WHERE op = 'team_list'",
        "UPDATE room_log SET arguments = json_set(arguments, '$.message', '@all') WHERE op = 'channel_send'",
        "UPDATE room_log SET actor = 'coordinator' WHERE op = 'document_suggest'",
        "DELETE FROM room_log WHERE op = 'send'",
    ],
)
@pytest.mark.req("X-1")
def test_an_altered_log_is_detected(rooms: Rooms, store: Store, empty: Store, folder: Path, change: str):
    room = fill_room(rooms, store, folder)
    before = store.read(lambda c: records.log_entries(c, room.id))
    store.submit(lambda c: c.exec_driver_sql(change) and None).result(5)
    assert store.read(lambda c: records.log_entries(c, room.id)) != before
    assert asyncio.run(first_difference(store, room.id, empty)) is not None
