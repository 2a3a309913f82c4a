"""Journal of a run: appends entries to the ordered record of the calls at both doors, and finds entries by call.

The entries of a call share its key, and the newest of them has the state of the call. The user messages of a
conversation have the keys u1, u2 and so on. Does not define entries: `runs.record.entries` does.

Invariant: an entry is in the database before its effect happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import Conflict, RuntimeFailed
from guildhall.core.ids import fingerprint
from guildhall.runs.record import records
from guildhall.runs.record.entries import (
    Assembly,
    Entry,
    ModelAnswered,
    Payload,
    PayloadT,
    Said,
    ToolEnded,
    ToolStarted,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.store.engine import Store


class Journal:
    """The entries of one run."""

    def __init__(self, run_id: str, store: Store, clock: Clock, entries: Iterable[Entry[Payload]] = ()) -> None:
        self.run_id = run_id
        self.entries = list(entries)
        self._store = store
        self._clock = clock
        self._next = self.entries[-1].seq + 1 if self.entries else 0
        self._by_key: dict[str, list[Entry[Payload]]] = {}
        self._chain = ""
        for entry in self.entries:
            self._index(entry)

    def of(self, key: str) -> list[Entry[Payload]]:
        """Return the entries of a call, oldest first."""
        return self._by_key.get(key, [])

    @property
    def assembly(self) -> Assembly:
        first = self.entries[0].data
        assert isinstance(first, Assembly)
        return first

    def last(self, key: str, *payloads: type[PayloadT]) -> Entry[PayloadT] | None:
        """Return the newest entry of a call with one of these payloads, or None."""
        found = (entry for entry in reversed(self.of(key)) if isinstance(entry.data, payloads))
        return cast("Entry[PayloadT] | None", next(found, None))

    def all(self, payload: type[PayloadT]) -> list[Entry[PayloadT]]:
        return entries_with(self.entries, payload)

    def successful_tools(self, before: int | None = None) -> frozenset[str]:
        """Return the tools that were called without an error, optionally only before the entry number `before`."""
        ended = (entry for entry in self.all(ToolEnded) if before is None or entry.seq < before)
        calls = (self.last(entry.key or "", ToolStarted) for entry in ended if not entry.data.result["is_error"])
        return frozenset(call.data.tool for call in calls if call is not None)

    def responses_fingerprint(self, before: int | None = None) -> str:
        """Return a fingerprint of the model responses, optionally only of those before the entry number `before`."""
        if before is None:
            return self._chain
        earlier = (entry.data for entry in self.all(ModelAnswered) if entry.seq < before)
        return reduce(_extend_chain, earlier, "")

    def turns(self) -> int:
        """Return the number of model responses after the last user message. They count for `max_turns`."""
        last = next((entry.seq for entry in reversed(self.entries) if isinstance(entry.data, Said)), -1)
        return sum(1 for response in self.all(ModelAnswered) if response.seq > last and not response.data.copied)

    def message_number(self, key: str) -> int:
        """Return the number of the user message with this key, which is recorded or the next message."""
        recorded = len(self.all(Said))
        number = int(key[1:]) if key[:1] == "u" and key[1:].isascii() and key[1:].isdigit() else 0
        if not 1 <= number <= recorded + 1 or key != message_key(number):
            raise RuntimeFailed(f"invalid key {key!r} of a user message: the next key is {message_key(recorded + 1)}")
        return number

    def check_no_conversation(self, verb: str, hint: str) -> None:
        """Raise Conflict if the run is a conversation. `verb`: the refused operation, for the message."""
        if self.assembly.converses:
            raise Conflict(f"cannot {verb} {self.run_id}: it is a conversation", hint=hint)

    async def append(
        self,
        data: PayloadT,
        *,
        key: str | None = None,
        durable: bool = False,
        also: Callable[[Connection], None] | None = None,
    ) -> Entry[PayloadT]:
        """Append an entry. `also` changes other tables in the same transaction."""
        entry = Entry(run=self.run_id, seq=self._next, key=key, data=data, at=stamp(self._clock.now()))
        self._next += 1

        def write(connection: Connection) -> None:
            records.add_entry(connection, entry)
            if also is not None:
                also(connection)

        await self._store.write(write, durable=durable)
        self.entries.append(entry)
        self._index(entry)
        return entry

    def _index(self, entry: Entry[Payload]) -> None:
        if isinstance(entry.data, ModelAnswered):
            self._chain = _extend_chain(self._chain, entry.data)
        if entry.key is not None:
            self._by_key.setdefault(entry.key, []).append(entry)


def message_key(number: int) -> str:
    """Return the key of a user message. The input of the run is message 0 and has no key."""
    return f"u{number}"


def entries_with(entries: Iterable[Entry[Payload]], payload: type[PayloadT]) -> list[Entry[PayloadT]]:
    return cast("list[Entry[PayloadT]]", [entry for entry in entries if isinstance(entry.data, payload)])


def successful_calls(entries: Sequence[Entry[Payload]], tool: str) -> list[Mapping[str, Any]]:
    """Return the arguments of the calls of a tool that did not fail."""
    done = {entry.key for entry in entries_with(entries, ToolEnded) if not entry.data.result["is_error"]}
    started = (entry for entry in entries_with(entries, ToolStarted) if entry.data.tool == tool)
    calls: dict[str | None, Mapping[str, Any]] = {entry.key: entry.data.arguments or {} for entry in started}
    return [arguments for key, arguments in calls.items() if key in done]


def _extend_chain(chain: str, recorded: ModelAnswered) -> str:
    """Return the fingerprint of the responses so far and one more."""
    return fingerprint([chain, recorded.response])
