"""The journal of one run: the ordered record of what passed its two doors.

    assembled        what was frozen at the start: prompt, tools, rules, bounds, model
    model_asked      a model call, with what was reserved for it
    model_failed     it failed; it may be asked again
    model_answered   the answer, before the run saw it
    tool_refused     a call that was not made, and why
    tool_asked       a call that waits for approval
    tool_started     a call, before it was made
    tool_doubted     a call that was caught between start and end by a crash
    tool_ended       what came of it
    worker_created   a worker that the run has written
    limit_asked      a limit was reached and the person was asked
    loop_asked       agents only talk to one another, and the person was asked
    question_asked   a question was put to the person
    answered         what the person said, when it was applied
    listening        a conversation is done with its turn and waits for what the person says next
    said             what the person said, before the run heard it
    crashed          the process of the run died; it goes on in another
    resumed          the run went on after a crash, a park, a limit
    paused           it stopped for now: waiting or parked
    ended            how it ended

A call's entries share its key; the newest one says how far it came. In memory while the run is alive, in the database
always: an entry is appended there before anybody acts on it.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

from guildhall.core.clock import stamp
from guildhall.core.ids import fingerprint
from guildhall.runs import records
from guildhall.runs.model import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sqlalchemy import Connection

    from guildhall.core.clock import Clock
    from guildhall.store.engine import Store

Kind = Literal[
    "assembled",
    "model_asked",
    "model_failed",
    "model_answered",
    "tool_refused",
    "tool_asked",
    "tool_started",
    "tool_doubted",
    "tool_ended",
    "worker_created",
    "limit_asked",
    "loop_asked",
    "question_asked",
    "answered",
    "listening",
    "said",
    "crashed",
    "resumed",
    "paused",
    "ended",
]


class Journal:
    """Reads and writes the entries of one run."""

    def __init__(self, run: str, store: Store, clock: Clock, entries: Iterable[Entry] = ()) -> None:
        self.run = run
        self.entries = list(entries)
        self._store = store
        self._clock = clock
        self._next = self.entries[-1].seq + 1 if self.entries else 0
        self._by_key: dict[str, list[Entry]] = {}
        self._chain = ""
        for entry in self.entries:
            self._index(entry)

    def of(self, key: str) -> list[Entry]:
        """The entries of a call, oldest first."""
        return self._by_key.get(key, [])

    def last(self, key: str, *kinds: Kind) -> Entry | None:
        """The newest entry of a call that is of one of these kinds."""
        return next((entry for entry in reversed(self.of(key)) if entry.kind in kinds), None)

    def kind(self, kind: Kind) -> list[Entry]:
        return [entry for entry in self.entries if entry.kind == kind]

    def answers(self, before: int | None = None) -> str:
        """A fingerprint of all that the model has answered so far, or had before an entry."""
        if before is None:
            return self._chain
        earlier = (entry for entry in self.kind("model_answered") if entry.seq < before)
        return reduce(_linked, earlier, "")

    async def append(
        self,
        kind: Kind,
        data: Mapping[str, Any],
        *,
        key: str | None = None,
        durable: bool = False,
        also: Callable[[Connection], None] | None = None,
    ) -> Entry:
        """Appends an entry. `also` changes other tables in the same transaction."""
        entry = Entry(run=self.run, seq=self._next, kind=kind, key=key, data=dict(data), at=stamp(self._clock.now()))
        self._next += 1

        def write(connection: Connection) -> None:
            records.add_entry(connection, entry)
            if also is not None:
                also(connection)

        await self._store.write(write, durable=durable)
        self.entries.append(entry)
        self._index(entry)
        return entry

    def _index(self, entry: Entry) -> None:
        if entry.kind == "model_answered":
            self._chain = _linked(self._chain, entry)
        if entry.key is not None:
            self._by_key.setdefault(entry.key, []).append(entry)


def calls_made(entries: Sequence[Entry], tool: str) -> list[Mapping[str, Any]]:
    """The arguments of the calls of a tool that did not fail, in their order."""
    done = {entry.key for entry in entries if entry.kind == "tool_ended" and not entry.data["result"]["is_error"]}
    begun = (entry for entry in entries if entry.kind == "tool_started" and entry.data["tool"] == tool)
    calls: dict[str | None, Mapping[str, Any]] = {one.key: one.data["arguments"] or {} for one in begun}
    return [arguments for key, arguments in calls.items() if key in done]


def _linked(chain: str, answer: Entry) -> str:
    """The fingerprint of the answers so far and one more: each is looked at once."""
    return fingerprint([chain, answer.data["response"]])
