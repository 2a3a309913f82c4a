"""Metric 8: the memory block of a prompt out of 10,000 entries.

All of it: the limit includes every entry; compared with reading all files. Usual limit: most entries are omitted;
compared with a stat call for each. Linear: ten times as many entries take ten times as long.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from bench.frame import Metric, seconds
from guildhall.core.paths import Home
from guildhall.core.request_frame import Frame
from guildhall.memory.folder import memory_folders
from guildhall.memory.prompt_block import render_block, select_entries

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.memory.folder import MemoryFolder

ENTRIES = 10_000
UNLIMITED_TOKENS = 1_000_000
USUAL_TOKENS = 8_000


def metrics(scratch: Path) -> list[Metric]:
    many = _create_entries(scratch / "many", ENTRIES)
    few = _create_entries(scratch / "few", ENTRIES // 10)
    return [
        Metric(
            name="8 memory, all of it",
            floor_name="read all files",
            floor=lambda: seconds(lambda: _read_all(many.path)),
            measured=lambda: _measure_block(many, UNLIMITED_TOKENS, ENTRIES),
            target=2.0,
        ),
        Metric(
            name="8 memory, usual limit",
            floor_name="stat all files",
            floor=lambda: seconds(lambda: _stat_all(many.path)),
            measured=lambda: _measure_block(many, USUAL_TOKENS, 1),
            target=1.5,
        ),
        Metric(
            name="8 memory, linear",
            floor_name="ten times a tenth",
            floor=lambda: 10 * _measure_block(few, UNLIMITED_TOKENS, ENTRIES // 10),
            measured=lambda: _measure_block(many, UNLIMITED_TOKENS, ENTRIES),
            target=1.3,
        ),
    ]


def _create_entries(scratch: Path, count: int) -> MemoryFolder:
    folder = memory_folders(Home(scratch), None, Frame(cwd=scratch, root=scratch))["global"]
    folder.path.mkdir(parents=True)
    for number in range(count):
        path = folder.entry_path(f"entry-{number}")
        path.write_text(f"What was learned about subject {number}.\n" + "It is so, for this reason.\n" * 8)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    return folder


def _read_all(folder: Path) -> None:
    for path in folder.iterdir():
        path.read_bytes()


def _stat_all(folder: Path) -> None:
    with os.scandir(folder) as found:
        for item in found:
            item.stat(follow_symlinks=False)


def _measure_block(folder: MemoryFolder, limit_tokens: int, min_entries: int) -> float:
    def build_block() -> None:
        selection = select_entries([folder], limit_tokens)
        if len(selection.entries) < min_entries or len(render_block(selection)) > limit_tokens * 4:
            raise RuntimeError(f"{len(selection.entries)} entries were selected")

    return seconds(build_block)
