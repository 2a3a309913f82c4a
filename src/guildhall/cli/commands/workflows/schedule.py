"""`guild schedule TARGET set WHEN | show | clear`: manages the times at which agents wake without a message.

WHEN is a duration such as `5m` or a cron line. The schedule of a workflow applies to agents without a schedule of their
own. Does not wake agents (see `guildhall.workflow`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli.argument_parser import parse_target
from guildhall.cli.command import JSON, Context, argument, command
from guildhall.core.errors import UsageError

if TYPE_CHECKING:
    from guildhall.workflow.instance import Schedule


@command(
    argument(
        "target", metavar="TARGET", type=parse_target, help="agent@workflow:tag; @workflow:tag: all without their own"
    ),
    argument("verb", metavar="set|show|clear", choices=("set", "show", "clear"), help="what to do"),
    argument("when", metavar="WHEN", nargs="?", help='30s, 5m, 1h, or a cron line: "0 9 * * 1-5"'),
    argument("--prompt", metavar="P", help="the message that the agent gets when it wakes"),
    JSON,
)
async def schedule(ctx: Context) -> None:
    verb, when, prompt = ctx.args.verb, ctx.args.when, ctx.args.prompt
    if verb == "set" and when is None:
        raise UsageError("schedule: no time given", hint=f"For example: guild schedule {ctx.args.target} set 5m")
    if verb != "set" and (when is not None or prompt is not None):
        raise UsageError(f"schedule: {verb} accepts no time and no prompt", hint="Omit them, or use `set`.")
    client = await ctx.connect("read" if verb == "show" else "start")
    target = ctx.args.target
    if verb == "clear":
        was_set = await client.workflows.clear_schedule(target)
        ctx.print({"cleared": was_set}, "Cleared the schedule." if was_set else "No schedule was set.")
        return
    if verb == "set":
        schedules = [await client.workflows.set_schedule(target, ctx.args.when, prompt=prompt)]
    else:
        schedules = await client.workflows.schedules(target)
    rows = [_row(one) for one in schedules]
    ctx.print_table(rows, {"schedules": [one.as_dict() for one in schedules]}, empty="No schedule is set.")


def _row(schedule: Schedule) -> list[str]:
    from guildhall.core.clock import parse_stamp

    due = f"next {parse_stamp(schedule.due_at).astimezone():%Y-%m-%d %H:%M:%S}" if schedule.due_at else ""
    return [schedule.agent or "all", str(schedule.wakeup), due, schedule.prompt or ""]
