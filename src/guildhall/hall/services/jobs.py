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
from guildhall.hall.composition.hall import Hall, HallService
from guildhall.jobs.model import Dispatch, Job, JobDetails, JobResult, Page, WorkerJobs, open_question
from guildhall.members.model import Member, parse_member_job
from guildhall.runs.model import Answer, Ask
from guildhall.workers.registry import FILE_SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from guildhall.core.request_frame import Frame


class JobService(HallService, Jobs):
    def __init__(self, hall: Hall, answer: Callable[[str, Answer], Awaitable[Ask]]) -> None:
        super().__init__(hall)
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
        if member is not None:
            return await self._member_jobs(member, frame).page(filter=filter, limit=limit, cursor=cursor)
        return self._hall.jobs.page(filter=filter, limit=limit, cursor=cursor, worker=worker)

    async def get(self, id: str, frame: Frame | None = None) -> JobDetails:
        if (named := parse_member_job(id)) is not None:
            return await self._member_jobs(named[0], frame).status(named[1])
        return self._hall.jobs.status(id)

    async def result(self, id: str, frame: Frame | None = None) -> JobResult:
        if (named := parse_member_job(id)) is not None:
            return await self._member_jobs(named[0], frame).result(named[1])
        return self._hall.jobs.result(id)

    async def cancel(self, id: str, frame: Frame | None = None) -> Job:
        if (named := parse_member_job(id)) is not None:
            return await self._member_jobs(named[0], frame).cancel(named[1])
        return await self._hall.jobs.cancel(id)

    async def delete(self, id: str, *, force: bool = False, frame: Frame | None = None) -> None:
        if (named := parse_member_job(id)) is not None:
            await self._member_jobs(named[0], frame).delete(named[1], force=force)
        else:
            await self._hall.jobs.delete(id, force=force)

    async def answer(self, id: str, text: str, frame: Frame | None = None, *, question: str | None = None) -> str:
        if (named := parse_member_job(id)) is not None:
            return await self._member_jobs(named[0], frame).answer(named[1], text, question)
        asked = open_question(self._hall.jobs.status(id), question)
        await self._answer(asked.ask, Answer(choice=text))
        return asked.question

    def _member_jobs(self, name: str, frame: Frame | None) -> WorkerJobs:
        if frame is None:
            raise UsageError(f"frame: required to find the member {name[:60]!r}")
        return self._hall.members.jobs(self._hall.members.find(name, frame), frame)


def find_member(hall: Hall, name: str, frame: Frame) -> Member | None:
    """Return the member with this name, or None if it names a worker or nothing. Raise Conflict if it names both."""
    if name.endswith(FILE_SUFFIXES):
        return None
    scope, _, rest = name.rpartition("/")
    members = [one for one in hall.members.registry(frame).members() if one.name == rest and scope in ("", one.scope)]
    if not members:
        return None
    workers = [one for one in hall.workers.registry(frame).listings() if one.name == rest and scope in ("", one.scope)]
    if not workers:
        return hall.members.find(name, frame)
    paths = "".join(f"\n  {one.scope}/{one.name}  {one.path}" for one in (*workers, *members))
    scopes = [one.scope for one in (*workers, *members)]
    are_distinct = len(set(scopes)) == len(scopes)
    hint = f"Use {' or '.join(f'{one}/{rest}' for one in scopes)}." if are_distinct else "Rename one of them."
    raise Conflict(f"both a worker and a member have the name {rest!r}:{paths}", hint=hint)
