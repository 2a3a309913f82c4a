"""What a caller saw succeed is on disk; what failed undid itself alone; nobody waits for ever."""

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

from guildhall.store.engine import Store
from guildhall.store.schema import prepare
from guildhall.store.tables import journal, locks, runs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sqlalchemy import Connection

WAIT = 5


def lock(path: str) -> Callable[[Connection], str]:
    def fn(connection: Connection) -> str:
        connection.execute(insert(locks).values(path=path, digest="d", locked_at="now"))
        return path

    return fn


def paths(store: Store) -> list[str]:
    return store.read(lambda connection: list(connection.execute(select(locks.c.path).order_by("path")).scalars()))


def count(store: Store) -> int:
    return store.read(lambda connection: connection.execute(select(func.count()).select_from(locks)).scalar_one())


class Held:
    """Holds the writer thread inside a write, so that what is handed in meanwhile becomes one batch."""

    def __init__(self, store: Store) -> None:
        self._entered = threading.Event()
        self._released = threading.Event()
        self.done = store.submit(self._hold)
        assert self._entered.wait(WAIT)

    def _hold(self, _connection: Connection) -> None:
        self._entered.set()
        assert self._released.wait(WAIT)

    def release(self) -> None:
        self._released.set()
        self.done.result(WAIT)


def test_a_write_returns_its_result_and_is_seen_by_a_reader(store: Store):
    assert store.submit(lock("a")).result(WAIT) == "a"
    assert asyncio.run(store.write(lock("b"))) == "b"
    assert paths(store) == ["a", "b"]


def test_what_waits_is_committed_together(store: Store, database: Path):
    held = Held(store)
    with closing(sqlite3.connect(database, check_same_thread=False)) as other:
        seen: list[int] = []

        def last(connection: Connection) -> None:
            lock("z")(connection)
            # Another connection sees nothing of the batch while it runs.
            seen.append(other.execute("SELECT count(*) FROM locks").fetchone()[0])

        writes: list[Future[Any]] = [store.submit(lock(f"{n}")) for n in range(20)]
        writes.append(store.submit(last))
        held.release()
        for write in writes:
            write.result(WAIT)
        assert seen == [0]
        assert other.execute("SELECT count(*) FROM locks").fetchone() == (21,)


def test_more_than_a_batch_is_committed_in_several(store: Store):
    held = Held(store)
    writes = [store.submit(lock(f"{n}")) for n in range(600)]
    held.release()
    for write in writes:
        write.result(WAIT)
    assert count(store) == 600


def test_a_function_that_fails_undoes_itself_alone(store: Store):
    def fails(connection: Connection) -> None:
        lock("half")(connection)
        raise ValueError("no")

    held = Held(store)
    before, failing, twice, after = (
        store.submit(lock("a")),
        store.submit(fails),
        store.submit(lock("a")),
        store.submit(lock("b")),
    )
    held.release()
    assert before.result(WAIT) == "a"
    with pytest.raises(ValueError, match="no"):
        failing.result(WAIT)
    with pytest.raises(IntegrityError):
        twice.result(WAIT)
    assert after.result(WAIT) == "b"
    with pytest.raises(ValueError, match="no"):  # and so it is when it is alone in its transaction
        store.submit(fails).result(WAIT)
    assert paths(store) == ["a", "b"]


@pytest.mark.parametrize("failure", [SystemExit(3), KeyboardInterrupt(), StopIteration(), GeneratorExit()])
@pytest.mark.parametrize("alone", [True, False])
def test_no_exception_kills_the_writer_or_leaves_its_caller_waiting(store: Store, failure: BaseException, alone: bool):
    def fails(connection: Connection) -> None:
        lock("half")(connection)
        raise failure

    held = None if alone else Held(store)
    failing = store.submit(fails)
    beside = None if alone else store.submit(lock("beside"))
    if held and beside:
        held.release()
        assert beside.result(WAIT) == "beside"
    assert failing.exception(WAIT) is not None
    assert store.submit(lock("after")).result(WAIT) == "after"
    assert "half" not in paths(store)


def test_an_awaited_stop_iteration_is_told_and_not_swallowed(store: Store):
    def fails(_connection: Connection) -> None:
        raise StopIteration

    async def scene() -> None:
        with pytest.raises(RuntimeError, match="StopIteration"):
            await asyncio.wait_for(store.write(fails), WAIT)

    asyncio.run(scene())


def test_a_transaction_that_sqlite_gives_up_fails_for_all_in_it_and_the_next_one_works(store: Store):
    def gives_up(connection: Connection) -> None:
        connection.exec_driver_sql("INSERT OR ROLLBACK INTO locks VALUES ('a', 'd', 'now', 0)")

    store.submit(lock("a")).result(WAIT)
    held = Held(store)
    writes: list[Future[Any]] = [store.submit(lock("b")), store.submit(gives_up), store.submit(lock("c"))]
    held.release()
    for write in writes:
        with pytest.raises(IntegrityError):
            write.result(WAIT)
    assert paths(store) == ["a"]
    assert store.submit(lock("d")).result(WAIT) == "d"


def test_a_commit_that_fails_is_told_to_everyone_in_it(store: Store):
    def orphan(connection: Connection) -> None:
        connection.exec_driver_sql("PRAGMA defer_foreign_keys=ON")
        connection.execute(insert(journal).values(run="r-none", seq=0, kind="x", data={}, at="now"))

    held = Held(store)
    writes: list[Future[Any]] = [store.submit(lock("a")), store.submit(orphan)]
    held.release()
    for write in writes:
        with pytest.raises((IntegrityError, sqlite3.IntegrityError), match="FOREIGN KEY"):
            write.result(WAIT)
    assert paths(store) == []
    assert store.submit(lock("b")).result(WAIT) == "b"


def test_foreign_keys_are_held(store: Store):
    def orphan(connection: Connection) -> None:
        connection.execute(insert(journal).values(run="r-none", seq=0, kind="x", data={}, at="now"))

    with pytest.raises(IntegrityError, match="FOREIGN KEY"):
        store.submit(orphan).result(WAIT)


def test_a_full_disk_is_told_to_the_caller_and_the_store_goes_on(store: Store):
    def limit(pages: int) -> Callable[[Connection], None]:
        def fn(connection: Connection) -> None:
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")

        return fn

    store.submit(limit(1)).result(WAIT)  # SQLite takes the present size as the least
    with pytest.raises(OperationalError, match="full"):
        store.submit(lock("x" * 1_000_000)).result(WAIT)
    store.submit(limit(100_000)).result(WAIT)
    assert store.submit(lock("y" * 1_000_000)).result(WAIT)
    assert count(store) == 1


def test_a_cancelled_awaiter_s_write_still_happens(store: Store):
    async def scene() -> None:
        held = Held(store)
        waiting = asyncio.ensure_future(store.write(lock("a")))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting], timeout=WAIT)
        assert waiting.cancelled()
        held.release()
        assert await asyncio.wait_for(store.write(lock("b")), WAIT) == "b"

    asyncio.run(scene())
    assert paths(store) == ["a", "b"]


def test_a_cancelled_future_s_write_still_happens(store: Store):
    held = Held(store)
    taken_back = store.submit(lock("a"))
    assert taken_back.cancel()
    held.release()
    store.submit(lock("b")).result(WAIT)
    with pytest.raises(CancelledError):
        taken_back.result(WAIT)
    assert paths(store) == ["a", "b"]


def test_a_loop_that_is_gone_does_not_hold_up_the_others(store: Store):
    async def leave() -> Held:
        held = Held(store)
        asyncio.ensure_future(store.write(lock("a")))  # noqa: RUF006 - it is left behind on purpose
        await asyncio.sleep(0)
        return held

    held = asyncio.run(leave())
    held.release()
    assert store.submit(lock("b")).result(WAIT) == "b"
    assert paths(store) == ["a", "b"]


def test_who_watches_is_told_of_every_commit_and_of_nothing_else(store: Store):
    async def watch() -> None:
        with store.watch_commits() as changed:
            store.read(lambda connection: connection.exec_driver_sql("select 1").all())
            await asyncio.sleep(0)
            assert not changed.is_set()
            for name in ("a", "b"):
                await asyncio.to_thread(store.submit(lock(name)).result, WAIT)
                await asyncio.wait_for(changed.wait(), WAIT)
                changed.clear()
        await store.write(lock("c"))
        assert not changed.is_set()
        store.watch_commits().__enter__()  # whoever leaves without a word

    asyncio.run(watch())
    assert store.submit(lock("d")).result(WAIT) == "d"


def test_durable_is_a_full_sync_for_the_whole_batch_and_only_for_it(store: Store):
    def level(connection: Connection) -> int:
        return connection.exec_driver_sql("PRAGMA synchronous").scalar_one()

    assert store.submit(level).result(WAIT) == 1
    assert store.submit(level, durable=True).result(WAIT) == 2
    assert asyncio.run(store.write(level, durable=True)) == 2
    assert store.submit(level).result(WAIT) == 1
    held = Held(store)
    writes = [store.submit(level), store.submit(level, durable=True)]
    held.release()
    assert [write.result(WAIT) for write in writes] == [2, 2]


def test_close_commits_what_was_handed_in_and_takes_nothing_more(database: Path):
    store = Store(database)
    held = Held(store)
    writes = [store.submit(lock(f"{n}")) for n in range(300)]
    closer = threading.Thread(target=store.close)
    closer.start()
    held.release()
    closer.join(WAIT)
    assert not closer.is_alive()
    assert all(write.done() for write in writes)
    with pytest.raises(RuntimeError, match="closed"):
        store.submit(lock("late"))
    store.close()
    again = Store(database, readonly=True)
    assert count(again) == 300
    again.close()


def test_a_store_for_reading_cannot_write(store: Store, database: Path):
    store.submit(lock("a")).result(WAIT)
    reader = Store(database, readonly=True)
    assert paths(reader) == ["a"]
    with pytest.raises(RuntimeError, match="reading only"):
        reader.submit(lock("b"))
    with pytest.raises(OperationalError, match="readonly"):
        reader.read(lock("b"))
    store.submit(lock("c")).result(WAIT)  # what is written meanwhile is seen
    assert paths(reader) == ["a", "c"]
    reader.close()


def test_a_read_can_only_look_and_sees_one_moment(store: Store):
    def look_twice(connection: Connection) -> tuple[int, int]:
        counting = select(func.count()).select_from(locks)
        before = connection.execute(counting).scalar_one()
        store.submit(lock("meanwhile")).result(WAIT)
        return before, connection.execute(counting).scalar_one()

    with pytest.raises(OperationalError, match="readonly"):
        store.read(lock("a"))
    assert store.read(look_twice) == (0, 0)
    assert paths(store) == ["meanwhile"]


def test_a_file_that_is_missing_is_the_opener_s_error_and_is_not_made(tmp_path: Path):
    with pytest.raises(OperationalError, match="unable to open"):
        Store(tmp_path / "none.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a b", "50%", "q?mode=memory", "x#y", "ü"])
def test_any_path_will_do(tmp_path: Path, name: str):
    database = tmp_path / name / "hall.db"
    prepare(database)
    store = Store(database)
    store.submit(lock("a")).result(WAIT)
    store.close()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_eight_threads_lose_nothing(store: Store):
    def add(name: str) -> Callable[[Connection], None]:
        def fn(connection: Connection) -> None:
            seq = connection.execute(select(func.count()).select_from(journal)).scalar_one()
            connection.execute(insert(journal).values(run="r-1", seq=seq, kind=name, data={}, at="now"))

        return fn

    def make_run(connection: Connection) -> None:
        fields = dict.fromkeys(("id", "root", "worker", "model", "kind", "status", "created_at"), "r-1")
        connection.execute(insert(runs).values(**fields, request={}))

    store.submit(make_run).result(WAIT)

    def work(worker: int) -> None:
        for n in range(200):
            store.submit(add(f"{worker}/{n}")).result(WAIT)

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
def test_killed_in_the_middle_nothing_acknowledged_is_lost_and_no_half_is_kept(database: Path, acknowledged: int):
    process = subprocess.Popen([sys.executable, "-c", _WRITES_PAIRS, database], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        for _ in range(acknowledged):
            assert process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        last = [int(line) for line in process.stdout if line.endswith("\n")]
    process.wait(WAIT)
    told = last[-1] if last else acknowledged - 1

    prepare(database)
    store = Store(database)
    assert store.read(lambda connection: connection.exec_driver_sql("PRAGMA integrity_check").scalar_one()) == "ok"
    kept = set(paths(store))
    assert {f"{n}/left" for n in range(told + 1)} <= kept
    assert {path.partition("/")[0] for path in kept if path.endswith("left")} == {
        path.partition("/")[0] for path in kept if path.endswith("right")
    }
    store.submit(lock("after")).result(WAIT)
    store.close()
