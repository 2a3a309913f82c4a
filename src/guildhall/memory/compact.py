"""Compaction: a scope that has grown beyond twice the limit is condensed into one entry, `compacted`.

One at a time for each scope. What is to be condensed is read first (the oldest, as much as one question holds), a model
is asked, and only what was read, and has not changed since, is put away into `archive/<time>/`; nothing is deleted, and
what was written meanwhile stays. The new entry is as old as the newest that went into it. Whatever fails, everything
is as it was before; killed in between, every content is still in the scope or in its archive.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import stamp
from guildhall.core.errors import InvalidFile, UsageError
from guildhall.memory import records
from guildhall.memory.inject import fits_alone, quoted, room_of
from guildhall.memory.model import CHARACTERS_PER_TOKEN, COMPACTED, Writer, check_content
from guildhall.memory.provenance import keep, pin
from guildhall.memory.shelf import ARCHIVE, Shelf, write_new

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from sqlalchemy import Connection

    from guildhall.core.clock import Clock
    from guildhall.memory.model import Entry, Place
    from guildhall.store.engine import Store

    Ask = Callable[[str], Awaitable[str]]  # the notes in, the model's answer out: one turn, no tools

THRESHOLD = 2  # times the limit
BUDGET_USD = 0.05  # for the one question
WORKER = "memory-compactor"  # who is asked, and by which a scripted model knows the question
_MOST = 4  # times the limit: what one question holds
_WRITER = Writer(by="compaction")


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """What came of it. `reason` says why nothing was changed, where nothing was."""

    place: Place
    reason: str | None = None
    needed: bool = True
    sources: tuple[str, ...] = ()  # the keys that were put away
    archive: Path | None = None
    before: int = 0  # characters
    after: int = 0

    @property
    def done(self) -> bool:
        return self.reason is None

    def __str__(self) -> str:
        if not self.done:
            return f"the {self.place.scope} memory was not condensed: {self.reason}"
        entries = "1 entry" if len(self.sources) == 1 else f"{len(self.sources)} entries"
        sizes = f"{self.before:,} characters to {self.after:,}"
        return f"the {self.place.scope} memory was condensed: {entries}, {sizes}; the originals are in {self.archive}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "scope": self.place.scope,
            "done": self.done,
            "reason": self.reason,
            "sources": list(self.sources),
            "archive": str(self.archive) if self.archive else None,
            "before": self.before,
            "after": self.after,
        }


async def compact(
    place: Place, ask: Ask, *, limit_tokens: int, store: Store, clock: Clock, most: int | None = None
) -> Compaction:
    """Condenses a scope if it is time to. What `ask` raises is raised, and nothing has changed.

    `most` is how many bytes of notes can be paid for in one question.
    """
    shelf = Shelf(place)
    limit = limit_tokens * CHARACTERS_PER_TOKEN
    with shelf.compacting() as free:
        if not free:
            return Compaction(place=place, reason="another compaction of this scope is under way")
        try:
            sources = await asyncio.to_thread(_snapshot, shelf, _MOST * limit)
        except InvalidFile as error:
            return Compaction(place=place, reason=str(error))
        before = sum(len(source.content) for source in sources)
        if before <= THRESHOLD * limit:
            reason = "there is no need: the scope is not beyond twice the limit"
            return Compaction(place=place, reason=reason, needed=False)
        sources = sources if most is None else _paid_for(sources, most)
        if not sources:
            reason = (
                f"one question for {BUDGET_USD:.2f} USD has room for {most:,} bytes, and no entry is as short as that"
            )
            return Compaction(place=place, reason=reason)
        before = sum(len(source.content) for source in sources)
        wanted = min(limit // 2, room_of(limit_tokens) * 3 // 4, before // 2)
        answer = (await ask(_text(sources, wanted))).strip()
        if reason := _unusable(answer, before, limit_tokens):
            return Compaction(place=place, reason=reason, before=before)
        settling = _Settling(shelf, store, clock, sources)
        return await asyncio.to_thread(settling.settle, answer, before)


def _snapshot(shelf: Shelf, most: int) -> list[Entry]:
    """What is to be condensed: what compaction wrote before, then the oldest. InvalidFile: its place is taken."""
    earlier = shelf.find(COMPACTED)
    found = [earlier] if earlier else []
    total = sum(len(held.content) for held in found)
    for _, key, _ in sorted(shelf.scan().entries, reverse=True):
        if total > most:
            break
        if key == COMPACTED:
            continue
        try:
            held = shelf.find(key)
        except InvalidFile:  # stays where it is, as `ls` says
            continue
        if held is not None:
            found.append(held)
            total += len(held.content)
    return found


def _paid_for(sources: list[Entry], most: int) -> list[Entry]:
    """As many of the entries as one question has room for. One that is too long stays where it is."""
    found: list[Entry] = []
    for source in sources:
        size = len(_note(source).encode()) + 2
        if size <= most:
            found.append(source)
            most -= size
    return found


def _note(source: Entry) -> str:
    return f"{source.key}\n{quoted(source.content)}"


def _text(sources: list[Entry], wanted: int) -> str:
    notes = map(_note, sources)
    return "\n\n".join((f"Condense these notes into at most {wanted:,} characters.", *notes))


def _unusable(answer: str, before: int, limit_tokens: int) -> str | None:
    """Why an answer cannot take the place of what it condenses."""
    try:
        check_content(answer)
    except UsageError as error:
        return f"the model's answer cannot be kept: {error.message}"
    if len(answer) >= before:
        return f"the model's answer is not shorter ({len(answer):,} characters for {before:,})"
    if not fits_alone(COMPACTED, answer, limit_tokens):
        return f"the model's answer would not fit into a prompt ({len(answer):,} characters)"
    return None


class _Settling:
    """Puts the answer in the place of what it condenses; undone, step by step, if one of the steps fails."""

    def __init__(self, shelf: Shelf, store: Store, clock: Clock, sources: list[Entry]) -> None:
        self._shelf = shelf
        self._store = store
        self._clock = clock
        self._sources = sources
        self._earlier = next((source for source in sources if source.key == COMPACTED), None)

    def settle(self, answer: str, before: int) -> Compaction:
        place = self._shelf.place
        with self._shelf.locked(), ExitStack() as undo:
            if not self._still():
                return Compaction(place=place, reason=f"{COMPACTED} was changed meanwhile", before=before)
            going = [source for source in self._sources if source.key != COMPACTED and self._shelf.unchanged(source)]
            now = self._clock.now()
            self._store.submit(lambda connection: self._keep(connection, stamp(now))).result()
            archive = _new_folder(self._shelf.folder / ARCHIVE, stamp(now).replace(":", ""))
            undo.callback(archive.rmdir)
            self._replace_compacted(answer, archive, undo)
            for source in going:
                here = self._shelf.path(source.key)
                there = archive / here.name
                here.rename(there)
                undo.callback(_back, there, here)
            self._store.submit(lambda connection: self._note(connection, answer, going, stamp(now))).result()
            undo.pop_all()
        return Compaction(
            place=place,
            sources=(*([COMPACTED] if self._earlier else []), *(source.key for source in going)),
            archive=archive,
            before=before,
            after=len(answer),
        )

    def _still(self) -> bool:
        """Whether the entry that is about to be replaced is the one that was read, or still is not there."""
        if self._earlier is None:
            return not os.path.lexists(self._shelf.path(COMPACTED))
        return self._shelf.unchanged(self._earlier)

    def _replace_compacted(self, answer: str, archive: Path, undo: ExitStack) -> None:
        path = self._shelf.path(COMPACTED)
        copy = archive / path.name
        if self._earlier is not None:
            write_new(copy, self._earlier.content.encode(), self._earlier.modified)
            undo.callback(copy.replace, path)
        self._shelf.draft(answer.encode(), max(source.modified for source in self._sources))
        self._shelf.publish(COMPACTED)
        if self._earlier is None:
            undo.callback(path.unlink)

    def _keep(self, connection: Connection, at: str) -> None:
        for source in self._sources:
            keep(connection, self._shelf.place, source, at)

    def _note(self, connection: Connection, answer: str, going: list[Entry], at: str) -> None:
        place = self._shelf.place
        for source in going:
            records.add(connection, place, source.key, "compact", _WRITER, at)
        records.add(connection, place, COMPACTED, "compact", _WRITER, at, digest=pin(answer), content=answer)


def _new_folder(parent: Path, name: str) -> Path:
    """A folder that was not there: two compactions may be of the same moment."""
    parent.mkdir(mode=0o700, exist_ok=True)
    number = 1
    while True:
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            number += 1
        else:
            return folder


def _back(there: Path, here: Path) -> None:
    """Undoes a move, unless somebody has put a new file there: that one stays, and ours is in the archive."""
    if not os.path.lexists(here):
        there.rename(here)
