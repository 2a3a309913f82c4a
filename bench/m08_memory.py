"""Metric 8: memory for a prompt out of 10,000 entries, against reading all these files and against looking at them.

Cold: the limit is so high that every entry is read and shown. Warm: the usual limit, where most are only looked at.
Linear: ten times as many entries take ten times as long.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from bench.frame import Metric, seconds
from guildhall.core.frame import Frame
from guildhall.core.paths import Home
from guildhall.memory.inject import render, select
from guildhall.memory.model import places

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.memory.model import Place

ENTRIES = 10_000
EVERYTHING = 1_000_000  # tokens
USUAL = 8_000


def metrics(scratch: Path) -> list[Metric]:
    many = _filled(scratch / "many", ENTRIES)
    few = _filled(scratch / "few", ENTRIES // 10)
    return [
        Metric(
            name="8 memory, all of it",
            floor_name="read all files",
            floor=lambda: seconds(lambda: _read(many.folder)),
            measured=lambda: _injected(many, EVERYTHING, ENTRIES),
            target=2.0,
        ),
        Metric(
            name="8 memory, usual limit",
            floor_name="stat all files",
            floor=lambda: seconds(lambda: _look(many.folder)),
            measured=lambda: _injected(many, USUAL, 1),
            target=1.5,
        ),
        Metric(
            name="8 memory, linear",
            floor_name="ten times a tenth",
            floor=lambda: 10 * _injected(few, EVERYTHING, ENTRIES // 10),
            measured=lambda: _injected(many, EVERYTHING, ENTRIES),
            target=1.3,
        ),
    ]


def _filled(scratch: Path, count: int) -> Place:
    place = places(Home(scratch), None, Frame(cwd=scratch, root=scratch))["global"]
    place.folder.mkdir(parents=True)
    for number in range(count):
        path = place.folder / f"entry-{number}.md"
        path.write_text(f"What was learned about subject {number}.\n" + "It is so, for this reason.\n" * 8)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    return place


def _read(folder: Path) -> None:
    for path in folder.iterdir():
        path.read_bytes()


def _look(folder: Path) -> None:
    with os.scandir(folder) as found:
        for item in found:
            item.stat(follow_symlinks=False)


def _injected(place: Place, limit: int, at_least: int) -> float:
    def inject() -> None:
        selection = select([place], limit)
        if len(selection.entries) < at_least or len(render(selection)) > limit * 4:
            raise RuntimeError(f"{len(selection.entries)} entries were selected")

    return seconds(inject)
