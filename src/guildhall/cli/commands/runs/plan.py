"""`guild plan WORKER|FILE`: prints the possible effects and costs of a worker or a workflow.

Does not start anything. The hall computes the plan (see `runs.plan`).
"""

from __future__ import annotations

from guildhall.cli import exit_codes
from guildhall.cli.argument_parser import LIMITS, worker_name
from guildhall.cli.command import JSON, Context, argument, command
from guildhall.cli.commands.runs.run import MODELS, MODES, WORKFLOW, file_of, request_of
from guildhall.core.errors import UsageError
from guildhall.workflow.target import MAIN, is_workflow_file, parse_params


@command(
    argument(
        "worker",
        metavar="WORKER|FILE",
        type=worker_name,
        help="a worker's name (`guild worker ls`), or the file of a worker or a workflow",
    ),
    *WORKFLOW,
    *MODELS,
    *LIMITS,
    MODES,
    JSON,
)
async def plan(ctx: Context) -> int:
    request, params = request_of(ctx.args), parse_params(ctx.args.param)
    file = file_of(request.worker)
    client = await ctx.connect("read", model=ctx.args.model)
    if is_workflow_file(ctx.frame.cwd / file):
        plan = await client.workflows.plan(request, ctx.frame, tag=ctx.args.tag or MAIN, params=params)
    elif ctx.args.tag or params:
        raise UsageError("--tag and --param can only be used with a workflow file", hint="Omit them.")
    else:
        plan = await client.runs.plan(request, ctx.frame)
    ctx.print(plan, plan.text())
    return exit_codes.FAILED if plan.problems else exit_codes.DONE
