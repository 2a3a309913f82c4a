"""`guild init`: creates a starter folder that works at once, and overwrites nothing."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild


def test_keys_decide_the_model_and_are_not_written_down(guild: Guild, project: Path) -> None:
    secret = "sk-ant-0123456789"
    ran = guild("init", env={"ANTHROPIC_API_KEY": secret})
    assert ran.code == 0
    assert "model: anthropic:" in (project / "guildhall.yaml").read_text()
    assert "Found ANTHROPIC_API_KEY" in ran.err
    everything = "".join(path.read_text() for path in project.rglob("*") if path.is_file())
    assert secret not in everything + ran.out + ran.err


def test_a_key_of_a_provider_without_a_default_is_named(guild: Guild, project: Path) -> None:
    ran = guild("init", env={"CO_API_KEY": "0123456789"})
    assert "Found CO_API_KEY" in ran.err
    assert "model: script:" in (project / "guildhall.yaml").read_text()


def test_tools_on_the_path_are_named(guild: Guild, project: Path, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "codex"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    ran = guild("init", env={"PATH": f"{program.parent}:/usr/bin:/bin"})
    assert "Found on this machine: codex" in ran.err


def test_existing_files_are_kept(guild: Guild, project: Path) -> None:
    (project / "guildhall.yaml").write_text("budget: 0.10\n")
    (project / "README.md").symlink_to("nowhere")
    result = guild("init", "--json").json
    assert set(result["kept"]) == {"guildhall.yaml", "README.md"}
    assert (project / "guildhall.yaml").read_text() == "budget: 0.10\n"
    assert str((project / "README.md").readlink()) == "nowhere"
    again = guild("init")
    assert again.code == 0
    assert again.out.count("Kept ") == 6
    assert "guildhall.yaml is not changed" in again.err


@pytest.mark.parametrize("place", ["file", "file/inside", "x" * 300, "/proc/guild"])
def test_an_unusable_folder_is_reported(guild: Guild, project: Path, place: str) -> None:
    (project / "file").write_text("")
    ran = guild("init", place, "--json")
    assert ran.code == 1
    assert ran.json["error"]["code"] == "conflict"
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(("name", "file"), [("review", "review.yaml"), ("office", "chief")])
def test_an_example_can_be_planned_unchanged(guild: Guild, project: Path, name: str, file: str) -> None:
    made = guild("init", "--example", name)
    assert made.code == 0
    assert (project / "README.md").is_file()
    for step in ("guild trust review.yaml", "guild run review.yaml") if name == "review" else ("guild plan chief",):
        assert step in made.err
    planned = guild("plan", file)
    assert planned.code == 0, planned
    assert "script:" in planned.out


def test_an_unknown_example_is_refused(guild: Guild, project: Path) -> None:
    ran = guild("init", "--example", "../../x")
    assert ran.code == 2
    assert "review" in ran.err
    assert "office" in ran.err
    assert list(project.iterdir()) == []
