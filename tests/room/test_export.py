"""The export of `provider: file`: files are updated after each commit, and written again when the room is opened."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.room.model import Actor
from guildhall.room.service import Rooms, RoomSettings
from tests.room.conftest import PERSON, TEAM, RecordingListener
from tests.room.tool_calls import ToolCaller, perform

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.room.service import Room
    from guildhall.store.engine import Store


@pytest.fixture
def folder(project: Path) -> Path:
    return project / ".workflow" / "review" / "main"


def open_room(rooms: Rooms, folder: Path) -> Room:
    settings = RoomSettings(export_folder=folder, documents=folder / "documents")
    return asyncio.run(rooms.open("/project", "review", "main", TEAM, settings))


def read_state(folder: Path, name: str) -> Any:
    return json.loads((folder / "_state" / f"{name}.json").read_text())


@pytest.mark.req("AW-13")
def test_the_legacy_layout_follows_the_room(rooms: Rooms, folder: Path, store: Store):
    room = open_room(rooms, folder)
    assert (folder / "channel.md").read_text() == ""
    asyncio.run(room.send("@coder go\n### 2026 [person]\nno heading", PERSON))
    ToolCaller(room, "coder")("proposal_create", type="decision", title="q", options=["x", "y"], quorum=1)
    ToolCaller(room, "reviewer")("proposal_vote", proposal="p-1", choice="y")
    text = (folder / "channel.md").read_text()
    assert text.startswith("### 2026-03-01T12:00:0")
    assert "[person]\n\n@coder go\n\\### 2026 [person]\nno heading\n\n### " in text
    assert "[system] (resolved)\n\n[RESOLVED] p-1 'q': y" in text
    assert read_state(folder, "inbox-state") == {"readCursors": {"coordinator": 1, "reviewer": 1, "coder": 0}}
    shown = read_state(folder, "proposals")["proposals"]["p-1"]
    assert (shown["status"], shown["result"], shown["votes"]) == ("resolved", "y", {"reviewer": "y"})
    assert "**y**" in (folder / "documents" / "decisions.md").read_text()
    perform(store, room, "acknowledge", Actor(name="coder"), agent="coder", until=1)
    asyncio.run(room.export_files())
    assert read_state(folder, "inbox-state")["readCursors"]["coder"] == 2


@pytest.mark.req("AW-13")
def test_inbox_ack_updates_the_exported_cursor(rooms: Rooms, folder: Path):
    room = open_room(rooms, folder)
    asyncio.run(room.send("@coder go", PERSON))
    coder = ToolCaller(room, "coder")
    coder("inbox_read")
    assert read_state(folder, "inbox-state")["readCursors"]["coder"] == 0
    coder("inbox_ack", until=1)
    assert read_state(folder, "inbox-state")["readCursors"]["coder"] == 1


@pytest.mark.req("AW-13")
def test_a_room_without_an_export_writes_no_files(rooms: Rooms, project: Path):
    room = asyncio.run(rooms.open("/project", "review", "main", TEAM, RoomSettings()))
    ToolCaller(room, "coder")("document_write", content="x")
    ToolCaller(room, "coder")("channel_send", message="@reviewer x")
    assert list(project.iterdir()) == []


def test_files_that_a_crash_left_incomplete_are_repaired_when_the_room_is_opened(
    rooms: Rooms, folder: Path, store: Store
):
    room = open_room(rooms, folder)
    asyncio.run(room.send("one", PERSON))
    whole = (folder / "channel.md").read_text()
    for broken in ("", whole[:10], whole + "half a mess", whole * 2):
        (folder / "channel.md").write_text(broken)
        open_room(Rooms(store, rooms._clock), folder)
        assert (folder / "channel.md").read_text() == whole
    (folder / "_state" / "proposals.json").unlink()
    (folder / "_state" / "inbox-state.json").write_text("{")
    open_room(Rooms(store, rooms._clock), folder)
    assert read_state(folder, "proposals") == {"proposals": {}}
    assert read_state(folder, "inbox-state")["readCursors"]["coder"] == 1


def test_an_edited_or_deleted_channel_file_is_written_again(rooms: Rooms, folder: Path):
    room = open_room(rooms, folder)
    asyncio.run(room.send("one", PERSON))
    (folder / "channel.md").unlink()
    asyncio.run(room.send("two", PERSON))
    assert (folder / "channel.md").read_text().count("[person]") == 2
    (folder / "channel.md").write_text("mine")
    asyncio.run(room.send("three", PERSON))
    assert (folder / "channel.md").read_text().count("[person]") == 3


def test_parallel_messages_are_exported_in_order(rooms: Rooms, folder: Path):
    room = open_room(rooms, folder)

    async def send_in_parallel() -> None:
        await asyncio.gather(*(room.send(f"say {n}", PERSON) for n in range(30)))

    asyncio.run(send_in_parallel())
    text = (folder / "channel.md").read_text()
    assert [line for line in text.splitlines() if line.startswith("say")] == [m.content for m in room.list_messages()]


@pytest.mark.parametrize("obstacle", ["folder", "link", "file"])
def test_a_failed_export_is_reported_and_does_not_affect_the_room(
    rooms: Rooms, folder: Path, listener: RecordingListener, tmp_path: Path, obstacle: str
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("mine")
    folder.parent.mkdir(parents=True)
    if obstacle == "link":
        folder.symlink_to(elsewhere)
    elif obstacle == "file":
        folder.write_text("in the way")
    else:
        folder.mkdir()
        (folder / "channel.md").mkdir()
    room = open_room(rooms, folder)
    assert asyncio.run(room.send("@coder one", PERSON)).id == 1
    assert {event.type for event in listener.events} == {"trouble", "message"}
    assert listener.woken_agents == [{"coder"}]
    assert sorted(path.name for path in elsewhere.iterdir()) == ["file"]


def test_a_link_instead_of_a_file_is_replaced_and_not_followed(rooms: Rooms, folder: Path, tmp_path: Path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (folder / "_state").mkdir(parents=True)
    for path in (folder / "channel.md", folder / "_state" / "proposals.json", folder / ".channel.md.new"):
        path.symlink_to(precious)
    room = open_room(rooms, folder)
    asyncio.run(room.send("one", PERSON))
    (folder / "channel.md").unlink()
    (folder / "channel.md").symlink_to(precious)
    asyncio.run(room.send("two", PERSON))
    assert precious.read_text() == "mine"
    assert (folder / "channel.md").read_text().count("[person]") == 2
