"""`guild log`: the journal of a run, line by line, and on as it grows."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from guildhall.cli import exit_codes
from guildhall.cli.follow import how_to_go_on
from guildhall.cli.lines import entry_line
from guildhall.cli.reach import any_id, with_hall
from guildhall.core.clock import SystemClock
from guildhall.core.ids import ASK, is_id

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncGenerator

    from guildhall.cli.screen import Screen
    from guildhall.core.events import Event
    from guildhall.core.frame import Frame
    from guildhall.hall.client import HallClient, Shown

_EVERY = 0.2  # seconds between two looks at a run that is not alive in the hall that is asked


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="of a run; of an ask: its run")
    parser.add_argument("-f", "--follow", action="store_true", help="go on for as long as the run is working")
    parser.add_argument("--json", action="store_true", help="print each entry as an object with all its data")


def main(args: argparse.Namespace, screen: Screen) -> int:
    name = any_id(args.id)

    async def work(client: HallClient, frame: Frame) -> int:
        run = (await client.ask(name)).run if is_id(name, ASK) else name
        told = _Told(client, screen, run, as_json=args.json)
        shown = await told.more()
        while args.follow and shown.run.status == "running":
            shown = await _followed(told, replace(frame, interactive=False))
        if args.follow:
            for line in how_to_go_on(shown, screen):
                screen.note(line)
        return exit_codes.DONE

    return with_hall(work, screen, readonly=True)


async def _followed(told: _Told, frame: Frame) -> Shown:
    """Tells what is new whenever something happens in the run; where nobody can say when, again and again."""
    async with aclosing(cast("AsyncGenerator[Event]", told.client.follow(told.run, frame))) as events:
        async for event in events:
            if event.type != "text_delta":
                await told.more()
    shown = await told.more()
    if shown.run.status == "running":
        await SystemClock().sleep(_EVERY)
    return shown


class _Told:
    """What has been told of a run, and of those that it has called."""

    def __init__(self, client: HallClient, screen: Screen, run: str, *, as_json: bool) -> None:
        self.client = client
        self.run = run
        self._screen = screen
        self._as_json = as_json
        self._last: dict[str, int] = {}

    async def more(self) -> Shown:
        """Tells what is new; how the run stands."""
        shown = await self.client.show(self.run)
        runs = [shown.run, *shown.below]
        labels = {one.id: "" if one.id == self.run else f"  [{one.worker} {one.id}]" for one in runs}
        new = [entry for one in runs for entry in await self.client.journal(one.id, self._last.get(one.id, -1))]
        for entry in sorted(new, key=lambda entry: entry.at):  # those of one run stay in their order
            told = replace(entry, data=self._screen.scrubbed(entry.data))  # before any of it is cut
            if self._as_json:
                self._screen.json(told.as_dict())
            else:
                self._screen.result(labels[entry.run] + entry_line(told))
            self._last[entry.run] = entry.seq
        return shown
