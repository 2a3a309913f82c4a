"""The memory of a hall: every verb that a person, a worker or the hall has for it.

Its functions wait for the disk and for the database. Call them from a thread where nothing may wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.clock import stamp
from guildhall.memory import compact, inject, records
from guildhall.memory.model import CHARACTERS_PER_TOKEN, Entry, Listing, check_content, check_key, places
from guildhall.memory.provenance import Blame, earlier, keep, pin
from guildhall.memory.shelf import Shelf

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlalchemy import Connection

    from guildhall.core.clock import Clock
    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.memory.compact import Ask, Compaction
    from guildhall.memory.inject import Selection
    from guildhall.memory.model import Action, Place, Record, Scope, Writer
    from guildhall.store.engine import Store
    from guildhall.workers.model import Worker


class Memory:
    """The memory of one home. Looking at entries needs a store that can be read, changing them one that can write."""

    def __init__(self, home: Home, store: Store, clock: Clock) -> None:
        self._home = home
        self._store = store
        self._clock = clock

    def places(self, worker: Worker | None, frame: Frame) -> Mapping[Scope, Place]:
        """The scopes of a worker; without one, those that everyone shares."""
        return places(self._home, worker, frame)

    # Looking

    def ls(self, places: Iterable[Place]) -> Listing:
        """The entries of some scopes: scope by scope, newest first."""
        listings = [Shelf(place).list() for place in places]
        return Listing(
            entries=tuple(entry for listing in listings for entry in listing.entries),
            skipped=tuple(skipped for listing in listings for skipped in listing.skipped),
        )

    def writers(self, place: Place) -> Mapping[str, Record]:
        """The last recorded change of each entry of a scope, by key; those that are gone, too."""
        return self._store.read(lambda connection: records.latest(connection, place))

    def show(self, place: Place, key: str) -> Entry:
        check_key(key)
        return Shelf(place).read(key)

    def blame(self, place: Place, key: str) -> Blame:
        """How an entry came to be. NotFound where it neither is nor ever was."""
        check_key(key)
        shelf = Shelf(place)
        held = shelf.find(key)
        past = self._history(place, key)
        if held is None and not past:
            raise shelf.missing(key)
        return Blame(place=place, key=key, entry=held, records=tuple(past))

    def select(self, places: Iterable[Place], limit_tokens: int) -> Selection:
        """What goes into a prompt; `inject.render` puts it."""
        return inject.select(places, limit_tokens)

    def grown(self, place: Place, limit_tokens: int) -> bool:
        """Whether a scope may be ready for compaction: a guess by the sizes of its files, never too low."""
        size = sum(size for _, _, size in Shelf(place).scan().entries)
        return size > compact.THRESHOLD * limit_tokens * CHARACTERS_PER_TOKEN

    # Changing

    def write(self, place: Place, key: str, content: str, writer: Writer) -> Entry:
        """Makes an entry, or replaces it. The same again in the same run changes nothing."""
        check_key(key, writing=True)
        check_content(content)
        shelf = Shelf(place)
        with shelf.locked():
            return self._put(shelf, key, content, writer, "write")

    def rm(self, place: Place, key: str, writer: Writer) -> Entry:
        """Removes an entry; what it was. Its content stays on record."""
        check_key(key)
        shelf = Shelf(place)
        with shelf.locked():
            held = shelf.find(key)
            if held is None:
                raise shelf.missing(key)
            at = self._now()
            self._store.submit(lambda connection: keep(connection, place, held, at)).result()
            shelf.take(key)
            self._store.submit(lambda connection: records.add(connection, place, key, "remove", writer, at)).result()
            return held

    def revert(self, place: Place, key: str, writer: Writer, *, to: int | None = None) -> Entry:
        """Brings back an earlier content: the one before the present one, or that of the record number `to`."""
        check_key(key)
        shelf = Shelf(place)
        with shelf.locked():
            held = shelf.find(key)
            past = self._history(place, key)
            if held is None and not past:
                raise shelf.missing(key)
            wanted = earlier(past, pin(held.content) if held else None, to)
            return self._put(shelf, key, wanted.content or "", writer, "revert")

    async def compact(self, place: Place, ask: Ask, *, limit_tokens: int, most: int | None = None) -> Compaction:
        """Condenses a scope that has grown beyond twice the limit. `most`: bytes of notes in the one question."""
        return await compact.compact(
            place, ask, limit_tokens=limit_tokens, store=self._store, clock=self._clock, most=most
        )

    def _put(self, shelf: Shelf, key: str, content: str, writer: Writer, action: Action) -> Entry:
        """On the disk first, then on record, then in its place: what is there is on record, whenever we are killed."""
        held = shelf.find(key)
        last = self._store.read(lambda connection: records.last(connection, shelf.place, key))
        again = last is not None and writer.run is not None and _same(last, content, writer, action)
        if again and held is not None and held.content == content:
            return held
        shelf.draft(content.encode())
        if not again:
            self._note(shelf.place, key, content, writer, action, held)
        shelf.publish(key)
        return shelf.read(key)

    def _note(self, place: Place, key: str, content: str, writer: Writer, action: Action, held: Entry | None) -> None:
        at = self._now()

        def note(connection: Connection) -> None:
            if held is not None:
                keep(connection, place, held, at)
            records.add(connection, place, key, action, writer, at, digest=pin(content), content=content)

        self._store.submit(note).result()

    def _history(self, place: Place, key: str) -> list[Record]:
        return self._store.read(lambda connection: records.history(connection, place, key))

    def _now(self) -> str:
        return stamp(self._clock.now())


def _same(last: Record, content: str, writer: Writer, action: Action) -> bool:
    return last.digest == pin(content) and last.writer == writer and last.action == action
