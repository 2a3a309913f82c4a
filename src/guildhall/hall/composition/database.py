"""What is on record in one database: held by its lock, and put right when it is opened.

With what it says about files: which workers are locked, and what of a project is trusted.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any

from guildhall.core.clock import stamp
from guildhall.core.errors import GuildError, HallUnavailable
from guildhall.runs.asks import Asks
from guildhall.runs.history import History
from guildhall.runs.records import mark_lost
from guildhall.store.engine import Store
from guildhall.store.migrate import SET_HOME, is_created, prepare
from guildhall.workers import records
from guildhall.workers.lifecycle import wish
from guildhall.workers.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from guildhall.core.clock import Clock
    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.hall.composition.environment import Environment
    from guildhall.runs.model import Ask
    from guildhall.workers.model import Worker
    from guildhall.workers.trust import Pin


_MAKING = 5.0  # seconds that another process may take to create the database


class Record:
    """The part of a hall that owns a database."""

    choose_another = SET_HOME  # the hint of a database that cannot be used

    home: Home
    clock: Clock
    boot: str
    readonly: bool
    environment: Environment

    def _ask_closed(self, ask: Ask) -> None:
        """Hears of each ask that is open no more."""

    def _open(self, database: Path, lock: Callable[..., IO[Any]], patience: float) -> None:
        """Takes a database: what is on record there is this hall's."""
        self._lock: IO[Any] | None = None
        if self.readonly:
            self._tidy_up(database, lock)
        else:
            self._lock = lock(patience=patience)
        try:
            if not self.readonly:
                prepare(database, self.choose_another)
            self.store = Store(database, readonly=self.readonly)
        except BaseException:
            if self._lock is not None:
                self._lock.close()
            raise
        if not self.readonly:
            self._find_lost(self.store)
        self.asks = Asks(self.store, self.clock, self._ask_closed)
        self.history = History(self.store, self.clock)

    def _tidy_up(self, database: Path, lock: Callable[..., IO[Any]]) -> None:
        """What an earlier process left behind is put right first, unless a hall is there and will have done it."""
        try:
            held = lock()
        except HallUnavailable:
            if not _current(database, self.choose_another, self.clock):  # that hall has never come so far as to make it
                raise
            return
        with held:
            prepare(database, self.choose_another)
            store = Store(database)
            self._find_lost(store)
            store.close()

    def _find_lost(self, store: Store) -> None:
        """The runs of a hall that died are lost until somebody resumes them."""
        store.submit(lambda connection: mark_lost(connection, self.boot)).result()

    def release(self) -> None:
        self.store.close()
        if self._lock is not None:
            self._lock.close()

    def registry(self, frame: Frame) -> Registry:
        return Registry(frame.root, self.home, locks=self.store.read(records.all_locks))

    def find_worker(self, name: str, frame: Frame) -> Worker:
        """A worker by name or file; one that wishes to be locked is pinned as it is when it is first seen."""
        worker = self.registry(frame).find(name, frame.cwd)
        pin = wish(worker, stamp(self.clock.now()))
        if pin is None or self._lock is None:
            return worker
        return replace(worker, lock=self.store.submit(lambda connection: records.pin_wish(connection, pin)).result())

    def active_workers(self, frame: Frame) -> list[Worker]:
        """The workers that `*` stands for: every active one whose file is right."""
        registry = self.registry(frame)
        found: list[Worker] = []
        for one in registry.listed():
            with suppress(GuildError):  # a file that is wrong disturbs no other
                if one.error is None and one.status == "active":
                    found.append(registry.find(str(one.path), frame.cwd))
        return found

    def pins(self) -> Mapping[Path, Pin]:
        """Return the files of projects that the user trusts."""
        if (pins := self.environment.policy.pins) is not None:
            return pins
        return self.store.read(records.all_pins)

    def pins_below(self, folder: Path) -> list[Pin]:
        """Those of one folder, which need not be there any more."""
        top = folder.resolve()
        return [pin for path, pin in self.pins().items() if path.is_relative_to(top)]


def _current(database: Path, choose_another: str, clock: Clock) -> bool:
    """Whether the database is there as it should be; where another process is just making it, that is waited for."""
    until = clock.monotonic() + _MAKING
    while not is_created(database, choose_another):
        if clock.monotonic() >= until:
            return False
        time.sleep(0.02)
    return True
