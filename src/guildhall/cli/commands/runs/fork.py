"""`guild fork`: a new run that begins with a part of another one's record, and goes on by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli.commands.runs.run import limits_arguments
from guildhall.cli.connection import with_hall
from guildhall.cli.follow import Follower, output_argument
from guildhall.cli.parser import entry_number
from guildhall.cli.targets import run_id

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the id of the run")
    parser.add_argument(
        "--at",
        metavar="N",
        type=entry_number,
        required=True,
        help="the last entry to keep, as `guild log` numbers them",
    )
    parser.add_argument("--model", metavar="M", help="another model from there on")
    limits_arguments(parser)
    output_argument(parser)


def main(args: argparse.Namespace, screen: Screen) -> int:
    run = run_id(args.run)

    async def work(client: HallClient, frame: Frame) -> int:
        forked = await client.runs.fork(run, args.at, frame, model=args.model)
        back = "" if forked.at == args.at else f", the last before {args.at} from which it can go on"
        screen.note(f"{forked.run} is forked from {run} after entry {forked.at} ({forked.kind}){back}.")
        more = {"max_turns": args.max_turns, "max_tokens": args.max_tokens, "budget": args.budget}
        return await Follower(client, screen).follow(client.runs.resume(forked.run, frame, **more))

    return with_hall(work, screen)
