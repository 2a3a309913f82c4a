"""`guild dispatch WORKER TASK`: starts a job in the hall, or a commission if an option for commissions is given.

`guild dispatch ID` starts a commission that was created with --hold. Does not change commissions (see
`cli.commands.projects.edit`).
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from guildhall.cli import exit_codes
from guildhall.cli.argument_parser import is_member_job, json_object, read_text, worker_name
from guildhall.cli.command import JSON, Context, Work, argument, check_background, command
from guildhall.cli.commands.projects.edit import JOB_FIELDS, WAIT, draft_arguments, given_fields
from guildhall.cli.commands.runs.wait import wait_for_job
from guildhall.cli.format.commissions_and_meetings import print_new_state
from guildhall.cli.format.jobs import label_of, wait_for_member
from guildhall.cli.short_ids import is_kind, read_id
from guildhall.core.errors import GuildError, UsageError
from guildhall.core.ids import COMMISSION
from guildhall.hall.client.discovery import is_embedded

if TYPE_CHECKING:
    from guildhall.jobs.model import Dispatch
    from guildhall.projects.commissions.model import Commission, Draft

_JOB_CONFIG = {"model": "model", "max_turns": "maxTurns", "max_budget_usd": "maxBudgetUsd"}
_TASK_HINT = 'Say what to do: guild dispatch WORKER "..."'


def _worker_or_commission(text: str) -> str:
    id = read_id(text)
    return id if is_kind(id, COMMISSION) else worker_name(text)


@command(
    argument(
        "worker",
        metavar="WORKER|MEMBER|COMMISSION",
        type=_worker_or_commission,
        help="a worker's name or file, a member's name, or the id of a pending commission",
    ),
    argument("task", metavar="TASK", nargs="?", help="the task; `-` reads standard input"),
    argument("--description", metavar="D", help="label of a job in listings (default: the first line of the task)"),
    argument(
        "--config",
        metavar="JSON",
        help="settings of a job: an object with maxTurns, maxBudgetUsd, artifacts, model, and fields for the worker",
    ),
    argument("--project", metavar="NAME", help="work on this registered project (default: the project of this folder)"),
    argument("--hold", action="store_true", help="create the commission without starting it"),
    *draft_arguments(is_new=True),
    WAIT,
    JSON,
    epilog="With --project, --hold, --title, --depends-on, --artifact, --link, --check or --reviewer, the task is a\n"
    "commission: work on a git repository. Without them it is a job.",
)
def dispatch(ctx: Context) -> Work:
    args = ctx.args
    if args.task is not None:
        args.worker = worker_name(args.worker)  # not the id of a commission
    fields = given_fields(args)
    is_commission = args.project is not None or args.hold or bool(fields.keys() - {"worker", *JOB_FIELDS})
    if args.hold and args.wait:
        raise UsageError("dispatch: --wait cannot be used with --hold", hint="Omit one of them.")
    if not args.wait and not args.hold:
        check_background("dispatch", "Add --wait")
    if is_kind(args.worker, COMMISSION) and args.task is None:
        if is_commission or fields.keys() - {"worker"}:
            hint = f"Omit the options, or change it with guild edit {args.worker}."
            raise UsageError(f"dispatch: cannot change the existing commission {args.worker}", hint=hint)
        return _start_held(ctx)
    task = read_text(args.task, "task", hint=_TASK_HINT)
    if not task.strip():
        raise UsageError("the task is empty", hint=_TASK_HINT)
    if not is_commission:
        return _dispatch_job(ctx, _job_of(ctx, task, fields))
    if args.description is not None or args.config is not None:
        hint = "Use --title for --description; --max-turns, --max-budget-usd, --model or --artifact for --config."
        raise UsageError("dispatch: --description and --config cannot be used for a commission", hint=hint)
    from guildhall.projects.commissions.model import Draft

    return _dispatch_commission(ctx, Draft(title=label_of(task), worker="", prompt=task).edit(fields))


def _job_of(ctx: Context, task: str, fields: dict[str, Any]) -> Dispatch:
    from guildhall.jobs.model import Dispatch

    given, description = ctx.args.config, ctx.args.description
    config = {} if given is None else json_object(given, "--config", """--config '{"maxTurns": 20}'""")
    config |= {_JOB_CONFIG[name]: value for name, value in fields.items() if name in _JOB_CONFIG}
    job = Dispatch(description=label_of(task) if description is None else description, task=task, config=config)
    job.check()
    for name, meant in job.misspelled_fields.items():
        field = ctx.screen.one_line(name, 40)
        ctx.screen.note(f"--config: {field} is passed to the worker. Did you mean {meant}?", "yellow")
    return job


async def _dispatch_job(ctx: Context, dispatch: Dispatch) -> int | None:
    client, name, screen = await ctx.connect(), ctx.args.worker, ctx.screen
    job = await ctx.run_trusted(lambda: client.jobs.dispatch(name, dispatch, ctx.frame), worker=name)
    if not ctx.args.wait:
        ctx.print({"jobId": job.id}, job.id)
        if not ctx.as_json:
            screen.note(f"Started job {job.id}. Result: guild wait {job.id}", "dim")
        return None
    screen.note(f"Started job {job.id}. Ctrl-C stops waiting, not the job.", "dim")
    return await (wait_for_member(job.id, ctx) if is_member_job(job.id) else wait_for_job(job.id, ctx))


async def _dispatch_commission(ctx: Context, draft: Draft) -> int:
    client, args = await ctx.connect(), ctx.args
    created: Commission | None = None
    started: Commission | None = None
    try:
        created = await ctx.run_trusted(
            lambda: client.commissions.create(draft, ctx.frame, project=args.project), worker=draft.worker
        )
        if args.hold or created.status == "blocked":
            code = await print_new_state(ctx, created, text=created.id, wait=args.wait)
            return code if args.hold else exit_codes.NEEDS_YOU
        id = created.id
        started = await ctx.run_trusted(lambda: client.commissions.dispatch(id, ctx.frame), worker=draft.worker)
        return await print_new_state(ctx, started, text=id, wait=args.wait)
    except (GuildError, asyncio.CancelledError) as error:
        if created is not None:  # the user must not create it again
            note = f"{created.id} was created and is pending. Start it: guild dispatch {created.id}"
            if started is not None:
                note = f"{created.id} was started. Show its state: guild show {created.id}"
            if not isinstance(error, GuildError):
                background = f"{created.id} continues in the background: guild wait {created.id}"
                note = f"Continue it: guild resume {created.id}" if is_embedded(os.environ) else background
            ctx.print(created, created.id)
            ctx.screen.note(note)
        raise


async def _start_held(ctx: Context) -> int:
    client = await ctx.connect()
    id = ctx.args.worker
    worker = (await client.commissions.get(id)).commission.worker
    commission = await ctx.run_trusted(lambda: client.commissions.dispatch(id, ctx.frame), worker=worker)
    return await print_new_state(ctx, commission, wait=ctx.args.wait)
