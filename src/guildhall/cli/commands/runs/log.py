"""`guild log ID|TARGET`: prints the journal of a run and of its child runs, with -f also new entries.

The log of a workflow includes the messages of its room. Does not format an entry (see `cli.format.journal`).
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.cli.argument_parser import Resolved, resolve
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

_MAX_ITEMS = 500  # entries and messages that are printed without --all
_POLL_S = 0.2  # if the run is not alive in this hall


@command(
    ANY_ID,
    argument("--all", action="store_true", help=f"print everything, not only the last {_MAX_ITEMS} entries"),
    argument("-f", "--follow", action="store_true", help="print new entries until the run ends or waits for you"),
    argument("--json", action="store_true", help="print each entry as an object with all its data"),
)
async def log(ctx: Context) -> None:
    client = await ctx.connect("read")
    resolved = await resolve(ctx.args.id, ctx)
    journal = _Printer(client, ctx.screen, resolved, as_json=ctx.as_json)
    details = await journal.print_new(None if ctx.args.all or ctx.as_json else _MAX_ITEMS)
    if journal.is_shortened:
        ctx.screen.note(f"Only the last {_MAX_ITEMS} entries are printed. All: guild log {ctx.args.id} --all", "yellow")
    if not ctx.args.follow:
        return
    while details.run.status == "running":
        details = await _follow(journal, replace(ctx.frame, interactive=False))
    print_next_steps(details, ctx.screen)


async def _follow(journal: _Printer, frame: Frame) -> RunDetails:
    """Print new entries whenever an event arrives. If the run is not alive in this hall, the caller polls."""
    async with aclosing(journal.client.runs.follow(journal.run_id, frame)) as events:
        async for event in events:
            if event.type != "text_delta":
                await journal.print_new()
    details = await journal.print_new()
    if details.run.status == "running":
        await SystemClock().sleep(_POLL_S)
    return details


class _Printer:
    """Prints each entry of the journals of a run and its child runs once, and each message of their room."""

    def __init__(self, client: HallClient, screen: Screen, resolved: Resolved, *, as_json: bool) -> None:
        self.client = client
        self.run_id = resolved.run_id
        self._resolved = resolved
        self._screen = screen
        self._as_json = as_json
        self._last: dict[str, int] = {}  # number of the last printed entry, by run
        self._last_message = 0
        self.is_shortened = False
        self._ended_at: dict[str, str | None] = {}  # by run, when its journal was last read

    async def print_new(self, limit: int | None = None) -> RunDetails:
        """Print new entries and messages, at most the last `limit`, and return the state of the run."""
        details = await self.client.runs.get(self.run_id)
        runs = self._resolved.select([details.run, *details.below])
        labels = {run.id: "" if run.id == self.run_id else f"  [{run.worker} {run.id}]" for run in runs}
        unread_runs = [run for run in runs if self._ended_at.get(run.id) != run.ended_at or run.ended_at is None]
        new: list[Entry[Payload]] = []
        for run in reversed(unread_runs):  # newest first; older runs that have ended are left out at the limit
            if limit is None or len(new) < limit or run.ended_at is None:
                new[:0] = await self.client.runs.journal(run.id, self._last.get(run.id, -1))
            else:
                self.is_shortened = True
        self._ended_at = {run.id: run.ended_at for run in runs}
        items: list[Entry[Payload] | Message] = [*await self._messages(details, limit), *new]
        items.sort(key=lambda item: item.at)
        if limit is not None and len(items) > limit:
            self.is_shortened = True
            for item in new:
                self._last[item.run] = item.seq
            del items[:-limit]
        for item in items:  # the sort is stable: entries of one run stay in order
            if isinstance(item, Entry):
                self._last[item.run] = item.seq
                record = {name: self._screen.redact_value(value) for name, value in item.data.to_record().items()}
                redacted = replace(item, data=item.data.from_record(record))  # before the line is shortened
                data, line = redacted.as_dict(), labels[item.run] + entry_line(redacted)
            else:
                self._last_message = item.id
                data, line = {"type": "message", **item.as_dict()}, message_line(item)
            self._screen.json(data) if self._as_json else self._screen.result(line)
        return details

    async def _messages(self, details: RunDetails, limit: int | None) -> list[Message]:
        """Return new messages of the room. If the target is an agent, only messages from or to this agent."""
        if details.run.kind != "workflow":
            return []
        since = self._last_message
        if limit is not None:  # message numbers have no gaps
            since = max(since, (await self.client.workflows.find_by_run(self.run_id)).messages - limit)
            self.is_shortened |= since > 0
        messages = await self.client.rooms.messages(self.run_id, since=since)
        agent = self._resolved.agent
        return [one for one in messages if agent is None or agent.name in (one.sender, *one.mentions)]
