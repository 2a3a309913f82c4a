"""`guild replay RUN`: repeats a run on its recorded answers without effects, and prints the first difference.

Does not perform the replay (see `runs.replay`).
"""

from __future__ import annotations

from dataclasses import asdict

from guildhall.cli import exit_codes
from guildhall.cli.argument_parser import resolve_run
from guildhall.cli.command import JSON, Context, argument, command
from guildhall.cli.short_ids import read_id
from guildhall.core.text_checks import format_count


@command(argument("run", metavar="ID|TARGET", type=read_id, help="the id of a run or of a job; @workflow:tag"), JSON)
async def replay(ctx: Context) -> int:
    client = await ctx.connect("read")
    run = await resolve_run(ctx.args.run, ctx)
    replayed = await client.runs.replay(run, ctx.frame)
    difference = replayed.difference
    found = {"step": difference and difference.step, "difference": difference and difference.text}
    if difference is None:
        text = f"Replay matches the recording ({format_count(replayed.steps, 'step')})."
    else:
        text = f"{replayed.run} differs at step {difference.step}.\n{difference.text}"
    ctx.print({**asdict(replayed), **found, "same": replayed.matches}, text)
    if replayed.worker_gone:
        ctx.screen.note("The worker no longer exists. Its recorded definition was used.", "yellow")
    return exit_codes.DONE if replayed.matches else exit_codes.FAILED
