"""What is on record about runs, for looking only: light, so that commands that only look start fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guildhall.core.errors import NotFound, did_you_mean
from guildhall.runs import records, transcript
from guildhall.runs.journal import Journal

if TYPE_CHECKING:
    from guildhall.core.clock import Clock
    from guildhall.runs.model import Entry, Run
    from guildhall.store.engine import Store

_NEAR = 200  # runs among which the nearest name is looked for


class History:
    """The runs of a home, as they stand."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def get(self, run: str) -> Run:
        found = self._store.read(lambda connection: records.find_run(connection, run))
        if found is None:
            known = [near.id for near in self.recent(_NEAR)]
            raise NotFound(f"there is no run {run!r}", hint=did_you_mean(run, known) or "`guild ls --all` shows them.")
        return found

    def recent(self, limit: int | None = None) -> list[Run]:
        return self._store.read(lambda connection: records.list_runs(connection, limit))

    def with_children(self, run: str) -> list[Run]:
        """A run, and all runs below it: worker by worker, those of a worker in the order in which they were made."""
        top = self.get(run)
        everyone = self._store.read(lambda connection: records.tree(connection, top.root))
        below = {top.id}
        while found := {one.id for one in everyone if one.parent in below} - below:
            below |= found
        return [top, *(one for one in everyone if one.id in below and one.id != top.id)]

    def journal(self, run: str) -> Journal:
        return Journal(run, self._store, self._clock, self.entries(run))

    def entries(self, run: str, after: int = -1) -> list[Entry]:
        """The entries of a run's journal, or those after a number."""
        self.get(run)
        return self._store.read(lambda connection: records.entries(connection, run, after))

    def messages(self, run: str) -> list[dict[str, Any]]:
        """The conversation of a run as far as it is on record."""
        return transcript.conversation(self.journal(run))
