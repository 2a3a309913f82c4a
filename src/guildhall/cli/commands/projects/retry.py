"""`guild retry COMMISSION`: starts a failed or cancelled commission again, on a new branch.

Does not retry jobs. A failed job is resumed (see `cli.commands.runs.resume`).
"""

from __future__ import annotations

from guildhall.cli.argument_parser import parse_commission_id
from guildhall.cli.command import JSON, Context, argument, check_background, command
from guildhall.cli.commands.projects.edit import WAIT
from guildhall.cli.format.commissions_and_meetings import print_new_state
from guildhall.cli.short_ids import is_kind, read_id
from guildhall.core.errors import UsageError
from guildhall.core.ids import JOB


def _commission_id(text: str) -> str:
    if is_kind(read_id(text), JOB):
        hint = f'Continue it: guild resume {text}. Or start a new one: guild dispatch WORKER "..."'
        raise UsageError(f"cannot retry {text}: it is a job, not a commission", hint=hint)
    return parse_commission_id(text)


@command(
    argument("id", metavar="COMMISSION", type=_commission_id, help="the id of the commission"),
    WAIT,
    JSON,
)
async def retry(ctx: Context) -> int:
    if not ctx.args.wait:
        check_background("retry", "Add --wait")
    client = await ctx.connect()
    id = ctx.args.id
    worker = (await client.commissions.get(id)).commission.worker
    commission = await ctx.run_trusted(lambda: client.commissions.redispatch(id, ctx.frame), worker=worker)
    return await print_new_state(ctx, commission, wait=ctx.args.wait)
