"""Sandbox tools: sandbox_list, sandbox_read_text and sandbox_write_text."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guildhall.sandbox.view import Folder, View
from guildhall.tools.builtin.files import file_tools, sandbox_tools
from guildhall.tools.builtin.search import search_tools
from guildhall.tools.definition import invoke

if TYPE_CHECKING:
    from guildhall.tools.model import ToolResult

CANARY = "CANARY"


def make_view(base: Path) -> View:
    for name in ("input", "output", "outside"):
        (base / name).mkdir()
    (base / "outside" / "secret.md").write_text(CANARY)
    (base / "input" / "deck.pdf").write_bytes(b"%PDF-1.7\0")
    (base / "input" / "notes.md").write_text("\ufeffnotes")
    (base / "input" / "tool.exe").write_text("exe")
    (base / "input" / "link.md").symlink_to("../outside/secret.md")
    (base / "input" / "up").symlink_to("..")
    return View(
        cwd=base,
        folders=(
            Folder(
                path=base / "input",
                name="input",
                allowed_suffixes=(".pdf", ".md"),
                text_suffixes=(".md",),
                max_bytes=100,
            ),
            Folder(path=base / "output", name="output", is_writable=True, text_suffixes=(".md", ".txt"), max_bytes=50),
        ),
    )


@pytest.fixture
def view(tmp_path: Path) -> View:
    return make_view(tmp_path)


def call(view: View, name: str, **arguments: Any) -> ToolResult:
    made = {each.name: each for each in sandbox_tools(view)}[name]
    return asyncio.run(invoke(made, arguments))


def call_text(view: View, name: str, **arguments: Any) -> str:
    return call(view, name, **arguments).text


@pytest.mark.req("DO-4")
def test_sandboxes_add_tools_and_a_write_tool_if_one_is_writable(view: View, tmp_path: Path) -> None:
    tools = sandbox_tools(view)
    assert [each.name for each in tools] == ["sandbox_list", "sandbox_read_text", "sandbox_write_text"]
    assert [set(each.capabilities) for each in tools] == [{"fs.read"}, {"fs.read"}, {"fs.write"}]
    assert all(each.repeatable and each.runs_in == "host" for each in tools)
    assert tools[0].input_schema["properties"]["pattern"]["default"] == "**/*"
    assert tools[1].input_schema["properties"]["max_chars"]["default"] == 200000
    assert [each.input_schema["required"] for each in tools] == [
        ["sandbox"],
        ["sandbox", "path"],
        ["path", "content"],
    ]
    shown = [each.input_schema["properties"]["sandbox"] for each in tools]
    named = [folder for folder in view.folders if folder.name]
    writable = [folder.name for folder in named if folder.is_writable]
    assert [each["enum"] for each in shown] == [*([folder.name for folder in named],) * 2, writable]
    assert shown[2]["default"] == writable[0], "it is the only one"
    assert "default" not in shown[0]
    assert f"{writable[0]} (./" in shown[2]["description"]
    assert "read-only" in shown[0]["description"]
    readable = View(cwd=tmp_path, folders=view.folders[:1])
    assert [each.name for each in sandbox_tools(readable)] == ["sandbox_list", "sandbox_read_text"]
    assert sandbox_tools(View(cwd=tmp_path, folders=(Folder(path=tmp_path, is_writable=True),))) == ()


@pytest.mark.req("DO-4")
def test_listing_shows_only_permitted_files(view: View) -> None:
    assert call_text(view, "sandbox_list", sandbox="input") == "deck.pdf\nnotes.md"
    assert call_text(view, "sandbox_list", sandbox="input", pattern="*.md") == "notes.md"
    assert call_text(view, "sandbox_list", sandbox="output") == "[no files match **/* in the sandbox output]"
    assert call_text(view, "sandbox_list", sandbox="inputs") == "unknown sandbox 'inputs'\nDid you mean 'input'?"
    for number in range(1100):
        (view.folders[1].path / f"{number}.txt").write_text("")
    shown = call_text(view, "sandbox_list", sandbox="output")
    assert shown.count("\n") == 1000
    assert shown.endswith("[the first 1,000; use a narrower pattern]")


@pytest.mark.req("DO-4")
def test_reading_text_obeys_the_rules(view: View) -> None:
    assert call_text(view, "sandbox_read_text", sandbox="input", path="notes.md") == "notes"
    shown = call_text(view, "sandbox_read_text", sandbox="input", path="NOTES.md")
    assert "NOTES.md does not exist" in shown
    assert (
        call_text(view, "sandbox_read_text", sandbox="input", path="notes.md", max_chars=2)
        == "no\n[cut: 2 of 5 characters]"
    )
    cut, whole = (call(view, "sandbox_read_text", sandbox="input", path="notes.md", max_chars=n) for n in (2, 5))
    assert (cut.file_before, whole.file_before) == (None, "shown")
    assert "max_chars: expected" in call_text(view, "sandbox_read_text", sandbox="input", path="notes.md", max_chars=0)
    for path, message in [
        ("deck.pdf", "the sandbox 'input' permits text only in files ending in .md"),
        ("tool.exe", "the sandbox 'input' permits only files ending in .pdf, .md"),
        ("link.md", "leads out of the folder"),
        ("../outside/secret.md", "leads out of the folder"),
        ("up/outside/secret.md", "leads out of the folder"),
        (f"{view.cwd}/input/notes.md", "Use a path relative to the sandbox 'input'"),
        ("big.md", "permits 100 bytes"),
        ("bad.md", "not UTF-8 text"),
        ("nul.md", "a binary file"),
    ]:
        (view.folders[0].path / "big.md").write_text("x" * 101)
        (view.folders[0].path / "bad.md").write_bytes(b"\xff")
        (view.folders[0].path / "nul.md").write_bytes(b"a\0")
        result = call(view, "sandbox_read_text", sandbox="input", path=path)
        assert result.is_error
        assert message in result.text


@pytest.mark.req("DO-4")
def test_writing_text_obeys_the_rules(view: View) -> None:
    shown = call_text(view, "sandbox_write_text", sandbox="output", path="a/report.md", content="done")
    assert shown == "Created a/report.md in the sandbox output (4 bytes)."
    assert call_text(view, "sandbox_write_text", sandbox="output", path="a/report.md", content="d").startswith(
        "Replaced"
    )
    assert call_text(view, "sandbox_read_text", sandbox="output", path="a/report.md") == "d"
    for sandbox, path, content, message in [
        ("input", "x.md", "x", "cannot write x.md: the sandbox 'input' is read-only\nWrite to the sandbox 'output'"),
        ("output", "x.sh", "x", "permits text only in files ending in .md, .txt"),
        ("output", "x.md", "x" * 51, "it has 51 bytes, and the sandbox 'output' permits 50 bytes"),
        ("output", "../outside/secret.md", "x", "leads out"),
        ("output", "x.md", "\ud800", "lone surrogate"),
        ("outputs", "x.md", "x", "Did you mean 'output'?"),
    ]:
        result = call(view, "sandbox_write_text", sandbox=sandbox, path=path, content=content)
        assert result.is_error
        assert message in result.text
    assert (view.cwd / "outside" / "secret.md").read_text() == CANARY


def test_every_file_tool_and_its_parameters_are_in_the_documentation(view: View) -> None:
    page = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()
    for each in (*file_tools(view), *search_tools(view), *sandbox_tools(view)):
        line = page[page.index(f"`{each.name}(") :].split(")`")[0]
        assert all(name in line for name in each.input_schema["properties"]), each.name


NAMES = st.sampled_from(
    ["..", ".", "", "input", "output", "outside", "secret.md", "link.md", "up", "notes.md", "x.md", "\0", "\ud800"]
)


@pytest.mark.req("DO-4")
@settings(max_examples=150, deadline=None)
@given(sandbox=st.sampled_from(["input", "output", "..", "/"]), parts=st.lists(NAMES | st.text(max_size=5), max_size=6))
def test_no_call_leaves_its_sandbox(tmp_path_factory: pytest.TempPathFactory, sandbox: str, parts: list[str]) -> None:
    view = make_view(tmp_path_factory.mktemp("boxes"))
    path = "/".join(parts)
    for result in (
        call(view, "sandbox_read_text", sandbox=sandbox, path=path),
        call(view, "sandbox_list", sandbox=sandbox, pattern=path or "*"),
        call(view, "sandbox_write_text", sandbox=sandbox, path=path, content="w"),
    ):
        assert CANARY not in result.text
        result.text.encode()
    assert (view.cwd / "outside" / "secret.md").read_text() == CANARY
    assert sorted(each.name for each in view.cwd.iterdir()) == ["input", "output", "outside"]
    assert (view.cwd / "input" / "notes.md").read_text() == "\ufeffnotes"
    assert len(list((view.cwd / "input").iterdir())) == 5
