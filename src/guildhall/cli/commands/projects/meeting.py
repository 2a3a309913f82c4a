"""`guild meeting ls`, `show`, `accept`, `decline`, `defer`, `close` and `rm`: list and manage meetings.

Does not talk in a meeting (see `cli.commands.projects.meet`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli.arguments import meeting_id
from guildhall.cli.command import JSON, Context, argument, command
from guildhall.cli.format.projects import print_change, print_meeting
from guildhall.cli.format.runs import age
from guildhall.core.clock import SystemClock

if TYPE_CHECKING:
    from guildhall.cli.screen import Screen
    from guildhall.projects.meetings.model import Meeting

_ID = argument("id", metavar="MEETING", type=meeting_id, help="the id of the meeting")


@command(
    argument("--project", metavar="NAME", help="only those of one project"),
    argument("--status", choices=("requested", "open", "closed", "declined"), help="only those that stand so"),
    argument("--all", action="store_true", help="also those that are over"),
    JSON,
    event_loop=False,
)
async def ls(ctx: Context) -> None:
    client = await ctx.connect("read")
    found = await client.meetings.list(project=ctx.args.project, status=ctx.args.status)
    if not ctx.args.all and ctx.args.status is None:
        found = [one for one in found if one.status in ("requested", "open")]
    empty = "No meetings here. `guild meet WORKER` opens one; those that are over: guild meeting ls --all"
    rows = [_row(one, ctx.screen) for one in found]
    ctx.print_table(rows, {"meetings": [one.as_dict() for one in found]}, empty=empty)


def _row(one: Meeting, screen: Screen) -> list[str]:
    status = one.status + (f" until {one.deferred_to[:10]}" if one.deferred_to else "")
    topic = screen.one_line(one.topic, 50)
    return [one.id, status, one.project, one.worker, topic, age(one.changed_at, SystemClock().now())]


@command(_ID, JSON, event_loop=False)
async def show(ctx: Context) -> None:
    client = await ctx.connect("read")
    ctx.print(await client.meetings.get(ctx.args.id), print_meeting)


@command(_ID, JSON)
async def accept(ctx: Context) -> None:
    client = await ctx.connect()
    ctx.print(await client.meetings.accept(ctx.args.id), print_change)


@command(_ID, argument("--reason", metavar="TEXT", help="why not"), JSON)
async def decline(ctx: Context) -> None:
    client = await ctx.connect()
    ctx.print(await client.meetings.decline(ctx.args.id, reason=ctx.args.reason), print_change)


@command(_ID, argument("date", metavar="DATE", help="when to be asked again: 2027-01-31, or 2027-01-31T14:00"), JSON)
async def defer(ctx: Context) -> None:
    client = await ctx.connect()
    ctx.print(await client.meetings.defer(ctx.args.id, ctx.args.date), print_change)


@command(
    _ID,
    argument("--no-summary", action="store_true", help="write the notes without asking a model for one"),
    argument("--leave-work", action="store_true", help="write the notes, leave what was done on its branch"),
    JSON,
)
async def close(ctx: Context) -> None:
    client, args = await ctx.connect(), ctx.args
    closed = client.meetings.close(args.id, ctx.frame, summarise=not args.no_summary, leave_work=args.leave_work)
    ctx.print(await closed, print_change)


async def delete(ctx: Context) -> None:
    """Delete the meeting that the argument names."""
    client = await ctx.connect()
    await client.meetings.delete(ctx.args.id)
    ctx.print({"meeting": ctx.args.id, "deleted": True}, f"{ctx.args.id} is off the record")


rm = command(_ID, JSON)(delete)
