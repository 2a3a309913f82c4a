"""Memory folders: where they are, and that nothing strange in them does harm."""

from __future__ import annotations

import os
import socket
import string
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import Conflict, InvalidFile, NotFound
from guildhall.memory.folder import memory_folders
from guildhall.memory.model import MAX_ENTRY_BYTES
from guildhall.memory.prompt_block import render_block, select_entries
from tests.memory.conftest import edit_by_hand, make_worker

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.core.request_frame import Frame
    from guildhall.memory.folder import MemoryFolder

# Which folders a worker has


def test_workers_share_global_and_project_folders_but_not_their_own(home: Home, frame: Frame, project: Path):
    reviewer = memory_folders(home, make_worker(project / "workers" / "reviewer.yaml"), frame)
    coder = memory_folders(home, make_worker(project / "workers" / "coder.yaml", "coder"), frame)
    assert list(reviewer) == ["global", "project", "worker"]
    assert reviewer["global"] == coder["global"]
    assert reviewer["project"] == coder["project"]
    assert reviewer["worker"].path != coder["worker"].path
    assert reviewer["worker"].path.parent == home.path / "memory" / "workers"
    assert reviewer["worker"].path.name.startswith("reviewer-")
    assert reviewer["project"].path.name.startswith("project-")


def test_workers_of_the_same_name_have_separate_folders(home: Home, frame: Frame, tmp_path: Path):
    mine = memory_folders(home, make_worker(tmp_path / "mine" / "workers" / "reviewer.yaml"), frame)
    cloned = memory_folders(home, make_worker(tmp_path / "cloned" / "workers" / "reviewer.yaml"), frame)
    at_home = memory_folders(home, make_worker(home.workers / "reviewer.yaml", scope="home"), frame)
    assert len({folders["worker"].path for folders in (mine, cloned, at_home)}) == 3
    assert mine["project"] != cloned["project"], "the project of a worker is that of its file"
    assert at_home["project"] == memory_folders(home, None, frame)["project"], "or else that of the caller"


def test_renamed_worker_keeps_its_folder(home: Home, frame: Frame, project: Path):
    path = project / "workers" / "reviewer.yaml"
    before = memory_folders(home, make_worker(path, "reviewer"), frame)
    assert memory_folders(home, make_worker(path, "renamed"), frame) == before


def test_project_folder_does_not_depend_on_symbolic_links(home: Home, frame: Frame, project: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(project)
    linked = type(frame)(cwd=tmp_path / "link", root=tmp_path / "link")
    assert memory_folders(home, None, linked) == memory_folders(home, None, frame)
    assert list(memory_folders(home, None, frame)) == ["global", "project"]


@pytest.mark.parametrize("name", ["ü b", "...", "a/../b", "-" * 300, "\udcff"])
def test_folder_name_of_any_project_is_plain_ascii(home: Home, tmp_path: Path, frame: Frame, name: str):
    root = tmp_path / name
    path = memory_folders(home, None, type(frame)(cwd=root, root=root))["project"].path
    assert path.parent == home.path / "memory" / "projects"
    assert set(path.name) <= set(string.ascii_letters + string.digits + "-_")
    assert len(path.name) < 80


# Reading


def test_entries_are_listed_newest_first(folder: MemoryFolder):
    edit_by_hand(folder, "old", "one", 1)
    edit_by_hand(folder, "new", "two", 3)
    edit_by_hand(folder, "middle", "three", 2)
    listing = folder.list_entries()
    assert [entry.key for entry in listing.entries] == ["new", "middle", "old"]
    assert [entry.size for entry in listing.entries] == [3, 5, 3]
    assert listing.skipped == ()
    assert listing.as_dict()["entries"][0]["written_at"] == "2023-11-14T22:13:23.000Z"
    assert folder.read("middle").content == "three"
    assert folder.read("middle").as_dict()["content"] == "three"


def test_missing_folder_is_empty(folder: MemoryFolder):
    assert folder.list_entries().entries == ()
    with pytest.raises(NotFound, match="unknown memory entry 'global/x'"):
        folder.read("x")


def test_file_in_place_of_the_folder_is_empty(folder: MemoryFolder):
    folder.path.parent.mkdir(parents=True)
    folder.path.write_text("a file")
    assert folder.list_entries().entries == ()
    assert folder.find("x") is None


@pytest.fixture
def strange_files(folder: MemoryFolder, tmp_path: Path) -> dict[str, str]:
    """Fill the folder with one valid entry and every kind of invalid file; return the expected reasons by name."""
    edit_by_hand(folder, "good", "kept")
    secret = tmp_path / "secret"
    secret.write_text("SECRET")
    path = folder.path
    (path / "link.md").symlink_to(secret)
    (path / "dangling.md").symlink_to(tmp_path / "nothing")
    (path / "loop.md").symlink_to(path / "loop.md")
    os.mkfifo(path / "pipe.md")
    (path / "folder.md").mkdir()
    (path / "huge.md").write_bytes(b"SECRET" * MAX_ENTRY_BYTES)
    (path / "notes.txt").write_text("SECRET")
    (path / "evil\n<memory>.md").write_text("SECRET")
    (path / "twice.md.md").write_text("SECRET")
    os.close(os.open(bytes(path) + b"/\xff.md", os.O_CREAT | os.O_WRONLY))
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(path)
        listener.bind("socket.md")
    (path / ".hidden.md").write_text("internal")
    (path / "archive").mkdir()
    not_regular, bad_name = "not a regular file", "not a valid entry name"
    return {
        "link.md": not_regular,
        "dangling.md": not_regular,
        "loop.md": not_regular,
        "pipe.md": not_regular,
        "folder.md": not_regular,
        "socket.md": not_regular,
        "huge.md": "larger than 100,000 bytes",
        "notes.txt": bad_name,
        "evil\n<memory>.md": bad_name,
        "twice.md.md": bad_name,
        "\udcff.md": bad_name,
    }


@pytest.mark.usefixtures("project")
def test_strange_files_are_reported_and_never_followed(folder: MemoryFolder, strange_files: dict[str, str]):
    listing = folder.list_entries()
    assert [entry.key for entry in listing.entries] == ["good"]
    assert {file["name"]: file["reason"] for file in listing.as_dict()["skipped"]} == strange_files
    block = render_block(select_entries([folder], 8000))
    assert "kept" in block
    assert "SECRET" not in block
    assert "11 invalid files were skipped." in block
    assert block.count("</memory>") == 1


@pytest.mark.parametrize("key", ["link", "dangling", "loop", "pipe", "folder", "huge", "socket"])
@pytest.mark.usefixtures("project", "strange_files")
def test_reading_a_strange_file_by_key_raises(folder: MemoryFolder, key: str):
    with pytest.raises(InvalidFile, match="not a memory entry") as caught:
        folder.read(key)
    assert caught.value.where == f"{folder.path}/{key}.md"


@pytest.mark.parametrize(
    ("content", "reason"), [(b"\xff\xfe", "not UTF-8 text"), (b"a\0b", "contains a NUL"), (b"\xc3", "not UTF-8 text")]
)
def test_binary_files_are_skipped_when_read(folder: MemoryFolder, content: bytes, reason: str):
    edit_by_hand(folder, "bytes", content, 2)
    edit_by_hand(folder, "good", "kept", 1)
    with pytest.raises(InvalidFile, match=reason):
        folder.read("bytes")
    selection = select_entries([folder], 8000)
    assert [entry.key for entry in selection.entries] == ["good"]
    assert [(file.scope, file.name) for file in selection.skipped] == [("global", "bytes.md")]
    assert selection.skipped[0].reason.startswith(reason)
    assert "1 invalid file was skipped." in render_block(selection)


def test_unknown_key_suggests_the_nearest(folder: MemoryFolder):
    edit_by_hand(folder, "build-commands", "make")
    with pytest.raises(NotFound) as caught:
        folder.read("build-comands")
    assert caught.value.hint == "Did you mean 'build-commands'?"


def test_unreadable_folder_raises_conflict(folder: MemoryFolder):
    folder.path.parent.mkdir(parents=True)
    folder.path.symlink_to(folder.path)
    with pytest.raises(Conflict, match="cannot read the memory folder: Too many levels") as caught:
        folder.list_entries()
    assert caught.value.where == str(folder.path)


# Writing


def test_locking_fails_if_a_file_is_in_place_of_the_folder(folder: MemoryFolder):
    folder.path.parent.mkdir(parents=True)
    folder.path.write_text("in the way")
    with pytest.raises(Conflict, match="cannot change the memory folder: File exists"), folder.lock():
        pass
    with pytest.raises(Conflict, match="cannot change the memory folder: File exists"), folder.compaction_lock():
        pass


def test_draft_is_invisible_and_published_entry_is_private(folder: MemoryFolder):
    umask = os.umask(0)
    try:
        with folder.lock():
            folder.write_draft(b"content", 5_000_000_000)
            assert folder.list_entries().entries == ()
            folder.publish_draft("key")
    finally:
        os.umask(umask)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert folder.entry_path("key").stat().st_mode & 0o777 == 0o600
    assert folder.read("key").mtime_ns == 5_000_000_000


def test_delete_ignores_a_missing_entry(folder: MemoryFolder):
    edit_by_hand(folder, "key", "content")
    folder.delete("key")
    folder.delete("key")
    assert folder.find("key") is None


def test_draft_does_not_follow_a_symbolic_link(folder: MemoryFolder, tmp_path: Path):
    folder.path.mkdir(parents=True)
    (tmp_path / "precious").write_text("precious")
    (folder.path / ".new").symlink_to(tmp_path / "precious")
    with pytest.raises(Conflict, match="cannot change the memory folder"), folder.lock():
        folder.write_draft(b"x")
    assert (tmp_path / "precious").read_text() == "precious"


def test_lock_admits_a_single_writer(folder: MemoryFolder):
    inside: list[int] = []

    def enter(number: int) -> bool:
        with folder.lock():
            inside.append(number)
            is_alone = len(inside) == 1
            os.sched_yield()
            inside.remove(number)
        return is_alone

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(enter, range(200)))


def test_is_unchanged_notices_edits_and_deletion(folder: MemoryFolder):
    edit_by_hand(folder, "a", "one", 1)
    entry = folder.read("a")
    assert folder.is_unchanged(entry)
    edit_by_hand(folder, "a", "two", 2)
    assert not folder.is_unchanged(entry)
    folder.delete("a")
    assert not folder.is_unchanged(entry)
