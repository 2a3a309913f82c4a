"""The service of members."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guildhall.core.errors import NotFound
from guildhall.core.nearest import did_you_mean
from guildhall.hall.client.interface import Members
from guildhall.hall.composition.hall import Hall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from guildhall.core.frame import Frame
    from guildhall.members.handle import WorkerHandle
    from guildhall.members.model import MemberShown
    from guildhall.members.wire import AtWork, JobListing, JobStanding, Result


class MemberService(Members):
    def __init__(self, hall: Hall) -> None:
        self._hall = hall

    async def list(self, frame: Frame) -> Sequence[MemberShown]:
        found = self._hall.members
        return [found.shown(member) for member in found.roster(frame).listed()]

    async def get(self, name: str, frame: Frame) -> MemberShown:
        return self._hall.members.shown(self._hall.members.find(name, frame))

    async def create(self, name: str, frame: Frame, *, template: str | None = None) -> Path:
        from guildhall.members.create import new_member

        return new_member(frame.root, name, template)

    async def tools(self, name: str, frame: Frame) -> Sequence[Mapping[str, Any]]:
        async with self._hall.members.connected(name, frame) as server:
            return [tool.as_shown() for tool in server.offered]

    async def call(self, name: str, tool: str, arguments: Mapping[str, Any], frame: Frame) -> Mapping[str, Any]:
        async with self._hall.members.connected(name, frame) as server:
            known = [one.name for one in server.offered]
            if tool not in known:
                raise NotFound(f"the member {name} has no tool {tool!r}", hint=did_you_mean(tool, known))
            return (await server.call(tool, arguments)).as_dict()

    async def jobs(
        self, name: str, frame: Frame, *, filter: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> JobListing:
        return await self._handle(name, frame).list(detailed=True, filter=filter, limit=limit, cursor=cursor)

    async def job(self, name: str, job: str, frame: Frame) -> JobStanding:
        return await self._handle(name, frame).status(job)

    async def job_result(self, name: str, job: str, frame: Frame) -> Result:
        return await self._handle(name, frame).result(job)

    async def cancel_job(self, name: str, job: str, frame: Frame) -> str:
        return await self._handle(name, frame).cancel(job)

    async def delete_job(self, name: str, job: str, frame: Frame) -> None:
        await self._handle(name, frame).delete(job)

    async def answer_job(self, name: str, job: str, answer: str, frame: Frame, *, question: str | None = None) -> None:
        await self._handle(name, frame).answer(job, answer, question)

    async def active_jobs(self) -> Sequence[AtWork]:
        members = Hall.members.of(self._hall).peek()
        return members.at_work() if members is not None else []

    def _handle(self, name: str, frame: Frame) -> WorkerHandle:
        return self._hall.members.handle(self._hall.members.find(name, frame), frame)
