"""Read, Write and Edit tools, called as a run calls them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guildhall.sandbox.view import Folder, View
from guildhall.tools.builtin.files import file_tools, media_type
from guildhall.tools.definition import invoke
from guildhall.tools.model import Blob, ToolResult

if TYPE_CHECKING:
    from pathlib import Path

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20


def view_of(root: Path, **rules: Any) -> View:
    return View(cwd=root, folders=(Folder(path=root, is_writable=True, **rules),))


def call(view: View, name: str, **arguments: Any) -> ToolResult:
    made = {each.name: each for each in file_tools(view)}[name]
    return asyncio.run(invoke(made, arguments))


def expect_text(view: View, name: str, **arguments: Any) -> str:
    """Call a tool and return its text. Fail if the result is an error."""
    result = call(view, name, **arguments)
    assert not result.is_error, result.text
    return result.text


def expect_error(view: View, name: str, **arguments: Any) -> str:
    """Call a tool and return the text of its error. Fail if the call succeeds."""
    result = call(view, name, **arguments)
    assert result.is_error, result.text
    return result.text


@pytest.mark.req("WKR-6")
def test_tools_declare_names_capabilities_and_schemas(tmp_path: Path) -> None:
    read, write, edit = file_tools(view_of(tmp_path))
    assert [t.name for t in (read, write, edit)] == ["Read", "Write", "Edit"]
    assert [t.repeatable for t in (read, write, edit)] == [True, True, False]
    assert [t.capabilities for t in (read, write, edit)] == [{"fs.read"}, {"fs.write"}, {"fs.write"}]
    assert {t.runs_in for t in (read, write, edit)} == {"host"}
    assert read.input_schema["required"] == ["file_path"]
    assert edit.input_schema["required"] == ["file_path", "old_string", "new_string"]
    for each in (read, write, edit):
        assert each.description
        assert all(shape["description"] for shape in each.input_schema["properties"].values())


def test_text_is_read_without_line_numbers(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes("\ufeffone\r\ntwo\n\nf\x0cour\n".encode())
    view = view_of(tmp_path)
    assert expect_text(view, "Read", file_path="x.txt") == "one\ntwo\n\nf\x0cour"
    shown = expect_text(view, "Read", file_path=str(tmp_path / "x.txt"), offset=2, limit=1)
    assert shown == "two\n[lines 2 to 2 of 4; continue with offset=3]"
    assert expect_text(view, "Read", file_path="x.txt", offset=9) == "[the file has 4 lines; line 9 is beyond its end]"
    assert "offset:" in expect_error(view, "Read", file_path="x.txt", offset=0)
    assert "limit:" in expect_error(view, "Read", file_path="x.txt", limit=-1)
    assert "limit: expected a whole number" in expect_error(view, "Read", file_path="x.txt", limit="all")


def test_empty_long_and_non_utf_8_text_is_readable(tmp_path: Path) -> None:
    view = view_of(tmp_path)
    (tmp_path / "empty").write_text("")
    (tmp_path / "many").write_text("line\n" * 5000)
    (tmp_path / "wide").write_text("x" * 5000 + "\nend")
    (tmp_path / "big").write_text(("y" * 1900 + "\n") * 100)
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    assert expect_text(view, "Read", file_path="empty") == "[the file is empty]"
    assert expect_text(view, "Read", file_path="many", limit=9000).endswith(
        "[lines 1 to 2,000 of 5,000; continue with offset=2001]"
    )
    assert "x" * 2000 + " [line cut: it has 5,000 characters]\nend" in expect_text(view, "Read", file_path="wide")
    assert expect_text(view, "Read", file_path="big").endswith("[lines 1 to 52 of 100; continue with offset=53]")
    assert expect_text(view, "Read", file_path="latin") == "caf\ufffd"


@pytest.mark.parametrize(
    ("data", "arguments", "file_before"),
    [
        (b"one\ntwo\n", {}, "shown"),
        (b"one\ntwo\n", {"limit": 2}, "shown"),
        (b"one\ntwo\n", {"limit": 1}, None),
        (b"one\ntwo\n", {"offset": 2}, None),
        (b"x" * 5000, {}, None),
        (b"line\n" * 5000, {}, None),
        (b"one\r\n", {}, None),
        (b"caf\xe9\n", {}, None),
        (b"", {}, None),
        (PNG, {}, None),
    ],
)
def test_a_read_result_records_that_it_shows_the_whole_file(
    tmp_path: Path, data: bytes, arguments: dict[str, int], file_before: str | None
) -> None:
    (tmp_path / "x").write_bytes(data)
    assert call(view_of(tmp_path), "Read", file_path="x", **arguments).file_before == file_before


def test_a_write_result_records_that_the_file_was_absent(tmp_path: Path) -> None:
    view = view_of(tmp_path)
    created, replaced = (call(view, "Write", file_path="x", content="one") for _ in range(2))
    assert (created.file_before, replaced.file_before) == ("absent", None)
    assert ToolResult.from_dict(created.as_dict()) == created
    assert "file_before" not in replaced.as_dict()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBP", "image/webp"),
        (b"%PDF-1.7", "application/pdf"),
        (b"RIFF\0\0\0\0WAVE", None),
        (b"text", None),
    ],
)
def test_media_types_are_detected_by_content(data: bytes, kind: str | None) -> None:
    assert media_type(data) == kind


def test_images_are_returned_whole_and_other_binaries_are_refused(tmp_path: Path) -> None:
    (tmp_path / "i.png").write_bytes(PNG)
    (tmp_path / "b.bin").write_bytes(b"\0\1\2")
    (tmp_path / "huge.pdf").write_bytes(b"%PDF-" + b"x" * 5_000_000)
    view = view_of(tmp_path)
    assert call(view, "Read", file_path="i.png") == ToolResult(content=(Blob(PNG, "image/png"),))
    assert "is a binary file\nOnly text, images and PDFs" in expect_error(view, "Read", file_path="b.bin")
    assert "too large: 5,000,005 bytes" in expect_error(view, "Read", file_path="huge.pdf")
    view = view_of(tmp_path, attachment_suffixes=(".pdf",), text_suffixes=(".md",))
    assert "only files ending in .pdf" in expect_error(view, "Read", file_path="i.png")
    (tmp_path / "x.txt").write_text("x")
    assert "permits text only in files ending in .md" in expect_error(view, "Read", file_path="x.txt")


def test_read_errors_name_the_reason(tmp_path: Path) -> None:
    view = view_of(tmp_path)
    (tmp_path / "notes.md").write_text("x")
    assert "Did you mean 'notes.md'?" in expect_error(view, "Read", file_path="note.md")
    assert "/etc/passwd: outside the folders of this run" in expect_error(view, "Read", file_path="/etc/passwd")
    assert "NUL" in expect_error(view, "Read", file_path="a\0")
    assert expect_error(view, "Read", file_path="\ud800")


def test_write_creates_folders_and_replaces_files(tmp_path: Path) -> None:
    view = view_of(tmp_path)
    assert expect_text(view, "Write", file_path="a/b.txt", content="häm") == "Created a/b.txt (4 bytes)."
    assert expect_text(view, "Write", file_path="a/b.txt", content="") == "Replaced a/b.txt (0 bytes)."
    assert (tmp_path / "a" / "b.txt").read_bytes() == b""
    assert "character 2 is a lone surrogate" in expect_error(view, "Write", file_path="c", content="x\ud800")
    assert not (tmp_path / "c").exists()
    closed = View(cwd=tmp_path, folders=(Folder(path=tmp_path),))
    assert "is read-only" in expect_error(closed, "Write", file_path="c", content="x")
    assert "This run has no writable folder." in expect_error(closed, "Write", file_path="c", content="x")


def test_edit_replaces_only_unambiguous_text(tmp_path: Path) -> None:
    view = view_of(tmp_path)
    file = tmp_path / "x.py"
    file.write_text("a = 1\nb = 1\n")
    assert (
        expect_text(view, "Edit", file_path="x.py", old_string="a = 1", new_string="a = 2")
        == "Replaced 1 occurrence in x.py."
    )
    assert "occurs 2 times in x.py\nInclude more" in expect_error(
        view, "Edit", file_path="x.py", old_string=" = ", new_string="="
    )
    shown = expect_text(view, "Edit", file_path="x.py", old_string=" = ", new_string="=", replace_all=True)
    assert shown == "Replaced 2 occurrences in x.py."
    assert file.read_text() == "a=2\nb=1\n"
    assert "does not occur" in expect_error(view, "Edit", file_path="x.py", old_string="c", new_string="d")
    assert "old_string is empty" in expect_error(view, "Edit", file_path="x.py", old_string="", new_string="d")
    assert "are equal" in expect_error(view, "Edit", file_path="x.py", old_string="a", new_string="a")
    assert "y.py does not exist" in expect_error(view, "Edit", file_path="y.py", old_string="a", new_string="b")
    assert "lone surrogate" in expect_error(view, "Edit", file_path="x.py", old_string="a", new_string="\ud800")
    file.write_bytes(b"\xff")
    assert "not UTF-8" in expect_error(view, "Edit", file_path="x.py", old_string="a", new_string="b")


def test_edit_keeps_the_line_endings_of_the_file(tmp_path: Path) -> None:
    view = view_of(tmp_path)
    file = tmp_path / "w.txt"
    file.write_bytes(b"one\r\ntwo\r\nthree\r\n")
    expect_text(view, "Edit", file_path="w.txt", old_string="one\ntwo", new_string="1\n2\r\n2b")
    assert file.read_bytes() == b"1\r\n2\r\n2b\r\nthree\r\n"


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(max_size=200).filter(lambda text: "\0" not in text),
    old=st.text(min_size=1, max_size=3),
    new=st.text(max_size=3),
)
def test_written_text_can_be_edited(tmp_path_factory: pytest.TempPathFactory, text: str, old: str, new: str) -> None:
    root = tmp_path_factory.mktemp("edit")
    view = view_of(root)
    expect_text(view, "Write", file_path="f", content=text)
    assert (root / "f").read_bytes().decode() == text
    result = call(view, "Edit", file_path="f", old_string=old, new_string=new, replace_all=True)
    after = (root / "f").read_bytes().decode()
    if result.is_error:
        assert after == text
    elif "\r\n" not in text:
        assert after == text.replace(old, new)
