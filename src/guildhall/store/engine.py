"""Store: reads an SQLite file in snapshots and writes to it through a single thread with group commit.

`write(fn)` passes a function to the writer thread. The thread runs all waiting functions in a single transaction, each
in a savepoint, commits, and then resolves their futures. A function only runs statements and returns plain data. It
must not commit or wait, because every other writer waits for it. Writes that the disk refuses are repeated until they
succeed, if the owner of the store has called `enable_disk_retries`.

Invariant: a write whose future succeeded survives the death of the process. With `durable=True` it also survives a
power failure.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from guildhall.core.errors import StorageFailed
from guildhall.store.schema import prepare

T = TypeVar("T")
_MAX_BATCH = 256
_LOCK_TIMEOUT_S = 10.0  # wait for another process that locks the file
# False in a request: its client gets the error at once. True in a run, which has to record its steps.
MAY_WAIT_FOR_DISK: ContextVar[bool] = ContextVar("MAY_WAIT_FOR_DISK", default=True)
_RETRY_INTERVAL_S = 0.5  # between two attempts to write to a full or failing disk
_MEMORY_FOLDER = "/dev/shm"
_RESUMES = "Runs resume automatically."
_DISK_ERRORS = {  # reason and hint by the primary result code of SQLite
    sqlite3.SQLITE_FULL: ("disk full", f"Free some space. {_RESUMES}"),
    sqlite3.SQLITE_IOERR: ("disk I/O error", f"Check the disk and its free space. {_RESUMES}"),
    sqlite3.SQLITE_READONLY: ("read-only file or file system", f"Make it writable. {_RESUMES}"),
    sqlite3.SQLITE_CANTOPEN: ("cannot open the database", f"Check the disk and the permissions. {_RESUMES}"),
    sqlite3.SQLITE_CORRUPT: ("damaged database", "Stop the hall with `guild hall stop`, then restore a backup."),
    sqlite3.SQLITE_NOTADB: ("damaged database", "Stop the hall with `guild hall stop`, then restore a backup."),
}


@dataclass
class _Write:
    fn: Callable[[Connection], Any]
    is_durable: bool
    done: Future[Any] | asyncio.Future[Any]
    may_wait: bool = field(default_factory=lambda: MAY_WAIT_FOR_DISK.get())
    result: Any = None
    failure: BaseException | None = None


class Store:
    """The database of a home. Only the process that holds the lock of the home opens it for writing."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self._path = path
        self.disk_error: StorageFailed | None = None  # set while writes wait for the disk
        self._report: Callable[[StorageFailed], object] | None = None
        self._retries_disabled = threading.Event()
        self._retries_disabled.set()
        self._engine = _engine(path, "ro" if readonly else "rw")
        self._reader = self._engine.connect()
        _raw(self._reader).execute("PRAGMA query_only=ON")
        self._read_lock = threading.Lock()
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._queue_lock = threading.Lock()  # no write enters the queue after the end mark
        self._is_open = True
        self._watchers: tuple[tuple[asyncio.AbstractEventLoop, asyncio.Event], ...] = ()
        self._writer: threading.Thread | None = None
        if not readonly:
            connection = self._engine.connect()  # in this thread, so that the caller gets the error
            self._writer = threading.Thread(
                target=self._write_loop, args=(connection,), name="guildhall-store", daemon=True
            )
            self._writer.start()

    def read(self, fn: Callable[[Connection], T]) -> T:
        """Return the result of a function that reads from one snapshot."""
        with self._read_lock:
            raw = _raw(self._reader)
            raw.execute("BEGIN")
            try:
                return fn(self._reader)
            except (sqlite3.Error, DBAPIError) as error:
                if (disk_error := _as_disk_error(error, self._path, is_read=True)) is not None:
                    raise disk_error from error
                raise
            finally:
                _roll_back(raw)

    def submit(self, fn: Callable[[Connection], T], *, durable: bool = False) -> Future[T]:
        """Queue a write. Return a future for threads. Cancelling the future does not undo the write."""
        done: Future[T] = Future()
        self._enqueue(_Write(fn, durable, done))
        return done

    async def write(self, fn: Callable[[Connection], T], *, durable: bool = False) -> T:
        """Write, and return after the commit. If the caller is cancelled, the write still happens."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._enqueue(_Write(fn, durable, done))
        return await done

    @contextmanager
    def watch_commits(self) -> Generator[asyncio.Event]:
        """Yield an event that is set after every commit. The caller clears the event before it reads."""
        watcher = (asyncio.get_running_loop(), asyncio.Event())
        with self._queue_lock:
            self._watchers = (*self._watchers, watcher)
        try:
            yield watcher[1]
        finally:
            with self._queue_lock:
                self._watchers = tuple(other for other in self._watchers if other is not watcher)

    def enable_disk_retries(self, report: Callable[[StorageFailed], object]) -> None:
        """From now on, repeat writes that a full or failing disk refuses, until they succeed.

        `report` is called in the writer thread when writes begin to wait.
        """
        self._report = report
        self._retries_disabled.clear()

    def disable_disk_retries(self) -> None:
        """Let writes fail at once if the disk refuses them, including the writes that wait."""
        self._retries_disabled.set()

    def close(self) -> None:
        """Commit all pending writes, then close. Writes that the disk refuses fail."""
        self.disable_disk_retries()
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
            raise RuntimeError("cannot write: the store was opened read-only")
        with self._queue_lock:
            if not self._is_open:
                raise RuntimeError("cannot write: the store is closed")
            if self.disk_error is not None and not write.may_wait:
                raise self.disk_error
            self._queue.put(write)

    def _write_loop(self, connection: Connection) -> None:
        with connection:
            is_closing = False
            while not is_closing:
                write = self._queue.get()
                batch: list[_Write] = []
                while write is not None:
                    batch.append(write)
                    if len(batch) == _MAX_BATCH or self._queue.empty():
                        break
                    write = self._queue.get()
                is_closing = write is None
                if batch:
                    self._commit_when_possible(connection, batch)
                    for loop, changed in self._watchers:
                        with suppress(RuntimeError):  # the loop is closed
                            loop.call_soon_threadsafe(changed.set)

    def _commit_when_possible(self, connection: Connection, batch: list[_Write]) -> None:
        """Commit a batch and resolve its futures. Repeat the writes that the disk refuses, if they may wait."""
        while batch:
            _commit(connection, batch)
            for write in batch:
                if write.failure is not None:
                    write.failure = _as_disk_error(write.failure, self._path) or write.failure
            refused = [write for write in batch if isinstance(write.failure, StorageFailed) and write.may_wait]
            if not refused or self._retries_disabled.is_set():
                break
            _resolve_futures(write for write in batch if not any(write is other for other in refused))
            batch = refused
            if self.disk_error is None and self._report is not None:
                self._report(cast("StorageFailed", refused[0].failure))
            self.disk_error = cast("StorageFailed", refused[0].failure)
            self._retries_disabled.wait(_RETRY_INTERVAL_S)
            for write in batch:
                write.failure = None
            _roll_back(_raw(connection))
        self.disk_error = None
        _resolve_futures(batch)


def _as_disk_error(error: BaseException, path: Path, *, is_read: bool = False) -> StorageFailed | None:
    """Return the error of a full, failing or read-only disk, or None for other errors."""
    code = getattr(getattr(error, "orig", error), "sqlite_errorcode", 0) & 0xFF
    if code not in _DISK_ERRORS or (is_read and code == sqlite3.SQLITE_READONLY):  # a read that tries to write
        return None
    reason, hint = _DISK_ERRORS[code]
    return StorageFailed(f"{reason} at {path}", hint=hint)


def _engine(path: Path, mode: str) -> Engine:
    def connect() -> sqlite3.Connection:
        uri = f"{path.absolute().as_uri()}?mode={mode}"
        raw = sqlite3.connect(uri, uri=True, timeout=_LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        raw.execute("PRAGMA foreign_keys=ON")
        return raw

    to_json = partial(json.dumps, allow_nan=False)  # NaN is not JSON, and SQLite could not read it back
    return create_engine("sqlite://", creator=connect, poolclass=NullPool, json_serializer=to_json)


def _raw(connection: Connection) -> sqlite3.Connection:
    return cast("sqlite3.Connection", connection.connection.dbapi_connection)


def _commit(connection: Connection, batch: list[_Write]) -> None:
    """Run a batch in one transaction. An error in a function undoes its own write. A failed commit fails all writes."""
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
    except BaseException as error:  # noqa: BLE001 - each caller gets the error, and the thread continues
        _roll_back(raw)
        for write in batch:
            write.failure = error


def _run_in_savepoint(raw: sqlite3.Connection, connection: Connection, write: _Write) -> None:
    raw.execute("SAVEPOINT write")
    try:
        write.result = write.fn(connection)
    except BaseException as error:
        if not raw.in_transaction:  # SQLite rolled back the whole transaction (disk full)
            raise
        raw.execute("ROLLBACK TO write")
        write.failure = error
    raw.execute("RELEASE write")


def _roll_back(raw: sqlite3.Connection) -> None:
    # A failed rollback leaves the transaction open. The next BEGIN fails, and its caller gets the error.
    with suppress(sqlite3.Error):
        if raw.in_transaction:
            raw.execute("ROLLBACK")


def _resolve_futures(batch: Iterable[_Write]) -> None:
    """Resolve the futures of a batch. Each event loop is woken once for the batch, not once for each write."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Write]] = {}
    for write in batch:
        if isinstance(write.done, asyncio.Future):
            by_loop.setdefault(write.done.get_loop(), []).append(write)
        elif write.done.set_running_or_notify_cancel():
            _resolve([write])
    for loop, writes in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed, so no caller waits
            loop.call_soon_threadsafe(_resolve, writes)


def _resolve(batch: Iterable[_Write]) -> None:
    for write in batch:
        if write.done.done():  # the caller was cancelled
            continue
        if write.failure is None:
            write.done.set_result(write.result)
        elif isinstance(
            write.failure, StopIteration
        ):  # a future does not accept StopIteration, so its caller would wait forever
            write.done.set_exception(RuntimeError(f"a write raised {write.failure!r}"))
        else:
            write.done.set_exception(write.failure)


@contextmanager
def scratch() -> Generator[Store]:
    """Yield an empty temporary database, in memory if possible. The replay of a workflow uses it."""
    parent = _MEMORY_FOLDER if os.access(_MEMORY_FOLDER, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="guild-scratch-", dir=parent, ignore_cleanup_errors=True) as folder:
        path = Path(folder, "scratch.db")
        prepare(path)
        with closing(Store(path)) as store:
            yield store
