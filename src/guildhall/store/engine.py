"""Store: reads an SQLite file in snapshots and writes it through a single thread with group commit.

`write(fn)` passes a function to the writer thread. The thread runs all waiting functions in a single transaction, each
in a savepoint, commits, and then resolves their futures. `durable=True` makes that commit survive a power cut too, not
only the death of the process. A function only runs statements and returns plain data. It must not commit or wait for
anything outside, because every other writer waits for it.

Invariant: a write that succeeded for its caller is on disk.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import sqlite3
import tempfile
import threading
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.pool import NullPool

from guildhall.store.schema import prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

T = TypeVar("T")
_MAX_BATCH = 256
_TIMEOUT_S = 10.0  # for another process to release the file
_IN_MEMORY = "/dev/shm"  # a folder whose files need no disk


@dataclass
class _Write:
    fn: Callable[[Connection], Any]
    is_durable: bool
    done: Future[Any] | asyncio.Future[Any]
    result: Any = None
    failure: BaseException | None = None


class Store:
    """The database of a home. Opened by the process that holds the home's lock, or read-only by any."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self._engine = _engine(path, "ro" if readonly else "rw")
        self._reader = self._engine.connect()
        _raw(self._reader).execute("PRAGMA query_only=ON")
        self._read_lock = threading.Lock()
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._queue_lock = threading.Lock()  # nothing enters the queue behind the end mark
        self._is_open = True
        self._watchers: tuple[tuple[asyncio.AbstractEventLoop, asyncio.Event], ...] = ()
        self._writer: threading.Thread | None = None
        if not readonly:
            writing = self._engine.connect()  # here, so that a file that cannot be opened is the caller's error
            self._writer = threading.Thread(
                target=self._write_loop, args=(writing,), name="guildhall-store", daemon=True
            )
            self._writer.start()

    def read(self, fn: Callable[[Connection], T]) -> T:
        """Return the result of a function that only reads, from one snapshot."""
        with self._read_lock:
            raw = _raw(self._reader)
            raw.execute("BEGIN")
            try:
                return fn(self._reader)
            finally:
                _roll_back(raw)

    def submit(self, fn: Callable[[Connection], T], *, durable: bool = False) -> Future[T]:
        """Write, and return a future for a thread to wait for. Cancelling the future does not undo the write."""
        done: Future[T] = Future()
        self._enqueue(_Write(fn, durable, done))
        return done

    async def write(self, fn: Callable[[Connection], T], *, durable: bool = False) -> T:
        """Write and return after the commit. The write of a cancelled caller still happens."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._enqueue(_Write(fn, durable, done))
        return await done

    @contextmanager
    def watch_commits(self) -> Generator[asyncio.Event]:
        """Yield an event that is set after every commit. The caller clears it before it reads."""
        watcher = (asyncio.get_running_loop(), asyncio.Event())
        with self._queue_lock:
            self._watchers = (*self._watchers, watcher)
        try:
            yield watcher[1]
        finally:
            with self._queue_lock:
                self._watchers = tuple(one for one in self._watchers if one is not watcher)

    def close(self) -> None:
        """Commit all pending writes, then close."""
        with self._queue_lock:
            if not self._is_open:
                return
            self._is_open = False
            self._queue.put(None)
        if self._writer is not None:
            self._writer.join()
        with self._read_lock:
            self._reader.close()
        self._engine.dispose()

    def _enqueue(self, write: _Write) -> None:
        if self._writer is None:
            raise RuntimeError("this store was opened for reading only")
        with self._queue_lock:
            if not self._is_open:
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
                    if len(batch) == _MAX_BATCH or self._queue.empty():
                        break
                    first = self._queue.get()
                closing = first is None
                if batch:
                    _commit(connection, batch)
                    _resolve_futures(batch)
                    for loop, changed in self._watchers:
                        with suppress(RuntimeError):  # the loop is closed
                            loop.call_soon_threadsafe(changed.set)


def _engine(path: Path, mode: str) -> Engine:
    def connect() -> sqlite3.Connection:
        uri = f"{path.absolute().as_uri()}?mode={mode}"
        raw = sqlite3.connect(uri, uri=True, timeout=_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        raw.execute("PRAGMA foreign_keys=ON")
        return raw

    to_json = partial(json.dumps, allow_nan=False)  # NaN is not JSON, and SQLite could not read it back
    return create_engine("sqlite://", creator=connect, poolclass=NullPool, json_serializer=to_json)


def _raw(connection: Connection) -> sqlite3.Connection:
    return cast("sqlite3.Connection", connection.connection.dbapi_connection)


def _commit(connection: Connection, batch: list[_Write]) -> None:
    """Run a batch in one transaction. A function that raises undoes only its own write. A failed commit fails all."""
    raw = _raw(connection)
    try:
        raw.execute(f"PRAGMA synchronous={'FULL' if any(write.is_durable for write in batch) else 'NORMAL'}")
        raw.execute("BEGIN IMMEDIATE")
        if len(batch) == 1:
            batch[0].result = batch[0].fn(connection)
        else:
            for write in batch:
                _run_in_savepoint(raw, connection, write)
        raw.execute("COMMIT")
    except BaseException as error:  # noqa: BLE001 - each caller gets it, and the thread continues
        _roll_back(raw)
        for write in batch:
            write.failure = error


def _run_in_savepoint(raw: sqlite3.Connection, connection: Connection, write: _Write) -> None:
    raw.execute("SAVEPOINT one")
    try:
        write.result = write.fn(connection)
    except BaseException as error:
        if not raw.in_transaction:  # SQLite rolled back the whole transaction (disk full)
            raise
        raw.execute("ROLLBACK TO one")
        write.failure = error
    raw.execute("RELEASE one")


def _roll_back(raw: sqlite3.Connection) -> None:
    # A rollback that fails leaves the transaction open; the next BEGIN fails and its caller gets the error.
    with suppress(sqlite3.Error):
        if raw.in_transaction:
            raw.execute("ROLLBACK")


def _resolve_futures(batch: Iterable[_Write]) -> None:
    """Resolve the futures of the callers. An event loop is woken once for a batch, not once for each write."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Write]] = {}
    for write in batch:
        if isinstance(write.done, asyncio.Future):
            by_loop.setdefault(write.done.get_loop(), []).append(write)
        elif write.done.set_running_or_notify_cancel():
            _resolve([write])
    for loop, theirs in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed, so no caller waits
            loop.call_soon_threadsafe(_resolve, theirs)


def _resolve(batch: Iterable[_Write]) -> None:
    for write in batch:
        if write.done.done():  # cancelled meanwhile
            continue
        if write.failure is None:
            write.done.set_result(write.result)
        elif isinstance(write.failure, StopIteration):  # a future does not accept it: its caller would wait for ever
            write.done.set_exception(RuntimeError(f"a write raised {write.failure!r}"))
        else:
            write.done.set_exception(write.failure)


@contextmanager
def scratch() -> Generator[Store]:
    """Yield an empty database that is deleted afterwards, in memory if possible. A replay of a workflow uses it."""
    place = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="guild-scratch-", dir=place, ignore_cleanup_errors=True) as folder:
        path = Path(folder, "scratch.db")
        prepare(path)
        with closing(Store(path)) as store:
            yield store
