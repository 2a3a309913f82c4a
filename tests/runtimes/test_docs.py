"""The page about runtimes says what the catalogue says, and names every failure of one."""

from __future__ import annotations

import re
from pathlib import Path

from guildhall.core.errors import ModelFailed, RuntimeFailed, ScriptExhausted, ScriptMismatch
from guildhall.runtimes.catalog import RUNTIMES
from guildhall.workers.definition import RuntimeName

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "runtimes.md").read_text()


def rows(columns: int) -> list[list[str]]:
    """The rows of the tables with so many columns, without their heads."""
    found = [re.split(r"\s*\|\s*", line)[1:-1] for line in PAGE.splitlines() if line.startswith("| `")]
    return [row for row in found if len(row) == columns]


def test_every_runtime_is_there_with_what_the_catalogue_says() -> None:
    assert set(RUNTIMES) == set(RuntimeName.__args__)
    told = {row[0].strip("`"): row[1:] for row in rows(6)}
    assert list(told) == list(RUNTIMES)
    for name, row in RUNTIMES.items():
        title, install, tested, durability, models = told[name]
        assert title.startswith(row.title)
        assert (install, tested, durability) == (row.install, row.tested_version or "", row.durability)
        assert models == (", ".join(f"`{provider}:`" for provider in row.providers) or "any")
        if row.min_version is not None and name == "claude":
            assert f"{row.min_version} is the oldest" in PAGE


def test_every_gap_is_there_and_no_other() -> None:
    told = [(row[0].strip("`"), row[1]) for row in rows(2)]
    assert told == [(name, gap) for name, row in RUNTIMES.items() for gap in row.gaps]


def test_every_failure_of_a_runtime_and_of_a_model_is_there() -> None:
    told = {row[0].strip("`") for row in rows(4)}
    runtime = {RuntimeFailed, *RuntimeFailed.__subclasses__()}
    model = {kind for kind in ModelFailed.__subclasses__() if kind not in (ScriptMismatch, ScriptExhausted)}
    missing = {kind.code for kind in runtime | model} - told - {"unknown_model"}
    assert missing == set()


def test_the_extra_brings_the_version_that_is_tested() -> None:
    """What `guildhall[claude]` installs is what our tests run."""
    pinned = re.search(r"claude-agent-sdk==([\d.]+)", (ROOT / "pyproject.toml").read_text())
    cached = re.search(r"claude-agent-sdk==([\d.]+)", (ROOT / "scripts" / "clis").read_text())
    assert pinned
    assert cached
    assert pinned[1] == cached[1]
