"""Packages come into the home and go out of it: as a whole or not at all, and nothing that was there is lost."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import Conflict, GuildError, InvalidFile, NotFound, UsageError
from guildhall.workers.home_packages import (
    SHIPPED,
    Packages,
    add_package,
    describe_files,
    find_tools,
    load_code,
    new_package,
    package_worker,
    remove_package,
    templates,
)
from guildhall.workers.model import PackageTool
from tests.guild.packages import LETTERS, MAIL, write_mail_package, write_package

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.workers.model import AddedPackage, PackageKind

NOW = "2026-11-16T12:00:00.000Z"


def add(home: Home, source: Path, *, seen: str | None = None, force: bool = False) -> AddedPackage:
    return add_package(home, source, NOW, confirmed_digest=seen, force=force, check_unused=lambda name: None)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def outside(home: Home, tmp_path: Path) -> Path:
    """Create a package outside of the home."""
    folder = write_mail_package(home)
    shutil.move(folder, tmp_path / "letters")
    return tmp_path / "letters"


@pytest.mark.parametrize("kind", ["worker", "toolbox", "both"])
def test_a_new_package_is_right_as_it_is(home: Home, kind: PackageKind) -> None:
    new_package(home, "my-own", kind)
    (package,) = Packages(home).listings()
    assert package.error is None
    assert package.types == {"worker": ("worker",), "toolbox": ("toolbox",), "both": ("worker", "toolbox")}[kind]
    with pytest.raises(Conflict, match="the package 'my-own' already exists"):
        new_package(home, "my-own", kind)


def test_copies_of_those_that_come_with_guildhall(home: Home) -> None:
    assert templates() == ["prose", "timekeeper", "writer"]
    for template in templates():
        new_package(home, f"my-{template}", template=template)
        package = Packages(home).find(f"my-{template}")
        assert package.table.description
        text = (SHIPPED / template / "pyproject.toml").read_text()
        assert package.source.text == text.replace(f'"{template}"', f'"my-{template}"')
    with pytest.raises(NotFound, match="Did you mean 'writer'"):
        new_package(home, "x", template="writr")
    with pytest.raises(UsageError, match="invalid package name"):
        new_package(home, "../x")


def test_a_folder_is_copied_whole(home: Home, tmp_path: Path) -> None:
    source = outside(home, tmp_path)
    for left_behind in (".git/config", "__pycache__/a.pyc", ".venv/x.py"):
        (source / left_behind).parent.mkdir()
        (source / left_behind).write_text("x")
    added = add(home, source)
    assert (added.name, added.path, added.backup) == ("mail", home.packages / "mail", None)
    assert names(added.path) == ["post", "pyproject.toml"]
    assert Packages(home).find("mail").types == ("toolbox",)
    (source / "post" / "prices.py").write_text("def price(words): return 1\n")
    with pytest.raises(Conflict, match="the package 'mail' already exists") as caught:
        add(home, source)
    assert "--force" in (caught.value.hint or "")
    kept = [add(home, source, force=True).backup for _ in range(2)]
    assert kept == [home.packages / ".aside" / f"mail-20261116T120000{more}" for more in ("", "-2")]
    assert "80 +" in (home.packages / ".aside" / "mail-20261116T120000" / "post" / "prices.py").read_text()
    assert [one.name for one in Packages(home).listings()] == ["mail"]


def test_what_was_looked_at_is_what_is_added(home: Home, tmp_path: Path) -> None:
    source = outside(home, tmp_path)
    _, seen = describe_files(source, [])
    (source / "post" / "prices.py").write_text("import os")
    with pytest.raises(Conflict, match="the folder was changed during the review"):
        add(home, source, seen=seen)
    assert names(home.packages) == []


def test_what_is_wrong_is_not_added(home: Home, tmp_path: Path) -> None:
    source = outside(home, tmp_path)
    (source / "link").symlink_to("/etc/passwd")
    with pytest.raises(InvalidFile, match="symbolic links are not allowed") as caught:
        add(home, source)
    assert caught.value.where == str(source / "link")
    (source / "link").unlink()
    os.mkfifo(source / "pipe")
    with pytest.raises(InvalidFile, match="not a regular file"):
        add(home, source)
    (source / "pipe").unlink()
    (source / "away").symlink_to("/etc")
    with pytest.raises(InvalidFile, match="symbolic links are not allowed"):
        add(home, source)
    (source / "away").unlink()
    (source / "pyproject.toml").write_text(MAIL.replace("post.tools", "nowhere"))
    with pytest.raises(InvalidFile, match="unknown module nowhere") as caught:
        add(home, source)
    assert (caught.value.where or "").startswith(f"{source / 'pyproject.toml'}:")
    with (source / "large.bin").open("wb") as file:
        file.truncate(50_000_001)
    with pytest.raises(Conflict, match="more than 50,000,000 bytes"):
        add(home, source)
    assert names(home.packages) == []


def test_one_that_is_in_use_is_not_replaced(home: Home, tmp_path: Path) -> None:
    source = outside(home, tmp_path)
    add(home, source)

    def used(name: str) -> None:
        raise Conflict(f"the package {name!r} is in use: r-1")

    with pytest.raises(Conflict, match="in use"):
        add_package(home, source, NOW, confirmed_digest=None, force=True, check_unused=used)
    assert names(home.packages) == ["mail"]


def test_what_is_removed_is_kept(home: Home) -> None:
    write_mail_package(home)
    write_package(home, "broken", "[")
    kept = remove_package(home, "mail", NOW)
    assert (kept / "post" / "tools.py").is_file()
    assert (remove_package(home, "broken", NOW) / "pyproject.toml").read_text() == "["
    assert Packages(home).listings() == []
    for name in ("mail", ".aside", "../packages", ""):
        with pytest.raises(NotFound, match="unknown package"):
            remove_package(home, name, NOW)


def test_what_tools_it_says_that_it_has(home: Home) -> None:
    more = """
import os, guildhall
from guildhall import tool

@guildhall.tool(name="send", capabilities={"net", "fs.read"})
async def dispatch(to: str) -> str:
    '''Sends
    a letter.

    And more.'''

CAN = {"net"}

@tool(capabilities=CAN)
def fetch() -> str:
    "Fetches."

@os.path.join
def no_tool(): ...
"""
    write_package(home, "mail", MAIL, LETTERS | {"post/more.py": more, "post/wrong.py": "def ("})
    (code,) = load_code(Packages(home).find("mail"))
    assert find_tools(code) == (
        PackageTool(name="send", description="Sends a letter.", capabilities=("fs.read", "net")),
        PackageTool(name="fetch", description="Fetches.", capabilities=("?",)),
        PackageTool(name="weigh", description="What a letter of so many words costs."),
    )


@pytest.mark.req("WKR-4")
def test_a_worker_stays_who_it_is_when_its_package_changes(home: Home) -> None:
    folder = new_package(home, "writer", template="writer")
    before = package_worker(Packages(home).find("writer"))
    (folder / "posture.md").write_text("You write otherwise.")
    after = package_worker(Packages(home).find("writer"))
    (folder / "activation.py").write_text("def activate(context): ...\n")
    last = package_worker(Packages(home).find("writer"))
    assert before.identity == after.identity == last.identity
    assert len({before.digest, after.digest, last.digest}) == 3  # a lock would notice each


def test_a_home_without_packages(home: Home) -> None:
    assert Packages(home).listings() == []
    with pytest.raises(GuildError, match="guild package ls"):
        Packages(home).find("mail")
