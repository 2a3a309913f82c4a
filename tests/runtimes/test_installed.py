"""Finding the programs of runtimes: where they are, whether they will do, and what is said when they are not there."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import RuntimeMissing, RuntimeOutdated, RuntimeUnusable
from guildhall.models.credentials import PROGRAM_VARIABLES, forwarded_variables
from guildhall.runtimes.catalog import RUNTIMES, RuntimeInfo
from guildhall.runtimes.discovery import Programs, VersionCache
from tests.clis import claude_program

if TYPE_CHECKING:
    from guildhall.runtimes.discovery import InstalledProgram

ROW = RuntimeInfo(name="tool", title="The Tool", program="tool", min_version="1.10.0", install="get tool")


def find(path: Path | str, row: RuntimeInfo = ROW, **environ: str) -> InstalledProgram:
    return asyncio.run(Programs({"PATH": f"{path}:/usr/bin:/bin", **environ}).find(row))


def put(folder: Path, text: str, mode: int = 0o755, name: str = "tool") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(mode)
    return path


def script(version: str) -> str:
    return f"#!/bin/sh\necho 'tool {version} (The Tool)'\n"


def test_a_program_on_the_path_is_found_and_asked_for_its_version(tmp_path: Path) -> None:
    put(tmp_path / "a", script("1.10.2"))
    found = find(tmp_path / "a")
    assert (found.path, found.version) == (tmp_path / "a" / "tool", "1.10.2")


def test_the_variable_comes_first(tmp_path: Path) -> None:
    put(tmp_path / "a", script("1.10.2"))
    other = put(tmp_path / "b", script("2.0.0"))
    assert find(tmp_path / "a", GUILDHALL_TOOL=str(other)).version == "2.0.0"
    with pytest.raises(RuntimeMissing, match=r"GUILDHALL_TOOL names .*, which does not exist"):
        find(tmp_path / "a", GUILDHALL_TOOL=str(tmp_path / "gone"))


def test_what_is_not_installed_is_said_with_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(RuntimeMissing, match="runtime tool needs The Tool: it is not installed") as missing:
        find(tmp_path)
    assert missing.value.code == "runtime_missing"
    assert "get tool" in (missing.value.hint or "")
    assert "GUILDHALL_TOOL=/path/to/tool" in (missing.value.hint or "")


@pytest.mark.parametrize("version", ["1.9.9", "0.99.0"])
def test_one_that_is_too_old_is_said_so(tmp_path: Path, version: str) -> None:
    put(tmp_path, script(version))
    with pytest.raises(RuntimeOutdated, match=rf"The Tool {version} at .* is older than 1\.10\.0"):
        find(tmp_path)


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        (script("2.0.0"), 0o644, "Permission denied|Exec format|not found|126"),
        ("\x7fELF not really", 0o755, "."),
        ("#!/not/there\n", 0o755, "."),
        ("#!/bin/sh\necho hello\n", 0o755, "printed .hello"),
        ("#!/bin/sh\necho broken: 2.0.0 >&2; exit 1\n", 0o755, "printed .broken"),
        ("#!/bin/sh\n", 0o755, "printed nothing"),
        ("", 0o755, "."),
        ("#!\n", 0o755, "."),
    ],
)
def test_one_that_cannot_be_started_or_is_something_else_is_said_so(
    tmp_path: Path, text: str, mode: int, said: str
) -> None:
    path = put(tmp_path, text, mode)
    with pytest.raises(RuntimeUnusable, match=said) as unusable:
        find(tmp_path, GUILDHALL_TOOL=str(path))
    assert unusable.value.code == "runtime_unusable"
    with pytest.raises(RuntimeUnusable):
        find(tmp_path, GUILDHALL_TOOL=str(tmp_path))  # a folder


def test_what_was_asked_once_is_known_until_the_file_changes(tmp_path: Path) -> None:
    path, kept = put(tmp_path, script("1.11.0")), tmp_path / "programs.json"

    def version() -> str:
        """In a hall that knows only what is written down."""
        return asyncio.run(Programs({"PATH": str(tmp_path)}, VersionCache(kept)).find(ROW)).version

    assert version() == "1.11.0"
    kept.write_text(kept.read_text().replace("1.11.0", "1.12.0"))
    assert version() == "1.12.0"  # it was not asked again
    before = path.stat()
    path.unlink()
    put(tmp_path, script("1.13.0"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as packages of npm do it
    assert path.stat().st_size == before.st_size
    assert version() == "1.13.0"


@pytest.mark.parametrize(
    "written",
    [
        "",
        "{",
        "[]",
        "7",
        '{"%s": 7}',
        '{"%s": []}',
        '{"%s": ["9.9.9"]}',
        '{"%s": [1, 2, 3, 4, 5, "9.9.9"]}',
        "[" * 9999,
    ],
)
def test_what_is_written_down_and_does_not_fit_is_not_believed(tmp_path: Path, written: str) -> None:
    path, kept = put(tmp_path, script("1.11.0")), tmp_path / "programs.json"
    kept.write_text(written.replace("%s", str(path)))
    programs = Programs({"PATH": str(tmp_path)}, VersionCache(kept))
    assert asyncio.run(programs.find(ROW)).version == "1.11.0"
    assert "1.11.0" in kept.read_text()


def test_a_version_that_cannot_be_written_down_is_known_all_the_same(tmp_path: Path) -> None:
    put(tmp_path, script("1.11.0"))
    programs = Programs({"PATH": str(tmp_path)}, VersionCache(tmp_path / "nowhere" / "programs.json"))
    assert asyncio.run(programs.find(ROW)).version == "1.11.0"


def test_a_script_brings_its_installation_and_its_interpreter_and_never_the_persons_home(tmp_path: Path) -> None:
    home = Path.home()
    put(home / "bin", f"#!/usr/bin/env -S tiny --flag\n{script('2.0.0')}")
    put(tmp_path / "lang" / "bin", '#!/bin/sh\nshift; exec /bin/sh "$@"\n', name="tiny")
    programs = Programs({"PATH": f"{home}/bin:{tmp_path}/lang/bin:/usr/bin:/bin"})
    assert programs.locate(ROW) == home / "bin" / "tool"
    from guildhall.runtimes.discovery import _needed_paths

    needed = _needed_paths(home / "bin" / "tool", f"{tmp_path}/lang/bin")
    assert home not in needed
    assert tmp_path / "lang" in needed


def test_a_program_that_a_package_brings_is_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "claude_agent_sdk"
    put(package / "_bundled", "#!/bin/sh\necho '2.1.999 (Claude Code)'\n", name="claude")
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = find(tmp_path, RUNTIMES["claude"])
    assert (found.path, found.version) == (package / "_bundled" / "claude", "2.1.999")
    assert "claude_agent_sdk" not in sys.modules


def test_the_real_one_is_what_it_says() -> None:
    found = find("/usr/bin", RUNTIMES["claude"], GUILDHALL_CLAUDE=str(claude_program()))
    assert found.version == RUNTIMES["claude"].tested_version


def test_a_package_of_npm_sees_the_packages_beside_it(tmp_path: Path) -> None:
    """The program is a script that starts a binary out of another package, in the folder that all of them are in."""
    beside = put(tmp_path / "node_modules" / "tool-linux" / "bin", script("1.11.0"))
    inside = put(tmp_path / "node_modules" / "@of" / "tool" / "bin", f"#!/bin/sh\nexec {beside} $@\n", name="tool.js")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").symlink_to(inside)
    assert find(tmp_path / "bin").version == "1.11.0"


def test_where_programs_are_comes_along_with_every_request() -> None:
    variables = {row.variable for row in RUNTIMES.values() if row.program is not None}
    assert set(PROGRAM_VARIABLES) == variables
    assert variables <= forwarded_variables()


def test_a_request_is_served_by_the_program_that_it_names(tmp_path: Path) -> None:
    programs = Programs({"PATH": str(tmp_path)})
    assert programs.locate(RUNTIMES["codex"]) is None
    brought = programs.with_variables({"GUILDHALL_CODEX": f"{tmp_path}/mine"})
    assert brought.locate(RUNTIMES["codex"]) == tmp_path / "mine"
    with pytest.raises(RuntimeMissing, match=r"GUILDHALL_CODEX names .*/mine, which does not exist"):
        brought.check_installed(RUNTIMES["codex"])
