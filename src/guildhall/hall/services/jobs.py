"""The service of jobs, of the hall's workers and, for `dispatch`, of members."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.clock import stamp
from guildhall.core.errors import Conflict
from guildhall.hall.client.interface import Jobs
from guildhall.jobs.model import Job
from guildhall.workers.registry import FILES

if TYPE_CHECKING:
    from guildhall.core.frame import Frame
    from guildhall.hall.composition.hall import Hall
    from guildhall.jobs.model import Dispatch, JobResult, JobShown, Page
    from guildhall.members.model import Member


class JobService(Jobs):
    def __init__(self, hall: Hall) -> None:
        self._hall = hall

    async def dispatch(self, worker: str, dispatch: Dispatch, frame: Frame) -> Job:
        member = find_member(self._hall, worker, frame)
        if member is None:
            return await self._hall.jobs.dispatch(worker, dispatch, frame)
        dispatch.check()
        handle = self._hall.members.handle(member, frame)
        job = await handle.dispatch(dispatch.description, dispatch.task, dispatch.config)
        return Job(
            id=f"{worker}/{job}",
            worker=member.name,
            description=dispatch.description,
            status="running",
            started_at=stamp(self._hall.clock.now()),
        )

    async def list(
        self,
        *,
        filter: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        worker: str | None = None,
    ) -> Page:
        return self._hall.jobs.page(filter=filter, limit=limit, cursor=cursor, worker=worker)

    async def get(self, id: str) -> JobShown:
        return self._hall.jobs.status(id)

    async def result(self, id: str) -> JobResult:
        return self._hall.jobs.result(id)

    async def cancel(self, id: str) -> Job:
        return await self._hall.jobs.cancel(id)

    async def delete(self, id: str, *, force: bool = False) -> None:
        await self._hall.jobs.delete(id, force=force)


def find_member(hall: Hall, name: str, frame: Frame) -> Member | None:
    """Return the member with this name, or None if it names a worker or nothing. Raise Conflict if it names both."""
    if name.endswith(FILES):
        return None
    scope, _, rest = name.rpartition("/")
    members = [one for one in hall.members.roster(frame).listed() if one.name == rest and scope in ("", one.scope)]
    if not members:
        return None
    workers = [one for one in hall.registry(frame).listed() if one.name == rest and scope in ("", one.scope)]
    if not workers:
        return hall.members.find(name, frame)
    places = "".join(f"\n  {one.scope}/{one.name}  {one.path}" for one in (*workers, *members))
    scopes = [one.scope for one in (*workers, *members)]
    apart = len(set(scopes)) == len(scopes)
    hint = f"Say which one: {' or '.join(f'{one}/{rest}' for one in scopes)}." if apart else "Rename one of them."
    raise Conflict(f"there are a worker and a member named {rest!r}:{places}", hint=hint)
