"""`guild job ls`, `show`, `result`, `cancel` and `rm`: the work that was handed over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli.command import JSON, Context, argument, command, exclusive
from guildhall.cli.format.jobs import print_job
from guildhall.cli.format.member_jobs import print_listing, print_standing
from guildhall.cli.format.runs import age
from guildhall.cli.parser import positive_int
from guildhall.cli.targets import job_id
from guildhall.core.clock import SystemClock
from guildhall.core.errors import UsageError
from guildhall.members.model import of_member

if TYPE_CHECKING:
    from guildhall.cli.screen import Screen
    from guildhall.jobs.model import JobResult, Page
    from guildhall.members.wire import Result

_DEFAULT_LIMIT = 50
ID_HELP = "the id of the job; of a member's: MEMBER/JOB"


def any_job_id(text: str) -> str:
    """Return the id of a job of the hall or of a member. Raise NotFound otherwise."""
    return text if of_member(text) is not None else job_id(text)


_ID = argument("id", metavar="JOB", type=any_job_id, help=ID_HELP)
FORCE = argument("--force", action="store_true", help="also one that has failed")


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
    limit = None if args.all else args.limit or _DEFAULT_LIMIT
    if member is not None:
        client = await ctx.connect()
        listing = await client.members.jobs(member, ctx.frame, filter=args.filter, limit=limit, cursor=args.cursor)
        ctx.print(listing, lambda listing, screen: print_listing(member, listing, screen), data=listing.as_wire())
        return
    client = await ctx.connect("read")
    page = await client.jobs.list(filter=args.filter, limit=limit, cursor=args.cursor, worker=args.worker)
    more = {"nextCursor": page.next} if page.next else {}
    ctx.print(page, _print_page, data={"jobs": [job.as_dict() for job in page.jobs], **more})


def _print_page(page: Page, screen: Screen) -> None:
    now = SystemClock().now()
    screen.table(
        [
            [
                job.id,
                job.status,
                job.worker,
                screen.one_line(job.description, 50),
                screen.one_line(job.summary or job.error or "", 50),
                age(job.completed_at or job.started_at, now),
            ]
            for job in page.jobs
        ],
    )
    if not page.jobs:
        screen.note('No jobs here. `guild dispatch WORKER "..."` hands something over.')
    if page.next:
        screen.note(f"There are more: guild job ls --cursor {page.next}", "dim")


@command(_ID, JSON, event_loop=False)
async def show(ctx: Context) -> None:
    if (theirs := of_member(ctx.args.id)) is None:
        client = await ctx.connect("read")
        ctx.print(await client.jobs.get(ctx.args.id), print_job)
        return
    client = await ctx.connect()
    standing = await client.members.job(*theirs, ctx.frame)
    if ctx.args.json:
        ctx.screen.json(standing.as_wire())
    else:
        await print_standing(theirs[0], standing, client, ctx.frame, ctx.screen)


@command(_ID, JSON, event_loop=False)
async def result(ctx: Context) -> None:
    if (theirs := of_member(ctx.args.id)) is not None:
        client = await ctx.connect()
        found = await client.members.job_result(*theirs, ctx.frame)
    else:
        client = await ctx.connect("read")
        found = await client.jobs.result(ctx.args.id)
    ctx.print(found, _print_result, data=found.as_wire())


def _print_result(result: JobResult | Result, screen: Screen) -> None:
    screen.result(result.output)
    for path in result.artifacts or ():
        screen.note(path, "dim")


@command(_ID, JSON)
async def cancel(ctx: Context) -> None:
    client = await ctx.connect()
    if (theirs := of_member(ctx.args.id)) is not None:
        id, status = theirs[1], await client.members.cancel_job(*theirs, ctx.frame)
    else:
        id, status = ctx.args.id, (await client.jobs.cancel(ctx.args.id)).status
    ctx.print({"jobId": id, "status": status}, f"{ctx.args.id} is {status}")


@command(_ID, FORCE, JSON)
async def rm(ctx: Context) -> None:
    await delete(ctx)


async def delete(ctx: Context) -> None:
    """Delete the job that the argument names."""
    if (theirs := of_member(ctx.args.id)) is not None:
        if ctx.args.force:
            raise UsageError("--force: a member deletes no job that has failed")
        client = await ctx.connect()
        await client.members.delete_job(*theirs, ctx.frame)
    else:
        client = await ctx.connect()
        await client.jobs.delete(ctx.args.id, force=ctx.args.force)
    ctx.print({"jobId": theirs[1] if theirs else ctx.args.id, "deleted": True}, f"{ctx.args.id} is deleted")
