"""One SQLite file, one writer thread, group commit.

`write(fn)` hands a function to the writer thread. The thread takes all that wait, runs each in a savepoint of one
transaction, commits, and only then settles their futures: what a caller saw succeed is on disk. `durable=True` makes
that commit survive a power cut too, not only the death of the process.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.pool import NullPool

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")
_BATCH = 256


@dataclass(frozen=True)
class _Write:
    fn: Callable[[Connection], Any]
    durable: bool
    done: Future[Any]


class Store:
    """The database of a home. Opened by the process that holds the home's lock, or read-only by any."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        mode = "ro" if readonly else "rw"
        self._engine = create_engine(
            f"sqlite:///file:{path}?mode={mode}&uri=true",
            poolclass=NullPool,
            connect_args={"isolation_level": None, "check_same_thread": False, "timeout": 10.0},
        )
        event.listen(self._engine, "connect", _configure)
        self._reader = self._engine.connect()
        self._reading = threading.Lock()
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        if not readonly:
            self._thread = threading.Thread(target=self._write_loop, name="guildhall-store", daemon=True)
            self._thread.start()

    def read(self, fn: Callable[[Connection], T]) -> T:
        """The result of a function that only looks."""
        with self._reading:
            return fn(self._reader)

    def submit(self, fn: Callable[[Connection], T], *, durable: bool = False) -> Future[T]:
        """A write, to be waited for by a thread."""
        if self._thread is None:
            raise RuntimeError("this store was opened for reading only")
        done: Future[T] = Future()
        self._queue.put(_Write(fn, durable, done))
        return done

    async def write(self, fn: Callable[[Connection], T], *, durable: bool = False) -> T:
        """A write, to be awaited. Once it returns, it is committed; a cancelled caller's write still happens."""
        return await asyncio.wrap_future(self.submit(fn, durable=durable))

    def close(self) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
        self._reader.close()
        self._engine.dispose()

    def _write_loop(self) -> None:
        with self._engine.connect() as connection:
            while (first := self._queue.get()) is not None:
                batch = [first]
                closing = False
                while len(batch) < _BATCH and not self._queue.empty():
                    following = self._queue.get()
                    if following is None:
                        closing = True
                        break
                    batch.append(following)
                self._commit(connection, batch)
                if closing:
                    return

    def _commit(self, connection: Connection, batch: list[_Write]) -> None:
        """Runs a batch in one transaction. A function that raises undoes itself alone."""
        results: list[tuple[_Write, Any, Exception | None]] = []
        try:
            connection.exec_driver_sql(f"PRAGMA synchronous={'FULL' if any(w.durable for w in batch) else 'NORMAL'}")
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            for write in batch:
                results.append(self._run(connection, write))
            connection.exec_driver_sql("COMMIT")
        except Exception as error:  # noqa: BLE001 - the disk is full, the file is gone: every caller must hear it
            if connection.connection.dbapi_connection.in_transaction:  # pyright: ignore
                connection.exec_driver_sql("ROLLBACK")
            results = [(write, None, error) for write in batch]
        for write, result, failure in results:
            if write.done.set_running_or_notify_cancel():
                if failure is None:
                    write.done.set_result(result)
                else:
                    write.done.set_exception(failure)

    @staticmethod
    def _run(connection: Connection, write: _Write) -> tuple[_Write, Any, Exception | None]:
        connection.exec_driver_sql("SAVEPOINT one")
        try:
            result = write.fn(connection)
        except Exception as error:  # noqa: BLE001 - it belongs to the caller, not to this thread
            connection.exec_driver_sql("ROLLBACK TO one")
            connection.exec_driver_sql("RELEASE one")
            return write, None, error
        connection.exec_driver_sql("RELEASE one")
        return write, result, None


def _configure(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute("PRAGMA busy_timeout=10000")
    cursor.close()
