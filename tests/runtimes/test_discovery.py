"""Discovery of the programs of runtimes: their location, their version, and the errors if they are missing."""

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


def write_program(folder: Path, text: str, mode: int = 0o755, name: str = "tool") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(mode)
    return path


def version_script(version: str) -> str:
    return f"#!/bin/sh\necho 'tool {version} (The Tool)'\n"


def test_a_program_on_the_path_is_found_with_its_version(tmp_path: Path) -> None:
    write_program(tmp_path / "a", version_script("1.10.2"))
    found = find(tmp_path / "a")
    assert (found.path, found.version) == (tmp_path / "a" / "tool", "1.10.2")


def test_the_variable_precedes_the_path(tmp_path: Path) -> None:
    write_program(tmp_path / "a", version_script("1.10.2"))
    other = write_program(tmp_path / "b", version_script("2.0.0"))
    assert find(tmp_path / "a", GUILDHALL_TOOL=str(other)).version == "2.0.0"
    with pytest.raises(RuntimeMissing, match=r"GUILDHALL_TOOL is .*, which does not exist"):
        find(tmp_path / "a", GUILDHALL_TOOL=str(tmp_path / "gone"))


def test_a_missing_program_is_reported_with_its_installation(tmp_path: Path) -> None:
    with pytest.raises(RuntimeMissing, match="runtime tool needs The Tool: not installed") as missing:
        find(tmp_path)
    assert missing.value.code == "runtime_missing"
    assert "get tool" in (missing.value.hint or "")
    assert "GUILDHALL_TOOL=/path/to/tool" in (missing.value.hint or "")


@pytest.mark.parametrize("version", ["1.9.9", "0.99.0"])
def test_an_outdated_program_is_refused(tmp_path: Path, version: str) -> None:
    write_program(tmp_path, version_script(version))
    with pytest.raises(RuntimeOutdated, match=rf"The Tool {version} at .* is older than 1\.10\.0"):
        find(tmp_path)


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        (version_script("2.0.0"), 0o644, "Permission denied|Exec format|not found|126"),
        ("\x7fELF not really", 0o755, "."),
        ("#!/not/there\n", 0o755, "."),
        ("#!/bin/sh\necho hello\n", 0o755, "printed .hello"),
        ("#!/bin/sh\necho broken: 2.0.0 >&2; exit 1\n", 0o755, "printed .broken"),
        ("#!/bin/sh\n", 0o755, "printed nothing"),
        ("", 0o755, "."),
        ("#!\n", 0o755, "."),
    ],
)
def test_an_unusable_program_is_refused(tmp_path: Path, text: str, mode: int, message: str) -> None:
    path = write_program(tmp_path, text, mode)
    with pytest.raises(RuntimeUnusable, match=message) as unusable:
        find(tmp_path, GUILDHALL_TOOL=str(path))
    assert unusable.value.code == "runtime_unusable"
    with pytest.raises(RuntimeUnusable):
        find(tmp_path, GUILDHALL_TOOL=str(tmp_path))  # a folder instead of a file


def test_a_version_is_cached_until_the_file_changes(tmp_path: Path) -> None:
    path, cache = write_program(tmp_path, version_script("1.11.0")), tmp_path / "programs.json"

    def find_version() -> str:
        """Return the version that a new hall finds with the cache."""
        return asyncio.run(Programs({"PATH": str(tmp_path)}, VersionCache(cache)).find(ROW)).version

    assert find_version() == "1.11.0"
    cache.write_text(cache.read_text().replace("1.11.0", "1.12.0"))
    assert find_version() == "1.12.0"  # the program was not started again
    before = path.stat()
    path.unlink()
    write_program(tmp_path, version_script("1.13.0"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # npm packages keep the same times
    assert path.stat().st_size == before.st_size
    assert find_version() == "1.13.0"


@pytest.mark.parametrize(
    "content",
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
def test_an_invalid_cache_is_ignored(tmp_path: Path, content: str) -> None:
    path, cache = write_program(tmp_path, version_script("1.11.0")), tmp_path / "programs.json"
    cache.write_text(content.replace("%s", str(path)))
    programs = Programs({"PATH": str(tmp_path)}, VersionCache(cache))
    assert asyncio.run(programs.find(ROW)).version == "1.11.0"
    assert "1.11.0" in cache.read_text()


def test_a_version_is_found_without_a_writable_cache(tmp_path: Path) -> None:
    write_program(tmp_path, version_script("1.11.0"))
    programs = Programs({"PATH": str(tmp_path)}, VersionCache(tmp_path / "nowhere" / "programs.json"))
    assert asyncio.run(programs.find(ROW)).version == "1.11.0"


def test_a_script_needs_its_installation_and_interpreter_but_not_the_home_of_the_user(tmp_path: Path) -> None:
    home = Path.home()
    write_program(home / "bin", f"#!/usr/bin/env -S tiny --flag\n{version_script('2.0.0')}")
    write_program(tmp_path / "lang" / "bin", '#!/bin/sh\nshift; exec /bin/sh "$@"\n', name="tiny")
    programs = Programs({"PATH": f"{home}/bin:{tmp_path}/lang/bin:/usr/bin:/bin"})
    assert programs.locate(ROW) == home / "bin" / "tool"
    from guildhall.runtimes.discovery import _needed_paths

    needed = _needed_paths(home / "bin" / "tool", f"{tmp_path}/lang/bin")
    assert home not in needed
    assert tmp_path / "lang" in needed


def test_a_bundled_program_is_found_without_importing_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "claude_agent_sdk"
    write_program(package / "_bundled", "#!/bin/sh\necho '2.1.999 (Claude Code)'\n", name="claude")
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = find(tmp_path, RUNTIMES["claude"])
    assert (found.path, found.version) == (package / "_bundled" / "claude", "2.1.999")
    assert "claude_agent_sdk" not in sys.modules


def test_the_real_program_has_the_tested_version() -> None:
    found = find("/usr/bin", RUNTIMES["claude"], GUILDHALL_CLAUDE=str(claude_program()))
    assert found.version == RUNTIMES["claude"].tested_version


def test_an_npm_package_can_use_the_packages_beside_it(tmp_path: Path) -> None:
    """Start a script that executes a binary of another package in the same folder."""
    beside = write_program(tmp_path / "node_modules" / "tool-linux" / "bin", version_script("1.11.0"))
    inside = write_program(
        tmp_path / "node_modules" / "@of" / "tool" / "bin", f"#!/bin/sh\nexec {beside} $@\n", name="tool.js"
    )
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").symlink_to(inside)
    assert find(tmp_path / "bin").version == "1.11.0"


def test_the_variables_of_programs_are_forwarded_with_every_request() -> None:
    variables = {row.variable for row in RUNTIMES.values() if row.program is not None}
    assert set(PROGRAM_VARIABLES) == variables
    assert variables <= forwarded_variables()


def test_a_request_uses_the_program_that_it_names(tmp_path: Path) -> None:
    programs = Programs({"PATH": str(tmp_path)})
    assert programs.locate(RUNTIMES["codex"]) is None
    with_program = programs.with_variables({"GUILDHALL_CODEX": f"{tmp_path}/mine"})
    assert with_program.locate(RUNTIMES["codex"]) == tmp_path / "mine"
    with pytest.raises(RuntimeMissing, match=r"GUILDHALL_CODEX is .*/mine, which does not exist"):
        with_program.check_installed(RUNTIMES["codex"])
