"""The jobs of a hall in memory, newest first: read from the directories once, then kept by every write.

The directories are what is true. Whoever changes or removes one by hand is noticed when the job is looked at, or comes
into a listing: one look at two files a job, without opening them.
"""

from __future__ import annotations

import os
from bisect import bisect_left, insort
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError, UsageError
from guildhall.core.ids import JOB, is_id
from guildhall.jobs.folder import GONE, JobFolder, look, sweep
from guildhall.jobs.model import Page, check_filter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from guildhall.jobs.model import Job

_LARGEST_PAGE = 1_000_000
_BEFORE_ALL = "\U0010ffff"


class Index:
    """What jobs there are, and how they stand."""

    def __init__(self, folder: Path, *, tidy: bool) -> None:
        """`tidy`: what never became a job, or is one no more, is removed."""
        self._folder = folder
        self._jobs: dict[str, tuple[Job, tuple[int, ...] | None]] = {}
        self._places: list[tuple[str, str]] = []  # oldest first
        self._read(tidy=tidy)

    def _read(self, *, tidy: bool) -> None:
        try:
            names = os.listdir(self._folder)  # noqa: PTH208 - names only: there may be many
        except OSError:
            return
        for name in names:
            going = name.startswith(GONE) and is_id(name.removeprefix(GONE), JOB)
            unborn = is_id(name, JOB) and self._look(name) is None and self._unborn(name)
            if tidy and (going or unborn):
                sweep(self._folder / name)
        self._places = sorted(job.place for job, _ in self._jobs.values())

    def _unborn(self, name: str) -> bool:
        """Whether it is a directory whose job was never told of: it has no meta.json at all."""
        path = self._folder / name
        return not path.is_symlink() and path.is_dir() and not os.path.lexists(path / "meta.json")

    def folder(self, job: str) -> JobFolder:
        return JobFolder(self._folder / job)

    def _look(self, id: str) -> Job | None:
        """The job as its directory is now."""
        folder = self.folder(id)
        seen = folder.seen()
        try:
            job = folder.load() if seen is not None else None
        except GuildError:  # somebody has written something else into it
            job = None
        if job is None:
            self._jobs.pop(id, None)
            return None
        self._jobs[id] = job, seen
        return job

    def get(self, id: str) -> Job | None:
        """A job, as it is now."""
        if not is_id(id, JOB):
            return None
        known = self._jobs.get(id)
        if known is not None and known[1] is not None and known[1] == look(f"{self._folder}/{id}"):
            return known[0]
        job = self._look(id)
        if known is not None and (job is None or job.place != known[0].place):
            self._forget(known[0])
        if job is not None and (known is None or job.place != known[0].place):
            insort(self._places, job.place)
        return job

    def put(self, job: Job) -> None:
        """A job that was just written."""
        if job.id not in self._jobs:
            insort(self._places, job.place)
        self._jobs[job.id] = job, self.folder(job.id).seen()

    def drop(self, id: str) -> None:
        """A job that was just removed."""
        if (known := self._jobs.pop(id, None)) is not None:
            self._forget(known[0])

    def _forget(self, job: Job) -> None:
        at = bisect_left(self._places, job.place)
        if at < len(self._places) and self._places[at] == job.place:
            del self._places[at]

    @property
    def ids(self) -> list[str]:
        return list(self._jobs)

    def running(self) -> list[Job]:
        return [job for job, _ in self._jobs.values() if job.status == "running"]

    def page(
        self,
        *,
        filter: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        worker: str | None = None,
    ) -> Page:
        """Jobs newest first, `limit` of them from the cursor on; those whose whole description fits the filter."""
        check_filter(filter)
        if limit is not None and not 0 < limit <= _LARGEST_PAGE:
            raise UsageError(f"limit: {limit} is not a number of jobs above zero")
        found: list[Job] = []
        for job in self._after(_position(cursor)):
            if worker is not None and job.worker != worker:
                continue
            if filter is not None and not fnmatchcase(job.description, filter):
                continue
            if limit is not None and len(found) == limit:
                return Page(jobs=found, next="~".join(found[-1].place))
            found.append(job)
        return Page(jobs=found)

    def _after(self, place: tuple[str, str]) -> Iterator[Job]:
        at = bisect_left(self._places, place)
        top = str(self._folder)
        for _, id in reversed(self._places[:at]):
            known = self._jobs.get(id)
            if known is not None and known[1] == look(f"{top}/{id}"):
                yield known[0]
            elif (job := self.get(id)) is not None:
                yield job


def _position(cursor: str | None) -> tuple[str, str]:
    """Where a page begins: with what is older than this."""
    if cursor is None:
        return _BEFORE_ALL, ""
    at, _, id = cursor.partition("~")
    if not is_id(id, JOB) or not at.isascii() or len(at) > 40:
        raise UsageError("cursor: it is none that a list has given", hint="Leave it out to begin with the newest.")
    return at, id
