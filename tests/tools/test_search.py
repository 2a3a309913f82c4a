"""Grep and Glob tools, called as a run calls them, and path patterns."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guildhall.core.errors import GuildError, UsageError
from guildhall.sandbox.glob import PathPattern
from guildhall.sandbox.view import Folder, View
from guildhall.tools.builtin.search import search_tools
from guildhall.tools.definition import invoke

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.clock import Clock
    from guildhall.tools.model import ToolResult

CANARY = "CANARY"


@pytest.fixture
def view(tmp_path: Path) -> View:
    """Small project with hidden, linked and outside files that must not be found."""
    root = tmp_path / "project"
    files = {
        "readme.md": "Hello world\nsecond line\nhello again\n",
        "src/main.py": "import os\n\ndef main():\n    return 1\n",
        "src/deep/util.py": "def helper():\r\n    return 2\r\n",
        "src/deep/page.ts": "export {}\n",
        "src/deep/page.tsx": "export {}\n",
        ".git/config": f"hello {CANARY}\n",
        "private/keys.txt": f"hello {CANARY}\n",
        "../outside/notes.txt": f"hello {CANARY}\n",
        "../box/data.csv": "hello,box\n",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    (root / "blob.bin").write_bytes(b"hello\0")
    (root / "out").symlink_to("../outside")
    (root / "notes.txt").symlink_to("../outside/notes.txt")
    return View(
        cwd=root,
        folders=(Folder(path=root), Folder(path=tmp_path / "box", name="box")),
        hidden=(root / "private",),
    )


def call(view: View, name: str, clock: Clock | None = None, **arguments: Any) -> ToolResult:
    made = {each.name: each for each in search_tools(view, clock)}[name]
    result = asyncio.run(invoke(made, arguments))
    assert CANARY not in result.text.replace(str(arguments), "")
    return result


def grep(view: View, pattern: str, **arguments: Any) -> str:
    return call(view, "Grep", pattern=pattern, **arguments).text


def glob(view: View, pattern: str, **arguments: Any) -> str:
    return call(view, "Glob", pattern=pattern, **arguments).text


@pytest.mark.req("WKR-6")
def test_tools_declare_capabilities_and_schemas(view: View) -> None:
    for each in search_tools(view):
        assert each.capabilities == {"fs.read"}
        assert each.repeatable
        assert each.runs_in == "host"
        assert each.input_schema["required"] == ["pattern"]
        assert all(shape["description"] for shape in each.input_schema["properties"].values())


def test_grep_shows_lines_files_and_counts(view: View) -> None:
    assert grep(view, "hello") == "readme.md:3:hello again"
    assert grep(view, "hello", ignore_case=True) == "readme.md:1:Hello world\nreadme.md:3:hello again"
    assert grep(view, "return", output_mode="files") == "src/deep/util.py\nsrc/main.py"
    assert grep(view, "e", output_mode="count", glob="*.md") == "readme.md:3"
    assert grep(view, r"return \d$") == "src/deep/util.py:2:    return 2\nsrc/main.py:4:    return 1"
    assert grep(view, "nothing like it") == "[no matches for nothing like it]"


def test_grep_narrows_by_path_and_glob(view: View) -> None:
    assert grep(view, "return", path="src/deep") == "src/deep/util.py:2:    return 2"
    assert grep(view, "return", path="src/main.py") == "src/main.py:4:    return 1"
    assert grep(view, "return", path=str(view.cwd), glob="src/*.py") == "src/main.py:4:    return 1"
    assert grep(view, "export", glob="*.{ts,tsx}", output_mode="files") == "src/deep/page.ts\nsrc/deep/page.tsx"
    assert "box/data.csv:1:hello,box" in grep(view, "hello", path="../box")


def test_grep_shows_context(view: View) -> None:
    assert (
        grep(view, "second", context=1) == "readme.md-1-Hello world\nreadme.md:2:second line\nreadme.md-3-hello again"
    )
    (view.cwd / "n.log").write_text("".join(f"{n}\n" for n in range(1, 10)))
    shown = grep(view, "^[159]$", path="n.log", context=1)
    assert shown.replace("n.log", "") == ":1:1\n-2-2\n--\n-4-4\n:5:5\n-6-6\n--\n-8-8\n:9:9"
    assert grep(view, "^[45]$", path="n.log", context=1).replace("n.log", "") == "-3-3\n:4:4\n:5:5\n-6-6"


def test_grep_is_bounded(view: View) -> None:
    (view.cwd / "many.log").write_text("match\n" * 3000)
    (view.cwd / "wide.log").write_text("wide " + "x" * 4000 + "far\n")
    shown = grep(view, "match", max_results=2)
    assert shown == "many.log:1:match\nmany.log:2:match\n[only the first 2 are shown; narrow the search]"
    assert grep(view, "match", max_results=99999).count("\n") == 1000
    assert grep(view, "wide").endswith("x [line cut]")
    assert "no matches" in grep(view, "far")
    (view.cwd / "many.log").write_text(("match" + "y" * 400 + "\n") * 1000)
    assert len(grep(view, "match", max_results=1000)) < 60_000
    (view.cwd / "huge.log").write_bytes(b"match\n" * 2_000_000)
    assert grep(view, "match", path="huge.log").endswith(
        "[1 files could not be searched (too large, or not permitted)]"
    )


def test_grep_errors_name_the_reason(view: View) -> None:
    assert "invalid regular expression '('" in grep(view, "(")
    assert "longer than 1,000" in grep(view, "x" * 1001)
    assert "at least" in grep(view, "x", context=-1)
    assert "at least" in grep(view, "x", max_results=0)
    assert "output_mode: must be 'content', 'files' or 'count'" in grep(view, "x", output_mode="lines")
    assert "nowhere does not exist" in grep(view, "x", path="nowhere")
    assert "outside the folders" in grep(view, "x", path="../outside")
    assert "Guildhall hides" in grep(view, "x", path="private")
    assert "leads out" in grep(view, "x", path="out")
    assert grep(view, "[[a]x").startswith("[no matches")
    assert call(view, "Grep", pattern="a" * 900 + "(" * 99).is_error


class FastClock:
    """A clock that advances by a second each time it is read."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        self.time_s += 1
        return self.time_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


def test_a_search_ends_at_its_time_limit(view: View) -> None:
    (view.cwd / "slow.log").write_text("a\n" * 10_000)
    for name, arguments in (("Grep", {"pattern": "b"}), ("Grep", {"pattern": "b", "path": "slow.log"})):
        result = call(view, name, FastClock(), **arguments)
        assert result.is_error
        assert "took longer than 20 s" in result.text


def test_glob_finds_files_in_order(view: View) -> None:
    assert glob(view, "*.md") == "readme.md"
    assert glob(view, "**/*.py") == "src/deep/util.py\nsrc/main.py"
    assert glob(view, "src/**/*.{ts,tsx}") == "src/deep/page.ts\nsrc/deep/page.tsx"
    assert glob(view, "*.py", path="src/deep") == "src/deep/util.py"
    assert glob(view, f"{view.cwd}/src/*.py") == "src/main.py"
    assert glob(view, f"{view.cwd}/readme.md") == "readme.md"
    assert glob(view, "*.rs") == "[no matches for *.rs]"
    assert "outside the folders" in glob(view, "/etc/*")
    assert "outside the folders" in glob(view, "/*")
    assert "outside the folders" in glob(view, "*", path="..")
    assert "1 to 1,000 characters" in glob(view, " ")
    assert glob(view, "../outside/*") == "[no matches for ../outside/*]"
    for number in range(1100):
        (view.cwd / f"f{number}").write_text("")
    assert glob(view, "f*").endswith("[only the first 1,000 are shown; narrow the search]")


def test_without_a_working_folder_all_folders_are_searched(view: View) -> None:
    apart = View(cwd=view.cwd.parent, folders=view.folders, hidden=view.hidden)
    shown = grep(apart, "hello", output_mode="files")
    assert shown == "project/readme.md\nbox/data.csv"
    assert "box/data.csv" in glob(apart, "*")


def test_an_incomplete_search_is_reported(view: View) -> None:
    deep = view.cwd / "/".join(["d"] * 60)
    deep.mkdir(parents=True)
    (deep / "x.md").write_text("hello")
    assert glob(view, "**/*.md") == "readme.md\n[too many files; not all were searched: use a subfolder as `path`]"


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("**/*", "a", True),
        ("**/*", "a/b/c", True),
        ("*", "a/b", False),
        ("**", "a/b", True),
        ("a/**", "a/b/c", True),
        ("a/**/c", "a/c", True),
        ("a/**/c", "a/b/b/c", True),
        ("a/**/b/**/c", "a/x/b/y/b/c", True),
        ("a/**/c", "a/b/d", False),
        ("./a//b", "a/b", True),
        ("?.[ch]", "x.c", True),
        ("?.[!ch]", "x.c", False),
        ("*.{a,b{c,d}}", "x.bd", True),
        ("*.{a,b", "x.{a,b", True),
        ("*.}", "x.}", True),
        ("A", "a", False),
        (".*", ".env", True),
    ],
)
def test_patterns_match_paths(pattern: str, path: str, expected: bool) -> None:
    assert PathPattern(pattern).matches(path) is expected


def test_a_pattern_without_a_slash_can_match_in_any_folder() -> None:
    assert PathPattern("*.py", anywhere=True).matches("a/b.py")
    assert not PathPattern("a/*.py", anywhere=True).matches("x/a/b.py")


@pytest.mark.parametrize("pattern", ["", " ", "x" * 1001, "{a,b}" * 10, "{" + "," * 100 + "}"])
def test_patterns_are_bounded(pattern: str) -> None:
    with pytest.raises(UsageError):
        PathPattern(pattern)


@settings(max_examples=200, deadline=None)
@given(pattern=st.text(alphabet="a*?[]{},!-/.\\^&|~\0\u00e9", max_size=60), path=st.text(alphabet="a/.", max_size=80))
def test_no_pattern_fails_or_stalls(pattern: str, path: str) -> None:
    with suppress(GuildError):
        PathPattern(pattern).matches(path)
    assert not PathPattern("*a" * 30 + "b").matches("a" * 250)
    assert not PathPattern("**/a/" * 30 + "b").matches("a/" * 100 + "c")
