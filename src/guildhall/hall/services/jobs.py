"""Service of jobs: dispatches, lists, answers and cancels jobs of the hall's workers and of members.

The id `MEMBER/JOB` selects a job of a member. Any other id selects a job of the hall's workers.
Does not execute jobs: `guildhall.jobs` and `guildhall.members` do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.core.clock import stamp
from guildhall.core.errors import Conflict, UsageError
from guildhall.hall.client.interface import Jobs
from guildhall.jobs.model import Detail, Dispatch, Job, JobOperations, JobResult, JobShown, Page, open_question
from guildhall.members.model import Member, of_member
from guildhall.runs.model import Answer, Ask
from guildhall.workers.registry import FILES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from guildhall.core.frame import Frame
    from guildhall.hall.composition.hall import Hall
    from guildhall.jobs import service as jobs


class JobService(Jobs):
    def __init__(self, hall: Hall, answer: Callable[[str, Answer], Awaitable[Ask]]) -> None:
        """`answer` answers an ask."""
        self._hall = hall
        self._answer = answer

    async def dispatch(self, worker: str, dispatch: Dispatch, frame: Frame) -> Job:
        member = find_member(self._hall, worker, frame)
        if member is None:
            return await self._hall.jobs.dispatch(worker, dispatch, frame)
        dispatch.check()
        job = await self._hall.members.jobs(member, frame).dispatch(dispatch)
        return replace(job, id=f"{worker}/{job.id}", started_at=stamp(self._hall.clock.now()))

    async def list(
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

    async def get(self, id: str, frame: Frame | None = None) -> JobShown:
        jobs, id = self._route(id, frame)
        return await jobs.status(id)

    async def result(self, id: str, frame: Frame | None = None) -> JobResult:
        jobs, id = self._route(id, frame)
        return await jobs.result(id)

    async def cancel(self, id: str, frame: Frame | None = None) -> Job:
        jobs, id = self._route(id, frame)
        return await jobs.cancel(id)

    async def delete(self, id: str, *, force: bool = False, frame: Frame | None = None) -> None:
        jobs, id = self._route(id, frame)
        await jobs.delete(id, force=force)

    async def answer(self, id: str, text: str, frame: Frame | None = None, *, question: str | None = None) -> str:
        jobs, id = self._route(id, frame)
        return await jobs.answer(id, text, question)

    def _route(self, id: str, frame: Frame | None) -> tuple[JobOperations, str]:
        """Return the jobs that an id belongs to, and the id there: MEMBER/JOB is a member's."""
        named = of_member(id)
        if named is None:
            return self._own_jobs(), id
        return self._member_jobs(named[0], frame), named[1]

    def _own_jobs(self, worker: str | None = None) -> JobOperations:
        return OwnJobs(self._hall.jobs, self._answer, worker)

    def _member_jobs(self, name: str, frame: Frame | None) -> JobOperations:
        if frame is None:
            raise UsageError(f"frame: needed to find the member {name[:60]!r}")
        return self._hall.members.jobs(self._hall.members.find(name, frame), frame)


class OwnJobs:
    """The jobs of the hall's own workers as JobOperations; with `worker`, those of one worker."""

    def __init__(
        self, jobs: jobs.Jobs, answer: Callable[[str, Answer], Awaitable[Ask]], worker: str | None = None
    ) -> None:
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


def find_member(hall: Hall, name: str, frame: Frame) -> Member | None:
    """Return the member with this name, or None if it names a worker or nothing. Raise Conflict if it names both."""
    if name.endswith(FILES):
        return None
    scope, _, rest = name.rpartition("/")
    members = [one for one in hall.members.roster(frame).listed() if one.name == rest and scope in ("", one.scope)]
    if not members:
        return None
    workers = [one for one in hall.workers.registry(frame).listed() if one.name == rest and scope in ("", one.scope)]
    if not workers:
        return hall.members.find(name, frame)
    places = "".join(f"\n  {one.scope}/{one.name}  {one.path}" for one in (*workers, *members))
    scopes = [one.scope for one in (*workers, *members)]
    apart = len(set(scopes)) == len(scopes)
    hint = f"Say which one: {' or '.join(f'{one}/{rest}' for one in scopes)}." if apart else "Rename one of them."
    raise Conflict(f"there are a worker and a member named {rest!r}:{places}", hint=hint)
