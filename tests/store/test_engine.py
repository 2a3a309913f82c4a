"""Store: acknowledged writes are on disk, a failed write undoes only itself, and no caller waits forever."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import func, insert, select
from sqlalchemy.exc import IntegrityError, OperationalError

from guildhall.core.errors import StorageFailed
from guildhall.store.engine import Store
from guildhall.store.schema import prepare
from guildhall.store.tables import journal, locks, runs
from tests.runs.places import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sqlalchemy import Connection

TIMEOUT_S = 5


def insert_lock(path: str) -> Callable[[Connection], str]:
    """Return a write function that inserts a lock."""

    def fn(connection: Connection) -> str:
        connection.execute(insert(locks).values(path=path, digest="d", locked_at="now"))
        return path

    return fn


def list_paths(store: Store) -> list[str]:
    return store.read(lambda connection: list(connection.execute(select(locks.c.path).order_by("path")).scalars()))


def count_locks(store: Store) -> int:
    return store.read(lambda connection: connection.execute(select(func.count()).select_from(locks)).scalar_one())


class BlockedWriter:
    """Blocks the writer thread, so that writes submitted meanwhile become one batch."""

    def __init__(self, store: Store) -> None:
        self._entered = threading.Event()
        self._released = threading.Event()
        self.done = store.submit(self._hold)
        assert self._entered.wait(TIMEOUT_S)

    def _hold(self, _connection: Connection) -> None:
        self._entered.set()
        assert self._released.wait(TIMEOUT_S)

    def release(self) -> None:
        self._released.set()
        self.done.result(TIMEOUT_S)


def test_a_write_returns_its_result_and_is_visible_to_readers(store: Store):
    assert store.submit(insert_lock("a")).result(TIMEOUT_S) == "a"
    assert asyncio.run(store.write(insert_lock("b"))) == "b"
    assert list_paths(store) == ["a", "b"]


def test_waiting_writes_are_committed_together(store: Store, database: Path):
    blocker = BlockedWriter(store)
    with closing(sqlite3.connect(database, check_same_thread=False)) as other:
        seen: list[int] = []

        def last(connection: Connection) -> None:
            insert_lock("z")(connection)
            # Another connection sees nothing of the batch while it runs.
            seen.append(other.execute("SELECT count(*) FROM locks").fetchone()[0])

        writes: list[Future[Any]] = [store.submit(insert_lock(f"{n}")) for n in range(20)]
        writes.append(store.submit(last))
        blocker.release()
        for write in writes:
            write.result(TIMEOUT_S)
        assert seen == [0]
        assert other.execute("SELECT count(*) FROM locks").fetchone() == (21,)


def test_many_writes_are_committed_in_several_batches(store: Store):
    blocker = BlockedWriter(store)
    writes = [store.submit(insert_lock(f"{n}")) for n in range(600)]
    blocker.release()
    for write in writes:
        write.result(TIMEOUT_S)
    assert count_locks(store) == 600


def test_a_failed_write_undoes_only_itself(store: Store):
    def fails(connection: Connection) -> None:
        insert_lock("half")(connection)
        raise ValueError("no")

    blocker = BlockedWriter(store)
    before, failing, twice, after = (
        store.submit(insert_lock("a")),
        store.submit(fails),
        store.submit(insert_lock("a")),
        store.submit(insert_lock("b")),
    )
    blocker.release()
    assert before.result(TIMEOUT_S) == "a"
    with pytest.raises(ValueError, match="no"):
        failing.result(TIMEOUT_S)
    with pytest.raises(IntegrityError):
        twice.result(TIMEOUT_S)
    assert after.result(TIMEOUT_S) == "b"
    with pytest.raises(ValueError, match="no"):  # also alone in its transaction
        store.submit(fails).result(TIMEOUT_S)
    assert list_paths(store) == ["a", "b"]


@pytest.mark.parametrize("failure", [SystemExit(3), KeyboardInterrupt(), StopIteration(), GeneratorExit()])
@pytest.mark.parametrize("alone", [True, False])
def test_no_exception_kills_the_writer_or_leaves_its_caller_waiting(store: Store, failure: BaseException, alone: bool):
    def fails(connection: Connection) -> None:
        insert_lock("half")(connection)
        raise failure

    blocker = None if alone else BlockedWriter(store)
    failing = store.submit(fails)
    beside = None if alone else store.submit(insert_lock("beside"))
    if blocker and beside:
        blocker.release()
        assert beside.result(TIMEOUT_S) == "beside"
    assert failing.exception(TIMEOUT_S) is not None
    assert store.submit(insert_lock("after")).result(TIMEOUT_S) == "after"
    assert "half" not in list_paths(store)


def test_an_awaited_stop_iteration_is_raised_as_runtime_error(store: Store):
    def fails(_connection: Connection) -> None:
        raise StopIteration

    async def scene() -> None:
        with pytest.raises(RuntimeError, match="StopIteration"):
            await asyncio.wait_for(store.write(fails), TIMEOUT_S)

    asyncio.run(scene())


def test_a_transaction_that_sqlite_rolls_back_fails_all_its_writes(store: Store):
    def gives_up(connection: Connection) -> None:
        connection.exec_driver_sql("INSERT OR ROLLBACK INTO locks VALUES ('a', 'd', 'now', 0)")

    store.submit(insert_lock("a")).result(TIMEOUT_S)
    blocker = BlockedWriter(store)
    writes: list[Future[Any]] = [store.submit(insert_lock("b")), store.submit(gives_up), store.submit(insert_lock("c"))]
    blocker.release()
    for write in writes:
        with pytest.raises(IntegrityError):
            write.result(TIMEOUT_S)
    assert list_paths(store) == ["a"]
    assert store.submit(insert_lock("d")).result(TIMEOUT_S) == "d"


def test_a_failed_commit_fails_all_its_writes(store: Store):
    def orphan(connection: Connection) -> None:
        connection.exec_driver_sql("PRAGMA defer_foreign_keys=ON")
        connection.execute(insert(journal).values(run="r-none", seq=0, kind="x", data={}, at="now"))

    blocker = BlockedWriter(store)
    writes: list[Future[Any]] = [store.submit(insert_lock("a")), store.submit(orphan)]
    blocker.release()
    for write in writes:
        with pytest.raises((IntegrityError, sqlite3.IntegrityError), match="FOREIGN KEY"):
            write.result(TIMEOUT_S)
    assert list_paths(store) == []
    assert store.submit(insert_lock("b")).result(TIMEOUT_S) == "b"


def test_foreign_keys_are_enforced(store: Store):
    def orphan(connection: Connection) -> None:
        connection.execute(insert(journal).values(run="r-none", seq=0, kind="x", data={}, at="now"))

    with pytest.raises(IntegrityError, match="FOREIGN KEY"):
        store.submit(orphan).result(TIMEOUT_S)


def test_a_full_disk_fails_the_write_and_the_store_continues(store: Store):
    def limit(pages: int) -> Callable[[Connection], None]:
        def fn(connection: Connection) -> None:
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")

        return fn

    store.submit(limit(1)).result(TIMEOUT_S)  # SQLite uses at least the current size
    with pytest.raises(StorageFailed, match="disk full at "):
        store.submit(insert_lock("x" * 1_000_000)).result(TIMEOUT_S)
    store.submit(limit(100_000)).result(TIMEOUT_S)
    assert store.submit(insert_lock("y" * 1_000_000)).result(TIMEOUT_S)
    assert count_locks(store) == 1


def test_writes_wait_for_a_full_disk_and_fail_when_the_store_is_closed(store: Store):
    max_pages, letter, reports = 1, "x", list[StorageFailed]()

    def insert_large(connection: Connection) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count={max_pages}")
        insert_lock(letter * 1_000_000)(connection)

    store.enable_disk_retries(reports.append)
    blocker = BlockedWriter(store)
    refused, accepted = store.submit(insert_large), store.submit(insert_lock("small"))
    blocker.release()
    wait_until(lambda: store.disk_error is not None)
    assert not refused.done()
    assert "disk full" in reports[0].message
    max_pages = 100_000
    refused.result(TIMEOUT_S)
    accepted.result(TIMEOUT_S)
    assert (count_locks(store), store.disk_error, len(reports)) == (2, None, 1)
    max_pages, letter = 1, "y"
    refused = store.submit(insert_large)
    wait_until(lambda: store.disk_error is not None)
    store.close()
    with pytest.raises(StorageFailed):
        refused.result(TIMEOUT_S)


def test_a_write_whose_awaiter_is_cancelled_still_happens(store: Store):
    async def scene() -> None:
        blocker = BlockedWriter(store)
        waiting = asyncio.ensure_future(store.write(insert_lock("a")))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting], timeout=TIMEOUT_S)
        assert waiting.cancelled()
        blocker.release()
        assert await asyncio.wait_for(store.write(insert_lock("b")), TIMEOUT_S) == "b"

    asyncio.run(scene())
    assert list_paths(store) == ["a", "b"]


def test_a_write_whose_future_is_cancelled_still_happens(store: Store):
    blocker = BlockedWriter(store)
    cancelled = store.submit(insert_lock("a"))
    assert cancelled.cancel()
    blocker.release()
    store.submit(insert_lock("b")).result(TIMEOUT_S)
    with pytest.raises(CancelledError):
        cancelled.result(TIMEOUT_S)
    assert list_paths(store) == ["a", "b"]


def test_a_closed_event_loop_does_not_block_other_callers(store: Store):
    async def abandon() -> BlockedWriter:
        blocker = BlockedWriter(store)
        asyncio.ensure_future(store.write(insert_lock("a")))  # noqa: RUF006 - abandoned on purpose
        await asyncio.sleep(0)
        return blocker

    blocker = asyncio.run(abandon())
    blocker.release()
    assert store.submit(insert_lock("b")).result(TIMEOUT_S) == "b"
    assert list_paths(store) == ["a", "b"]


def test_watchers_are_notified_of_every_commit_and_of_nothing_else(store: Store):
    async def watch() -> None:
        with store.watch_commits() as changed:
            store.read(lambda connection: connection.exec_driver_sql("select 1").all())
            await asyncio.sleep(0)
            assert not changed.is_set()
            for name in ("a", "b"):
                await asyncio.to_thread(store.submit(insert_lock(name)).result, TIMEOUT_S)
                await asyncio.wait_for(changed.wait(), TIMEOUT_S)
                changed.clear()
        await store.write(insert_lock("c"))
        assert not changed.is_set()
        store.watch_commits().__enter__()  # a watcher that never unsubscribes

    asyncio.run(watch())
    assert store.submit(insert_lock("d")).result(TIMEOUT_S) == "d"


def test_a_durable_write_syncs_its_whole_batch_and_no_other(store: Store):
    def level(connection: Connection) -> int:
        return connection.exec_driver_sql("PRAGMA synchronous").scalar_one()

    assert store.submit(level).result(TIMEOUT_S) == 1
    assert store.submit(level, durable=True).result(TIMEOUT_S) == 2
    assert asyncio.run(store.write(level, durable=True)) == 2
    assert store.submit(level).result(TIMEOUT_S) == 1
    blocker = BlockedWriter(store)
    writes = [store.submit(level), store.submit(level, durable=True)]
    blocker.release()
    assert [write.result(TIMEOUT_S) for write in writes] == [2, 2]


def test_close_commits_submitted_writes_and_refuses_more(database: Path):
    store = Store(database)
    blocker = BlockedWriter(store)
    writes = [store.submit(insert_lock(f"{n}")) for n in range(300)]
    closer = threading.Thread(target=store.close)
    closer.start()
    blocker.release()
    closer.join(TIMEOUT_S)
    assert not closer.is_alive()
    assert all(write.done() for write in writes)
    with pytest.raises(RuntimeError, match="closed"):
        store.submit(insert_lock("late"))
    store.close()
    again = Store(database, readonly=True)
    assert count_locks(again) == 300
    again.close()


def test_a_readonly_store_cannot_write(store: Store, database: Path):
    store.submit(insert_lock("a")).result(TIMEOUT_S)
    reader = Store(database, readonly=True)
    assert list_paths(reader) == ["a"]
    with pytest.raises(RuntimeError, match="opened read-only"):
        reader.submit(insert_lock("b"))
    with pytest.raises(OperationalError, match="readonly"):
        reader.read(insert_lock("b"))
    store.submit(insert_lock("c")).result(TIMEOUT_S)  # later writes are visible
    assert list_paths(reader) == ["a", "c"]
    reader.close()


def test_a_read_cannot_write_and_has_a_consistent_snapshot(store: Store):
    def count_twice(connection: Connection) -> tuple[int, int]:
        counting = select(func.count()).select_from(locks)
        before = connection.execute(counting).scalar_one()
        store.submit(insert_lock("meanwhile")).result(TIMEOUT_S)
        return before, connection.execute(counting).scalar_one()

    with pytest.raises(OperationalError, match="readonly"):
        store.read(insert_lock("a"))
    assert store.read(count_twice) == (0, 0)
    assert list_paths(store) == ["meanwhile"]


def test_opening_a_missing_file_fails_and_does_not_create_it(tmp_path: Path):
    with pytest.raises(OperationalError, match="unable to open"):
        Store(tmp_path / "none.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a b", "50%", "q?mode=memory", "x#y", "ü"])
def test_unusual_paths_work(tmp_path: Path, name: str):
    database = tmp_path / name / "hall.db"
    prepare(database)
    store = Store(database)
    store.submit(insert_lock("a")).result(TIMEOUT_S)
    store.close()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_writes_of_eight_threads_are_all_kept(store: Store):
    def add(name: str) -> Callable[[Connection], None]:
        def fn(connection: Connection) -> None:
            seq = connection.execute(select(func.count()).select_from(journal)).scalar_one()
            connection.execute(insert(journal).values(run="r-1", seq=seq, kind=name, data={}, at="now"))

        return fn

    def make_run(connection: Connection) -> None:
        fields = dict.fromkeys(("id", "root", "worker", "model", "kind", "status", "created_at"), "r-1")
        connection.execute(insert(runs).values(**fields, request={}))

    store.submit(make_run).result(TIMEOUT_S)

    def work(worker: int) -> None:
        for n in range(200):
            store.submit(add(f"{worker}/{n}")).result(TIMEOUT_S)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    rows = store.read(lambda connection: connection.execute(select(journal.c.seq, journal.c.kind)).all())
    assert sorted(seq for seq, _ in rows) == list(range(1600))
    assert {kind for _, kind in rows} == {f"{worker}/{n}" for worker in range(8) for n in range(200)}


_WRITES_PAIRS = """
import sys
from pathlib import Path
from sqlalchemy import insert
from guildhall.store.engine import Store
from guildhall.store.tables import locks

def pair(n):
    def fn(connection):
        connection.execute(insert(locks).values(path=f"{n}/left", digest="d", locked_at="now"))
        connection.execute(insert(locks).values(path=f"{n}/right", digest="d", locked_at="now"))
    return fn

store = Store(Path(sys.argv[1]))
n = 0
while True:
    writes = [store.submit(pair(n + k)) for k in range(8)]
    for write in writes:
        write.result()
        print(n, flush=True)
        n += 1
"""


@pytest.mark.parametrize("acknowledged", [1, 9, 60, 250])
def test_a_killed_process_loses_no_acknowledged_write_and_keeps_no_partial_write(database: Path, acknowledged: int):
    process = subprocess.Popen([sys.executable, "-c", _WRITES_PAIRS, database], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        for _ in range(acknowledged):
            assert process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        last = [int(line) for line in process.stdout if line.endswith("\n")]
    process.wait(TIMEOUT_S)
    last_acknowledged = last[-1] if last else acknowledged - 1

    prepare(database)
    store = Store(database)
    assert store.read(lambda connection: connection.exec_driver_sql("PRAGMA integrity_check").scalar_one()) == "ok"
    stored = set(list_paths(store))
    assert {f"{n}/left" for n in range(last_acknowledged + 1)} <= stored
    assert {path.partition("/")[0] for path in stored if path.endswith("left")} == {
        path.partition("/")[0] for path in stored if path.endswith("right")
    }
    store.submit(insert_lock("after")).result(TIMEOUT_S)
    store.close()
