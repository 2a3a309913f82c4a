"""`guild job ls`, `show`, `result`, `cancel` and `rm`: manage the jobs of the hall and of members. Also `guild rm`.

Does not start jobs (see `cli.commands.jobs.dispatch`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from guildhall.cli.arguments import is_member_job, job_id, positive_int
from guildhall.cli.command import JSON, Context, Mode, argument, command, exclusive
from guildhall.cli.format.jobs import print_job
from guildhall.cli.format.runs import age
from guildhall.core.clock import SystemClock
from guildhall.core.errors import UsageError
from guildhall.core.ids import COMMISSION, JOB, MEETING, is_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guildhall.cli.screen import Screen
    from guildhall.hall.client.interface import HallClient
    from guildhall.jobs.model import JobDetails, JobResult, Page

_DEFAULT_LIMIT = 50
_ID_HELP = "the id of the job; of a member's: MEMBER/JOB"


def _job_id(text: str, others: Sequence[str] = ()) -> str:
    """Return the id of a job of the hall or of a member, or an id of another kind. Raise NotFound otherwise."""
    return text if any(is_id(text, kind) for kind in others) or is_member_job(text) else job_id(text)


_ID = argument("id", metavar="JOB", type=_job_id, help=_ID_HELP)
_FORCE = argument("--force", action="store_true", help="also one that has failed")


@command(
    argument("--filter", metavar="GLOB", help="only those whose whole description fits, such as '*report*'"),
    exclusive(
        argument("--worker", metavar="NAME", help="only those of one worker"),
        argument("--member", metavar="NAME", help="those of a guild member instead (`guild member ls`)"),
    ),
    argument("--limit", metavar="N", type=positive_int, help=f"at most so many; without it {_DEFAULT_LIMIT}"),
    argument("--cursor", metavar="C", help="go on where an earlier listing ended"),
    argument("--all", action="store_true", help="all of them"),
    JSON,
    event_loop=False,
)
async def ls(ctx: Context) -> None:
    args, member = ctx.args, ctx.args.member
    client = await ctx.connect("read" if member is None else "start")
    page = await client.jobs.list(
        filter=args.filter,
        limit=None if args.all else args.limit or _DEFAULT_LIMIT,
        cursor=args.cursor,
        worker=args.worker,
        member=member,
        frame=ctx.frame,
    )
    more = {"nextCursor": page.next} if page.next else {}
    own = {"jobs": [job.as_dict() for job in page.jobs], **more}
    data = own if member is None else page.as_wire("detailed")
    ctx.print(page, lambda page, screen: _print_page(member, page, screen), data=data)


def _print_page(member: str | None, page: Page, screen: Screen) -> None:
    now, rows = SystemClock().now(), list[list[str]]()
    for job in page.jobs:
        description, summary = screen.one_line(job.description, 50), screen.one_line(job.summary or "", 50)
        if member is not None:
            rows.append([f"{member}/{job.id}", job.status, description, summary])
            continue
        summary = summary or screen.one_line(job.error or "", 50)
        when = age(job.completed_at or job.started_at, now)
        rows.append([job.id, job.status, job.worker, description, summary, when])
    screen.table(rows)
    if not rows:
        whose = "No jobs here." if member is None else f"The member {member} has no jobs."
        screen.note(f'{whose} `guild dispatch {member or "WORKER"} "..."` hands something over.')
    if page.next:
        of = "" if member is None else f"--member {member} "
        screen.note(f"There are more: guild job ls {of}--cursor {page.next}", "dim")


@command(_ID, JSON, event_loop=False)
async def show(ctx: Context) -> None:
    id = ctx.args.id
    client = await ctx.connect(_mode(id))
    shown = await client.jobs.get(id, ctx.frame)
    if not is_member_job(id):
        ctx.print(shown, lambda shown, screen: print_job(id, shown, screen))
    elif ctx.args.json:
        ctx.screen.json(shown.as_wire())
    else:
        print_job(id, await _with_files(ctx, shown, client), ctx.screen)


def _mode(id: str) -> Mode:
    """Return how to connect. Only a running hall reaches members."""
    return "start" if is_member_job(id) else "read"


async def _with_files(ctx: Context, shown: JobDetails, client: HallClient) -> JobDetails:
    """Return the status of a member's job with its artifacts, and with the directory that members made here keep."""
    member, job = ctx.args.id.rpartition("/")[0], shown.job
    artifacts = (await client.jobs.result(ctx.args.id, ctx.frame)).artifacts if job.status == "completed" else ()
    folder = (await client.members.get(member, ctx.frame)).member.folder / "jobs" / job.id
    is_kept = is_id(job.id, JOB) and folder.is_dir()
    return replace(shown, artifacts=artifacts, directory=str(folder) if is_kept else None)


@command(_ID, JSON, event_loop=False)
async def result(ctx: Context) -> None:
    client = await ctx.connect(_mode(ctx.args.id))
    found = await client.jobs.result(ctx.args.id, ctx.frame)
    ctx.print(found, _print_result, data=found.as_wire())


def _print_result(result: JobResult, screen: Screen) -> None:
    screen.result(result.output)
    for path in result.artifacts:
        screen.note(path, "dim")


@command(_ID, JSON)
async def cancel(ctx: Context) -> None:
    client = await ctx.connect()
    job = await client.jobs.cancel(ctx.args.id, ctx.frame)
    ctx.print({"jobId": job.id, "status": job.status}, f"{ctx.args.id} is {job.status}")


async def _rm(ctx: Context) -> None:
    from guildhall.cli.commands.projects import commission, meeting

    if is_id(ctx.args.id, COMMISSION):
        return await commission.delete(ctx)
    if is_id(ctx.args.id, MEETING):
        return await meeting.delete(ctx)
    if ctx.args.force and is_member_job(ctx.args.id):
        raise UsageError("--force: a member deletes no job that has failed")
    client = await ctx.connect()
    await client.jobs.delete(ctx.args.id, force=ctx.args.force, frame=ctx.frame)
    return ctx.print({"jobId": ctx.args.id.rpartition("/")[2], "deleted": True}, f"{ctx.args.id} is deleted")


rm = command(_ID, _FORCE, JSON)(_rm)
_ANY_ID = argument("id", metavar="JOB", type=partial(_job_id, others=(COMMISSION, MEETING)), help=_ID_HELP)
rm_any = command(_ANY_ID, _FORCE, JSON)(_rm)
