"""`guild worker ls`, `show`, `new`, `lock`, `unlock` and `set`: manage workers.

Does not read worker files (see `workers.registry`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from guildhall.cli.argument_parser import worker_name
from guildhall.cli.command import JSON, Context, argument, command
from guildhall.core.errors import GuildError

if TYPE_CHECKING:
    from guildhall.cli.screen import Screen
    from guildhall.runs.plan.model import Plan
    from guildhall.workers.model import Worker, WorkerListing

_NAME = argument("name", metavar="NAME", type=worker_name, help="the worker's name")


@command(JSON)
async def ls(ctx: Context) -> None:
    client = await ctx.connect("read")
    listed = await client.workers.list(ctx.frame)
    empty = "No workers here. Create one: guild worker new NAME. Create a project with an example: guild init"
    head = ["name", "status", "from", "description"]
    ctx.print_table([_row(one) for one in listed], listed, head=head, empty=empty)


def _row(one: WorkerListing) -> list[str]:
    status = "broken" if one.error else f"{one.status}, locked" if one.locked else str(one.status)
    return [one.name, status, one.scope, (one.error or one.description or "").replace("\n", "; hint: ")]


@command(argument("name", metavar="NAME|FILE", type=worker_name, help="a worker's name, or its file"), JSON)
async def show(ctx: Context) -> None:
    from guildhall.runs.model import RunRequest

    client = await ctx.connect("read")
    worker = await client.workers.get(ctx.args.name, ctx.frame)
    plan, problem = None, None
    try:
        plan = await client.runs.plan(RunRequest(worker=ctx.args.name, input=""), ctx.frame)
    except GuildError as error:  # a worker without a plan can be shown
        problem = error
    schema = plan.schema if plan else None
    data = {**worker.as_dict(), "output_schema": schema, "plan": plan.as_dict() if plan else None}
    ctx.print(worker, lambda worker, screen: _print(worker, plan, screen), data=data)
    if problem is not None:
        ctx.screen.note(f"guild: no plan: {problem}", "red")


def _print(worker: Worker, plan: Plan | None, screen: Screen) -> None:
    definition = worker.definition.model_dump(mode="json", exclude_unset=True)
    shown_above = ("name", "instructions", "description", "status", "locked", "attachment_policy")
    screen.table(
        [
            ["worker", worker.name],
            ["description", worker.description or ""],
            ["file", f"{worker.place} ({worker.scope})"],
            ["status", _status(worker)],
            ["attachments", str(worker.definition.attachment_policy)],
        ]
    )
    for name, value in definition.items():
        if name not in shown_above:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            screen.result(f"{name}: {text}")
    if worker.activate:
        screen.result(f"activate: {worker.activate}")
    screen.heading("\ninstructions")
    screen.result(worker.instructions)
    if plan is not None:
        screen.section("plan", plan.text())
    if plan is not None and plan.schema is not None:
        name = f"output schema ({screen.one_line(plan.schema_ref or '', 400)})"
        screen.section(name, json.dumps(plan.schema, indent=2, ensure_ascii=False))


def _status(worker: Worker) -> str:
    if worker.is_changed:
        return f"{worker.status}, locked; the file has changed since: guild worker unlock {worker.name}"
    return f"{worker.status}, locked" if worker.is_locked else worker.status


@command(
    _NAME,
    argument("--force", action="store_true", help="overwrite an existing file, even a locked one"),
    JSON,
)
async def new(ctx: Context) -> None:
    client, name = await ctx.connect(), ctx.args.name
    path = await client.workers.create(name, ctx.frame, force=ctx.args.force)
    ctx.print({"worker": name, "path": str(path)}, str(path))
    ctx.screen.note(f'Edit the file, then: guild check {name}, guild run {name} "..."')


@command(_NAME, JSON)
async def lock(ctx: Context) -> None:
    client = await ctx.connect()
    worker = await client.workers.lock(ctx.args.name, ctx.frame)
    ctx.print(worker, f"{worker.name} is locked: its file must not change")


@command(_NAME, JSON)
async def unlock(ctx: Context) -> None:
    client = await ctx.connect()
    worker = await client.workers.unlock(ctx.args.name, ctx.frame)
    ctx.print(worker, f"{worker.name} is unlocked")


@command(_NAME, argument("status", choices=("active", "retired"), help="the new status"), JSON)
async def set_status(ctx: Context) -> None:
    workers = (await ctx.connect()).workers
    change = workers.promote if ctx.args.status == "active" else workers.retire
    worker = await change(ctx.args.name, ctx.frame)
    ctx.print(worker, f"{worker.name} is {worker.status}")
