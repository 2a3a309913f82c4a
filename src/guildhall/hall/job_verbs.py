"""The verbs about jobs, carried out in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from guildhall.core.frame import Frame
    from guildhall.hall.composition.hall import Hall
    from guildhall.jobs.model import Dispatch, Job, JobResult, JobShown, Page


class JobVerbs:
    """That part of a hall inside this process."""

    _hall: Hall

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
    ) -> Page:
        return self._hall.jobs.page(filter=filter, limit=limit, cursor=cursor, worker=worker)

    async def job(self, id: str) -> JobShown:
        return self._hall.jobs.status(id)

    async def job_result(self, id: str) -> JobResult:
        return self._hall.jobs.result(id)

    async def job_cancel(self, id: str) -> Job:
        return await self._hall.jobs.cancel(id)

    async def job_delete(self, id: str, *, force: bool = False) -> None:
        await self._hall.jobs.delete(id, force=force)
