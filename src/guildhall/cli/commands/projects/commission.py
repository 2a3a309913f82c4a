"""`guild commission`: lists, prints, creates, edits, dispatches, ends and deletes commissions of a project.

Does not print a commission or wait for it (see `cli.format.projects`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

from guildhall.cli import exit_codes
from guildhall.cli.arguments import commission_id, dollars, positive_int, read_text
from guildhall.cli.command import JSON, Argument, Context, Work, argument, check_background, command
from guildhall.cli.format.jobs import label_of
from guildhall.cli.format.projects import commission_row, print_commission, wait_idle, warn_if_stopped
from guildhall.core.errors import GuildError, UsageError
from guildhall.hall.client.discovery import is_embedded

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from guildhall.cli.screen import Screen
    from guildhall.projects.commissions.model import Commission, Draft

_LISTS = {"depends_on": "dependencies", "artifact": "artifacts", "link": "linked", "check": "checks"}
_WORDS = ("title", "worker", "reviewer", "model", "max_turns", "max_budget_usd")

_ID = argument("id", metavar="COMMISSION", type=commission_id, help="the id of the commission")
_REASON = argument("--reason", metavar="WHY", help="for the timeline")
_WAIT = argument("--wait", action="store_true", help="wait for its end")


def _draft_arguments(*, new: bool) -> tuple[Argument, ...]:
    """Return the options for the fields of a draft. For an existing commission, an empty value unsets a field."""

    def of_type(read: Callable[[str], float]) -> Callable[[str], float | str]:
        return read if new else lambda text: read(text) if text else text

    several: dict[str, Any] = {"metavar": "PATH", "action": "append"}
    return (
        argument("--worker", metavar="NAME", required=new, help="who does it (`guild worker ls`)"),
        argument("--title", metavar="T", help="a line for listings; without it the first of the prompt"),
        argument("--depends-on", **several, help="a file that must be on claude/main before it begins"),
        argument("--artifact", **several, help="a file that must be there in the end"),
        argument("--link", **several, help="a file that it is told of"),
        argument(
            "--check",
            metavar="COMMAND",
            action="append",
            help="a command that must succeed in its checkout in the end",
        ),
        argument("--reviewer", metavar="NAME", help="a worker that must approve of it"),
        argument("--max-turns", metavar="N", type=of_type(positive_int), help="model calls"),
        argument("--max-budget-usd", metavar="USD", type=of_type(dollars), help="dollars"),
        argument("--model", metavar="M", help="the model that does it, whatever its worker says"),
    )


@command(
    argument("--project", metavar="NAME", help="only those of one project"),
    argument("--status", metavar="S", help="only those that are pending, blocked, failed, ..."),
    JSON,
    event_loop=False,
)
async def ls(ctx: Context) -> None:
    client = await ctx.connect("read")
    found = await client.commissions.list(project=ctx.args.project, status=ctx.args.status)
    empty = 'There are none. `guild commission new --worker NAME "..."` makes one.'
    rows = [commission_row(one, ctx.screen) for one in found]
    ctx.print_table(rows, {"commissions": [one.as_dict() for one in found]}, empty=empty)


@command(_ID, JSON, event_loop=False)
async def show(ctx: Context) -> None:
    client = await ctx.connect("read")
    shown = await client.commissions.get(ctx.args.id)
    ctx.print(shown, print_commission)
    if not ctx.args.json:
        await warn_if_stopped(shown, client, ctx.screen)


@command(
    argument("prompt", metavar="PROMPT", nargs="?", help="all that it is told; `-` reads standard input"),
    argument("--project", metavar="NAME", help="without it the one that you are in"),
    argument("--dispatch", action="store_true", help="let it begin at once"),
    *_draft_arguments(new=True),
    _WAIT,
    JSON,
)
def new(ctx: Context) -> Work:
    from guildhall.projects.commissions.model import Draft

    if ctx.args.wait and not ctx.args.dispatch:
        raise UsageError("commission new: --wait needs --dispatch", hint="It begins only when it is dispatched.")
    if ctx.args.dispatch:
        _check_can_start(ctx, "new")
    prompt = read_text(ctx.args.prompt, "prompt")
    if not prompt.strip():
        raise UsageError("prompt: it is empty", hint='Say what is to be done: guild commission new --worker NAME "..."')
    return _new(ctx, Draft(title=label_of(prompt), worker="", prompt=prompt).edit(_given_fields(ctx.args)))


async def _new(ctx: Context, draft: Draft) -> int:
    import asyncio  # not at the top, because `ls` and `show` do not need it

    client = await ctx.connect()
    made: Commission | None = None
    try:
        made = await ctx.run_trusted(
            lambda: client.commissions.create(draft, ctx.frame, project=ctx.args.project), worker=draft.worker
        )
        if not ctx.args.dispatch or made.status == "blocked":
            code = await _print_result(ctx, made, text=made.id)
            return exit_codes.NEEDS_YOU if ctx.args.dispatch else code
        id = made.id
        begun = await ctx.run_trusted(lambda: client.commissions.dispatch(id, ctx.frame), worker=draft.worker)
        return await _print_result(ctx, begun, text=id)
    except (GuildError, asyncio.CancelledError) as error:
        if made is not None:  # the user must not create it again
            then = f"{made.id} was created and is pending. Then: guild commission dispatch {made.id}"
            if not isinstance(error, GuildError):
                background = f"It continues in the background: guild wait {made.id}"
                then = f"Continue it: guild resume {made.id}" if is_embedded(os.environ) else background
            ctx.print(made, made.id)
            ctx.screen.note(then)
        raise


@command(
    _ID,
    argument("--prompt", metavar="TEXT", help="all that it is told; `-` reads standard input"),
    *_draft_arguments(new=False),
    _WAIT,
    JSON,
    epilog="""Given empty (--check "", --max-turns ""), what need not be there is taken away.""",
)
def edit(ctx: Context) -> Work:
    changes = _given_fields(ctx.args)
    for name, value in changes.items():  # an empty value unsets the field
        if value == [""]:
            changes[name] = []
        elif value == "" and name not in ("title", "worker"):
            changes[name] = None
    if ctx.args.prompt is not None:
        changes["prompt"] = read_text(ctx.args.prompt, "prompt")
    if not changes:
        names = ("title", "prompt", "worker", *_LISTS, "reviewer", "model", "max_turns", "max_budget_usd")
        hint = f"Name what: {', '.join('--' + name.replace('_', '-') for name in names)}."
        raise UsageError("nothing is to be changed", hint=hint)
    return _edit(ctx, changes)


async def _edit(ctx: Context, changes: dict[str, Any]) -> int:
    client, id = await ctx.connect(), ctx.args.id
    before = (await client.commissions.get(id)).commission.draft
    if "prompt" in changes and "title" not in changes and before.title == label_of(before.prompt):
        title = label_of(changes["prompt"])
        changes = {**changes, **({"title": title} if title else {})}
    one = await ctx.run_trusted(lambda: client.commissions.edit(id, changes, ctx.frame), worker=before.worker)
    return await _print_result(ctx, one, is_edit=True)


@command(_ID, _WAIT, JSON)
async def dispatch(ctx: Context) -> int:
    return await _start(ctx, "dispatch")


@command(_ID, _WAIT, JSON)
async def redispatch(ctx: Context) -> int:
    return await _start(ctx, "redispatch")


async def _start(ctx: Context, verb: Literal["dispatch", "redispatch"]) -> int:
    _check_can_start(ctx, verb)
    commissions = (await ctx.connect()).commissions
    worker = (await commissions.get(ctx.args.id)).commission.worker
    start = commissions.dispatch if verb == "dispatch" else commissions.redispatch
    return await _print_result(ctx, await ctx.run_trusted(lambda: start(ctx.args.id, ctx.frame), worker=worker))


@command(_ID, _REASON, JSON)
async def cancel(ctx: Context) -> int:
    client = await ctx.connect()
    one = await client.commissions.cancel(ctx.args.id, reason=ctx.args.reason)
    ctx.print(one, f"{one.id} is {one.status}")
    if not ctx.args.json:
        if one.status != "cancelled":
            ctx.screen.note(f"Not cancelled: it had already ended or submitted its result: guild show {one.id}")
        _print_next(one, ctx.screen)
    return exit_codes.DONE if one.status == "cancelled" else exit_codes.FAILED


@command(_ID, _REASON, JSON)
async def abandon(ctx: Context) -> int:
    client = await ctx.connect()
    return await _print_result(ctx, await client.commissions.abandon(ctx.args.id, reason=ctx.args.reason))


async def delete(ctx: Context) -> None:
    """Delete the commission that the argument names."""
    client = await ctx.connect()
    await client.commissions.delete(ctx.args.id)
    ctx.print({"commission": ctx.args.id, "deleted": True}, f"{ctx.args.id} deleted")


rm = command(_ID, JSON)(delete)


def _check_can_start(ctx: Context, verb: str) -> None:
    if not ctx.args.wait:
        check_background(f"commission {verb}: nothing would keep it going", "Wait for it with --wait")


def _given_fields(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options that were given, by the names of the fields of a draft."""
    fields = {name: name for name in _WORDS} | _LISTS
    values = {field: getattr(args, name) for name, field in fields.items()}
    return {field: value for field, value in values.items() if value is not None}


async def _print_result(ctx: Context, one: Commission, *, text: str = "", is_edit: bool = False) -> int:
    """Print the new state of a commission, with --wait once it has ended, and return the exit code."""
    wait: bool = getattr(ctx.args, "wait", False)
    if wait and one.status in ("dispatched", "in_progress"):
        ctx.screen.note(f"{one.id} is {one.status}. Ctrl-C stops waiting, not the work: guild wait {one.id}", "dim")
        code, shown = await wait_idle(one.id, ctx.client)
        ctx.print(shown, print_commission)
        return code
    ctx.print(one, text or f"{one.id} is {one.status}")
    if not ctx.args.json:
        if one.draft.linked and one.status in ("pending", "blocked"):
            for warning in (await ctx.client.commissions.get(one.id)).warnings:
                ctx.screen.note(ctx.screen.one_line(warning, 300), "yellow")
        _print_next(one, ctx.screen, is_edit=is_edit)
    if wait and one.status in ("pending", "blocked"):
        return exit_codes.NEEDS_YOU
    return exit_codes.FAILED if one.status == "failed" and (wait or not is_edit) else exit_codes.DONE


def _print_next(one: Commission, screen: Screen, *, is_edit: bool = False) -> None:
    again = f"Try again: guild commission redispatch {one.id}"
    hints = {
        "pending": f"Start it: guild commission dispatch {one.id}",
        "blocked": f"It is {one.reason}. Then: guild commission dispatch {one.id}",
        "dispatched": f"It is queued: guild wait {one.id}",
        "in_progress": f"It runs in the background: guild show {one.id}, guild wait {one.id}",
        "failed": again if is_edit else f"It failed: {screen.exactly(one.reason or '')}\n{again}",
        "cancelled": again,
    }
    if one.status in hints:
        screen.note(hints[one.status], "dim")
