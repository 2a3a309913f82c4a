"""`guild log`: the journal of a run, line by line, and on as it grows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.follow import how_to_go_on
from guildhall.cli.lines import entry_line
from guildhall.cli.reach import any_id, with_hall
from guildhall.core.clock import SystemClock
from guildhall.core.ids import ASK, is_id

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client import HallClient

_EVERY = 0.2  # seconds between two looks


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="of a run; of an ask: its run")
    parser.add_argument("-f", "--follow", action="store_true", help="go on for as long as the run is working")
    parser.add_argument("--json", action="store_true", help="print each entry as an object with all its data")


def main(args: argparse.Namespace, screen: Screen) -> int:
    name = any_id(args.id)

    async def work(client: HallClient, frame: Frame) -> int:
        run = (await client.ask(name)).run if is_id(name, ASK) else name
        clock = SystemClock()
        last: dict[str, int] = {}
        while True:
            shown = await client.show(run)
            runs = [shown.run, *shown.below]
            labels = {one.id: "" if one.id == run else f"  [{one.worker} {one.id}]" for one in runs}
            new = [entry for one in runs for entry in await client.journal(one.id, after=last.get(one.id, -1))]
            for entry in sorted(new, key=lambda entry: entry.at):  # those of one run stay in their order
                told = replace(entry, data=screen.scrubbed(entry.data))  # before any of it is cut
                screen.json(told.as_dict()) if args.json else screen.result(labels[entry.run] + entry_line(told))
                last[entry.run] = entry.seq
            if not args.follow:
                return exit_codes.DONE
            if shown.run.status != "running":
                for line in how_to_go_on(shown, screen):
                    screen.note(line)
                return exit_codes.DONE
            await clock.sleep(_EVERY)

    return with_hall(work, screen, readonly=True)
