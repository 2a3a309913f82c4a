"""`guild log`: the journal of a run, line by line, and on as it grows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.lines import entry_line
from guildhall.cli.reach import any_id, with_hall
from guildhall.core.clock import SystemClock
from guildhall.core.ids import ASK, is_id
from guildhall.runs.model import ENDED

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client import HallClient

_EVERY = 0.2  # seconds between two looks


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="of a run; of an ask: its run")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run has ended")
    parser.add_argument("--json", action="store_true", help="print each entry as an object with all its data")


def main(args: argparse.Namespace, screen: Screen) -> int:
    name = any_id(args.id)

    async def work(client: HallClient, frame: Frame) -> int:
        run = (await client.ask(name)).run if is_id(name, ASK) else name
        clock = SystemClock()
        seen = 0
        while True:
            ended = (await client.show(run)).run.status in ENDED
            entries = await client.journal(run)
            for entry in entries[seen:]:
                screen.json(entry.as_dict()) if args.json else screen.result(entry_line(entry))
            seen = len(entries)
            if ended or not args.follow:
                return exit_codes.DONE
            await clock.sleep(_EVERY)

    return with_hall(work, screen, readonly=True)
