"""Job queries: lists jobs, returns status and result, and repairs directories that lag behind their runs.

The index keeps all jobs in memory, ordered by time, and rereads a job only if its files have changed. Repairs happen at
the start, and when a job is read whose status is running although this process does not execute its run.

Does not dispatch, cancel or delete jobs: `jobs.service` does.

Invariant: a read-only instance changes no files.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from guildhall.activities.contract import AskedQuestion
from guildhall.activities.questions import answer_text
from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import GuildError, InvalidFile, NotFinished, UnknownJob, UsageError
from guildhall.core.ids import JOB, is_id
from guildhall.core.text_checks import did_you_mean, is_text
from guildhall.jobs.directory import META, REMOVED_PREFIX, RESULT, JobDirectory, directory_fingerprint
from guildhall.jobs.model import MAX_DESCRIPTION_CHARS, Job, JobDetails, JobResult, JobStatus, Page
from guildhall.runs.model import ENDED, Ask, Run
from guildhall.runs.purpose import JobPurpose
from guildhall.runs.record import records

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

    from guildhall.runs.asks import Asks
    from guildhall.store.engine import Store


_MAX_PAGE_JOBS = 1_000_000
_AFTER_ALL = "\U0010ffff"
_MAX_SUGGESTIONS = 200  # recent jobs whose ids are compared with an unknown id
_log = logging.getLogger("guildhall.jobs")


class Index:
    """The jobs of a folder in memory, ordered by time."""

    def __init__(self, folder: Path, *, clean_up: bool) -> None:
        """Read all jobs. `clean_up`: remove incomplete directories, and directories of interrupted removals."""
        self._folder = folder
        self._jobs: dict[str, tuple[Job, tuple[int, ...] | None]] = {}
        self._positions: list[tuple[str, str]] = []  # oldest first
        try:
            names = os.listdir(self._folder)  # noqa: PTH208 - names only: there may be many
        except OSError:
            return
        for name in names:
            is_removed = name.startswith(REMOVED_PREFIX) and is_id(name.removeprefix(REMOVED_PREFIX), JOB)
            is_stale = is_id(name, JOB) and self._load(name) is None and self._is_incomplete(name)
            if clean_up and (is_removed or is_stale):
                shutil.rmtree(self._folder / name, ignore_errors=True)
        self._positions = sorted(job.position for job, _ in self._jobs.values())

    def _is_incomplete(self, name: str) -> bool:
        """Return True for a directory without a meta.json, whose id `dispatch` has not returned."""
        path = self._folder / name
        return not path.is_symlink() and path.is_dir() and not os.path.lexists(path / META)

    def directory(self, id: str) -> JobDirectory:
        return JobDirectory(self._folder / id)

    def _load(self, id: str) -> Job | None:
        """Read a job from its directory into the index."""
        fingerprint = directory_fingerprint(f"{self._folder}/{id}")
        try:
            job = self.directory(id).load() if fingerprint is not None else None
        except GuildError:  # an invalid meta.json counts as missing, so that the other jobs stay usable
            job = None
        if job is None:
            self._jobs.pop(id, None)
            return None
        self._jobs[id] = job, fingerprint
        return job

    def get(self, id: str) -> Job | None:
        """Return the current state of a job, or None if it is unknown."""
        if not is_id(id, JOB):
            return None
        known, fingerprint = self._jobs.get(id, (None, None))
        if fingerprint is not None and fingerprint == directory_fingerprint(f"{self._folder}/{id}"):
            return known
        job = self._load(id)
        if known is not None and (job is None or job.position != known.position):
            self._remove_position(known)
        if job is not None and (known is None or job.position != known.position):
            insort(self._positions, job.position)
        return job

    def put(self, job: Job) -> None:
        """Add or update a job that was just written."""
        if job.id not in self._jobs:
            insort(self._positions, job.position)
        self._jobs[job.id] = job, directory_fingerprint(f"{self._folder}/{job.id}")

    def drop(self, id: str) -> None:
        """Remove a job whose directory was just removed."""
        job, _ = self._jobs.pop(id, (None, None))
        if job is not None:
            self._remove_position(job)

    def _remove_position(self, job: Job) -> None:
        index = bisect_left(self._positions, job.position)
        if index < len(self._positions) and self._positions[index] == job.position:
            del self._positions[index]

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
        """Return the jobs after the cursor, newest first. `filter`: a glob for the whole description."""
        if filter is not None and (not is_text(filter) or len(filter) > MAX_DESCRIPTION_CHARS):
            reason = f"not text, or longer than {MAX_DESCRIPTION_CHARS:,} characters"
            raise UsageError(f"invalid filter: {reason}", hint="Use a short pattern such as *report*.")
        if limit is not None and not 0 < limit <= _MAX_PAGE_JOBS:
            raise UsageError(f"invalid limit {limit}: expected 1 to {_MAX_PAGE_JOBS:,}")
        jobs: list[Job] = []
        for job in self._older_than(_parse_cursor(cursor)):
            if worker is not None and job.worker != worker:
                continue
            if filter is not None and not fnmatchcase(job.description, filter):
                continue
            if limit is not None and len(jobs) == limit:
                return Page(jobs=jobs, next="~".join(jobs[-1].position))
            jobs.append(job)
        return Page(jobs=jobs)

    def _older_than(self, position: tuple[str, str]) -> Iterator[Job]:
        folder = str(self._folder)
        for _, id in reversed(self._positions[: bisect_left(self._positions, position)]):
            known, fingerprint = self._jobs.get(id, (None, None))
            if known is not None and fingerprint == directory_fingerprint(f"{folder}/{id}"):
                yield known
            elif (job := self.get(id)) is not None:
                yield job


def _parse_cursor(cursor: str | None) -> tuple[str, str]:
    """Return the position of the last job before the page. Raise UsageError for an invalid cursor."""
    if cursor is None:
        return _AFTER_ALL, ""
    started_at, _, id = cursor.partition("~")
    if not is_id(id, JOB) or not started_at.isascii() or len(started_at) > 40:
        raise UsageError("invalid cursor: not returned by a listing", hint="Omit it to start with the newest job.")
    return started_at, id


class JobQueries:
    """The jobs of one folder."""

    def __init__(
        self, *, folder: Path, store: Store, clock: Clock, asks: Asks, is_alive: Callable[[str], bool], readonly: bool
    ) -> None:
        """`is_alive` returns True for a run that this process executes."""
        self._store = store
        self._clock = clock
        self._asks = asks
        self._is_alive = is_alive
        self._readonly = readonly
        self._index = Index(folder, clean_up=not readonly)
        self.page = self._index.page
        self._write_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by job
        if not readonly:
            for job in self._index.running():
                self._repair(job)
            self._store.submit(self._withdraw_orphaned_questions).result()

    def get(self, id: str) -> Job:
        if (job := self._index.get(id)) is not None:
            return job
        hint = did_you_mean(id[:40], self._index.ids[-_MAX_SUGGESTIONS:]) or "List the jobs: guild ls jobs"
        if is_id(id, JOB) and self._index.directory(id).path.exists():
            hint = f"{self._index.directory(id).path} exists, but has no valid meta.json."
        raise UnknownJob(f"unknown job {id[:100]!r}", hint=hint)

    def status(self, id: str) -> JobDetails:
        """Return a job with its questions, decisions, artifacts and cost."""
        job, directory = self._current(id), self._index.directory(id)
        run = self._find_run(job)
        asks = self._asks.list_of_run(run.id) if run else []
        questions = _merge_questions(directory.questions(), asks)
        others = [ask for ask in asks if ask.status == "open" and ask.kind != "question"]
        waiting = [ask.id for ask in asks if ask.status == "open" and run and run.status == "waiting"]
        return JobDetails(
            job=job,
            questions=[
                *(asked.question for asked in questions if asked.answer is None),
                *(ask.question.text for ask in others),
            ],
            decisions=directory.decisions(),
            is_waiting=bool(waiting),
            waiting_asks=waiting,
            question_log=questions,
            artifacts=directory.artifacts(),
            cost_usd=run.cost_usd if run else None,
            directory=str(directory.path),
            hint=_hint(run) if run and job.status == "failed" else None,
        )

    def result(self, id: str) -> JobResult:
        """Return the result of a completed job. Raise NotFinished for other jobs."""
        job, directory = self._current(id), self._index.directory(id)
        if job.status != "completed":
            reasons = {"running": "is still running", "failed": f"failed: {job.error}", "cancelled": "was cancelled"}
            message = f"no result: the job {id} {reasons[job.status]}"
            raise NotFinished(message, job=id, status=job.status, hint=f"Details: guild show {id}")
        output = directory.result()
        if output is None:
            hint = f"Read the final message of its run: guild log {job.run}" if job.run else None
            raise InvalidFile(f"no result: {RESULT} is missing", where=str(directory.path / RESULT), hint=hint)
        return JobResult(id=id, output=output, artifacts=directory.artifacts())

    def _current(self, id: str) -> Job:
        """Return a job. Repair it first if its end was not written, for example because the disk was full."""
        job = self.get(id)
        if job.status != "running" or self._readonly or (job.run is not None and self._is_alive(job.run)):
            return job
        if not self._write_locks[id].locked():
            self._repair(job)
        return self.get(id)

    def _find_run(self, job: Job) -> Run | None:
        run = job.run
        return self._store.read(lambda connection: records.find_run(connection, run)) if run else None

    def _with_run_status(self, job: Job, run: Run | None, *, status_if_missing: JobStatus) -> Job:
        """Return a job with the status of its run, or `status_if_missing` if the run is not in the database."""
        now = stamp(self._clock.now())
        if run is None:
            error = "the run of the job is missing in the database" if status_if_missing == "failed" else None
            return replace(job, status=status_if_missing, completed_at=now, error=error)
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

    def _repair(self, job: Job) -> None:
        """Write the status of the run to the directory, if it differs."""
        repaired = self._with_run_status(job, self._find_run(job), status_if_missing="failed")
        if repaired != job:
            try:
                self._index.directory(job.id).save(repaired)
                self._index.put(repaired)
            except GuildError as error:
                _log.warning("%s: %s", job.id, error)

    def _withdraw_orphaned_questions(self, connection: Connection) -> None:
        """Withdraw the questions of deleted jobs."""
        now = stamp(self._clock.now())
        for ask in records.list_asks(connection, status="open"):
            run = records.find_run(connection, ask.run) if ask.kind == "question" else None
            purpose = run.purpose_as(JobPurpose) if run is not None else None
            if purpose is not None and not self._index.directory(purpose.id).path.exists():
                records.withdraw_asks(connection, ask.run, now)

    async def _save(self, job: Job) -> Job:
        directory = self._index.directory(job.id)
        async with self._write_locks[job.id]:
            await asyncio.to_thread(directory.save, job)
        self._index.put(replace(job, summary=directory.summary()))
        return job


def _hint(run: Run) -> str | None:
    """Return the hint of a failed run, with the id of the job in place of that of the run."""
    hint, purpose = run.error.get("hint", "") if run.error else "", run.purpose_as(JobPurpose)
    return hint.replace(run.id, purpose.id) if hint and purpose is not None else None


def _merge_questions(logged: list[AskedQuestion], asks: list[Ask]) -> list[AskedQuestion]:
    """Return the questions of questions.md, with the questions and answers that only the database has."""
    questions = {asked.ask: asked for asked in logged}
    for ask in asks:
        if ask.kind == "question" and ask.id not in questions and ask.status != "withdrawn":
            questions[ask.id] = AskedQuestion(ask=ask.id, at=ask.created_at, question=ask.question.body)
    answers = {ask.id: answer_text(ask) for ask in asks if ask.answer is not None}
    return [replace(asked, answer=answers.get(id, asked.answer)) for id, asked in questions.items()]
