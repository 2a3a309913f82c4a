"""The verbs about jobs: the part of `HallClient` that is about work that was handed over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from guildhall.core.frame import Frame
    from guildhall.jobs.model import Dispatch, Job, JobResult, JobShown, Page


class JobClient(Protocol):
    """What can be done with jobs. One that has failed goes on by `resume` of its run, and is the same job again."""

    async def dispatch(self, worker: str, dispatch: Dispatch, frame: Frame) -> Job: ...  # it goes on by itself

    # newest first; the filter is a glob over the whole description
    async def jobs(
        self,
        *,
        filter: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        worker: str | None = None,
    ) -> Page: ...

    async def job(self, id: str) -> JobShown: ...

    async def job_result(self, id: str) -> JobResult: ...

    async def job_cancel(self, id: str) -> Job: ...  # as it stands then: one that has ended stays as it is

    async def job_delete(self, id: str, *, force: bool = False) -> None: ...
