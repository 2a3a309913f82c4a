"""`guild worker ls`, `show`, `validate`, `new`, `lock`, `unlock`, `promote` and `retire`: manage workers.

Does not read worker files, because the hall does (see `workers.registry`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.cli import exit_codes
from guildhall.cli.arguments import worker_name
from guildhall.cli.command import JSON, Context, argument, command
from guildhall.core.errors import GuildError, error_class

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient
    from guildhall.runs.plan.model import Plan
    from guildhall.workers.model import Worker, WorkerListing

_NAME = argument("name", metavar="NAME", type=worker_name, help="the worker's name")


@command(JSON)
async def ls(ctx: Context) -> None:
    client = await ctx.connect("read")
    listed = await client.workers.list(ctx.frame)
    empty = "There are no workers here. `guild worker new NAME` makes one, `guild init` a starter folder."
    head = ["name", "status", "from", "what it is for"]
    ctx.print_table([_row(one) for one in listed], listed, head=head, empty=empty)


def _row(one: WorkerListing) -> list[str]:
    status = "broken" if one.error else f"{one.status}, locked" if one.locked else str(one.status)
    return [one.name, status, one.scope, one.error or one.description or ""]


@command(argument("name", metavar="NAME|FILE", type=worker_name, help="a worker's name, or its file"), JSON)
async def show(ctx: Context) -> None:
    from guildhall.runs.model import RunRequest

    client = await ctx.connect("read")
    worker = await client.workers.get(ctx.args.name, ctx.frame)
    plan, problem = None, None
    try:
        plan = await client.runs.plan(RunRequest(worker=ctx.args.name, input=""), ctx.frame)
    except GuildError as error:  # such as invalid settings, which do not prevent showing the worker
        problem = error
    schema = plan.schema if plan else None
    data = {**worker.as_dict(), "output_schema": schema, "plan": plan.as_dict() if plan else None}
    ctx.print(worker, lambda worker, screen: _print(worker, plan, screen), data=data)
    if problem is not None:
        ctx.screen.note(f"guild: there is no plan: {problem}", "red")


def _print(worker: Worker, plan: Plan | None, screen: Screen) -> None:
    definition = worker.definition.model_dump(mode="json", exclude_unset=True)
    shown_above = ("name", "instructions", "description", "status", "locked", "attachment_policy")
    screen.table(
        [
            ["worker", worker.name],
            ["what it is for", worker.description or ""],
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
        return f"{worker.status}, locked, and its file is not what was locked: guild worker unlock {worker.name}"
    return f"{worker.status}, locked" if worker.is_locked else worker.status


@command(
    argument("names", metavar="NAME|FILE", nargs="*", type=worker_name, help="workers or files; none: all workers"),
    JSON,
)
async def validate(ctx: Context) -> int:
    client = await ctx.connect("read")
    names: list[str] = ctx.args.names
    names = names or [str(one.path) for one in await client.workers.list(ctx.frame) if one.scope == "project"]
    found = [await _check(name, client, ctx.frame) for name in names]
    ctx.print(found, _print_checked)
    return next((error_class(one["error"]["code"]).exit_code for one in found if one["error"]), exit_codes.DONE)


async def _check(name: str, client: HallClient, frame: Frame) -> dict[str, Any]:
    """Return what a check of one worker found. `risk`: the verdict on the worker and all that it may call."""
    file, doubts, risk = None, list[str](), None
    try:
        checked = await client.workers.check(name, frame)
    except GuildError as error:
        file, problems = error.where, [error]
    else:
        name, file, doubts = checked.worker.name, checked.worker.place, list(checked.doubts)
        problems, plan = checked.problems, checked.plan
        risk = (plan.risk_with_calls or plan.risk) if plan else None
    errors = [error.as_dict() for error in problems]
    data = {"name": name, "file": file, "ok": not errors, "error": errors[0] if errors else None}
    return {**data, "errors": errors, "doubts": doubts, "risk": risk.as_dict() if risk else None}


def _print_checked(found: Sequence[dict[str, Any]], screen: Screen) -> None:
    for one in found:
        for error in one["errors"]:
            screen.note(f"guild: {error.get('where') or one['name']}: {error['message']}", "red")
            if hint := error.get("hint"):
                screen.note(hint)
        for doubt in one["doubts"]:
            screen.note(f"{one['file']}: {doubt}", "yellow")
        name = Path(one["name"]).stem if "/" in one["name"] else one["name"]  # of a file that cannot be read
        screen.result(f"{'ok' if one['ok'] else 'wrong'}  {name}  {one['file'] or ''}".rstrip())
        if one["risk"]:
            screen.result(f"    exfiltration risk: {one['risk']['text']}")
    if not found:
        screen.note("There are no workers in this project to check.")


@command(
    _NAME,
    argument("--force", action="store_true", help="overwrite a file that is there, even a locked one"),
    JSON,
)
async def new(ctx: Context) -> None:
    client, name = await ctx.connect(), ctx.args.name
    path = await client.workers.create(name, ctx.frame, force=ctx.args.force)
    ctx.print({"worker": name, "path": str(path)}, str(path))
    ctx.screen.note(f'Fill it in, then: guild worker validate {name}, guild run {name} "..."')


@command(_NAME, JSON)
async def lock(ctx: Context) -> None:
    client = await ctx.connect()
    worker = await client.workers.lock(ctx.args.name, ctx.frame)
    ctx.print(worker, f"{worker.name} is locked: nothing overwrites its file")


@command(_NAME, JSON)
async def unlock(ctx: Context) -> None:
    client = await ctx.connect()
    worker = await client.workers.unlock(ctx.args.name, ctx.frame)
    ctx.print(worker, f"{worker.name} is unlocked")


@command(_NAME, JSON)
async def promote(ctx: Context) -> None:
    client = await ctx.connect()
    worker = await client.workers.promote(ctx.args.name, ctx.frame)
    ctx.print(worker, f"{worker.name} is active")


@command(_NAME, JSON)
async def retire(ctx: Context) -> None:
    client = await ctx.connect()
    worker = await client.workers.retire(ctx.args.name, ctx.frame)
    ctx.print(worker, f"{worker.name} is retired: it takes no new work")
