"""`guild resume`: go on with a run, exactly where it stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli.commands.run import limits_arguments
from guildhall.cli.follow import Follower, output_argument
from guildhall.cli.reach import run_id, with_hall

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client import HallClient


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the id of the run")
    limits_arguments(parser)
    output_argument(parser)


def main(args: argparse.Namespace, screen: Screen) -> int:
    run = run_id(args.run)

    async def work(client: HallClient, frame: Frame) -> int:
        more = {"max_turns": args.max_turns, "max_tokens": args.max_tokens, "budget": args.budget}
        stream = client.resume(run, frame, **more)
        return await Follower(client, screen).follow(stream)

    return with_hall(work, screen)
