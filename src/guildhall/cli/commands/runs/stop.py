"""`guild stop ID|TARGET|--all`: cancels a run with its child runs, a job, a commission, a workflow or an agent.

A meeting is closed without a summary. With --all, meetings stay open. Does not stop the hall (see
`cli.commands.hall.hall`).
"""

from __future__ import annotations

from guildhall.cli import exit_codes
from guildhall.cli.argument_parser import is_member_job, parse_run_id, resolve
from guildhall.cli.command import JSON, Context, argument, command
from guildhall.cli.format.commissions_and_meetings import print_change, print_new_state, print_next_command
from guildhall.cli.format.workflows import address
from guildhall.cli.short_ids import is_kind, read_id
from guildhall.core.errors import GuildError, UsageError
from guildhall.core.ids import ASK, COMMISSION, JOB, MEETING, is_id
from guildhall.core.text_checks import format_count
from guildhall.runs.purpose import MeetingPurpose


@command(
    argument(
        "id",
        metavar="ID|TARGET",
        type=read_id,
        nargs="?",
        help="the id of a run, a job, a commission or a meeting; agent@workflow:tag; @workflow:tag",
    ),
    argument("--all", action="store_true", help="stop all running runs, and all workflows that have not ended"),
    argument("--reason", metavar="WHY", help="of a commission: a reason for its timeline"),
    argument("--abandon", action="store_true", help="end a commission for good: it cannot be retried"),
    JSON,
)
async def stop(ctx: Context) -> int | None:
    args, named = ctx.args, read_id(ctx.args.id or "")
    if bool(named) == args.all:
        raise UsageError("stop: expected either an id or --all", hint="For example: guild stop r-7k2m9x4qpw")
    if is_kind(named, ASK):
        parse_run_id(named)  # raises an error with the command that answers the ask
    if (args.reason is not None or args.abandon) and not is_kind(named, COMMISSION):
        raise UsageError("stop: --reason and --abandon can only be used with a commission", hint="Omit them.")
    client = await ctx.connect()
    if args.all:
        return await _stop_all(ctx)
    id: str = ctx.args.id
    if is_id(id, COMMISSION):
        return await _stop_commission(ctx, id)
    if is_id(id, MEETING):
        ctx.print(await client.meetings.close(id, ctx.frame, summarise=False), print_change)
    elif is_id(id, JOB) or ("@" not in id and is_member_job(id)):
        job = await client.jobs.cancel(id, ctx.frame)
        ctx.print({"jobId": job.id, "status": job.status}, f"{id} is {job.status}")
    else:
        await _stop_run(ctx, id)
    return None


async def _stop_commission(ctx: Context, id: str) -> int:
    commissions, reason = ctx.client.commissions, ctx.args.reason
    if ctx.args.abandon:
        return await print_new_state(ctx, await commissions.abandon(id, reason=reason))
    one = await commissions.cancel(id, reason=reason)
    ctx.print(one, f"{one.id} is {one.status}")
    if not ctx.as_json:
        if one.status != "cancelled":
            ctx.screen.note(f"Not cancelled: {one.id} has ended or submitted its result. Details: guild show {one.id}")
        print_next_command(one, ctx.screen)
    return exit_codes.DONE if one.status == "cancelled" else exit_codes.FAILED


async def _stop_run(ctx: Context, id: str) -> None:
    resolved = await resolve(id, ctx)
    if resolved.agent is not None and resolved.target is not None:
        ended = await ctx.client.workflows.stop_agent(resolved.target)
        text = f"Stopped {resolved.target}. The other agents continue. Start it again: guild start {resolved.target}"
    else:
        ended = await ctx.client.runs.stop(resolved.run_id)
        more = f" and {format_count(len(ended) - 1, 'child run')}" if len(ended) > 1 and resolved.target is None else ""
        text = f"Stopped {resolved.target or resolved.run_id}{more}. Details: guild show {resolved.run_id}"
    ctx.print({"run": resolved.run_id, "target": resolved.target and str(resolved.target), "cancelled": ended}, text)


async def _stop_all(ctx: Context) -> int:
    """Stop all running runs and active workflows. An error is printed and does not prevent the rest."""
    client, screen = ctx.client, ctx.screen
    active = {one.run: str(address(one, ctx.frame.root)) for one in await client.workflows.list(over=False)}
    running = [run for run in await client.runs.list(everything=True) if run.status == "running"]
    meetings = [meeting.id for run in running if (meeting := run.purpose_as(MeetingPurpose))]
    active |= {run.id: run.id for run in running if run.kind != "meeting" and run.id not in active}
    stopped: list[str] = []
    code = exit_codes.DONE
    for id in meetings:  # a meeting is closed only by its id
        await client.meetings.interrupt(id)
        screen.note(f"Interrupted the answer in {id}. The meeting stays open.")
    for run, name in active.items():
        try:
            await client.runs.stop(run)
        except GuildError as error:
            screen.note(f"guild: {error.message}", "red")
            code = exit_codes.FAILED
            continue
        stopped.append(run)
        if not ctx.as_json:
            screen.result(f"Stopped {name}")
    if ctx.as_json:
        screen.json({"stopped": stopped})
    elif not active and not meetings:
        screen.note("Nothing is running.")
    return code
