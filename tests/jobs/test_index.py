"""Listings: newest first, page by page, filtered; and what people do to the directories meanwhile."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import UsageError
from guildhall.core.ids import JOB, new_id
from guildhall.jobs.directory import JobDirectory
from guildhall.jobs.model import Job
from guildhall.jobs.queries import Index

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.jobs.model import Page


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a folder with 25 jobs."""
    folder = tmp_path / "jobs"
    for number in range(25):
        put(folder, number)
    return folder


def put(folder: Path, number: int, **how: str) -> Job:
    job = Job(
        id=new_id(JOB),
        worker="smith" if number % 2 else "baker",
        description=f"job {number}/of 25",
        status="completed",
        started_at=f"2026-01-01T00:00:{number:02}.000Z",
    )
    job = replace(job, **how)
    made = JobDirectory(folder / job.id)
    made.create("a task", {})
    made.save(job)
    return job


def numbers(page: Page) -> list[int]:
    return [int(job.description.split()[1].split("/")[0]) for job in page.jobs]


@pytest.mark.req("WD-8")
def test_pages_follow_one_another_to_the_end(folder: Path) -> None:
    index = Index(folder, clean_up=True)
    assert numbers(index.page()) == list(range(24, -1, -1))
    seen: list[int] = []
    cursor = None
    while True:
        page = index.page(limit=10, cursor=cursor)
        seen += numbers(page)
        cursor = page.next
        if cursor is None:
            break
        index.put(put(folder, 59, description="job 99/new"))  # what comes meanwhile moves nothing
    assert seen == list(range(24, -1, -1))
    assert index.page(limit=27).next is None


@pytest.mark.req("WD-8")
@pytest.mark.parametrize(
    ("filter", "found"),
    [
        ("*", 25),
        ("job 1*", 11),
        ("job 1", 0),
        ("job ?/*", 10),
        ("JOB*", 0),
        ("*of 25", 25),
        ("job [12]/of 25", 2),
        ("[", 0),
        ("", 0),
        ("*" * 500 + "x", 0),
        ("*a*a*a*a*a*a*a*a*a*a*a*a*b", 0),
    ],
)
def test_a_filter_is_a_glob_over_the_whole_description(folder: Path, filter: str, found: int) -> None:
    index = Index(folder, clean_up=True)
    assert len(index.page(filter=filter).jobs) == found
    page = index.page(filter=filter, limit=3)
    assert len(page.jobs) == min(found, 3)
    assert (page.next is not None) == (found > 3)
    assert all(job.worker == "smith" for job in index.page(filter=filter, worker="smith").jobs)


@pytest.mark.parametrize("cursor", ["", "x", "~", "2026~", "2026~../..", "~j-2345678923" * 9, "\ud800~j-2345678923"])
def test_an_unknown_cursor_is_refused(folder: Path, cursor: str) -> None:
    with pytest.raises(UsageError):
        Index(folder, clean_up=True).page(cursor=cursor)


def test_other_wrong_arguments_are_refused(folder: Path) -> None:
    index = Index(folder, clean_up=True)
    for limit in (0, -1, 10**9):
        with pytest.raises(UsageError):
            index.page(limit=limit)
    for filter in ("x" * 1001, "a\0b", "\ud800"):
        with pytest.raises(UsageError):
            index.page(filter=filter)


def test_a_cursor_outlives_its_job(folder: Path) -> None:
    index = Index(folder, clean_up=True)
    page = index.page(limit=5)
    last = page.jobs[-1].id
    JobDirectory(folder / last).remove()
    index.drop(last)
    assert numbers(index.page(limit=2, cursor=page.next)) == [19, 18]


def test_manual_changes_of_directories_are_noticed(folder: Path) -> None:
    index = Index(folder, clean_up=True)
    newest, second, third, fourth = (job.id for job in index.page(limit=4).jobs)
    shutil.rmtree(folder / newest)
    (folder / second / "meta.json").write_text("{")
    (folder / third / "status.md").write_text("by hand")
    meta = folder / fourth / "meta.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "description": "job 77/changed"}))
    page = index.page(limit=3)
    assert [job.id for job in page.jobs][:2] == [third, fourth]
    assert page.jobs[0].summary == "by hand"
    assert numbers(page)[1] == 77
    assert (index.get(newest), index.get(second)) == (None, None)
    late = put(folder, 58)  # by another process, or a copy
    assert index.get(late.id) == late
    assert index.page(limit=1).jobs == [late]
    assert len(index.page().jobs) == 24


def test_the_start_removes_only_incomplete_directories(folder: Path) -> None:
    unborn, broken = folder / new_id(JOB), folder / new_id(JOB)
    JobDirectory(unborn).create("a task", {})
    JobDirectory(broken).create("a task", {})
    (broken / "meta.json").write_text("{")
    going = folder / f".gone-{new_id(JOB)}"
    going.mkdir()
    other, link, file = folder / "notes", folder / new_id(JOB), folder / new_id(JOB)
    other.mkdir()
    link.symlink_to(other)
    file.write_text("")
    assert len(Index(folder, clean_up=False).page().jobs) == 25
    assert unborn.exists()
    assert len(Index(folder, clean_up=True).page().jobs) == 25
    assert not unborn.exists()
    assert not going.exists()
    assert broken.exists()
    assert other.exists()
    assert link.is_symlink()
    assert file.exists()


def test_a_missing_folder_has_no_jobs(tmp_path: Path) -> None:
    assert Index(tmp_path / "nowhere", clean_up=True).page().jobs == []
    (tmp_path / "file").write_text("")
    assert Index(tmp_path / "file", clean_up=True).page().jobs == []


@pytest.mark.req("WD-10")
def test_rows_have_the_requested_detail(folder: Path) -> None:
    index = Index(folder, clean_up=True)
    (job,) = index.page(limit=1).jobs
    assert index.page(limit=1).as_wire()["jobs"] == [{"jobId": job.id, "status": "completed"}]
    detailed = {"jobId": job.id, "status": "completed", "description": job.description, "summary": None}
    page = index.page(limit=1).as_wire("detailed")
    assert page["jobs"] == [detailed]
    assert page["nextCursor"]
    assert "nextCursor" not in index.page().as_wire()
    JobDirectory(folder / job.id).write_summary("half")
    assert index.page(limit=1).as_wire("detailed")["jobs"] == [{**detailed, "summary": "half"}]
