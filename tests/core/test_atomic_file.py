"""Atomic files: replaced as a whole, with the right mode, and never through a link."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from guildhall.core.atomic_file import replace_file, replace_user_file
from guildhall.core.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """Path in an empty folder, with a umask between the strictest and none."""
    umask = os.umask(0o027)
    yield tmp_path / "notes.txt"
    os.umask(umask)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def names(file: Path) -> list[str]:
    return sorted(path.name for path in file.parent.iterdir())


@pytest.mark.parametrize("single_writer", [False, True])
@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_created_and_replaced_and_no_draft_is_left(file: Path, single_writer: bool, durable: bool):
    for data in (b"long " * 1000, b"short", b""):
        replace_file(file, data, single_writer=single_writer, durable=durable)
        assert file.read_bytes() == data
    assert names(file) == ["notes.txt"]
    assert mode(file) == 0o600


def test_content_can_be_an_iterator_of_chunks(file: Path):
    replace_file(file, (piece for piece in (b"a", b"", b"b")))
    assert file.read_bytes() == b"ab"


def test_the_mode_is_limited_by_the_umask_unless_it_is_exact(file: Path):
    replace_file(file, b"x", mode=0o666)
    assert mode(file) == 0o640
    replace_file(file, b"x", mode=0o666, exact_mode=True)
    assert mode(file) == 0o666


def test_the_mode_of_the_replaced_file_is_ignored(file: Path):
    file.write_text("x")
    file.chmod(0o777)
    replace_file(file, b"y")
    assert mode(file) == 0o600


def test_a_reader_of_the_old_file_keeps_it(file: Path):
    file.write_text("old")
    with file.open() as opened:
        replace_file(file, b"new")
        assert opened.read() == "old"


@pytest.mark.parametrize("single_writer", [False, True])
def test_links_are_replaced_and_not_followed(file: Path, tmp_path: Path, single_writer: bool):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    file.symlink_to(precious)
    (tmp_path / ".notes.txt.new").symlink_to(precious)
    replace_file(file, b"x", single_writer=single_writer)
    assert (file.is_symlink(), file.read_bytes(), precious.read_text()) == (False, b"x", "mine")


def test_the_draft_of_a_killed_process_is_overwritten_by_a_single_writer(file: Path):
    draft = file.with_name(".notes.txt.new")
    draft.write_bytes(b"half of a long text")
    draft.chmod(0o666)
    replace_file(file, b"x", single_writer=True)
    assert (file.read_bytes(), mode(file), names(file)) == (b"x", 0o600, ["notes.txt"])


@pytest.mark.parametrize("single_writer", [False, True])
def test_a_failed_write_leaves_the_old_file_and_no_draft(file: Path, single_writer: bool):
    def pieces() -> Iterator[bytes]:
        yield b"half"
        raise KeyboardInterrupt

    file.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        replace_file(file, pieces(), single_writer=single_writer)
    assert (file.read_text(), names(file)) == ("old", ["notes.txt"])


def test_a_path_that_cannot_be_replaced_raises_an_os_error(file: Path):
    file.mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(file, b"x")
    assert names(file) == ["notes.txt"]
    with pytest.raises(FileNotFoundError):
        replace_file(file.with_name("missing") / "x", b"x")


def test_a_durable_write_syncs_the_file_and_then_the_folder(file: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink().name))
    replace_file(file, b"x")
    assert synced == []
    replace_file(file, b"x", durable=True, single_writer=True)
    assert synced == [".notes.txt.new", file.parent.name]


# Files of the user


def test_a_file_of_the_user_keeps_its_mode_and_its_link(file: Path, tmp_path: Path):
    file.write_text("old")
    file.chmod(0o664)
    link = tmp_path / "link"
    link.symlink_to(file)
    replace_user_file(link, "new")
    assert (link.is_symlink(), file.read_text(), mode(file)) == (True, "new", 0o664)


def test_a_new_file_of_the_user_and_its_folders_are_created(file: Path):
    new = file.parent / "a" / "b" / "new.yaml"
    replace_user_file(new, "ä")
    assert (new.read_bytes(), mode(new)) == ("ä".encode(), 0o644)


def test_a_file_of_the_user_that_cannot_be_written_is_a_conflict(file: Path):
    file.mkdir()
    with pytest.raises(Conflict, match="cannot write the file: Is a directory") as caught:
        replace_user_file(file, "x")
    assert caught.value.where == str(file)
