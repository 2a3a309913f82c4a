"""What is kept is read and never changed through a folder above it, by no tool and by no name, nor made there."""

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
REFUSED = "is protected: it defines what runs may do"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with workers and an unlocked door to everything else in it."""
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


def called(tools: tuple[Tool, ...], name: str, **arguments: Any) -> ToolResult:
    return asyncio.run(invoke({tool.name: tool for tool in tools}[name], arguments))


def everything(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() if path.is_file() else "" for path in root.rglob("*")}


WAYS = (
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


@pytest.mark.parametrize("way", WAYS)
def test_no_tool_writes_it_whatever_it_is_called(root: Path, view: View, way: str) -> None:
    (root / "link").symlink_to("workers")
    (root / "src" / "up").symlink_to("..")
    if way == "same.yaml":  # another name of the very file
        (root / "guildhall.yaml").write_text("model: x")
        os.link(root / "guildhall.yaml", root / "same.yaml")
    before = everything(root)
    for result in (
        called(file_tools(view), "Write", file_path=way, content="evil"),
        called(file_tools(view), "Write", file_path=str(root / way), content="evil"),
        called(sandbox_tools(view), "sandbox_write_text", sandbox="project", path=way, content="evil"),
    ):
        assert result.is_error
        assert REFUSED in result.text or "is a folder" in result.text
    assert everything(root) == before


def test_it_is_read_and_all_else_is_written(root: Path, view: View) -> None:
    tools = (*file_tools(view), *sandbox_tools(view))
    assert "clerk" in called(tools, "Read", file_path="workers/clerk.yaml").text
    assert "workers/clerk.yaml" in called(tools, "sandbox_list", sandbox="project").text
    edited = called(tools, "Edit", file_path="workers/clerk.yaml", old_string="clerk", new_string="evil")
    assert (edited.is_error, REFUSED in edited.text) == (True, True)
    for way in ("new.txt", "new/folder/a.txt", "src/workers/a.yaml", "src/guildhall.yaml", "workers2/a", "src/a.py"):
        assert not called(tools, "Write", file_path=way, content="x").is_error, way


def test_a_folder_that_is_named_itself_has_its_own_rules(root: Path, view: View) -> None:
    named = (
        Folder(path=root / "prompts", name="prompts", is_writable=True),
        Folder(path=root / "workers" / "generated", name="generated", is_writable=True),
    )
    locked = root / "workers" / "generated" / "locked.yaml"
    locked.write_text("locked")
    (root / "prompts").mkdir()
    rooted = SandboxFiles(replace(view, folders=(*view.folders, *named), protected=(*view.protected, locked)))
    for way in ("prompts/a.md", "workers/generated/a.yaml"):
        assert rooted.write(rooted.locate(way), b"x")
    assert rooted.write(rooted.locate_in(rooted.find_sandbox("project"), "prompts/b.md"), b"x")
    for way in ("workers/a.yaml", "workers/generated/locked.yaml", "workers/generated/LOCKED.yaml"):
        with pytest.raises(Refused, match=REFUSED):
            rooted.write(rooted.locate(way), b"x")
    with pytest.raises(Refused, match=REFUSED):
        rooted.write(rooted.locate_in(rooted.find_sandbox("generated"), "locked.yaml"), b"x")
    assert locked.read_text() == "locked"


def test_of_a_link_both_the_name_and_what_it_leads_to_are_kept(root: Path, view: View) -> None:
    (root / "team").mkdir()
    (root / "prompts").symlink_to("team")
    rooted = SandboxFiles(resolve_view(view))
    for way in ("prompts", "prompts/a.md", "team/a.md"):
        with pytest.raises(Refused):
            rooted.write(rooted.locate(way), b"x")
    assert (root / "prompts").is_symlink()
    (bash,) = shell_tools(resolve_view(view), {})
    with pytest.raises(ToolUnavailable, match="it is a link, which a program could replace"):
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


def swept(root: Path) -> dict[str, str]:
    """What decides, as it is on the disk."""
    found = everything(root)
    return {path: text for path, text in found.items() if path.split("/")[0] in NAMES}


@pytest.mark.parametrize("kind", KINDS)
def test_no_program_changes_it_or_makes_it(root: Path, view: View, kind: Kind) -> None:
    before = swept(root)
    (bash,) = shell_tools(view, {}, kind=kind)
    for attack in ATTACKS:
        result = asyncio.run(invoke(bash, {"command": f"({attack}) 2>&1; true"}))
        assert swept(root) == before, (attack, result.text)
    assert "clerk" in asyncio.run(invoke(bash, {"command": "cat workers/clerk.yaml; echo b > src/b"})).text
    assert (root / "src" / "b").read_text() == "b\n"


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_writes_what_is_beside_it(root: Path, view: View, kind: Kind) -> None:
    """Without namespaces the folder around it takes no new names; what is in the folder is written there, too."""
    (root / "top.txt").write_text("x")
    (bash,) = shell_tools(view, {}, kind=kind)
    done = asyncio.run(invoke(bash, {"command": "echo y > top.txt && echo z > src/new && (mkdir build; true)"}))
    assert not done.is_error, done.text
    assert ((root / "top.txt").read_text(), (root / "src" / "new").read_text()) == ("y\n", "z\n")
    assert (root / "build").exists() == (kind != "landlock")
    assert {path.name for path in root.iterdir()} - {"build"} == {"src", "top.txt", "workers"}, "nothing is left there"


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_writes_a_kept_folder_that_is_named_but_not_what_is_locked_in_it(
    root: Path, view: View, kind: Kind
) -> None:
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
    "Saves a text."
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)
    return "saved"
"""


@pytest.mark.parametrize("kind", KINDS)
def test_the_code_of_a_toolbox_does_not_either(root: Path, view: View, tmp_path: Path, kind: Kind) -> None:
    file = tmp_path / "box.py"
    file.write_text(TOOLBOX)
    spec = HostSpec(view=view, builtin=("Write",), toolboxes=(("box", file),), capabilities=frozenset({"fs.write"}))
    before = swept(root)

    async def tried() -> list[ToolResult]:
        host = ToolHost(spec, kind=kind)
        try:
            ways = ("workers/clerk.yaml", "workers/evil.yaml", "prompts/a.md", "guildhall.yaml")
            saved = [await host.call("save", {"path": str(root / way), "text": "evil"}) for way in ways]
            written = [await host.call("Write", {"file_path": way, "content": "evil"}) for way in ways]
            fine = await host.call("save", {"path": str(root / "src" / "new"), "text": "fine"})
            return [*saved, *written, fine]
        finally:
            await host.close()

    *bad, fine = asyncio.run(tried())
    assert all(result.is_error for result in bad), bad
    assert fine.text == "saved"
    assert swept(root) == before
