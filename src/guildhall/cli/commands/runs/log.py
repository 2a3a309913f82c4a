"""`guild log`: the journal of a run, line by line, and on as it grows; of a workflow with what is said in its room."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.connection import with_hall
from guildhall.cli.format.rooms import message_line
from guildhall.cli.format.runs import entry_line, how_to_go_on
from guildhall.cli.targets import named
from guildhall.core.clock import SystemClock
from guildhall.runs.model import Entry

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.cli.targets import Named
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient, Shown
    from guildhall.room.model import Message
    from guildhall.runs.model import Run

_EVERY = 0.2  # seconds between two looks at a run that is not alive in the hall that is asked


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "id", metavar="ID|TARGET", help="of a run, job, commission or ask; agent@workflow:tag; @workflow:tag"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="go on for as long as the run is working")
    parser.add_argument("--json", action="store_true", help="print each entry as an object with all its data")


def main(args: argparse.Namespace, screen: Screen) -> int:
    async def work(client: HallClient, frame: Frame) -> int:
        found = await named(args.id, client)
        told = _Told(client, screen, found, as_json=args.json)
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
    async with aclosing(told.client.runs.follow(told.run, frame)) as events:
        async for event in events:
            if event.type != "text_delta":
                await told.more()
    shown = await told.more()
    if shown.run.status == "running":
        await SystemClock().sleep(_EVERY)
    return shown


class _Told:
    """What has been told of a run, of those that it has called, and of the room that they share."""

    def __init__(self, client: HallClient, screen: Screen, found: Named, *, as_json: bool) -> None:
        self.client = client
        self.run = found.run
        self._agent = found.agent.name if found.agent else None
        self._screen = screen
        self._as_json = as_json
        self._last: dict[str, int] = {}
        self._said = 0
        self._whole: dict[str, str | None] = {}  # when each run had ended that has been told

    async def more(self) -> Shown:
        """Tells what is new; how the run stands."""
        shown = await self.client.runs.get(self.run)
        runs = self._wanted([shown.run, *shown.below])
        labels = {one.id: "" if one.id == self.run else f"  [{one.worker} {one.id}]" for one in runs}
        open_ones = [one for one in runs if self._whole.get(one.id) != one.ended_at or one.ended_at is None]
        new = [
            entry for one in open_ones for entry in await self.client.runs.journal(one.id, self._last.get(one.id, -1))
        ]
        self._whole = {one.id: one.ended_at for one in runs}
        items: list[Entry | Message] = [*await self._messages(shown), *new]
        for item in sorted(items, key=lambda item: item.at):  # those of one run stay in their order
            if isinstance(item, Entry):
                self._last[item.run] = item.seq
                self._tell_entry(item, labels[item.run])
            else:
                self._said = item.id
                self._tell_message(item)
        return shown

    def _wanted(self, runs: list[Run]) -> list[Run]:
        """All, or those of one agent and what these have called."""
        if self._agent is None:
            return runs
        kept: dict[str, Run] = {}
        for run in runs:
            if (run.parent == self.run and run.worker == self._agent) or run.parent in kept:
                kept[run.id] = run
        return list(kept.values())

    async def _messages(self, shown: Shown) -> list[Message]:
        """What is new in the room; of one agent what it said and what it was told."""
        if not shown.run.request.get("workflow"):
            return []
        found = await self.client.rooms.messages(self.run, since=self._said)
        return [one for one in found if self._agent in (None, one.sender, *one.mentions)]

    def _tell_entry(self, entry: Entry, label: str) -> None:
        told = replace(entry, data=self._screen.scrubbed(entry.data))  # before any of it is cut
        self._screen.json(told.as_dict()) if self._as_json else self._screen.result(label + entry_line(told))

    def _tell_message(self, message: Message) -> None:
        if self._as_json:
            self._screen.json({"type": "message", **message.as_dict()})
        else:
            self._screen.result(message_line(message))
