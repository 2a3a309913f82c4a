"""The verbs about guild members, asked for over HTTP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from guildhall.core.frame import Frame
    from guildhall.members.model import MemberShown
    from guildhall.members.wire import AtWork, JobListing, JobStanding, Result


class RemoteRoster(ABC):
    """That part of a remote hall."""

    @abstractmethod
    async def _call(self, name: str, /, **arguments: Any) -> Any: ...

    async def members(self, frame: Frame) -> list[MemberShown]:
        return await self._call("members", frame=frame)

    async def member(self, name: str, frame: Frame) -> MemberShown:
        return await self._call("member", name=name, frame=frame)

    async def member_new(self, name: str, frame: Frame, *, template: str | None = None) -> Path:
        return await self._call("member_new", name=name, frame=frame, template=template)

    async def member_tools(self, name: str, frame: Frame) -> list[Mapping[str, Any]]:
        return await self._call("member_tools", name=name, frame=frame)

    async def member_call(self, name: str, tool: str, arguments: Mapping[str, Any], frame: Frame) -> Mapping[str, Any]:
        return await self._call("member_call", name=name, tool=tool, arguments=arguments, frame=frame)

    async def member_jobs(
        self, name: str, frame: Frame, *, filter: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> JobListing:
        return await self._call("member_jobs", name=name, frame=frame, filter=filter, limit=limit, cursor=cursor)

    async def member_job(self, name: str, job: str, frame: Frame) -> JobStanding:
        return await self._call("member_job", name=name, job=job, frame=frame)

    async def member_job_result(self, name: str, job: str, frame: Frame) -> Result:
        return await self._call("member_job_result", name=name, job=job, frame=frame)

    async def member_job_cancel(self, name: str, job: str, frame: Frame) -> str:
        return await self._call("member_job_cancel", name=name, job=job, frame=frame)

    async def member_job_delete(self, name: str, job: str, frame: Frame) -> None:
        await self._call("member_job_delete", name=name, job=job, frame=frame)

    async def member_job_answer(
        self, name: str, job: str, answer: str, frame: Frame, *, question: str | None = None
    ) -> None:
        await self._call("member_job_answer", name=name, job=job, answer=answer, frame=frame, question=question)

    async def members_at_work(self) -> list[AtWork]:
        return await self._call("members_at_work")
