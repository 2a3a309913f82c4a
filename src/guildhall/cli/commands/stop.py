"""`guild stop`: end a run for good, with all that it has called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.reach import run_id, with_hall

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client import HallClient


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the id of the run")
    parser.add_argument("--json", action="store_true", help="print an object with the ids of all runs that were ended")


def main(args: argparse.Namespace, screen: Screen) -> int:
    run = run_id(args.run)

    async def work(client: HallClient, frame: Frame) -> int:
        ended = await client.stop(run)
        if args.json:
            screen.json({"run": run, "cancelled": ended})
        else:
            more = f", with {len(ended) - 1} that it has called" if len(ended) > 1 else ""
            screen.result(f"{run} is cancelled{more}; its record stays: guild show {run}")
        return exit_codes.DONE

    return with_hall(work, screen)
