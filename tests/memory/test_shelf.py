"""A folder that anyone may put anything into: entries are found, all else is told and left alone."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import Conflict, InvalidFile, NotFound
from guildhall.memory.inject import render, select
from guildhall.memory.model import MAX_BYTES
from guildhall.memory.shelf import Shelf
from tests.memory.conftest import put

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.memory.model import Place


def test_entries_are_plain_files_newest_first(place: Place):
    put(place, "old", "one", 1)
    put(place, "new", "two", 3)
    put(place, "middle", "three", 2)
    listing = Shelf(place).list()
    assert [entry.key for entry in listing.entries] == ["new", "middle", "old"]
    assert [entry.size for entry in listing.entries] == [3, 5, 3]
    assert listing.skipped == ()
    assert listing.as_dict()["entries"][0]["written_at"] == "2023-11-14T22:13:23.000Z"
    assert Shelf(place).read("middle").content == "three"
    assert Shelf(place).read("middle").as_dict()["content"] == "three"


def test_a_folder_that_is_not_there_is_empty(place: Place):
    assert Shelf(place).list().entries == ()
    with pytest.raises(NotFound, match="no entry 'x' in the global memory"):
        Shelf(place).read("x")
    place.folder.parent.mkdir(parents=True)
    place.folder.write_text("a file in its place")
    assert Shelf(place).list().entries == ()
    assert Shelf(place).find("x") is None


@pytest.fixture
def strange(place: Place, tmp_path: Path) -> dict[str, str]:
    """Every strange thing that can lie there, by name, with what is said of it."""
    put(place, "good", "kept")
    secret = tmp_path / "secret"
    secret.write_text("SECRET")
    folder = place.folder
    (folder / "link.md").symlink_to(secret)
    (folder / "dangling.md").symlink_to(tmp_path / "nothing")
    (folder / "loop.md").symlink_to(folder / "loop.md")
    os.mkfifo(folder / "pipe.md")
    (folder / "folder.md").mkdir()
    (folder / "huge.md").write_bytes(b"SECRET" * MAX_BYTES)
    (folder / "notes.txt").write_text("SECRET")
    (folder / "evil\n<memory>.md").write_text("SECRET")
    (folder / "twice.md.md").write_text("SECRET")
    os.close(os.open(bytes(folder) + b"/\xff.md", os.O_CREAT | os.O_WRONLY))
    with socket.socket(socket.AF_UNIX) as listening:
        os.chdir(folder)
        listening.bind("socket.md")
    (folder / ".hidden.md").write_text("ours")
    (folder / "archive").mkdir()
    regular, name = "it is not a regular file", "its name is not that of an entry"
    return {
        "link.md": regular,
        "dangling.md": regular,
        "loop.md": regular,
        "pipe.md": regular,
        "folder.md": regular,
        "socket.md": regular,
        "huge.md": "it is larger than 100,000 bytes",
        "notes.txt": name,
        "evil\n<memory>.md": name,
        "twice.md.md": name,
        "\udcff.md": name,
    }


@pytest.mark.usefixtures("project")
def test_what_is_no_entry_is_told_and_never_followed(place: Place, strange: dict[str, str]):
    listing = Shelf(place).list()
    assert [entry.key for entry in listing.entries] == ["good"]
    assert {skipped["name"]: skipped["reason"] for skipped in listing.as_dict()["skipped"]} == strange
    block = render(select([place], 8000))
    assert "kept" in block
    assert "SECRET" not in block
    assert "11 files are no readable entry and not shown." in block
    assert block.count("</memory>") == 1


@pytest.mark.parametrize("key", ["link", "dangling", "loop", "pipe", "folder", "huge", "socket"])
@pytest.mark.usefixtures("project", "strange")
def test_asked_for_by_name_it_is_an_error_with_the_reason(place: Place, key: str):
    with pytest.raises(InvalidFile, match="this is no memory entry") as caught:
        Shelf(place).read(key)
    assert caught.value.where == f"{place.folder}/{key}.md"


@pytest.mark.parametrize(
    ("content", "reason"), [(b"\xff\xfe", "it is not UTF-8 text"), (b"a\0b", "it is not text"), (b"\xc3", "UTF-8")]
)
def test_bytes_that_are_no_text_are_told_when_they_are_read(place: Place, content: bytes, reason: str):
    put(place, "bytes", content, 2)
    put(place, "good", "kept", 1)
    with pytest.raises(InvalidFile, match=reason):
        Shelf(place).read("bytes")
    selection = select([place], 8000)
    assert [entry.key for entry in selection.entries] == ["good"]
    assert [(skipped.name, skipped.scope) for skipped in selection.skipped] == [("bytes.md", "global")]
    assert "1 file is no readable entry" in render(selection)


def test_a_missing_key_is_answered_with_the_nearest(place: Place):
    put(place, "build-commands", "make")
    with pytest.raises(NotFound) as caught:
        Shelf(place).read("build-comands")
    assert caught.value.hint == "Did you mean 'build-commands'?"


def test_a_folder_that_cannot_be_looked_at_is_told(place: Place):
    place.folder.parent.mkdir(parents=True)
    place.folder.symlink_to(place.folder)
    with pytest.raises(Conflict, match="cannot be read: Too many levels") as caught:
        Shelf(place).list()
    assert caught.value.where == str(place.folder)


def test_a_place_that_is_taken_by_a_file_is_told_when_written(place: Place):
    place.folder.parent.mkdir(parents=True)
    place.folder.write_text("in the way")
    with pytest.raises(Conflict, match="cannot be changed: File exists"), Shelf(place).locked():
        pass
    with pytest.raises(Conflict, match="cannot be changed: File exists"), Shelf(place).compacting():
        pass


def test_what_is_written_is_private_and_whole(place: Place):
    shelf = Shelf(place)
    umask = os.umask(0)
    try:
        with shelf.locked():
            shelf.draft(b"content", 5_000_000_000)
            assert shelf.list().entries == ()
            shelf.publish("key")
    finally:
        os.umask(umask)
    assert place.folder.stat().st_mode & 0o777 == 0o700
    assert shelf.path("key").stat().st_mode & 0o777 == 0o600
    assert shelf.read("key").modified == 5_000_000_000
    shelf.take("key")
    shelf.take("key")
    assert shelf.find("key") is None


def test_a_draft_never_follows_a_link(place: Place, tmp_path: Path):
    place.folder.mkdir(parents=True)
    (tmp_path / "precious").write_text("precious")
    (place.folder / ".new").symlink_to(tmp_path / "precious")
    with pytest.raises(Conflict, match="cannot be changed"), Shelf(place).locked():
        Shelf(place).draft(b"x")
    assert (tmp_path / "precious").read_text() == "precious"


def test_the_lock_lets_one_in_at_a_time(place: Place):
    inside: list[int] = []

    def enter(number: int) -> bool:
        with Shelf(place).locked():
            inside.append(number)
            alone = len(inside) == 1
            os.sched_yield()
            inside.remove(number)
        return alone

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(enter, range(200)))


def test_a_replaced_or_edited_file_is_noticed(place: Place):
    shelf = Shelf(place)
    put(place, "a", "one", 1)
    read = shelf.read("a")
    assert shelf.unchanged(read)
    put(place, "a", "two", 2)
    assert not shelf.unchanged(read)
    shelf.take("a")
    assert not shelf.unchanged(read)
