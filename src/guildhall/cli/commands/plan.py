"""`guild plan`: what could happen if a worker ran, before anything does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.commands.run import limits_arguments, mode_arguments, model_arguments, request_of
from guildhall.cli.reach import with_hall

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client import HallClient


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("worker", metavar="WORKER|FILE", help="a worker's name (`guild worker ls`), or its file")
    model_arguments(parser)
    limits_arguments(parser)
    mode_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print an object")


def main(args: argparse.Namespace, screen: Screen) -> int:
    request = request_of(args)

    async def work(client: HallClient, frame: Frame) -> int:
        plan = await client.plan(request, frame)
        screen.json(plan.as_dict()) if args.json else screen.result(plan.text())
        return exit_codes.DONE

    return with_hall(work, screen, readonly=True, model=args.model)
