"""The page about runtimes matches the catalog, and names every failure."""

from __future__ import annotations

import re
from pathlib import Path

from guildhall.core.errors import ModelFailed, RuntimeFailed, ScriptExhausted, ScriptMismatch
from guildhall.runtimes.catalog import RUNTIMES
from guildhall.workers.definition import RuntimeName

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "runtimes.md").read_text()


def table_rows(columns: int) -> list[list[str]]:
    """Return the rows of all tables with this number of columns."""
    found = [re.split(r"\s*\|\s*", line)[1:-1] for line in PAGE.splitlines() if line.startswith("| `")]
    return [row for row in found if len(row) == columns]


def test_every_runtime_is_in_the_page_as_in_the_catalog() -> None:
    assert set(RUNTIMES) == set(RuntimeName.__args__)
    documented = {row[0].strip("`"): row[1:] for row in table_rows(6)}
    assert list(documented) == list(RUNTIMES)
    for name, row in RUNTIMES.items():
        title, install, tested, durability, models = documented[name]
        assert title.startswith(row.title)
        assert (install, tested, durability) == (row.install, row.tested_version or "", row.durability)
        assert models == (", ".join(f"`{provider}:`" for provider in row.providers) or "any")
        if row.min_version is not None and name == "claude":
            assert f"{row.min_version} is the oldest" in PAGE


def test_the_page_lists_exactly_the_gaps_of_the_catalog() -> None:
    documented = [(row[0].strip("`"), row[1]) for row in table_rows(2)]
    assert documented == [(name, gap) for name, row in RUNTIMES.items() for gap in row.gaps]


def test_the_page_lists_every_failure_of_runtimes_and_models() -> None:
    documented = {row[0].strip("`") for row in table_rows(4)}
    runtime = {RuntimeFailed, *RuntimeFailed.__subclasses__()}
    model = {kind for kind in ModelFailed.__subclasses__() if kind not in (ScriptMismatch, ScriptExhausted)}
    missing = {kind.code for kind in runtime | model} - documented - {"unknown_model"}
    assert missing == set()


def test_the_extra_installs_the_tested_version() -> None:
    """`guildhall[claude]` installs the version of scripts/clis."""
    pinned = re.search(r"claude-agent-sdk==([\d.]+)", (ROOT / "pyproject.toml").read_text())
    cached = re.search(r"claude-agent-sdk==([\d.]+)", (ROOT / "scripts" / "clis").read_text())
    assert pinned
    assert cached
    assert pinned[1] == cached[1]
