"""The six calls of a member that takes work. Any other member has no handle, and is asked for nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guildhall.core.errors import Refused
from guildhall.members.model import WORKER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from guildhall.members.client import MemberClient
    from guildhall.members.model import Member
    from guildhall.members.wire import JobListing, JobStanding, JobStatus, Result


class WorkerHandle:
    """Dispatches to a member and looks after its jobs. The member is started when it is first needed."""

    def __init__(
        self,
        member: Member,
        reach: Callable[[], Awaitable[MemberClient]],
        began: Callable[[str], None] | None = None,
    ) -> None:
        """`reach` gives the client of the running member; `began` hears of each new job."""
        if not member.takes_work:
            raise takes_no_work(member)
        self.member = member
        self._reach = reach
        self._began = began

    async def dispatch(self, description: str, task: str, config: Mapping[str, Any] | None = None) -> str:
        """The id of the new job; the work goes on after the answer."""
        job = await (await self._reach()).dispatch_worker(description, task, config)
        if self._began is not None:
            self._began(job)
        return job

    async def list(
        self,
        *,
        detailed: bool = False,
        filter: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> JobListing:
        client = await self._reach()
        return await client.list_workers(detailed=detailed, filter=filter, limit=limit, cursor=cursor)

    async def status(self, job: str) -> JobStanding:
        return await (await self._reach()).worker_status(job)

    async def result(self, job: str) -> Result:
        return await (await self._reach()).worker_result(job)

    async def cancel(self, job: str) -> JobStatus:
        """The status that the job has then."""
        return await (await self._reach()).cancel_worker(job)

    async def delete(self, job: str) -> None:
        await (await self._reach()).delete_worker(job)


def takes_no_work(member: Member) -> Refused:
    return Refused(
        f"the member {member.name} takes no work: its manifest does not declare it",
        where=str(member.path),
        hint=f'Only a member with "capabilities": ["{WORKER}"] can be dispatched to.',
    )
