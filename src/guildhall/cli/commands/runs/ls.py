"""`guild ls`: lists runs, asks, workflows, jobs, meetings and commissions, grouped by state, or one kind of them.

With a target, it prints a workflow, an agent or a commission. Does not print a single run (see
`cli.commands.runs.show`).
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.cli.argument_parser import parse_target, positive_int
from guildhall.cli.command import JSON, Context, argument, command, exclusive
from guildhall.cli.format import workflows
from guildhall.cli.format.commissions_and_meetings import COMMISSION_HEAD, commission_row
from guildhall.cli.format.overview import MAX_RECENT, Groups, ask_row, print_groups, question_rows
from guildhall.cli.format.runs import age
from guildhall.cli.short_ids import read_id
from guildhall.core.clock import SystemClock
from guildhall.core.ids import COMMISSION, is_id

if TYPE_CHECKING:
    from guildhall.cli.screen import Screen
    from guildhall.hall.client.interface import HallClient
    from guildhall.jobs.model import Page
    from guildhall.projects.meetings.model import Meeting

_DEFAULT_LIMIT = 50  # jobs
_PROJECT = argument("--project", metavar="NAME", help="only of this project")


@command(
    argument(
        "target",
        metavar="TARGET|COMMISSION",
        type=read_id,
        nargs="?",
        help="list only @workflow:tag, agent@workflow:tag, or the commission with this id",
    ),
    argument("--all", action="store_true", help=f"all results, not only the newest {MAX_RECENT}"),
    argument("--json", action="store_true", help="print an object with needs_you, working and done"),
    event_loop=False,
)
async def ls(ctx: Context) -> None:
    client, everything = await ctx.connect("read"), ctx.args.all
    if ctx.args.target is not None:
        await _print_one(ctx, client)
        return
    active = await client.workflows.list(over=False)
    runs, asks = await client.runs.list(everything=everything), await client.asks.list()
    meetings = await client.meetings.list()
    members, commissions = await client.members.active_jobs(), await client.commissions.list()
    groups = Groups(runs, asks, active, members, meetings, commissions)
    here = ctx.frame.root
    ctx.print(groups, lambda groups, screen: print_groups(groups, screen, here, everything=everything))
    if not ctx.as_json:
        _note_unfinished(ctx.screen)


async def _print_one(ctx: Context, client: HallClient) -> None:
    """Print one workflow and its agents, one agent, or one commission."""
    if is_id(ctx.args.target, COMMISSION):
        commission = (await client.commissions.get(ctx.args.target)).commission
        ctx.print(commission, lambda one, screen: screen.table([commission_row(one, screen)]))
        return
    target = ctx.locate(parse_target(ctx.args.target))
    workflow = await client.workflows.get(target)
    if target.agent:
        agents = [agent for agent in workflow.agents if target.agent == agent.name]
        ctx.print(agents, workflows.print_agents, data=agents[0].as_dict())
    else:
        ctx.print(workflow, workflows.print_workflow)


@command(
    argument("--filter", metavar="GLOB", help="only jobs whose whole description matches, such as '*report*'"),
    exclusive(
        argument("--worker", metavar="NAME", help="only jobs of this worker"),
        argument("--member", metavar="NAME", help="the jobs of a member instead (`guild member ls`)"),
    ),
    argument("--limit", metavar="N", type=positive_int, help=f"the maximum number of jobs (default: {_DEFAULT_LIMIT})"),
    argument("--cursor", metavar="C", help="continue an earlier listing"),
    argument("--all", action="store_true", help="all jobs"),
    JSON,
    event_loop=False,
)
async def jobs(ctx: Context) -> None:
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
    with_members = not (member or args.worker or args.cursor)
    members = await client.members.list(ctx.frame) if with_members else ()
    others = [one for one in members if one.trusted and one.member.accepts_jobs]
    listed = list(page.jobs)
    for one in others:
        if one.state == "ready":
            listed += (await client.jobs.list(filter=args.filter, member=one.member.name, frame=ctx.frame)).jobs
    more = {"nextCursor": page.next} if page.next else {}
    data = {"jobs": [job.as_dict() for job in listed], **more}
    ctx.print(
        replace(page, jobs=listed), lambda page, screen: _print_jobs(page, screen, member, args.filter), data=data
    )
    if not ctx.as_json:
        for one in others:
            if one.state != "ready":
                ctx.screen.note(
                    f"Jobs of the member {one.member.name}: guild ls jobs --member {one.member.name}", "dim"
                )


def _print_jobs(page: Page, screen: Screen, member: str | None, filter: str | None) -> None:
    now, rows = SystemClock().now(), list[list[str]]()
    for job in page.jobs:
        summary = screen.one_line(job.summary or job.error or "", 50)
        at = job.completed_at or job.started_at  # a list of a member has no times
        when = age(at, now) if at else ""
        rows.append([job.id, job.status, job.worker, screen.one_line(job.description, 50), summary, when])
    screen.table(rows)
    command = "guild ls jobs" if member is None else f"guild ls jobs --member {member}"
    if not rows and filter is not None:
        screen.note(f"No jobs match the filter. List all: {command}")
    elif not rows:
        screen.note(f'No jobs. Start one: guild dispatch {member or "WORKER"} "..."')
    if page.next:
        screen.note(f"More: {command} --cursor {page.next}", "dim")


@command(
    _PROJECT,
    argument("--status", metavar="S", help="only with this status: pending, blocked, failed, ..."),
    JSON,
    event_loop=False,
)
async def commissions(ctx: Context) -> None:
    client = await ctx.connect("read")
    found = await client.commissions.list(project=ctx.args.project, status=ctx.args.status)
    empty = 'No commissions. Start one: guild dispatch WORKER "..." --project NAME'
    if ctx.args.project or ctx.args.status:
        empty = "No commissions match the options. List all: guild ls commissions"
    rows = [commission_row(one, ctx.screen) for one in found]
    ctx.print_table(rows, {"commissions": [one.as_dict() for one in found]}, head=COMMISSION_HEAD, empty=empty)


@command(
    _PROJECT,
    argument("--status", choices=("requested", "open", "closed", "declined"), help="only with this status"),
    argument("--all", action="store_true", help="also meetings that have ended"),
    JSON,
    event_loop=False,
)
async def meetings(ctx: Context) -> None:
    client = await ctx.connect("read")
    found = await client.meetings.list(project=ctx.args.project, status=ctx.args.status)
    if not ctx.args.all and ctx.args.status is None:
        found = [one for one in found if one.status in ("requested", "open")]
    empty = "No meetings. Open one: guild meet WORKER. List ended meetings: guild ls meetings --all"
    if ctx.args.project or ctx.args.status:
        empty = "No meetings match the options. List all: guild ls meetings --all"
    rows = [_meeting_row(one, ctx.screen) for one in found]
    head = ("id", "status", "project", "worker", "topic", "changed")
    ctx.print_table(rows, {"meetings": [one.as_dict() for one in found]}, head=head, empty=empty)


def _meeting_row(one: Meeting, screen: Screen) -> list[str]:
    status = one.status + (f" until {one.deferred_to[:10]}" if one.deferred_to else "")
    topic = screen.one_line(one.topic, 50)
    return [one.id, status, one.project, one.worker, topic, age(one.changed_at, SystemClock().now())]


@command(JSON, event_loop=False)
async def asks(ctx: Context) -> None:
    client = await ctx.connect("read")
    found, now = await client.asks.list(), SystemClock().now()
    members = [job for job in await client.members.active_jobs() if job.details.questions]
    rows = [ask_row(ask, ctx.screen, now) for ask in found] + question_rows(members, ctx.screen, ctx.frame.root)
    data = {"asks": [ask.as_dict() for ask in found], "members": [job.as_dict() for job in members]}
    ctx.print_table(rows, data, empty="No open asks.")


def _note_unfinished(screen: Screen) -> None:
    """If no hall is running, print which members have unfinished jobs. Their states and questions are unknown."""
    from guildhall.core.paths import Home
    from guildhall.hall.client.discovery import find_hall
    from guildhall.members.model import BUSY_FILE

    home = Home.locate(dict(os.environ))
    if not (home.path / BUSY_FILE).exists() or find_hall(home) is not None:
        return
    from guildhall.members.jobs import JobWatcher

    names = sorted({folder.name for folder, _ in JobWatcher(home.path / BUSY_FILE, SystemClock()).busy_members()})
    if names:
        listed = screen.one_line(", ".join(names), 200)
        screen.note(f"Members with unfinished jobs, which continue when a hall is running: {listed}")
        screen.note(f"Start a hall and list the jobs: guild ls jobs --member {screen.one_line(names[0], 60)}")
