"""`guild rm ID`: deletes a job, a commission or a meeting by the kind of its id.

Does not delete anything itself (see `job`, and `commission` and `meeting` in `cli.commands.projects`).
"""

from __future__ import annotations

from guildhall.cli.command import JSON, Context, argument, command
from guildhall.cli.commands.jobs import job
from guildhall.cli.commands.projects import commission, meeting
from guildhall.core.ids import COMMISSION, MEETING, is_id


def _id(text: str) -> str:
    return text if is_id(text, COMMISSION) or is_id(text, MEETING) else job.any_job_id(text)


@command(argument("id", metavar="JOB", type=_id, help=job.ID_HELP), job.FORCE, JSON)
async def rm(ctx: Context) -> None:
    if is_id(ctx.args.id, COMMISSION):
        await commission.delete(ctx)
    elif is_id(ctx.args.id, MEETING):
        await meeting.delete(ctx)
    else:
        await job.delete(ctx)
