"""`guild resume ID`: resumes a stopped run at the point where it stopped, and follows it.

The id of a meeting returns to its conversation. Does not answer asks (see `cli.commands.runs.answer`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from guildhall.cli import exit_codes
from guildhall.cli.argument_parser import LIMITS, is_member_job, limits_of, resolve_run
from guildhall.cli.command import OUTPUT, Context, Work, argument, command
from guildhall.cli.follow import Follower
from guildhall.cli.format.jobs import wait_for_member
from guildhall.cli.prompt import run_trusted
from guildhall.cli.short_ids import is_kind, read_id
from guildhall.core.errors import UsageError
from guildhall.core.ids import MEETING
from guildhall.runs.purpose import CommissionPurpose, MeetingPurpose


@command(
    argument(
        "run",
        metavar="ID|TARGET",
        type=read_id,
        help="the id of a run, a job, a commission or a meeting; MEMBER/JOB; @workflow:tag",
    ),
    *LIMITS,
    OUTPUT,
)
def resume(ctx: Context) -> int | Work:
    if is_kind(ctx.args.run, MEETING):
        from guildhall.cli.commands.projects.meet import resume_meeting

        return resume_meeting(ctx.args.run, ctx.screen, **limits_of(ctx.args))
    return _resume(ctx)


async def _resume(ctx: Context) -> int:
    client, limits = await ctx.connect(), limits_of(ctx.args)
    if "@" not in ctx.args.run and is_member_job(ctx.args.run):
        if limits.pop("max_tokens") is not None:
            raise UsageError("--max-tokens cannot be used with a job of a member", hint="Use --max-turns or --budget.")
        await ctx.run_trusted(lambda: client.jobs.resume(ctx.args.run, ctx.frame, **limits))
        return await wait_for_member(ctx.args.run, ctx)
    run = await resolve_run(ctx.args.run, ctx)
    if meeting := (await client.runs.get(run)).run.purpose_as(MeetingPurpose):
        from guildhall.cli.commands.projects.meet import Conversation

        return await Conversation(ctx.screen, limits=limits).follow_answer(meeting.id, client, ctx.frame)
    return await resume_run(ctx, run, **limits)


async def resume_run(ctx: Context, run: str, **limits: Any) -> int:
    """Resume a run and follow it. If code that it needs has changed since it was trusted, ask first."""
    client, screen = ctx.client, ctx.screen
    stopped = (await client.runs.get(run)).run
    code = await run_trusted(
        lambda: Follower(client, screen).follow(client.runs.resume(run, ctx.frame, **limits)),
        client,
        replace(ctx.frame, cwd=stopped.frame.cwd, root=stopped.frame.root),
        screen,
        worker=stopped.request.worker,
    )
    if code == exit_codes.INTERRUPTED and (purpose := stopped.purpose_as(CommissionPurpose)):
        commission = (await client.commissions.get(purpose.id)).commission
        if commission.hold is not None:
            screen.note(f"guild: {commission.explanation}", "red")
            return exit_codes.NEEDS_YOU
    return code
