"""Service of jobs: dispatches, lists, answers, resumes and cancels jobs of the hall's workers and of members.

The id `MEMBER/JOB` selects a job of a member. Any other id selects a job of the hall's workers.
Does not execute jobs: `guildhall.jobs` and `guildhall.members` do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from guildhall.core.clock import stamp
from guildhall.core.errors import Conflict, GuildError, NotFound, UsageError
from guildhall.hall.client.interface import Jobs
from guildhall.hall.composition.hall import Hall, HallService
from guildhall.jobs.model import Dispatch, Job, JobDetails, JobResult, Page, WorkerJobs, open_question
from guildhall.members.model import Member, parse_member_job
from guildhall.members.registry import templates
from guildhall.runs.model import Answer, Ask
from guildhall.workers.registry import FILE_SUFFIXES

if TYPE_CHECKING:
    from guildhall.core.request_frame import Frame
    from guildhall.workers.model import WorkerListing

T = TypeVar("T")


class JobService(HallService, Jobs):
    def __init__(self, hall: Hall, answer_ask: Callable[[str, Answer], Awaitable[Ask]]) -> None:
        super().__init__(hall)
        self._answer_ask = answer_ask

    async def dispatch(self, worker: str, dispatch: Dispatch, frame: Frame) -> Job:
        member = find_member(self._hall, worker, frame)
        if member is None:
            try:
                return await self._hall.jobs.dispatch(worker, dispatch, frame)
            except NotFound as error:
                if worker not in templates():
                    raise
                hint = f"Create the member: guild member new {worker} --from {worker}"
                raise NotFound(error.message, hint=hint) from None
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
            page = await self._member_jobs(member, frame).page(filter=filter, limit=limit, cursor=cursor)
            return replace(page, jobs=[replace(job, id=f"{member}/{job.id}") for job in page.jobs])
        return self._hall.jobs.page(filter=filter, limit=limit, cursor=cursor, worker=worker)

    async def get(self, id: str, frame: Frame | None = None) -> JobDetails:
        if (named := parse_member_job(id)) is not None:
            details = await self._call_member(id, frame, lambda jobs: jobs.status(named[1]))
            return replace(details, job=replace(details.job, id=id))
        return self._hall.jobs.status(id)

    async def result(self, id: str, frame: Frame | None = None) -> JobResult:
        if (named := parse_member_job(id)) is not None:
            return replace(await self._call_member(id, frame, lambda jobs: jobs.result(named[1])), id=id)
        return self._hall.jobs.result(id)

    async def cancel(self, id: str, frame: Frame | None = None) -> Job:
        if (named := parse_member_job(id)) is not None:
            return replace(await self._call_member(id, frame, lambda jobs: jobs.cancel(named[1])), id=id)
        return await self._hall.jobs.cancel(id)

    async def delete(self, id: str, *, force: bool = False, frame: Frame | None = None) -> None:
        if (named := parse_member_job(id)) is not None:
            await self._call_member(id, frame, lambda jobs: jobs.delete(named[1], force=force))
        else:
            await self._hall.jobs.delete(id, force=force)

    async def resume(self, id: str, frame: Frame, *, max_turns: int | None = None, budget: float | None = None) -> Job:
        if (named := parse_member_job(id)) is not None:
            job = await self._call_member(
                id, frame, lambda jobs: jobs.resume(named[1], max_turns=max_turns, budget=budget)
            )
            return replace(job, id=id)
        from guildhall.runs.execution.preparation import Grant

        run = self._hall.jobs.get(id).run
        if run is None:
            raise NotFound(f"cannot resume the job {id}: it has no run", hint=f"Details: guild show {id}")
        main, grant = self._hall.main, Grant(max_turns=max_turns, budget=budget)
        main.launch(await main.prepare_resume(run, replace(frame, interactive=False), (), grant))
        return self._hall.jobs.get(id)

    async def answer(self, id: str, text: str, frame: Frame | None = None, *, question: str | None = None) -> str:
        if (named := parse_member_job(id)) is not None:
            return await self._call_member(id, frame, lambda jobs: jobs.answer(named[1], text, question))
        selected = open_question(self._hall.jobs.status(id), question)
        await self._answer_ask(selected.ask, Answer(choice=text))
        return selected.question

    async def _call_member(self, id: str, frame: Frame | None, call: Callable[[WorkerJobs], Awaitable[T]]) -> T:
        """Call an operation of a member's jobs. Errors have the id MEMBER/JOB, so that their commands work here."""
        name, _, member_job_id = id.rpartition("/")
        try:
            return await call(self._member_jobs(name, frame))
        except GuildError as error:
            error.message = _qualify_id(error.message, member_job_id, id)
            error.hint = error.hint and _qualify_id(error.hint, member_job_id, id)
            raise

    def _member_jobs(self, name: str, frame: Frame | None) -> WorkerJobs:
        if frame is None:
            raise UsageError(f"frame: required to find the member {name[:60]!r}")
        return self._hall.members.jobs(self._hall.members.find(name, frame), frame)


def find_member(hall: Hall, name: str, frame: Frame) -> Member | None:
    """Return the member with this name, or None if it names a worker or nothing. Raise Conflict if it names both."""
    if name.endswith(FILE_SUFFIXES):
        return None
    scope, _, rest = name.rpartition("/")

    def matches(entry: Member | WorkerListing) -> bool:
        return entry.name == rest and scope in ("", entry.scope)

    members = list(filter(matches, hall.members.registry(frame).members()))
    if not members:
        return None
    workers = list(filter(matches, hall.workers.registry(frame).listings()))
    if not workers:
        return hall.members.find(name, frame)
    paths = "".join(f"\n  {entry.scope}/{entry.name}  {entry.path}" for entry in (*workers, *members))
    scopes = [entry.scope for entry in (*workers, *members)]
    are_distinct = len(set(scopes)) == len(scopes)
    hint = f"Use {' or '.join(f'{scope}/{rest}' for scope in scopes)}." if are_distinct else "Rename one of them."
    raise Conflict(f"ambiguous name {rest!r}: a worker and a member have it:{paths}", hint=hint)


def _qualify_id(text: str, member_job_id: str, id: str) -> str:
    """Return a text of a member with the id MEMBER/JOB in place of the member's own id."""
    return text.replace(member_job_id, id)
