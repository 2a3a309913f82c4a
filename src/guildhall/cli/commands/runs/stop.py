"""`guild stop TARGET|RUN|--all`: ends a run with the runs that it called, a workflow, or an agent of a workflow.

A commission is cancelled, and a meeting is closed without a summary. With --all, meetings stay open. Does not stop the
hall (see `cli.commands.hall.hall`).
"""

from __future__ import annotations

from guildhall.cli import exit_codes
from guildhall.cli.arguments import resolve, run_id
from guildhall.cli.command import Context, argument, command
from guildhall.cli.format.projects import print_change
from guildhall.core.errors import GuildError, UsageError
from guildhall.core.ids import ASK, COMMISSION, MEETING, is_id
from guildhall.runs.purpose import MeetingPurpose


@command(
    argument("run", metavar="TARGET|RUN", nargs="?", help="agent@workflow:tag, @workflow:tag, or a run's id"),
    argument("--all", action="store_true", help="everything that works, and every workflow that is not over"),
    argument("--json", action="store_true", help="print an object with the ids of all runs that were ended"),
)
async def stop(ctx: Context) -> int | None:
    id: str = ctx.args.run or ""
    if (ctx.args.run is None) == (not ctx.args.all):
        raise UsageError("stop: what is to be stopped?", hint="Name a target or a run, or say --all.")
    if is_id(id, ASK):
        run_id(id)  # raises
    client = await ctx.connect()
    if ctx.args.all:
        return await _stop_all(ctx)
    if is_id(id, MEETING):  # it is closed with the notes that there are, without asking a model for a summary
        ctx.print(await client.meetings.close(id, ctx.frame, summarise=False), print_change)
    elif is_id(id, COMMISSION):
        one = await client.commissions.cancel(id)
        data = {"run": one.run, "target": None, "cancelled": [one.run] if one.run else []}
        ctx.print(data, f"{id} is {one.status}; its record stays: guild show {id}")
    else:
        await _stop_run(ctx, id)
    return None


async def _stop_run(ctx: Context, id: str) -> None:
    found = await resolve(id, ctx.client)
    if found.agent is not None and found.target is not None:
        ended = await ctx.client.workflows.stop_agent(found.target)
        text = f"{found.target} is stopped; the others go on. To let it work again: guild start {found.target}"
    else:
        ended = await ctx.client.runs.stop(found.run)
        what = str(found.target or found.run)
        more = f", with {len(ended) - 1} that it has called" if len(ended) > 1 and found.target is None else ""
        state = "stopped" if found.target else "cancelled"
        text = f"{what} is {state}{more}; its record stays: guild show {found.run}"
    ctx.print({"run": found.run, "target": found.target and str(found.target), "cancelled": ended}, text)


async def _stop_all(ctx: Context) -> int:
    """Stop everything. A run that cannot be stopped is reported and does not prevent stopping the others."""
    client, screen = ctx.client, ctx.screen
    living = {one.run: str(one.target) for one in await client.workflows.list(over=False)}
    running = [run for run in await client.runs.list(everything=True) if run.status == "running"]
    meetings = [meeting.id for run in running if (meeting := run.purpose_as(MeetingPurpose))]
    living |= {run.id: run.id for run in running if run.kind != "meeting" and run.id not in living}
    stopped: list[str] = []
    code = exit_codes.DONE
    for id in meetings:  # only a person who names it closes a meeting
        await client.meetings.interrupt(id)
        screen.note(f"{id}: the answer is cut off; the meeting stays open")
    for run, name in living.items():
        try:
            await client.runs.stop(run)
        except GuildError as error:
            screen.note(f"guild: {error.message}", "red")
            code = exit_codes.FAILED
            continue
        stopped.append(run)
        if not ctx.args.json:
            screen.result(f"{name} is stopped")
    if ctx.args.json:
        screen.json({"stopped": stopped})
    elif not living and not meetings:
        screen.note("Nothing lives here.")
    return code
