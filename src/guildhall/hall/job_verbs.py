"""The verbs about jobs, carried out in this process: those of the hall's own workers, and those of members."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.errors import UsageError
from guildhall.jobs.model import open_question
from guildhall.members.model import of_member
from guildhall.runs.model import Answer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from guildhall.core.frame import Frame
    from guildhall.hall.composition.hall import Hall
    from guildhall.jobs.jobs import Jobs
    from guildhall.jobs.model import Detail, Dispatch, Job, JobOperations, JobResult, JobShown, Page
    from guildhall.runs.model import Ask


class OwnJobs:
    """The jobs of the hall's own workers as JobOperations; with `worker`, those of one worker."""

    def __init__(self, jobs: Jobs, answer: Callable[[str, Answer], Awaitable[Ask]], worker: str | None = None) -> None:
        self._jobs = jobs
        self._answer = answer
        self._worker = worker

    async def page(
        self,
        *,
        detail: Detail = "detailed",
        filter: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page:
        return self._jobs.page(filter=filter, limit=limit, cursor=cursor, worker=self._worker)

    async def status(self, id: str) -> JobShown:
        return self._jobs.status(id)

    async def result(self, id: str) -> JobResult:
        return self._jobs.result(id)

    async def cancel(self, id: str) -> Job:
        return await self._jobs.cancel(id)

    async def delete(self, id: str, *, force: bool = False) -> None:
        await self._jobs.delete(id, force=force)

    async def answer(self, id: str, text: str, question: str | None = None) -> str:
        asked = open_question(self._jobs.status(id), question)
        await self._answer(asked.ask, Answer(choice=text))
        return asked.question


class JobVerbs:
    """That part of a hall inside this process."""

    _hall: Hall

    async def answer(self, ask: str, answer: Answer) -> Ask:
        raise NotImplementedError

    async def dispatch(self, worker: str, dispatch: Dispatch, frame: Frame) -> Job:
        from guildhall.hall.taking import dispatched_to_member

        if (job := await dispatched_to_member(self._hall, worker, dispatch, frame)) is not None:
            return job
        return await self._hall.jobs.dispatch(worker, dispatch, frame)

    async def jobs(
        self,
        *,
        filter: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        worker: str | None = None,
        member: str | None = None,
        frame: Frame | None = None,
    ) -> Page:
        jobs = self._own_jobs(worker) if member is None else self._member_jobs(member, frame)
        return await jobs.page(filter=filter, limit=limit, cursor=cursor)

    async def job(self, id: str, frame: Frame | None = None) -> JobShown:
        jobs, id = self._route(id, frame)
        return await jobs.status(id)

    async def job_result(self, id: str, frame: Frame | None = None) -> JobResult:
        jobs, id = self._route(id, frame)
        return await jobs.result(id)

    async def job_cancel(self, id: str, frame: Frame | None = None) -> Job:
        jobs, id = self._route(id, frame)
        return await jobs.cancel(id)

    async def job_delete(self, id: str, *, force: bool = False, frame: Frame | None = None) -> None:
        jobs, id = self._route(id, frame)
        await jobs.delete(id, force=force)

    async def job_answer(self, id: str, text: str, frame: Frame | None = None, *, question: str | None = None) -> str:
        jobs, id = self._route(id, frame)
        return await jobs.answer(id, text, question)

    def _route(self, id: str, frame: Frame | None) -> tuple[JobOperations, str]:
        """Return the jobs that an id belongs to, and the id there: MEMBER/JOB is a member's."""
        named = of_member(id)
        if named is None:
            return self._own_jobs(), id
        return self._member_jobs(named[0], frame), named[1]

    def _own_jobs(self, worker: str | None = None) -> JobOperations:
        return OwnJobs(self._hall.jobs, self.answer, worker)

    def _member_jobs(self, name: str, frame: Frame | None) -> JobOperations:
        if frame is None:
            raise UsageError(f"frame: needed to find the member {name[:60]!r}")
        return self._hall.members.jobs(self._hall.members.find(name, frame), frame)
