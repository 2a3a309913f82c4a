"""`guild edit COMMISSION`: changes fields of a commission. A commission in progress is restarted.

The module also declares the options for the fields of a commission, which `guild dispatch` shares. Does not create
commissions (see `cli.commands.jobs.dispatch`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from guildhall.cli.argument_parser import dollars, parse_commission_id, positive_int, read_text
from guildhall.cli.command import JSON, Argument, Context, Work, argument, command
from guildhall.cli.format.commissions_and_meetings import print_new_state
from guildhall.cli.format.jobs import label_of
from guildhall.core.errors import UsageError

if TYPE_CHECKING:
    import argparse

_LISTS = {"depends_on": "dependencies", "artifact": "artifacts", "link": "linked", "check": "checks"}
JOB_FIELDS = ("model", "max_turns", "max_budget_usd")  # fields that jobs have too
_FIELDS = {name: name for name in ("title", "worker", "reviewer", *JOB_FIELDS)} | _LISTS

WAIT = argument("--wait", action="store_true", help="wait for the result and print it")


def draft_arguments(*, is_new: bool) -> tuple[Argument, ...]:
    """Return the options for the fields of a draft. For an existing commission, an empty value unsets a field."""

    def of_type(read: Callable[[str], float]) -> Callable[[str], float | str]:
        return read if is_new else lambda text: read(text) if text else text

    several: dict[str, Any] = {"metavar": "PATH", "action": "append"}
    return (
        argument("--title", metavar="T", help="a line for listings (default: the first line of the task)"),
        argument("--depends-on", **several, help="a file that must be on claude/main before the work starts"),
        argument("--artifact", **several, help="a file that the work must create"),
        argument("--link", **several, help="a file for the worker to read"),
        argument("--check", metavar="CMD", action="append", help="a command that must succeed on the result"),
        argument("--reviewer", metavar="NAME", help="a worker that must approve the result"),
        argument("--max-turns", metavar="N", type=of_type(positive_int), help="maximum number of model calls"),
        argument("--max-budget-usd", metavar="USD", type=of_type(dollars), help="maximum cost in dollars"),
        argument(
            "--model",
            metavar="M",
            help="the model, also of called workers, whatever the files name",
        ),
    )


def given_fields(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options that were given, by the names of the fields of a draft."""
    values = {field: getattr(args, name) for name, field in _FIELDS.items()}
    return {field: value for field, value in values.items() if value is not None}


@command(
    argument("id", metavar="COMMISSION", type=parse_commission_id, help="the id of the commission"),
    argument("--prompt", metavar="TEXT", help="the task; `-` reads standard input"),
    argument("--worker", metavar="NAME", help="the worker (`guild worker ls`)"),
    *draft_arguments(is_new=False),
    WAIT,
    JSON,
    epilog="""An empty value (--check "", --max-turns "") unsets an optional field.""",
)
def edit(ctx: Context) -> Work:
    changes = given_fields(ctx.args)
    for name, value in changes.items():  # an empty value unsets the field
        if value == [""]:
            changes[name] = []
        elif value == "" and name not in ("title", "worker"):
            changes[name] = None
    if ctx.args.prompt is not None:
        changes["prompt"] = read_text(ctx.args.prompt, "prompt")
    if not changes:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in ("prompt", *_FIELDS))
        raise UsageError("edit: no change given", hint=f"Add one of: {options}.")
    return _edit(ctx, changes)


async def _edit(ctx: Context, changes: dict[str, Any]) -> int:
    client = await ctx.connect()
    id = ctx.args.id
    before = (await client.commissions.get(id)).commission.draft
    if "prompt" in changes and "title" not in changes and before.title == label_of(before.prompt):
        title = label_of(changes["prompt"])
        changes = {**changes, **({"title": title} if title else {})}
    commission = await ctx.run_trusted(lambda: client.commissions.edit(id, changes, ctx.frame), worker=before.worker)
    return await print_new_state(ctx, commission, wait=ctx.args.wait, is_edit=True)
