"""One database of a hall: its lock, its store, and access to the runs and asks in it."""

from __future__ import annotations

import time
from typing import IO, TYPE_CHECKING, Any

from guildhall.core.errors import HallUnavailable
from guildhall.runs.asks import Asks
from guildhall.runs.history import History
from guildhall.runs.records import mark_lost
from guildhall.store.engine import Store
from guildhall.store.migrate import is_created, prepare

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from guildhall.core.clock import Clock
    from guildhall.hall.composition.environment import Environment
    from guildhall.runs.model import Ask


_CREATION_TIMEOUT_S = 5.0  # for another process that is creating the database


class Database:
    """An open database. A hall that may write holds its lock; any number of halls may read it."""

    def __init__(
        self,
        path: Path,
        environment: Environment,
        *,
        lock: Callable[..., IO[Any]],
        patience: float,
        choose_another: str,
        ask_closed: Callable[[Ask], None],
    ) -> None:
        """Open the database at a path, and create it if it does not exist.

        `lock(patience=...)` takes its lock. `choose_another`: the hint if the file cannot be used.
        `ask_closed` is called for each ask that is answered or expires.
        """
        self._path = path
        self._boot = environment.boot
        self._choose_another = choose_another
        self._lock: IO[Any] | None = None
        readonly = environment.readonly
        if readonly:
            self._create_and_repair(lock, environment.clock)
        else:
            self._lock = lock(patience=patience)
        try:
            if not readonly:
                prepare(path, choose_another)
            self.store = Store(path, readonly=readonly)
        except BaseException:
            if self._lock is not None:
                self._lock.close()
            raise
        if not readonly:
            self._mark_lost(self.store)
        self.asks = Asks(self.store, environment.clock, ask_closed)
        self.history = History(self.store, environment.clock)

    def _create_and_repair(self, lock: Callable[..., IO[Any]], clock: Clock) -> None:
        """Do for a reader what only a writer can do, unless a hall holds the lock and has done it."""
        try:
            held = lock()
        except HallUnavailable:
            if not self._wait_until_created(clock):
                raise
            return
        with held:
            prepare(self._path, self._choose_another)
            store = Store(self._path)
            self._mark_lost(store)
            store.close()

    def _wait_until_created(self, clock: Clock) -> bool:
        """Return True when the database exists, or False if it does not after a while."""
        until = clock.monotonic() + _CREATION_TIMEOUT_S
        while not is_created(self._path, self._choose_another):
            if clock.monotonic() >= until:
                return False
            time.sleep(0.02)
        return True

    def _mark_lost(self, store: Store) -> None:
        """Mark the runs of a hall that died as lost."""
        store.submit(lambda connection: mark_lost(connection, self._boot)).result()

    def close(self) -> None:
        """Close the store and release the lock."""
        self.store.close()
        if self._lock is not None:
            self._lock.close()
