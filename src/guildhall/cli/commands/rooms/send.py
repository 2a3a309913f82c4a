"""`guild send`: say something to an agent, or to all of a workflow. It is woken at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.connection import with_hall
from guildhall.cli.targets import target_of, text_of

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient
    from guildhall.workflow.instance import Sent


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="agent@workflow:tag; @workflow:tag: those mentioned, or all")
    parser.add_argument("message", metavar="MESSAGE", nargs="?", help="what to say; `-` reads standard input")
    parser.add_argument("--json", action="store_true", help="print an object")


def main(args: argparse.Namespace, screen: Screen) -> int:
    target, text = target_of(args.target), text_of(args.message, "message")

    async def work(client: HallClient, frame: Frame) -> int:
        sent = await client.rooms.send(target, text)
        if args.json:
            screen.json(sent.as_dict())
        else:
            _print(sent, screen)
        return exit_codes.DONE

    return with_hall(work, screen)


def _print(sent: Sent, screen: Screen) -> None:
    posted = sent.posted
    to = f"to {', '.join(posted.reached)}" if posted.reached else "to nobody: nobody is mentioned"
    screen.result(f"#{posted.id} {to}")
    if posted.missed:
        screen.note(f"Not there: {', '.join('@' + name for name in posted.missed)}", "yellow")
    if posted.overlooked:
        screen.note(f"Not told, because they stand in code or a quotation: {', '.join(posted.overlooked)}", "yellow")
    if sent.stopped:
        agents = [f"{name}{sent.target.team!s}" for name in sent.stopped]
        screen.note(f"Stopped, so that nobody reads it yet: guild start {agents[0]}", "yellow")
    if sent.status == "paused":
        screen.note(f"{sent.target.team} is paused; it is read when it goes on: guild resume {sent.run}", "yellow")
