"""The six calls of a member that takes work. Any other member has no handle, and is asked for nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from guildhall.core.errors import MemberRefused, MemberUnreachable, Refused
from guildhall.members.model import WORKER
from guildhall.tools.mcp_model import METHOD_NOT_FOUND

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from guildhall.members.client import MemberClient
    from guildhall.members.model import Member
    from guildhall.members.wire import JobListing, JobStanding, JobStatus, Result

T = TypeVar("T")
_MOMENT = 0.1  # seconds after which the end of a process has certainly been noticed


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
        job = await self._asked(lambda client: client.dispatch_worker(description, task, config))
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
        return await self._asked(
            lambda client: client.list_workers(detailed=detailed, filter=filter, limit=limit, cursor=cursor)
        )

    async def status(self, job: str) -> JobStanding:
        return await self._asked(lambda client: client.worker_status(job))

    async def result(self, job: str) -> Result:
        return await self._asked(lambda client: client.worker_result(job))

    async def cancel(self, job: str) -> JobStatus:
        """The status that the job has then."""
        return await self._asked(lambda client: client.cancel_worker(job))

    async def answer(self, job: str, answer: str, question: str | None = None) -> None:
        """Beyond the six: the words of a person on what a job has asked."""
        try:
            await self._asked(lambda client: client.answer_worker(job, answer, question))
        except MemberRefused as error:
            if error.rpc_code != METHOD_NOT_FOUND:
                raise
            hint = "Its questions are shown; how it is to be told is the member's own affair."
            raise Refused(f"the member {self.member.name} takes no answers", hint=hint) from None

    async def delete(self, job: str) -> None:
        await self._asked(lambda client: client.delete_worker(job))

    async def _asked(self, call: Callable[[MemberClient], Awaitable[T]]) -> T:
        """The answer to a call. One that cannot have reached the member, which was just ending, is made again."""
        try:
            return await call(await self._reach())
        except MemberUnreachable as error:
            if error.sent:
                raise
        await asyncio.sleep(_MOMENT)
        return await call(await self._reach())


def takes_no_work(member: Member) -> Refused:
    return Refused(
        f"the member {member.name} takes no work: its manifest does not declare it",
        where=str(member.path),
        hint=f'Only a member with "capabilities": ["{WORKER}"] can be dispatched to.',
    )
