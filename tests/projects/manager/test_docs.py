"""The page about the manager, and the table of tools by context, say what the program does."""

from __future__ import annotations

import re
from pathlib import Path

from guildhall.core.config import Manager
from guildhall.projects.manager.tools import NAME, TOOLS
from guildhall.workers.definition import SYSTEM_TOOLBOXES
from tests.guild.test_toolbox_resolution import ARTIFACTS, BASE

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "manager.md").read_text()


def test_each_tool_is_there_with_its_capability() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([`\w, ]*)\| ", PAGE, re.MULTILINE)
    assert {name: frozenset(re.findall(r"\w+", can)) for name, can in rows} == TOOLS


def test_the_toolboxes_that_cannot_be_named_are_named() -> None:
    for name in SYSTEM_TOOLBOXES:
        assert f"`{name}`" in PAGE or f"[{name}]" in PAGE


def test_the_setting_is_one_that_is_read() -> None:
    (written,) = re.findall(r"asks_before: \[(\w+)\]\}\s+# also: (.*)", PAGE)
    named = [written[0], *written[1].split(", ")]
    assert sorted(Manager(asks_before=tuple(named)).asks_before) == ["commission", "meeting", "pull_request"]


def test_the_table_of_contexts_names_the_base_and_each_toolbox() -> None:
    section = (DOCS / "concepts.md").read_text().partition("## Tools by context")[2].partition("\n## ")[0]
    for tool in (*BASE, *ARTIFACTS):
        assert f"`{tool}`" in section
    for name in (*SYSTEM_TOOLBOXES, NAME):
        assert name in section
