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
        member: str | None = None,
        frame: Frame | None = None,
    ) -> Page:
        return await self._call(
            "jobs", filter=filter, limit=limit, cursor=cursor, worker=worker, member=member, frame=frame
        )

    async def job(self, id: str, frame: Frame | None = None) -> JobShown:
        return await self._call("job", id=id, frame=frame)

    async def job_result(self, id: str, frame: Frame | None = None) -> JobResult:
        return await self._call("job_result", id=id, frame=frame)

    async def job_cancel(self, id: str, frame: Frame | None = None) -> Job:
        return await self._call("job_cancel", id=id, frame=frame)

    async def job_delete(self, id: str, *, force: bool = False, frame: Frame | None = None) -> None:
        await self._call("job_delete", id=id, force=force, frame=frame)

    async def job_answer(self, id: str, text: str, frame: Frame | None = None, *, question: str | None = None) -> str:
        return await self._call("job_answer", id=id, text=text, frame=frame, question=question)
