"""The verbs about jobs: the part of `HallClient` that is about work that was handed over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from guildhall.core.frame import Frame
    from guildhall.jobs.model import Dispatch, Job, JobResult, JobShown, Page


class JobClient(Protocol):
    """What can be done with jobs. One that has failed goes on by `resume` of its run, and is the same job again."""

    async def dispatch(self, worker: str, dispatch: Dispatch, frame: Frame) -> Job: ...  # it goes on by itself

    # newest first; the filter is a glob over the whole description. `member`: those of a member, which `frame` finds
    async def jobs(
        self,
        *,
        filter: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        worker: str | None = None,
        member: str | None = None,
        frame: Frame | None = None,
    ) -> Page: ...

    # The id of a member's job is MEMBER/JOB. `frame` finds the member; jobs of the hall do not need it.
    async def job(self, id: str, frame: Frame | None = None) -> JobShown: ...

    async def job_result(self, id: str, frame: Frame | None = None) -> JobResult: ...

    # as it stands then: one that has ended stays as it is
    async def job_cancel(self, id: str, frame: Frame | None = None) -> Job: ...

    async def job_delete(self, id: str, *, force: bool = False, frame: Frame | None = None) -> None: ...

    # `question`: the text of the open question that is meant; without it the only one. The question, if it is known
    async def job_answer(
        self, id: str, text: str, frame: Frame | None = None, *, question: str | None = None
    ) -> str: ...
