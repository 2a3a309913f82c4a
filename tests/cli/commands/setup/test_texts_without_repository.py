"""Texts for a user who has only the installed package: nothing refers to the repository, and hints fit the command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import guildhall

if TYPE_CHECKING:
    from tests.conftest import Guild


def test_generated_files_name_only_files_that_a_user_has(guild: Guild, project: Path) -> None:
    assert guild("init").code == 0
    assert guild("worker", "new", "mine").code == 0
    texts = [path.read_text() for path in project.rglob("*") if path.is_file()]
    assert not [text for text in texts if "docs/" in text]
    (named,) = re.findall(r"described in (guildhall/\S+)", (project / "workers" / "mine.yaml").read_text())
    assert (Path(guildhall.__file__).parents[1] / named).is_file()


def test_doctor_counts_the_workers_of_the_user(guild: Guild, project: Path) -> None:
    assert "workers: none\n         Create one: guild worker new NAME\n" in guild("doctor").out
    guild("worker", "new", "mine")
    assert "workers: 1 usable\n" in guild("doctor").out


def test_a_rule_without_a_mapping_is_reported_with_its_form(guild: Guild, project: Path) -> None:
    (project / "workers").mkdir()
    (project / "workers" / "mine.yaml").write_text("instructions: x\ntool_rules:\n  fs.write: ask\n")
    checked = guild("check", "mine")
    assert checked.code != 0
    assert "Write {approval_required: true} to be asked before each call, or {allowed: false}." in checked.err


def test_a_listing_that_matches_nothing_says_so(guild: Guild, project: Path) -> None:
    for kind, option, hint in (
        ("jobs", "--filter", "No jobs match the filter. List all: guild ls jobs\n"),
        ("commissions", "--status", "No commissions match the options. List all: guild ls commissions\n"),
        ("meetings", "--status", "No meetings match the options. List all: guild ls meetings --all\n"),
    ):
        value = {"jobs": "zzz*", "commissions": "failed", "meetings": "closed"}[kind]
        assert guild("ls", kind, option, value).err == hint
