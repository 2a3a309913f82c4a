"""How an entry came to be: which run wrote what and when, whether a hand was in it, and the way back.

The file is the memory. The record knows the digest of every content that came by way of Guildhall, so any other content
was written by hand. Such a content is put on record before it is replaced: nothing that was ever there is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import NotFound, UsageError
from guildhall.core.ids import digest
from guildhall.memory import records
from guildhall.memory.model import Writer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from guildhall.memory.model import Entry, Place, Record

HAND = Writer(by="hand")


@dataclass(frozen=True, kw_only=True)
class Blame:
    """An entry's past, newest change first, and how it stands now."""

    place: Place
    key: str
    entry: Entry | None  # None: it is not there
    records: tuple[Record, ...]

    @property
    def by_hand(self) -> bool:
        """Whether what is there is not what the record says last: somebody edited, made or removed the file."""
        recorded = self.records[0].digest if self.records else None
        return recorded != (pin(self.entry.content) if self.entry else None)

    @property
    def verdict(self) -> str:
        """Who is behind what is there now, in a line."""
        if not self.records:
            return f"made by hand, {self.entry.written_at}" if self.entry else "not there"
        last = _told(self.records[0])
        if not self.by_hand:
            return last
        if self.entry is None:
            return f"removed by hand; before that, {last}"
        for record in self.records:
            if record.digest == pin(self.entry.content):
                return f"what is there was {_told(record)}; on record since: {last}"
        return f"edited by hand (the file is of {self.entry.written_at}); before that, {last}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "scope": self.place.scope,
            "key": self.key,
            "path": str(self.place.folder),
            "present": self.entry is not None,
            "by_hand": self.by_hand,
            "verdict": self.verdict,
            "records": [record.as_dict() for record in self.records],
        }


def pin(content: str) -> str:
    """The digest by which a content is known."""
    return digest(content.encode())


def keep(connection: Connection, place: Place, held: Entry, at: str) -> None:
    """Puts what is about to go on record, unless it is there: a person's edit is nowhere else."""
    found = pin(held.content)
    if not records.known(connection, place, held.key, found):
        records.add(connection, place, held.key, "edit", HAND, at, digest=found, content=held.content)


def earlier(history: Sequence[Record], now: str | None, to: int | None) -> Record:
    """The record whose content a revert brings back: that of the number `to`, else what was there before `now`.

    `now` is the digest of what is there; None: the entry is gone, and what was there last comes back.
    """
    with_content = [record for record in history if record.content is not None]
    if to is None:
        for record in with_content:
            if record.digest != now:
                return record
        raise NotFound("nothing earlier is on record", hint="guild memory blame KEY shows what is.")
    for record in with_content:
        if record.id == to:
            return record
    numbers = ", ".join(str(record.id) for record in with_content[:12])
    hint = f"Known: {numbers}." if numbers else "Nothing of this entry is on record."
    raise UsageError(f"there is no content number {to} of this entry", hint=hint)


def _told(record: Record) -> str:
    done = {
        "write": "written",
        "edit": "edited",
        "remove": "removed",
        "compact": "written" if record.digest else "condensed and archived",
        "revert": "brought back",
    }[record.action]
    return f"{done} by {record.writer}, {record.at}"
