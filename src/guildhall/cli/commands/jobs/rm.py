"""`guild rm ID`: deletes a finished job, commission or meeting. A job may belong to a member.

Runs and asks cannot be deleted.
"""

from __future__ import annotations

from guildhall.cli.argument_parser import is_member_job
from guildhall.cli.command import JSON, Context, argument, command
from guildhall.cli.short_ids import is_kind, read_id
from guildhall.core.errors import NotFound, UsageError
from guildhall.core.ids import ASK, COMMISSION, JOB, MEETING, RUN, is_id


def _id(text: str) -> str:
    id = read_id(text)
    if is_kind(id, JOB, COMMISSION, MEETING) or is_member_job(text):
        return id
    kind = next((noun for letter, noun in ((RUN, "run"), (ASK, "ask")) if is_kind(id, letter)), None)
    if kind is not None:
        hint = "Only jobs, commissions and meetings can be deleted."
        raise NotFound(f"cannot delete {text}: it is {'a' if kind == 'run' else 'an'} {kind}", hint=hint)
    raise NotFound(f"unknown job, commission or meeting {text[:60]!r}", hint="List everything: guild ls --all")


@command(
    argument("id", metavar="ID", type=_id, help="the id of a job, a commission or a meeting, or MEMBER/JOB"),
    argument("--force", action="store_true", help="delete a failed job too"),
    JSON,
)
async def rm(ctx: Context) -> None:
    if ctx.args.force and is_kind(ctx.args.id, COMMISSION, MEETING):
        raise UsageError("--force can only be used with jobs", hint="Omit --force.")
    client = await ctx.connect()
    id: str = ctx.args.id
    if is_id(id, COMMISSION):
        await client.commissions.delete(id)
        data = {"commission": id}
    elif is_id(id, MEETING):
        await client.meetings.delete(id)
        data = {"meeting": id}
    else:
        await client.jobs.delete(id, force=ctx.args.force, frame=ctx.frame)
        data = {"jobId": id}
    ctx.print({**data, "deleted": True}, f"Deleted {id}.")
