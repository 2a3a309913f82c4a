"""The jobs as they stand: by their directories, which are what is shown, and by the record of the runs that do them."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.activities.model import Asked
from guildhall.activities.questions import answer_text
from guildhall.core.clock import stamp
from guildhall.core.errors import GuildError, InvalidFile, NotFinished, UnknownJob
from guildhall.core.ids import JOB, is_id
from guildhall.core.nearest import did_you_mean
from guildhall.jobs.index import Index
from guildhall.jobs.model import JobResult, JobShown
from guildhall.runs import records
from guildhall.runs.purpose import JobPurpose

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sqlalchemy import Connection

    from guildhall.core.clock import Clock
    from guildhall.jobs.model import Job, Page
    from guildhall.runs.asks import Asks
    from guildhall.runs.model import Ask, Run
    from guildhall.store.engine import Store

_NEAR = 200  # jobs among which the nearest id is looked for
_log = logging.getLogger("guildhall.jobs")


class Register:
    """Knows the jobs of one folder. `alive` says of a run whether somebody is at it."""

    def __init__(
        self, *, folder: Path, store: Store, clock: Clock, asks: Asks, alive: Callable[[str], bool], readonly: bool
    ) -> None:
        self._store = store
        self._clock = clock
        self._asks = asks
        self._alive = alive
        self._readonly = readonly
        self._index = Index(folder, tidy=not readonly)
        self._writing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by job
        if not readonly:
            for job in self._index.running():
                self._put_right(job)
            self._store.submit(self._withdraw_orphans).result()

    # Looking

    def get(self, id: str) -> Job:
        if (job := self._index.get(id)) is not None:
            return job
        hint = did_you_mean(id[:40], self._index.ids[-_NEAR:]) or "`guild job ls` lists the jobs."
        if is_id(id, JOB) and self._index.folder(id).path.exists():
            hint = f"{self._index.folder(id).path} is there, but has no meta.json that can be read."
        raise UnknownJob(f"there is no job {id[:100]!r}", hint=hint)

    def page(
        self,
        *,
        filter: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        worker: str | None = None,
    ) -> Page:
        """Jobs, newest first, of one worker or of all; `filter` is a glob over the whole description."""
        return self._index.page(filter=filter, limit=limit, cursor=cursor, worker=worker)

    def status(self, id: str) -> JobShown:
        """All about a job but for its result."""
        job, folder = self._as_it_stands(id), self._index.folder(id)
        run = self._run_of(job)
        asks = self._asks.of_run(run.id) if run else []
        asked = _with_answers(folder.questions(), asks)
        others = [ask for ask in asks if ask.status == "open" and ask.kind != "question"]
        return JobShown(
            job=job,
            questions=[
                *(one.question for one in asked if one.answer is None),
                *(f"{ask.question.title}\n{ask.question.body}".rstrip() for ask in others),
            ],
            decisions=folder.decisions(),
            waiting=[ask.id for ask in asks if ask.status == "open" and run and run.status == "waiting"],
            asked=asked,
            artifacts=folder.artifacts(),
            cost_usd=run.cost_usd if run else None,
            directory=str(folder.path),
            hint=_hint(run) if run and job.status == "failed" else None,
        )

    def result(self, id: str) -> JobResult:
        """What came out of a job. NotFinished: nothing has."""
        job, folder = self._as_it_stands(id), self._index.folder(id)
        if job.status != "completed":
            why = {
                "running": "is running: it has no result yet",
                "failed": f"has failed and has no result: {job.error}",
                "cancelled": "was cancelled and has no result",
            }
            raise NotFinished(
                f"the job {id} {why[job.status]}", job=id, status=job.status, hint=f"guild job show {id} says more."
            )
        output = folder.result()
        if output is None:
            raise InvalidFile("the result of the job is not there any more", where=str(folder.path / "result.md"))
        return JobResult(id=id, output=output, artifacts=folder.artifacts())

    def _as_it_stands(self, id: str) -> Job:
        """A job; one whose end could not be written down, because the disk was full, ends now."""
        job = self.get(id)
        if job.status != "running" or self._readonly or (job.run is not None and self._alive(job.run)):
            return job
        if self._writing[id].locked():  # somebody is just saying so
            return job
        self._put_right(job)
        return self.get(id)

    def folder(self, id: str) -> Path:
        """Where a job's files are."""
        self.get(id)
        return self._index.folder(id).path

    def _run_of(self, job: Job) -> Run | None:
        run = job.run
        return self._store.read(lambda connection: records.find_run(connection, run)) if run else None

    # On record

    def _as_on_record(self, job: Job, run: Run | None, *, gone: str) -> Job:
        """A job as its run stands; `gone` is what it is where there is no run any more."""
        now = stamp(self._clock.now())
        if run is None:
            lost = "there is no run behind it any more: the record of the hall was lost"
            return replace(job, status=gone, completed_at=now, error=lost if gone == "failed" else None)
        if run.status == "completed":
            ended = run.ended_at or now
            return replace(job, status="completed", completed_at=ended, error=None, late_error=run.reason)
        if run.status == "failed":
            message = (run.error["message"] if run.error else run.reason) or "no reason given"
            where = run.error.get("where") if run.error else None
            message = f"{where}: {message}" if where else message
            return replace(job, status="failed", completed_at=run.ended_at or now, error=message)
        if run.status == "cancelled":
            return replace(job, status="cancelled", completed_at=run.ended_at or now, error=None)
        return job

    def _put_right(self, job: Job) -> None:
        """What a process that died, or found no room, could not say of a job."""
        then = self._as_on_record(job, self._run_of(job), gone="failed")
        if then != job:
            try:
                self._index.folder(job.id).save(then)
                self._index.put(then)
            except GuildError as error:
                _log.warning("%s: %s", job.id, error)

    def _withdraw_orphans(self, connection: Connection) -> None:
        """What the jobs ask that are there no more."""
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


def _with_answers(asked: list[Asked], asks: list[Ask]) -> list[Asked]:
    """The questions; where one, or an answer, has not come to the file, it is the inbox that has it."""
    kept = {one.ask: one for one in asked}
    for ask in asks:
        if ask.kind == "question" and ask.id not in kept and ask.status != "withdrawn":
            kept[ask.id] = Asked(ask=ask.id, at=ask.created_at, question=ask.question.body)
    answers = {ask.id: answer_text(ask) for ask in asks if ask.answer is not None}
    return [replace(one, answer=answers[one.ask]) if one.ask in answers else one for one in kept.values()]
