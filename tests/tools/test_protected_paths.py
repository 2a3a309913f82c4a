"""Protected paths: readable, but not changed or created by any tool, program or spelling of their names."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import Refused, ToolUnavailable
from guildhall.sandbox.files import SandboxFiles, resolve_view
from guildhall.sandbox.view import Folder, View
from guildhall.tools.builtin.files import file_tools, sandbox_tools
from guildhall.tools.builtin.shell import shell_tools
from guildhall.tools.definition import invoke
from guildhall.tools.host.process import ToolHost
from guildhall.tools.host.protocol import HostSpec

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.sandbox.jail import Kind
    from guildhall.tools.model import Tool, ToolResult

KINDS: tuple[Kind, ...] = ("bubblewrap", "namespaces", "landlock")
NAMES = ("workers", "prompts", "schemas", "toolboxes", "tests", "guildhall.yaml")
REFUSED = "protected, because it defines what runs may do"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Project with workers and other files."""
    root = tmp_path / "project"
    for name in ("workers/generated", "src"):
        (root / name).mkdir(parents=True)
    (root / "workers" / "clerk.yaml").write_text("clerk")
    (root / "src" / "a.py").write_text("a = 1\n")
    return root


@pytest.fixture
def view(root: Path) -> View:
    return resolve_view(
        View(
            cwd=root,
            folders=(Folder(path=root), Folder(path=root, name="project", is_writable=True)),
            protected=tuple(root / name for name in NAMES),
        )
    )


def call_tool(tools: tuple[Tool, ...], name: str, **arguments: Any) -> ToolResult:
    return asyncio.run(invoke({tool.name: tool for tool in tools}[name], arguments))


def read_files(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() if path.is_file() else "" for path in root.rglob("*")}


SPELLINGS = (
    "workers/clerk.yaml",
    "workers/evil.yaml",
    "workers/deep/er/evil.yaml",
    "workers",
    "./workers/../workers/evil.yaml",
    "src/../workers/evil.yaml",
    "src//up/workers/evil.yaml",
    "link/evil.yaml",
    "Workers/evil.yaml",
    "WORKERS/clerk.yaml",
    "wor\u212aers/evil.yaml",  # the Kelvin sign, which is a small k to some file systems
    "work\u200ders/evil.yaml",
    "prompts/clerk.md",
    "prompts",
    "schemas/a/b.json",
    "toolboxes/post.py",
    "tests/clerk/test.yaml",
    "guildhall.yaml",
    "GuildHall.YAML",
    "same.yaml",
)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_tool_writes_a_protected_path_in_any_spelling(root: Path, view: View, spelling: str) -> None:
    (root / "link").symlink_to("workers")
    (root / "src" / "up").symlink_to("..")
    if spelling == "same.yaml":  # a hard link to the file
        (root / "guildhall.yaml").write_text("model: x")
        os.link(root / "guildhall.yaml", root / "same.yaml")
    before = read_files(root)
    for result in (
        call_tool(file_tools(view), "Write", file_path=spelling, content="evil"),
        call_tool(file_tools(view), "Write", file_path=str(root / spelling), content="evil"),
        call_tool(sandbox_tools(view), "sandbox_write_text", sandbox="project", path=spelling, content="evil"),
    ):
        assert result.is_error
        assert REFUSED in result.text or "is a folder" in result.text
    assert read_files(root) == before


def test_protected_files_are_readable_and_other_files_writable(root: Path, view: View) -> None:
    tools = (*file_tools(view), *sandbox_tools(view))
    assert "clerk" in call_tool(tools, "Read", file_path="workers/clerk.yaml").text
    assert "workers/clerk.yaml" in call_tool(tools, "sandbox_list", sandbox="project").text
    edited = call_tool(tools, "Edit", file_path="workers/clerk.yaml", old_string="clerk", new_string="evil")
    assert (edited.is_error, REFUSED in edited.text) == (True, True)
    for spelling in (
        "new.txt",
        "new/folder/a.txt",
        "src/workers/a.yaml",
        "src/guildhall.yaml",
        "workers2/a",
        "src/a.py",
    ):
        assert not call_tool(tools, "Write", file_path=spelling, content="x").is_error, spelling


def test_a_declared_folder_inside_a_protected_path_is_writable(root: Path, view: View) -> None:
    named = (
        Folder(path=root / "prompts", name="prompts", is_writable=True),
        Folder(path=root / "workers" / "generated", name="generated", is_writable=True),
    )
    locked = root / "workers" / "generated" / "locked.yaml"
    locked.write_text("locked")
    (root / "prompts").mkdir()
    rooted = SandboxFiles(replace(view, folders=(*view.folders, *named), protected=(*view.protected, locked)))
    for spelling in ("prompts/a.md", "workers/generated/a.yaml"):
        assert rooted.write(rooted.locate(spelling), b"x")
    assert rooted.write(rooted.locate_in(rooted.find_sandbox("project"), "prompts/b.md"), b"x")
    for spelling in ("workers/a.yaml", "workers/generated/locked.yaml", "workers/generated/LOCKED.yaml"):
        with pytest.raises(Refused, match=REFUSED):
            rooted.write(rooted.locate(spelling), b"x")
    with pytest.raises(Refused, match=REFUSED):
        rooted.write(rooted.locate_in(rooted.find_sandbox("generated"), "locked.yaml"), b"x")
    assert locked.read_text() == "locked"


def test_a_protected_link_and_its_target_are_both_protected(root: Path, view: View) -> None:
    (root / "team").mkdir()
    (root / "prompts").symlink_to("team")
    rooted = SandboxFiles(resolve_view(view))
    for spelling in ("prompts", "prompts/a.md", "team/a.md"):
        with pytest.raises(Refused):
            rooted.write(rooted.locate(spelling), b"x")
    assert (root / "prompts").is_symlink()
    (bash,) = shell_tools(resolve_view(view), {})
    with pytest.raises(ToolUnavailable, match=r"cannot protect .*: it is a link"):
        asyncio.run(bash.handler(command="true"))


# Programs

ATTACKS = (
    "echo evil > workers/clerk.yaml",
    "echo evil > workers/evil.yaml",
    "mv workers old",
    "rm -rf workers",
    "mv -T src workers",
    "mkdir prompts && echo evil > prompts/clerk.md",
    "mkdir -p tests/clerk && echo evil > tests/clerk/t.yaml",
    "mv src tests && echo evil > tests/a",
    "ln -s src schemas && echo evil > schemas/a.json",
    "rmdir prompts && mkdir prompts && echo evil > prompts/a.md",
    "echo 'model: evil' > guildhall.yaml",
    "echo 'model: evil' > src/g && mv src/g guildhall.yaml",
    "rm guildhall.yaml; echo 'model: evil' > guildhall.yaml",
    "ln workers/clerk.yaml src/same && echo evil > src/same",
    "cd .. && mv project other && mkdir -p project/workers && echo evil > project/workers/evil.yaml",
)


def protected_files(root: Path) -> dict[str, str]:
    """Return the protected files with their contents."""
    found = read_files(root)
    return {path: text for path, text in found.items() if path.split("/")[0] in NAMES}


@pytest.mark.parametrize("kind", KINDS)
def test_no_program_changes_or_creates_a_protected_path(root: Path, view: View, kind: Kind) -> None:
    before = protected_files(root)
    (bash,) = shell_tools(view, {}, kind=kind)
    for attack in ATTACKS:
        result = asyncio.run(invoke(bash, {"command": f"({attack}) 2>&1; true"}))
        assert protected_files(root) == before, (attack, result.text)
    assert "clerk" in asyncio.run(invoke(bash, {"command": "cat workers/clerk.yaml; echo b > src/b"})).text
    assert (root / "src" / "b").read_text() == "b\n"


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_writes_unprotected_files(root: Path, view: View, kind: Kind) -> None:
    """With Landlock alone, a program cannot create new names beside a protected path."""
    (root / "top.txt").write_text("x")
    (bash,) = shell_tools(view, {}, kind=kind)
    done = asyncio.run(invoke(bash, {"command": "echo y > top.txt && echo z > src/new && (mkdir build; true)"}))
    assert not done.is_error, done.text
    assert ((root / "top.txt").read_text(), (root / "src" / "new").read_text()) == ("y\n", "z\n")
    assert (root / "build").exists() == (kind != "landlock")
    assert {path.name for path in root.iterdir()} - {"build"} == {"src", "top.txt", "workers"}, "no placeholder remains"


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_writes_a_declared_folder_but_not_its_locked_files(root: Path, view: View, kind: Kind) -> None:
    locked = root / "workers" / "clerk.yaml"
    named = Folder(path=root / "workers", name="workers", is_writable=True)
    both = replace(view, folders=(*view.folders, named), protected=(*view.protected, locked))
    (bash,) = shell_tools(both, {}, kind=kind)
    one = "workers/clerk.yaml"
    tries = f"echo evil > {one}; rm -f {one}; mv {one} src; echo b > workers/generated/b"
    asyncio.run(invoke(bash, {"command": f"({tries}) 2>&1; true"}))
    assert locked.read_text() == "clerk"
    assert (root / "workers" / "generated" / "b").read_text() == "b\n"


TOOLBOX = """
from pathlib import Path
from guildhall import tool

@tool(capabilities={"fs.write"})
def save(path: str, text: str) -> str:
    "Save a text."
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)
    return "saved"
"""


@pytest.mark.parametrize("kind", KINDS)
def test_toolbox_code_does_not_change_protected_paths(root: Path, view: View, tmp_path: Path, kind: Kind) -> None:
    file = tmp_path / "box.py"
    file.write_text(TOOLBOX)
    spec = HostSpec(view=view, builtin=("Write",), toolboxes=(("box", file),), capabilities=frozenset({"fs.write"}))
    before = protected_files(root)

    async def call_tools() -> list[ToolResult]:
        host = ToolHost(spec, kind=kind)
        try:
            paths = ("workers/clerk.yaml", "workers/evil.yaml", "prompts/a.md", "guildhall.yaml")
            saved = [await host.call("save", {"path": str(root / spelling), "text": "evil"}) for spelling in paths]
            written = [await host.call("Write", {"file_path": spelling, "content": "evil"}) for spelling in paths]
            fine = await host.call("save", {"path": str(root / "src" / "new"), "text": "fine"})
            return [*saved, *written, fine]
        finally:
            await host.close()

    *bad, fine = asyncio.run(call_tools())
    assert all(result.is_error for result in bad), bad
    assert fine.text == "saved"
    assert protected_files(root) == before
