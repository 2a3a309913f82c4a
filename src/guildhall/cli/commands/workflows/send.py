"""`guild send TARGET MESSAGE`: sends a message to an agent or a workflow, which wakes its recipients at once.

Does not wait for an answer (see `cli.commands.runs.log` and `cli.commands.runs.wait`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli.argument_parser import parse_target, read_text
from guildhall.cli.command import JSON, Context, Work, argument, command

if TYPE_CHECKING:
    from guildhall.cli.screen import Screen
    from guildhall.workflow.instance import SendResult


@command(
    argument(
        "target", metavar="TARGET", type=parse_target, help="agent@workflow:tag; @workflow:tag: those mentioned, or all"
    ),
    argument("message", metavar="MESSAGE", nargs="?", help="the message; `-` reads standard input"),
    JSON,
)
def send(ctx: Context) -> Work:
    return _send(ctx, read_text(ctx.args.message, "message"))


async def _send(ctx: Context, text: str) -> None:
    client = await ctx.connect()
    ctx.print(await client.rooms.send(ctx.args.target, text), _print)


def _print(sent: SendResult, screen: Screen) -> None:
    posted = sent.posted
    to = f"to {', '.join(posted.reached)}" if posted.reached else "to no agent: the message mentions none"
    screen.result(f"#{posted.id} {to}")
    if posted.missed:
        screen.note(f"Unknown agents: {', '.join('@' + name for name in posted.missed)}", "yellow")
    if posted.overlooked:
        screen.note(
            f"Not notified, because the mention is in code or a quote: {', '.join(posted.overlooked)}", "yellow"
        )
    if sent.stopped:
        agents = [f"{name}{sent.target.workflow_target!s}" for name in sent.stopped]
        screen.note(
            f"{agents[0]} was stopped or gave up, and does not read it. Start it again: guild start {agents[0]}",
            "yellow",
        )
    if sent.status == "paused":
        screen.note(
            f"{sent.target.workflow_target} is paused and reads it when it resumes: guild resume {sent.run}", "yellow"
        )
