"""`guild fork RUN --at N`: creates a run that shares another run's journal up to entry N, and follows it.

Does not change the original run.
"""

from __future__ import annotations

from guildhall.cli.argument_parser import LIMITS, entry_number, limits_of, parse_run_id
from guildhall.cli.command import OUTPUT, Context, argument, command
from guildhall.cli.follow import Follower


@command(
    argument("run", metavar="RUN", type=parse_run_id, help="the id of the run"),
    argument(
        "--at",
        metavar="N",
        type=entry_number,
        required=True,
        help="the number of the last entry to keep (see `guild log`)",
    ),
    argument("--model", metavar="M", help="the model after step N, also of called workers (default: as RUN)"),
    *LIMITS,
    OUTPUT,
)
async def fork(ctx: Context) -> int:
    client = await ctx.connect()
    run, at = ctx.args.run, ctx.args.at
    forked = await client.runs.fork(run, at, ctx.frame, model=ctx.args.model)
    moved = "" if forked.at == at else f", the last entry before {at} that a run can continue from"
    ctx.screen.note(f"Forked {run} after entry {forked.at} ({forked.kind}){moved}: {forked.run}.")
    stream = client.runs.resume(forked.run, ctx.frame, **limits_of(ctx.args))
    return await Follower(client, ctx.screen).follow(stream)
