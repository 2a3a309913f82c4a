"""The verbs about jobs, asked for over HTTP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guildhall.core.frame import Frame
    from guildhall.jobs.model import Dispatch, Job, JobResult, JobShown, Page


class RemoteJobs(ABC):
    """That part of a remote hall."""

    @abstractmethod
    async def _call(self, name: str, /, **arguments: Any) -> Any: ...

    async def dispatch(self, worker: str, dispatch: Dispatch, frame: Frame) -> Job:
        return await self._call("dispatch", worker=worker, dispatch=dispatch, frame=frame)

    async def jobs(
        self,
        *,
        filter: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        worker: str | None = None,
    ) -> Page:
        return await self._call("jobs", filter=filter, limit=limit, cursor=cursor, worker=worker)

    async def job(self, id: str) -> JobShown:
        return await self._call("job", id=id)

    async def job_result(self, id: str) -> JobResult:
        return await self._call("job_result", id=id)

    async def job_cancel(self, id: str) -> Job:
        return await self._call("job_cancel", id=id)

    async def job_delete(self, id: str, *, force: bool = False) -> None:
        await self._call("job_delete", id=id, force=force)
