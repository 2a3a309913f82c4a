"""`guild dispatch WORKER TASK`: starts a job in the hall and prints its id, or with --wait its result.

Does not show or cancel jobs (see `cli.commands.jobs.job`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.cli.arguments import Resolved, is_member_job, json_object, read_text, worker_name
from guildhall.cli.command import JSON, Context, Work, argument, check_background, command
from guildhall.cli.commands.runs.wait import wait_stopped
from guildhall.cli.format.jobs import label_of, wait_for_member
from guildhall.cli.format.runs import print_outcome

if TYPE_CHECKING:
    from guildhall.jobs.model import Dispatch


@command(
    argument(
        "worker",
        metavar="WORKER|MEMBER",
        type=worker_name,
        help="a worker's name (`guild worker ls`), its file, or a guild member's name (`guild member ls`)",
    ),
    argument("task", metavar="TASK", nargs="?", help="all that it is told; `-` reads standard input"),
    argument("--description", metavar="D", help="a short label for listings; without it the first line"),
    argument(
        "--config",
        metavar="JSON",
        help="an object: maxTurns, maxBudgetUsd, artifacts, model, and whatever the worker is to read",
    ),
    argument("--wait", action="store_true", help="wait for the result and print it"),
    JSON,
)
def dispatch(ctx: Context) -> Work:
    from guildhall.jobs.model import Dispatch

    if not ctx.args.wait:
        check_background("dispatch: nothing would keep the job going", "Wait for it with --wait")
    task, given = read_text(ctx.args.task, "task"), ctx.args.config
    dispatch = Dispatch(
        description=label_of(task) if ctx.args.description is None else ctx.args.description,
        task=task,
        config={} if given is None else json_object(given, "--config", """--config '{"maxTurns": 20}'"""),
    )
    dispatch.check()
    for name, meant in dispatch.misspelled_fields.items():
        known = ctx.screen.one_line(name, 40)
        ctx.screen.note(f"--config: {known} is for the worker to read. Did you mean {meant}?", "yellow")
    return _dispatch(ctx, dispatch)


async def _dispatch(ctx: Context, dispatch: Dispatch) -> int | None:
    client, name, screen = await ctx.connect(), ctx.args.worker, ctx.screen
    job = await ctx.run_trusted(lambda: client.jobs.dispatch(name, dispatch, ctx.frame), worker=name)
    if not ctx.args.wait:
        ctx.print({"jobId": job.id}, job.id)
        if not ctx.args.json:
            screen.note(f"It goes on by itself: guild job show {job.id}, guild wait {job.id}", "dim")
        return None
    screen.note(f"{job.id} starts. Ctrl-C leaves it as it is.", "dim")
    if is_member_job(job.id):
        return await wait_for_member(job.id, ctx)
    assert job.run is not None
    code, shown = await wait_stopped(Resolved(run=job.run), client, replace(ctx.frame, interactive=False))
    if ctx.args.json:
        data = (await client.jobs.get(job.id)).as_dict()
        screen.json({**data, **(await client.jobs.result(job.id)).as_wire()} if data["status"] == "completed" else data)
    else:
        print_outcome(shown, screen)
    return code
