"""`guild log ID|TARGET`: prints the journal of a run and of the runs that it called, with -f also new entries.

The log of a workflow includes the messages of its room. Does not format an entry (see `cli.format.runs`).
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.cli.arguments import Resolved, resolve
from guildhall.cli.command import ANY_ID, Context, argument, command
from guildhall.cli.format.journal import entry_line
from guildhall.cli.format.runs import print_next_steps
from guildhall.cli.format.workflows import message_line
from guildhall.core.clock import SystemClock
from guildhall.runs.record.entries import Entry, Payload

if TYPE_CHECKING:
    from guildhall.cli.screen import Screen
    from guildhall.core.request_frame import Frame
    from guildhall.hall.client.interface import HallClient
    from guildhall.hall.client.model import RunDetails
    from guildhall.room.model import Message

_POLL_S = 0.2  # if the run is not alive in the hall that is asked


@command(
    ANY_ID,
    argument("-f", "--follow", action="store_true", help="print new entries until the run stops"),
    argument("--json", action="store_true", help="print each entry as an object with all its data"),
)
async def log(ctx: Context) -> None:
    client = await ctx.connect("read")
    found = await resolve(ctx.args.id, client)
    journal = _Printer(client, ctx.screen, found, as_json=ctx.as_json)
    shown = await journal.print_new()
    if not ctx.args.follow:
        return
    while shown.run.status == "running":
        shown = await _follow(journal, replace(ctx.frame, interactive=False))
    print_next_steps(shown, ctx.screen)


async def _follow(journal: _Printer, frame: Frame) -> RunDetails:
    """Print new entries whenever an event arrives. If the run is not alive in this hall, the caller polls."""
    async with aclosing(journal.client.runs.follow(journal.run, frame)) as events:
        async for event in events:
            if event.type != "text_delta":
                await journal.print_new()
    shown = await journal.print_new()
    if shown.run.status == "running":
        await SystemClock().sleep(_POLL_S)
    return shown


class _Printer:
    """Prints the journal of a run, of the runs that it called, and the messages of their room, each entry once."""

    def __init__(self, client: HallClient, screen: Screen, found: Resolved, *, as_json: bool) -> None:
        self.client = client
        self.run = found.run
        self._found = found
        self._screen = screen
        self._as_json = as_json
        self._last: dict[str, int] = {}
        self._last_message = 0
        self._ended_at: dict[str, str | None] = {}  # of each run when it was last read

    async def print_new(self) -> RunDetails:
        """Print new entries and messages, and return the state of the run."""
        shown = await self.client.runs.get(self.run)
        runs = self._found.select([shown.run, *shown.below])
        labels = {one.id: "" if one.id == self.run else f"  [{one.worker} {one.id}]" for one in runs}
        open_ones = [one for one in runs if self._ended_at.get(one.id) != one.ended_at or one.ended_at is None]
        new = [
            entry for one in open_ones for entry in await self.client.runs.journal(one.id, self._last.get(one.id, -1))
        ]
        self._ended_at = {one.id: one.ended_at for one in runs}
        items: list[Entry[Payload] | Message] = [*await self._messages(shown), *new]
        for item in sorted(items, key=lambda item: item.at):  # those of one run stay in their order
            if isinstance(item, Entry):
                self._last[item.run] = item.seq
                record = {name: self._screen.redact_value(value) for name, value in item.data.to_record().items()}
                redacted = replace(item, data=item.data.from_record(record))  # before any of it is cut
                data, line = redacted.as_dict(), labels[item.run] + entry_line(redacted)
            else:
                self._last_message = item.id
                data, line = {"type": "message", **item.as_dict()}, message_line(item)
            self._screen.json(data) if self._as_json else self._screen.result(line)
        return shown

    async def _messages(self, shown: RunDetails) -> list[Message]:
        """Return new messages of the room. For an agent: only messages that it sent or that mention it."""
        if shown.run.kind != "workflow":
            return []
        found = await self.client.rooms.messages(self.run, since=self._last_message)
        agent = self._found.agent
        return [one for one in found if agent is None or agent.name in (one.sender, *one.mentions)]
