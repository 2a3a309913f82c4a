"""Metric 7: listings of 10,000 jobs, compared with stat calls for all directories and reads of one page.

The hall has an index in memory. It checks each listed job, because its directory can change.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from bench.frame import Metric, seconds
from guildhall.core.ids import JOB, new_id
from guildhall.jobs.directory import JobDirectory
from guildhall.jobs.queries import Index

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from guildhall.jobs.model import Page

JOBS = 10_000
PAGE = 50


def metrics(scratch: Path) -> list[Metric]:
    folder = scratch / "jobs"
    _fill(folder)
    index = Index(folder, clean_up=False)
    return [
        Metric(
            name="7 a page of 50 out of 10,000 jobs",
            floor_name="names, and read 50",
            floor=lambda: seconds(lambda: _read_page(folder)),
            measured=lambda: _measure_page(lambda: index.page(limit=PAGE), PAGE),
            target=5.0,
        ),
        Metric(
            name="7 all of 10,000 jobs",
            floor_name="stat all",
            floor=lambda: seconds(lambda: _stat_all(folder)),
            measured=lambda: _measure_page(index.page, JOBS),
            target=2.0,
        ),
        Metric(
            name="7 10,000 jobs, filtered",
            floor_name="stat all",
            floor=lambda: seconds(lambda: _stat_all(folder)),
            measured=lambda: _measure_page(lambda: index.page(filter="*report 77*"), 111),
            target=2.0,
        ),
        Metric(
            name="7 10,000 jobs at the start of a hall",
            floor_name="read all",
            floor=lambda: seconds(lambda: _read_all(folder)),
            measured=lambda: _measure_page(lambda: Index(folder, clean_up=True).page(limit=PAGE), PAGE),
            target=None,
            rounds=5,
        ),
    ]


def _fill(folder: Path) -> None:
    for number in range(JOBS):
        id = new_id(JOB)
        directory = JobDirectory(folder / id)
        directory.path.mkdir(parents=True)
        (directory.path / "task.md").write_text("Write the report.")
        (directory.path / "config.json").write_text("{}")
        (directory.path / "status.md").write_text("Two of three parts are written.")
        meta = {
            "id": id,
            "worker": "reporter",
            "description": f"the report {number}",
            "status": "completed",
            "startedAt": f"2026-01-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}.000Z",
            "completedAt": None,
            "error": None,
            "run": "r-2345678923",
        }
        (directory.path / "meta.json").write_text(json.dumps(meta))


def _read_page(folder: Path) -> None:
    for name in sorted(os.listdir(folder))[:PAGE]:  # noqa: PTH208
        for file in ("meta.json", "status.md"):
            (folder / name / file).read_bytes()


def _stat_all(folder: Path) -> None:
    for name in os.listdir(folder):  # noqa: PTH208
        os.stat(f"{folder}/{name}/meta.json")  # noqa: PTH116
        os.stat(f"{folder}/{name}/status.md")  # noqa: PTH116


def _read_all(folder: Path) -> None:
    for name in os.listdir(folder):  # noqa: PTH208
        for file in ("meta.json", "status.md"):
            (folder / name / file).read_bytes()


def _measure_page(page: Callable[[], Page], count: int) -> float:
    def list_jobs() -> None:
        if len(page().jobs) != count:
            raise RuntimeError(f"{len(page().jobs)} jobs in the page")

    return seconds(list_jobs)
