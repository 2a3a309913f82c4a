"""Job queries: list jobs, return status and result, and repair directories that lag behind their runs.

The index keeps all jobs in memory, ordered by time, and rereads a job only if its files changed. At the start, and when
a running job without a live run is shown, the status of the run is written to the directory. Directories that never
became a job are removed. A read-only register repairs and removes nothing.

Does not dispatch, cancel or delete jobs: `jobs.service` does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from bisect import bisect_left, insort
from collections import defaultdict
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from guildhall.activities.contract import AskedQuestion
from guildhall.activities.questions import answer_text
from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import GuildError, InvalidFile, NotFinished, UnknownJob, UsageError
from guildhall.core.ids import JOB, is_id
from guildhall.core.text import did_you_mean
from guildhall.jobs.directory import GONE, META, JobFolder, look
from guildhall.jobs.model import Job, JobResult, JobShown, Page, check_filter
from guildhall.runs.model import ENDED, Ask, Run
from guildhall.runs.purpose import JobPurpose
from guildhall.runs.record import records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sqlalchemy import Connection

    from guildhall.runs.asks import Asks
    from guildhall.store.engine import Store


_LARGEST_PAGE = 1_000_000
_BEFORE_ALL = "\U0010ffff"


class Index:
    """All jobs of a folder in memory, ordered by time."""

    def __init__(self, folder: Path, *, tidy: bool) -> None:
        """`tidy`: remove directories that never became a job, or are being removed."""
        self._folder = folder
        self._jobs: dict[str, tuple[Job, tuple[int, ...] | None]] = {}
        self._places: list[tuple[str, str]] = []  # oldest first
        try:
            names = os.listdir(self._folder)  # noqa: PTH208 - names only: there may be many
        except OSError:
            return
        for name in names:
            going = name.startswith(GONE) and is_id(name.removeprefix(GONE), JOB)
            unborn = is_id(name, JOB) and self._look(name) is None and self._unborn(name)
            if tidy and (going or unborn):
                shutil.rmtree(self._folder / name, ignore_errors=True)
        self._places = sorted(job.place for job, _ in self._jobs.values())

    def _unborn(self, name: str) -> bool:
        """Return True for a directory without a meta.json: its job was never announced."""
        path = self._folder / name
        return not path.is_symlink() and path.is_dir() and not os.path.lexists(path / META)

    def folder(self, job: str) -> JobFolder:
        return JobFolder(self._folder / job)

    def _look(self, id: str) -> Job | None:
        """Read a job from its directory."""
        seen = look(f"{self._folder}/{id}")
        try:
            job = self.folder(id).load() if seen is not None else None
        except GuildError:  # somebody has written something else into it
            job = None
        if job is None:
            self._jobs.pop(id, None)
            return None
        self._jobs[id] = job, seen
        return job

    def get(self, id: str) -> Job | None:
        """Return a job as it is now, or None if there is none."""
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
        """Add or update a job that was just written."""
        if job.id not in self._jobs:
            insort(self._places, job.place)
        self._jobs[job.id] = job, look(f"{self._folder}/{job.id}")

    def drop(self, id: str) -> None:
        """Forget a job that was just removed."""
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
        """Return jobs, newest first, from the cursor on. `filter` is a glob over the whole description."""
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
    """Return the position after which a page begins."""
    if cursor is None:
        return _BEFORE_ALL, ""
    at, _, id = cursor.partition("~")
    if not is_id(id, JOB) or not at.isascii() or len(at) > 40:
        raise UsageError("cursor: it is none that a list has given", hint="Leave it out to begin with the newest.")
    return at, id


_NEAR = 200  # jobs among which the nearest id is looked for
_log = logging.getLogger("guildhall.jobs")


class Register:
    """The jobs of one folder. `alive` returns True for a run that is being executed."""

    def __init__(
        self, *, folder: Path, store: Store, clock: Clock, asks: Asks, alive: Callable[[str], bool], readonly: bool
    ) -> None:
        self._store = store
        self._clock = clock
        self._asks = asks
        self._alive = alive
        self._readonly = readonly
        self._index = Index(folder, tidy=not readonly)
        self.page = self._index.page
        self._writing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by job
        if not readonly:
            for job in self._index.running():
                self._put_right(job)
            self._store.submit(self._withdraw_orphans).result()

    # Looking

    def get(self, id: str) -> Job:
        if (job := self._index.get(id)) is not None:
            return job
        hint = did_you_mean(id[:40], self._index.ids[-_NEAR:]) or "`guild ls jobs` lists the jobs."
        if is_id(id, JOB) and self._index.folder(id).path.exists():
            hint = f"{self._index.folder(id).path} is there, but has no meta.json that can be read."
        raise UnknownJob(f"there is no job {id[:100]!r}", hint=hint)

    def status(self, id: str) -> JobShown:
        """Return everything about a job except its result."""
        job, folder = self._as_it_stands(id), self._index.folder(id)
        run = self._run_of(job)
        asks = self._asks.of_run(run.id) if run else []
        asked = _with_answers(folder.questions(), asks)
        others = [ask for ask in asks if ask.status == "open" and ask.kind != "question"]
        waiting = [ask.id for ask in asks if ask.status == "open" and run and run.status == "waiting"]
        return JobShown(
            job=job,
            questions=[
                *(one.question for one in asked if one.answer is None),
                *(f"{ask.question.title}\n{ask.question.body}".rstrip() for ask in others),
            ],
            decisions=folder.decisions(),
            waits=bool(waiting),
            waiting=waiting,
            asked=asked,
            artifacts=folder.artifacts(),
            cost_usd=run.cost_usd if run else None,
            directory=str(folder.path),
            hint=_hint(run) if run and job.status == "failed" else None,
        )

    def result(self, id: str) -> JobResult:
        """Return the result of a job. Raise NotFinished if it is not completed."""
        job, folder = self._as_it_stands(id), self._index.folder(id)
        if job.status != "completed":
            why = {
                "running": "is running: it has no result yet",
                "failed": f"has failed and has no result: {job.error}",
                "cancelled": "was cancelled and has no result",
            }
            raise NotFinished(
                f"the job {id} {why[job.status]}", job=id, status=job.status, hint=f"guild show {id} says more."
            )
        output = folder.result()
        if output is None:
            raise InvalidFile("the result of the job is not there any more", where=str(folder.path / "result.md"))
        return JobResult(id=id, output=output, artifacts=folder.artifacts())

    def _as_it_stands(self, id: str) -> Job:
        """Return a job. If its end could not be written, because the disk was full, write it now."""
        job = self.get(id)
        if job.status != "running" or self._readonly or (job.run is not None and self._alive(job.run)):
            return job
        if not self._writing[id].locked():
            self._put_right(job)
        return self.get(id)

    def folder(self, id: str) -> Path:
        """Return the directory of a job."""
        self.get(id)
        return self._index.folder(id).path

    def _run_of(self, job: Job) -> Run | None:
        run = job.run
        return self._store.read(lambda connection: records.find_run(connection, run)) if run else None

    # On record

    def _as_on_record(self, job: Job, run: Run | None, *, gone: str) -> Job:
        """Return a job with the status of its run. `gone`: its status if the run does not exist any more."""
        now = stamp(self._clock.now())
        if run is None:
            lost = "there is no run behind it any more: the record of the hall was lost"
            return replace(job, status=gone, completed_at=now, error=lost if gone == "failed" else None)
        if run.status not in ENDED:
            return job
        ended = replace(job, status=run.status, completed_at=run.ended_at or now, error=None)
        if run.status == "completed":
            return replace(ended, late_error=run.reason)
        if run.status == "failed":
            message = (run.error["message"] if run.error else run.reason) or "no reason given"
            where = run.error.get("where") if run.error else None
            return replace(ended, error=f"{where}: {message}" if where else message)
        return ended

    def _put_right(self, job: Job) -> None:
        """Write the status of the run to a job whose process died or found no room."""
        then = self._as_on_record(job, self._run_of(job), gone="failed")
        if then != job:
            try:
                self._index.folder(job.id).save(then)
                self._index.put(then)
            except GuildError as error:
                _log.warning("%s: %s", job.id, error)

    def _withdraw_orphans(self, connection: Connection) -> None:
        """Withdraw the questions of jobs that do not exist any more."""
        now = stamp(self._clock.now())
        for ask in records.list_asks(connection, status="open"):
            run = records.find_run(connection, ask.run) if ask.kind == "question" else None
            job = run.purpose_as(JobPurpose) if run is not None else None
            if job is not None and not self._index.folder(job.id).path.exists():
                records.withdraw_asks(connection, ask.run, now)

    async def _save(self, job: Job) -> Job:
        folder = self._index.folder(job.id)
        async with self._writing[job.id]:
            await asyncio.to_thread(folder.save, job)
        self._index.put(replace(job, summary=folder.summary()))
        return job


def _hint(run: Run) -> str | None:
    """Return the hint of a failed run, with the id of the job in place of the run's."""
    hint, purpose = run.error.get("hint", "") if run.error else "", run.purpose_as(JobPurpose)
    return hint.replace(run.id, purpose.id) if hint and purpose is not None else None


def _with_answers(asked: list[AskedQuestion], asks: list[Ask]) -> list[AskedQuestion]:
    """Return the questions of the file, completed by those that only the inbox has."""
    kept = {one.ask: one for one in asked}
    for ask in asks:
        if ask.kind == "question" and ask.id not in kept and ask.status != "withdrawn":
            kept[ask.id] = AskedQuestion(ask=ask.id, at=ask.created_at, question=ask.question.body)
    answers = {ask.id: answer_text(ask) for ask in asks if ask.answer is not None}
    return [replace(one, answer=answers[one.ask]) if one.ask in answers else one for one in kept.values()]
