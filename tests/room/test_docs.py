"""The page about the room names every tool with its arguments, every kind of proposal and all limits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from guildhall.room.channel import MAX_PAGE_CHARS
from guildhall.room.inbox import MAX_BATCH, MAX_BATCH_CHARS
from guildhall.room.model import (
    MAX_HOPS,
    MAX_OWN_CHARS,
    MAX_QUOTE_CHARS,
    MAX_TEXT_BYTES,
    ProposalType,
    Resolution,
    TieBreak,
)
from guildhall.room.tools import TOOLS
from tests.room.test_tools import CONTRACT

PAGE = (Path(__file__).parents[2] / "docs" / "room.md").read_text()


def rows(heading: str) -> list[list[str]]:
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:3] == "| `"]


def test_every_tool_has_a_row_with_its_arguments():
    table = {row[0].strip("`"): row[1] for row in rows("Tools")}
    assert table.keys() == TOOLS.keys()
    for name, arguments in table.items():
        shown = {f"{field}{mark}" for field, mark in re.findall(r"`(\w+)`(\??)", arguments)}
        assert shown == set(CONTRACT[name].split()), name


def test_every_kind_of_proposal_is_in_the_page():
    named = [row[0].strip("`") for row in rows("Proposals")]
    assert named == [*get_args(ProposalType), *get_args(Resolution)]
    assert all(f"`{name}`" in PAGE for name in get_args(TieBreak))


def test_the_limits_in_the_page_are_those_of_the_code():
    for figure in (
        f"{MAX_QUOTE_CHARS:,} characters",
        f"{MAX_OWN_CHARS:,} characters",
        f"{MAX_PAGE_CHARS:,} characters",
        f"`max_hops` ({MAX_HOPS})",
        f"{MAX_TEXT_BYTES:,} bytes",
        f"{MAX_BATCH} messages",
    ):
        assert figure in PAGE
    assert f"{MAX_BATCH_CHARS:,} characters" in PAGE
