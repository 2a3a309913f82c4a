"""The verbs about jobs, carried out in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict

if TYPE_CHECKING:
    from guildhall.core.frame import Frame
    from guildhall.hall.wiring import Hall
    from guildhall.jobs.model import Dispatch, Job, JobResult, JobShown, Page
    from guildhall.runs.model import Ask


class JobVerbs:
    """That part of a hall inside this process."""

    _hall: Hall
    _stays: bool

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

    async def _stop_job(self, id: str) -> list[str]:
        """Ends a job; the runs that were ended."""
        job = self._hall.jobs.get(id)
        if job.status != "running":
            raise Conflict(f"the job {id} is {job.status}: there is nothing to stop", hint=f"guild job show {id}")
        ended = await self._hall.jobs.cancel(id)
        return [ended.run] if ended.run is not None and ended.status == "cancelled" else []

    async def _answered(self, ask: Ask) -> None:
        """What a job asked was answered: it hears of it, and goes on if that is what it waits for."""
        from guildhall.hall.recover import go_on

        part = self._hall.where(ask.root)
        if "runs" in vars(part):
            await part.runs.gone(ask.root)  # one that is just being put away to wait goes on by itself no more
        root = part.history.get(ask.root)
        if not root.request.get("job"):
            return
        await self._hall.jobs.answered(ask)
        if self._stays and root.status == "waiting":
            await go_on(self._hall, root)
