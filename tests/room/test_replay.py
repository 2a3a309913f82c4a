"""The log of a room, applied in order to an empty one, makes the same room; what would come out otherwise is found."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import NotFound
from guildhall.room import inbox, proposals
from guildhall.room.channel import notice
from guildhall.room.model import Actor, Piece, Said
from guildhall.room.replay import replay
from guildhall.room.rooms import Furnishing, Rooms
from guildhall.store.engine import Store
from tests.room.conftest import PERSON, TEAM
from tests.room.desks import At

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from guildhall.room.room import Room


@pytest.fixture
def scratch(tmp_path: Path, prepared: bytes) -> Generator[Store]:
    (tmp_path / "scratch.db").write_bytes(prepared)
    opened = Store(tmp_path / "scratch.db")
    yield opened
    opened.close()


@pytest.fixture
def folder(project: Path) -> Path:
    return project / ".workflow" / "review" / "main"


def busy(rooms: Rooms, store: Store, folder: Path) -> Room:
    """A room in which something of everything was done, by several, some of it refused."""
    how = Furnishing(documents=folder / "documents", projection=folder, max_hops=2)
    room = asyncio.run(rooms.open("review", "main", TEAM, how))
    coordinator, reviewer, coder = (At(room, name) for name in TEAM)
    election = asyncio.run(room.elect_owner(within=60))
    asyncio.run(room.vote(election.id, "coder", Actor(name="reviewer")))
    asyncio.run(room.settle_open())
    said = Said((Piece("Diff:\n"), Piece("+@coder", quoted=True), Piece("\n@reviewer look")))
    asyncio.run(room.send(said, Actor.system("w-1", "kickoff")))
    batch = room.unread("reviewer")
    store.submit(lambda c: inbox.shown(c, room.id, "reviewer", "r-reviewer", batch, room.now())).result(5)
    reviewer("channel_send", message="@coder one, @codr")
    reviewer.refused("channel_send", message="@codr")
    reviewer.refused("document_write", content="not mine")
    reviewer("document_suggest", suggestion="but this")
    coder("inbox_read")
    coder("document_write", content="first\n")
    (folder / "documents" / "notes.md").write_text("first\nby hand\n")
    coder.refused("document_write", content="second\n")
    coder("document_read")
    coder("document_append", content="third\n")
    (folder / "documents" / "notes.md").write_text("by hand again\n")
    coder("document_append", content="fourth\n")
    coder("document_list")
    coder("proposal_create", type="decision", title="q", options=["x", "y"], tie_break="random")
    for desk, choice in ((coordinator, "x"), (coder, "y")):
        desk("proposal_vote", proposal="p-2", choice=choice)
    store.submit(lambda c: proposals.settle_open(room.turn(c, Actor.system("w-1")))).result(5)
    asyncio.run(room.mend())
    coder("document_read", file="decisions.md")
    coder("channel_send", message="@reviewer two " + "x" * 5_000)
    coder("channel_send", message="@all three")
    coder("status_set", task="t")
    coordinator("team_list")
    coordinator("channel_read")
    coder("resource_create", content="kept")
    coder("inbox_ack", until=room.unread("coder")[0].message.id)
    store.submit(lambda c: inbox.acknowledge(c, room.id, "reviewer", 2, at=room.now(), run="r-reviewer")).result(5)
    store.submit(lambda c: inbox.bury(c, room.id, "coordinator", 99, at=room.now(), run="r-x")).result(5)
    store.submit(lambda c: notice(room.turn(c, Actor.system("r-x")), "could not", to=["coder"], hops=1)).result(5)
    store.submit(lambda c: inbox.deliver_again(c, room.id, "coordinator", at=room.now())).result(5)
    store.submit(lambda c: inbox.release(c, room.id, at=room.now())).result(5)
    asyncio.run(room.send("again", PERSON, to=["all"]))
    return asyncio.run(rooms.open("review", "main", (*TEAM, "late"), how))


@pytest.mark.req("X-1")
def test_a_room_is_played_again_from_its_log(rooms: Rooms, store: Store, scratch: Store, folder: Path):
    room = busy(rooms, store, folder)
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert asyncio.run(replay(store, room.id, scratch)) is None
    again = Rooms(scratch, rooms._clock).find("replay", room.id)
    assert again is not None
    assert again.messages() == room.messages()
    assert again.proposals() == room.proposals()
    assert [again.unread(name) for name in TEAM] == [room.unread(name) for name in TEAM]
    assert again.seats() == room.seats()
    assert (again.record().owner, again.record().roles) == (room.record().owner, room.record().roles)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files


@pytest.mark.parametrize(
    ("change", "op"),
    [
        ("UPDATE room_log SET result = json_set(result, '$.text', 'other') WHERE op = 'team_list'", "team_list"),
        ("UPDATE room_log SET arguments = json_set(arguments, '$.message', '@all') WHERE key = :k", "channel_send"),
        ("UPDATE room_log SET actor = 'coordinator' WHERE op = 'status_set'", "coordinator"),
    ],
)
@pytest.mark.req("X-1")
def test_the_first_difference_is_told(rooms: Rooms, store: Store, scratch: Store, folder: Path, change: str, op: str):
    room = busy(rooms, store, folder)
    key = "SELECT key FROM room_log WHERE op = 'channel_send' LIMIT 1"

    def tamper(connection: Any) -> None:
        connection.exec_driver_sql(change.replace(":k", f"({key})"))

    store.submit(tamper).result(5)
    difference = asyncio.run(replay(store, room.id, scratch))
    assert difference is not None
    assert op in (difference.op, difference.actor) or difference.op == "team_list"
    assert difference.recorded != difference.replayed


def test_there_is_nothing_to_play_of_a_room_that_is_not_there(store: Store, scratch: Store):
    with pytest.raises(NotFound):
        asyncio.run(replay(store, "m-2222222222", scratch))
