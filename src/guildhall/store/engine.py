"""Store: reads an SQLite file in snapshots and writes it through a single thread with group commit.

`write(fn)` passes a function to the writer thread. The thread takes all waiting functions, runs each in a savepoint of
a single transaction, commits, and then resolves their futures. `durable=True` makes that commit survive a power cut
too, not only the death of the process.

A function gets a SQLAlchemy connection and only runs statements. It must not commit or wait for anything outside,
because every other writer waits for it. It returns plain data, not an open result.

Invariant: a write that succeeded for its caller is on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import sqlite3
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import NullPool

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from pathlib import Path


T = TypeVar("T")
_BATCH = 256
_PATIENCE = 10.0  # seconds for another process to let go of the file


@dataclass(frozen=True)
class _Write:
    fn: Callable[[Connection], Any]
    durable: bool
    done: Future[Any] | asyncio.Future[Any]


@dataclass(frozen=True)
class _Outcome:
    write: _Write
    result: Any = None
    failure: BaseException | None = None


class Store:
    """The database of a home. Opened by the process that holds the home's lock, or read-only by any."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self._engine = _engine(path, "ro" if readonly else "rw")
        self._reader = self._engine.connect()
        _raw(self._reader).execute("PRAGMA query_only=ON")
        self._reading = threading.Lock()
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._entering = threading.Lock()  # nothing enters the queue behind the end mark
        self._open = True
        self._watchers: tuple[tuple[asyncio.AbstractEventLoop, asyncio.Event], ...] = ()
        self._writer: threading.Thread | None = None
        if not readonly:
            writing = self._engine.connect()  # here, so that a file that cannot be opened is the caller's error
            self._writer = threading.Thread(
                target=self._write_loop, args=(writing,), name="guildhall-store", daemon=True
            )
            self._writer.start()

    def read(self, fn: Callable[[Connection], T]) -> T:
        """The result of a function that only looks; all that it sees is of one moment."""
        with self._reading:
            raw = _raw(self._reader)
            raw.execute("BEGIN")
            try:
                return fn(self._reader)
            finally:
                _undo(raw)

    def submit(self, fn: Callable[[Connection], T], *, durable: bool = False) -> Future[T]:
        """A write, to be waited for by a thread. Cancelling the future does not take it back."""
        done: Future[T] = Future()
        self._enter(_Write(fn, durable, done))
        return done

    async def write(self, fn: Callable[[Connection], T], *, durable: bool = False) -> T:
        """A write, to be awaited. Once it returns, it is committed; a cancelled caller's write still happens."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._enter(_Write(fn, durable, done))
        return await done

    @contextlib.contextmanager
    def watched(self) -> Generator[asyncio.Event]:
        """An event that is set after every commit from now on; who has looked clears it, and waits for the next."""
        watcher = (asyncio.get_running_loop(), asyncio.Event())
        with self._entering:
            self._watchers = (*self._watchers, watcher)
        try:
            yield watcher[1]
        finally:
            with self._entering:
                self._watchers = tuple(one for one in self._watchers if one is not watcher)

    def close(self) -> None:
        """Ends after all that was handed in is committed."""
        with self._entering:
            if not self._open:
                return
            self._open = False
            self._queue.put(None)
        if self._writer is not None:
            self._writer.join()
        with self._reading:
            self._reader.close()
        self._engine.dispose()

    def _enter(self, write: _Write) -> None:
        if self._writer is None:
            raise RuntimeError("this store was opened for reading only")
        with self._entering:
            if not self._open:
                raise RuntimeError("this store is closed")
            self._queue.put(write)

    def _write_loop(self, connection: Connection) -> None:
        with connection:
            closing = False
            while not closing:
                first = self._queue.get()
                batch: list[_Write] = []
                while first is not None:
                    batch.append(first)
                    if len(batch) == _BATCH or self._queue.empty():
                        break
                    first = self._queue.get()
                closing = first is None
                if batch:
                    _settle(_commit(connection, batch))
                    for loop, changed in self._watchers:
                        with contextlib.suppress(RuntimeError):  # the loop is closed
                            loop.call_soon_threadsafe(changed.set)


def _engine(path: Path, mode: str) -> Engine:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    engine = create_engine(
        "sqlite://",
        creator=lambda: sqlite3.connect(
            uri, uri=True, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
        ),
        poolclass=NullPool,
        json_serializer=partial(json.dumps, allow_nan=False),  # NaN is no JSON, and SQLite could not read it back
    )
    event.listen(engine, "connect", _configure)
    return engine


def _configure(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute("PRAGMA foreign_keys=ON")


def _raw(connection: Connection) -> sqlite3.Connection:
    return cast("sqlite3.Connection", connection.connection.dbapi_connection)


def _commit(connection: Connection, batch: list[_Write]) -> list[_Outcome]:
    """Runs a batch in one transaction. A function that raises undoes itself alone; a failed commit is everyone's."""
    raw = _raw(connection)
    try:
        raw.execute(f"PRAGMA synchronous={'FULL' if any(write.durable for write in batch) else 'NORMAL'}")
        raw.execute("BEGIN IMMEDIATE")
        if len(batch) == 1:
            outcomes = [_Outcome(batch[0], batch[0].fn(connection))]
        else:
            outcomes = [_apart(raw, connection, write) for write in batch]
        raw.execute("COMMIT")
    except BaseException as error:  # noqa: BLE001 - whatever it was: each caller hears it, and the thread goes on
        _undo(raw)
        return [_Outcome(write, failure=error) for write in batch]
    return outcomes


def _apart(raw: sqlite3.Connection, connection: Connection, write: _Write) -> _Outcome:
    raw.execute("SAVEPOINT one")
    try:
        outcome = _Outcome(write, write.fn(connection))
    except BaseException as error:
        if not raw.in_transaction:  # SQLite gave up the whole transaction (disk full): the batch failed, not this one
            raise
        raw.execute("ROLLBACK TO one")
        outcome = _Outcome(write, failure=error)
    raw.execute("RELEASE one")
    return outcome


def _undo(raw: sqlite3.Connection) -> None:
    # A rollback that fails leaves the transaction open; the next BEGIN fails and is told to its caller.
    with contextlib.suppress(sqlite3.Error):
        if raw.in_transaction:
            raw.execute("ROLLBACK")


def _settle(outcomes: Iterable[_Outcome]) -> None:
    """Tells each caller. An event loop is woken once a batch, not once a write."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}
    for outcome in outcomes:
        done = outcome.write.done
        if isinstance(done, asyncio.Future):
            by_loop.setdefault(done.get_loop(), []).append(outcome)
        elif done.set_running_or_notify_cancel():
            _tell(done, outcome)
    for loop, theirs in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            loop.call_soon_threadsafe(_tell_all, theirs)


def _tell_all(outcomes: Iterable[_Outcome]) -> None:
    for outcome in outcomes:
        if not outcome.write.done.done():  # cancelled meanwhile
            _tell(outcome.write.done, outcome)


def _tell(done: Future[Any] | asyncio.Future[Any], outcome: _Outcome) -> None:
    failure = outcome.failure
    if failure is None:
        done.set_result(outcome.result)
    elif isinstance(failure, StopIteration):  # no future takes this one, and its caller would wait for ever
        done.set_exception(RuntimeError(f"a write raised {failure!r}"))
    else:
        done.set_exception(failure)
