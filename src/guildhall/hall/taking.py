"""Who takes work under a name: a worker, or a guild member. One name for both has to be qualified."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.core.clock import stamp
from guildhall.core.errors import Conflict
from guildhall.workers.registry import FILES

if TYPE_CHECKING:
    from guildhall.core.frame import Frame
    from guildhall.hall.composition.hall import Hall
    from guildhall.jobs.model import Dispatch, Job
    from guildhall.members.model import Member


def member_of(hall: Hall, name: str, frame: Frame) -> Member | None:
    """The member that a name means; None: it means a worker, or nobody."""
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


async def dispatched_to_member(hall: Hall, name: str, dispatch: Dispatch, frame: Frame) -> Job | None:
    """A job of the member of this name; None: it is not a member's. Its id has the member's name before it."""
    member = member_of(hall, name, frame)
    if member is None:
        return None
    dispatch.check()
    job = await hall.members.jobs(member, frame).dispatch(dispatch)
    return replace(job, id=f"{name}/{job.id}", started_at=stamp(hall.clock.now()))
