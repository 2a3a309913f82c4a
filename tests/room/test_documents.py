"""Documents: stored inside of their folder, written only by the owner, and changed once by each call."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import Refused
from guildhall.room import document_records, records
from guildhall.room.model import content_hash
from guildhall.room.service import Rooms, RoomSettings
from tests.room.conftest import PERSON, TEAM, RecordingListener, agent
from tests.room.tool_calls import ToolCaller, unread_mail

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.room.service import Room
    from guildhall.store.engine import Store


@pytest.fixture(params=["file", "sqlite"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def folder(project: Path) -> Path:
    return project / ".workflow" / "review" / "main" / "documents"


@pytest.fixture
def room(rooms: Rooms, kind: str, folder: Path) -> Room:
    return open_room(rooms, folder if kind == "file" else None)


def open_room(rooms: Rooms, folder: Path | None, *agents: str, **settings: Any) -> Room:
    return asyncio.run(
        rooms.open("/project", "review", "main", agents or TEAM, RoomSettings(documents=folder, **settings))
    )


@pytest.mark.req("AW-8", "AW-19")
def test_documents_are_created_read_written_appended_to_and_listed(
    room: Room, listener: RecordingListener, kind: str, folder: Path
):
    coder = ToolCaller(room, "coder")
    assert coder("document_list") == "No documents."
    assert coder("document_create", file="plan/week-1.md", content="one\n").startswith(
        "Created plan/week-1.md (4 bytes)"
    )
    assert coder("document_append", file="plan/week-1.md", content="two")
    assert coder("document_append", content="a note")
    assert coder("document_append", content="another\n")
    assert coder("document_write", file="ünder/größe.md", content="ä")
    text = coder("document_read", file="./plan/week-1.md")
    assert text == f"[plan/week-1.md, base {content_hash('one' + chr(10) + 'two')}]\none\ntwo"
    assert coder("document_read").endswith("]\na note\nanother\n")
    assert coder("document_list") == "notes.md  15 bytes\nplan/week-1.md  7 bytes\nünder/größe.md  2 bytes"
    assert [event.data["path"] for event in listener.events] == [
        "plan/week-1.md",
        "plan/week-1.md",
        "notes.md",
        "notes.md",
        "ünder/größe.md",
    ]
    if kind == "file":
        assert (folder / "plan" / "week-1.md").read_text() == "one\ntwo"
    else:
        assert not folder.exists()


@pytest.mark.req("AW-8")
def test_a_write_is_refused_if_its_base_is_outdated(room: Room):
    coder, reviewer = ToolCaller(room, "coder"), ToolCaller(room, "reviewer")
    coder("document_write", content="one\ntwo\n")
    base = reviewer("document_read").partition("base ")[2].partition("]")[0]
    coder("document_write", content="one\nthree\n")
    message = reviewer.call_refused("document_write", content="mine", base=base)
    assert "has changed since you read it" in message
    assert "-two\n+three" in message
    assert "-two\n+three" in reviewer.call_refused(
        "document_write", content="mine"
    )  # the last read content is the base
    assert "of notes.md" in reviewer.call_refused("document_write", content="mine", base="0" * 32)
    now = message.partition("Its current base is ")[2][:32]
    reviewer("document_write", content="one\nthree\nmine\n", base=now)
    assert coder.call_refused("document_write", content="x").count("+mine") == 1
    assert "document other.md no longer exists" in coder.call_refused(
        "document_write", file="other.md", content="x", base="1" * 32
    )


def test_an_agent_that_has_not_read_a_document_may_replace_it(room: Room):
    ToolCaller(room, "coder")("document_write", content="one")
    ToolCaller(room, "reviewer")("document_write", content="two")
    assert ToolCaller(room, "coordinator")("document_read").endswith("two")


def test_an_edit_by_hand_is_never_overwritten_unread(rooms: Rooms, folder: Path):
    room = open_room(rooms, folder)
    coder = ToolCaller(room, "coder")
    folder.mkdir(parents=True)
    (folder / "plan.md").write_text("by hand")
    assert "was not written in this room" in coder.call_refused("document_write", file="plan.md", content="x")
    coder("document_write", content="one\n")
    (folder / "notes.md").write_text("one\nby hand\n")
    assert "+by hand" in coder.call_refused("document_write", content="two\n")
    assert "+by hand" in ToolCaller(room, "reviewer").call_refused("document_write", content="two\n")
    assert (folder / "notes.md").read_text() == "one\nby hand\n"
    coder("document_read")
    coder("document_write", content="two\n")
    (folder / "notes.md").unlink()
    assert "unknown document notes.md" in coder.call_refused("document_read")


def test_an_existing_document_is_not_created_and_an_unknown_one_is_not_read(room: Room):
    coder = ToolCaller(room, "coder")
    coder("document_create", file="a.md", content="")
    assert "already" in coder.call_refused("document_create", file="a.md", content="x")
    assert "Did you mean 'a.md'?" in coder.call_refused("document_read", file="b.md")


@pytest.mark.req("AW-9")
def test_only_the_owner_writes_and_others_suggest(rooms: Rooms, listener: RecordingListener):
    room = open_room(rooms, None, owner="coordinator")
    owner, coder = ToolCaller(room, "coordinator"), ToolCaller(room, "coder")
    for name in ("document_write", "document_append", "document_create"):
        message = coder.call_refused(name, file="a.md", content="x")
        assert "only the document owner coordinator can change documents" in message
        assert "document_suggest" in message
    assert (
        coder("document_suggest", suggestion="add a line @all", file="a.md") == "Suggested to coordinator as message 1."
    )
    assert listener.woken_agents == [{"coordinator"}]
    (mail,) = unread_mail(room, "coordinator")
    assert (mail.message.kind, mail.message.content) == ("suggestion", "Suggestion for a.md:\nadd a line @all")
    owner("document_write", file="a.md", content="x")
    assert "Use document_write" in owner.call_refused("document_suggest", suggestion="x")
    asyncio.run(room.perform("document_write", PERSON, file="a.md", content="by a person"))
    assert coder("document_read", file="a.md").endswith("by a person")


def test_a_suggestion_is_refused_if_there_is_no_owner(room: Room):
    assert "no owner" in ToolCaller(room, "coder").call_refused("document_suggest", suggestion="x")


@pytest.mark.parametrize(
    "path",
    [
        " ",
        "/etc/passwd",
        "../x",
        "a/../../x",
        "a/./b",
        "a//b",
        "a/",
        ".hidden",
        "a/.git/config",
        "..",
        ".",
        "a\0b",
        "half\ud800",
        "a\nb",
        "x" * 201,
        "é" * 150,
        "a/" * 200 + "b",
        "x/" * 20 + "y",
        "C:\\x",
        "a\\b",
        "\u202ex",
        "a /b",
        "decisions.md",
    ],
)
def test_invalid_document_paths_are_refused(room: Room, folder: Path, path: str):
    before = sorted(folder.parents[3].rglob("*"))
    for name in ("document_write", "document_append", "document_create"):
        ToolCaller(room, "coder").call_refused(name, file=path, content="x")
    assert sorted(folder.parents[3].rglob("*")) == before


@pytest.mark.parametrize("content", ["a\0b", "half \ud800", "x" * 1_000_001, "é" * 500_001])
def test_invalid_document_contents_are_refused(room: Room, content: str):
    ToolCaller(room, "coder").call_refused("document_write", content=content)
    ToolCaller(room, "coder").call_refused("document_append", content=content)
    assert ToolCaller(room, "coder")("document_list") == "No documents."


def test_a_document_has_a_maximum_size(room: Room):
    coder = ToolCaller(room, "coder")
    coder("document_write", content="x" * 900_000)
    assert "1,000,000" in coder.call_refused("document_append", content="y" * 200_000)


def test_links_pipes_and_folders_are_neither_read_nor_written(rooms: Rooms, folder: Path, tmp_path: Path):
    room = open_room(rooms, folder)
    coder = ToolCaller(room, "coder")
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key.md").write_text("secret")
    folder.mkdir(parents=True)
    (folder / "out").symlink_to(secret)
    (folder / "key.md").symlink_to(secret / "key.md")
    (folder / "sub").mkdir()
    os.mkfifo(folder / "pipe.md")
    (folder / "bytes.md").write_bytes(b"\xff\xfe")
    (folder / "nul.md").write_bytes(b"a\0b")
    (folder / "large.md").write_bytes(b"x" * 1_000_001)
    for path in ("out/key.md", "key.md", "pipe.md", "bytes.md", "nul.md", "large.md", "sub", "out/new.md"):
        assert "secret" not in coder.call_refused("document_read", file=path).replace(path, "")
        coder.call_refused("document_append", file=path, content="x")
    assert (secret / "key.md").read_text() == "secret"
    assert sorted(path.name for path in secret.iterdir()) == ["key.md"]
    assert "key.md" not in coder("document_list")


def test_a_folder_of_the_room_that_is_a_link_is_refused(rooms: Rooms, project: Path, tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (project / ".workflow").symlink_to(elsewhere)
    room = open_room(rooms, project / ".workflow" / "review" / "main" / "documents")
    assert "is a symbolic link" in ToolCaller(room, "coder").call_refused("document_write", content="x")
    assert list(elsewhere.iterdir()) == []


def test_a_folder_that_cannot_be_created_fails_the_write(rooms: Rooms, project: Path):
    (project / ".workflow").write_text("in the way")
    room = open_room(rooms, project / ".workflow" / "review" / "main" / "documents")
    ToolCaller(room, "coder").call_refused("document_write", content="x")
    assert ToolCaller(room, "coder")("document_list") == "No documents."


def test_no_append_of_parallel_agents_is_lost(room: Room):
    async def append_in_parallel() -> None:
        callers = [ToolCaller(room, name) for name in TEAM]
        calls = [
            caller.call_async("document_append", content=f"{caller.agent} {n}") for n in range(20) for caller in callers
        ]
        assert not any(result.is_error for result in await asyncio.gather(*calls))

    asyncio.run(append_in_parallel())
    lines = ToolCaller(room, "coder")("document_read").splitlines()[1:]
    assert sorted(lines) == sorted(f"{name} {n}" for n in range(20) for name in TEAM)


@pytest.mark.parametrize("name", ["document_append", "document_write", "document_create"])
def test_a_repeated_call_changes_nothing(room: Room, name: str):
    coder = ToolCaller(room, "coder")
    first = coder(name, "m1/c1", file="a.md", content="x")
    assert coder(name, "m1/c1", file="a.md", content="x") == first
    assert coder("document_read", file="a.md").endswith("]\nx")


@pytest.mark.parametrize("is_written", [True, False])
def test_an_interrupted_append_is_made_once(room: Room, store: Store, is_written: bool):
    """Crash after the change is recorded as intended, and before it is recorded as done."""
    ToolCaller(room, "reviewer")("document_write", content="one\n")
    call = agent("coder", "r-coder", "x/c")
    values = {
        "before": content_hash("one\n"),
        "digest": content_hash("one\ntwo"),
        "content": "one\ntwo",
        "status": "intended",
    }
    store.submit(lambda c: document_records.add_entry(c, room.id, "notes.md", "append", call, "now", **values)).result(
        5
    )
    if is_written:
        asyncio.run(room.documents.contents.write("notes.md", "one\ntwo"))
    ToolCaller(room, "coder")("document_append", "x/c", content="two")
    assert ToolCaller(room, "coder")("document_read").endswith("]\none\ntwo")


def test_an_interrupted_append_before_an_edit_by_hand_is_reported_as_unknown(rooms: Rooms, store: Store, folder: Path):
    room = open_room(rooms, folder)
    call = agent("coder", "r-coder", "x/c")
    values = {"before": None, "digest": content_hash("two"), "content": "two", "status": "intended"}
    store.submit(lambda c: document_records.add_entry(c, room.id, "notes.md", "append", call, "now", **values)).result(
        5
    )
    folder.mkdir(parents=True)
    (folder / "notes.md").write_text("by hand")
    coder = ToolCaller(room, "coder")
    assert "edited by hand since" in coder.call("document_append", "x/c", content="two").text
    coder("document_append", content="two")
    assert (folder / "notes.md").read_text() == "by hand\ntwo"


def test_every_operation_is_logged(room: Room, store: Store):
    coder = ToolCaller(room, "coder")
    coder("document_write", content="x")
    coder("document_read")
    coder.call_refused("document_read", file="none.md")
    coder("document_list")
    log = store.read(lambda c: records.log_entries(c, room.id))
    assert [one.op for one in log] == ["open", "document_write", "document_read", "document_read", "document_list"]
    assert [one.actor.name for one in log[1:]] == ["coder"] * 4
    assert log[3].result["error"]["code"] == "not_found"


def test_agents_cannot_write_the_decisions_of_the_room(room: Room):
    with pytest.raises(Refused, match="only the room writes"):
        asyncio.run(room.perform("document_write", agent("coder"), file="decisions.md", content="x"))


def test_no_proposal_is_logged_between_the_check_of_a_change_and_the_change(room: Room, store: Store):
    guard = {"type": "approval", "title": "May we?", "guards": ["notes.md"]}

    async def append_and_propose() -> None:
        await asyncio.gather(
            room.perform("document_append", agent("coder"), content="more"),
            room.perform("proposal_create", agent("reviewer"), **guard),
        )
        with pytest.raises(Refused):
            await room.perform("document_append", agent("coder"), content="more")

    asyncio.run(append_and_propose())
    log = store.read(lambda connection: records.log_entries(connection, room.id))
    changes = [(one.op, "error" in one.result) for one in log if one.op != "open"]
    assert changes == [("document_append", False), ("proposal_create", False), ("document_append", True)]
