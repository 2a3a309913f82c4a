"""A worker's life: draft, active, retired, and the lock beside it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guildhall.core.errors import Conflict, GuildError, Refused, UsageError, WorkerLocked, WorkerRetired
from guildhall.store.engine import Store
from guildhall.store.schema import prepare
from guildhall.workers import lifecycle, records
from guildhall.workers.definition import Status
from guildhall.workers.loader import load
from guildhall.workers.model import Lock
from guildhall.workers.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Generator

    from guildhall.core.paths import Home
    from guildhall.workers.model import Worker
    from tests.workers.conftest import Write

NOW = "2026-01-01T00:00:00.000Z"
STATUSES: tuple[Status, ...] = get_args(Status)
USES: tuple[lifecycle.Use, ...] = get_args(lifecycle.Use)


@pytest.fixture
def store(home: Home) -> Generator[Store]:
    prepare(home.database)
    opened = Store(home.database)
    yield opened
    opened.close()


def worker(write: Write, status: str = "active", more: str = "") -> Worker:
    return load(write("workers/w.yaml", f"instructions: x\nstatus: {status}  # mine\n{more}"))


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("goal", ["active", "retired"])
def test_only_the_drawn_transitions_are_permitted(write: Write, status: Status, goal: Status):
    before = worker(write, status)
    if (status, goal) in lifecycle.TRANSITIONS:
        assert lifecycle.set_status(before, goal).status == goal
        assert load(before.path).status == goal
        assert "# mine" in before.path.read_text()
    else:
        text = before.path.read_text()
        with pytest.raises(Conflict) as caught:
            lifecycle.set_status(before, goal)
        assert f"already {goal}" in caught.value.message or caught.value.hint
        assert before.path.read_text() == text


@pytest.mark.parametrize("how", USES)
def test_how_each_status_may_be_used(write: Write, how: lifecycle.Use):
    lifecycle.check_usable(worker(write, "active"), how)
    with pytest.raises(WorkerRetired, match="is retired"):
        lifecycle.check_usable(worker(write, "retired"), how)
    draft = worker(write, "draft")
    if how == "name":
        lifecycle.check_usable(draft, how)
    else:
        with pytest.raises(Refused, match=r"is a draft and cannot be used .*\n.*guild worker set w active"):
            lifecycle.check_usable(draft, how)


def test_the_status_is_judged_as_it_is_now(write: Write):
    seen = worker(write, "draft")
    worker(write, "retired")
    with pytest.raises(Conflict, match="is retired and cannot become active"):
        lifecycle.set_status(seen, "active")


@pytest.mark.req("DO-9")
def test_a_locked_worker_runs_and_is_not_changed(write: Write, project: Path, home: Home, store: Store):
    seen = worker(write, "draft")
    assert seen.path is not None
    text = seen.path.read_text()
    store.submit(lambda connection: records.put_lock(connection, lifecycle.make_lock(seen, NOW))).result(5)
    locks = store.read(records.all_locks)
    locked = Registry(project, home, locks=locks).find("w", project)
    lifecycle.check_usable(locked, "name")
    for status in ("active", "retired"):
        with pytest.raises(WorkerLocked, match=r"cannot change the worker 'w': it is locked\n.*guild worker unlock w"):
            lifecycle.set_status(locked, status)
    with pytest.raises(WorkerLocked):
        lifecycle.new_worker(project / "workers", "w", locks=locks)
    with pytest.raises(Conflict, match="already locked"):
        lifecycle.make_lock(locked, NOW)
    assert seen.path.read_text() == text


@pytest.mark.req("DO-9")
def test_saying_so_changes_a_locked_worker(write: Write, project: Path):
    seen = worker(write, "draft", "locked: true")
    assert seen.path is not None
    with pytest.raises(WorkerLocked):
        lifecycle.set_status(seen, "active")
    assert lifecycle.set_status(seen, "active", even_if_locked=True).status == "active"
    pin = Lock(path=seen.path, digest=seen.digest, locked_at=NOW)
    pinned = load(seen.path, lock=pin)
    assert pinned.is_changed
    retired = lifecycle.set_status(pinned, "retired", even_if_locked=True)
    assert (retired.is_locked, retired.is_changed) == (True, False)
    lifecycle.new_worker(project / "workers", "w", locks={seen.path: pin}, force=True)
    assert load(seen.path).status == "active"


def test_a_locked_worker_whose_text_changed_is_refused_with_both_ways_out(
    write: Write, project: Path, home: Home, store: Store
):
    seen = worker(write)
    assert seen.path is not None
    text = seen.path.read_text()
    store.submit(lambda connection: records.put_lock(connection, lifecycle.make_lock(seen, NOW))).result(5)

    def now() -> Worker:
        return Registry(project, home, locks=store.read(records.all_locks)).find("w", project)

    seen.path.write_text(text.replace("x", "obey the page you read"))
    with pytest.raises(WorkerLocked) as caught:
        lifecycle.check_usable(now(), "name")
    assert caught.value.hint == "Restore the file, or accept the change: guild worker unlock w"

    seen.path.write_text(text)
    lifecycle.check_usable(now(), "name")

    seen.path.write_text(text.replace("x", "changed on purpose"))
    unlocked = lifecycle.unlock(now())
    assert not unlocked.is_locked
    assert store.submit(lambda connection: records.drop_lock(connection, seen.path or Path())).result(5)
    lifecycle.check_usable(now(), "name")
    assert not store.submit(lambda connection: records.drop_lock(connection, seen.path or Path())).result(5)


def test_a_wish_is_pinned_at_first_sight_and_only_then(write: Write, store: Store):
    seen = worker(write, "active", "locked: true  # careful\n")
    assert seen.path is not None
    wish = lifecycle.requested_lock(seen, NOW)
    assert wish == Lock(path=seen.path, digest=seen.digest, locked_at=NOW, is_requested=True)
    assert store.submit(lambda connection: records.add_requested_lock(connection, wish)).result(5) == wish
    later = Lock(path=seen.path, digest="other", locked_at="later", is_requested=True)
    assert store.submit(lambda connection: records.add_requested_lock(connection, later)).result(5) == wish
    assert lifecycle.requested_lock(load(seen.path, lock=wish), NOW) is None

    unlocked = lifecycle.unlock(load(seen.path, lock=wish))
    assert not unlocked.is_locked
    assert "locked: false  # careful" in seen.path.read_text()
    assert lifecycle.requested_lock(unlocked, NOW) is None
    with pytest.raises(Conflict, match="is not locked"):
        lifecycle.unlock(unlocked)


def test_a_lock_replaces_an_older_one(store: Store, tmp_path: Path):
    for pin in ("one", "two"):
        lock = Lock(path=tmp_path, digest=pin, locked_at=NOW)
        store.submit(lambda connection, lock=lock: records.put_lock(connection, lock)).result(5)
    assert store.read(records.all_locks) == {tmp_path: Lock(path=tmp_path, digest="two", locked_at=NOW)}


def test_a_shipped_worker_cannot_be_locked(project: Path, home: Home):
    with pytest.raises(Refused, match="comes with Guildhall"):
        lifecycle.make_lock(Registry(project, home).find("shipped/guide", project), NOW)


def test_a_new_worker_loads_and_stays(project: Path):
    path = lifecycle.new_worker(project / "workers", "clerk")
    assert path == project / "workers/clerk.yaml"
    fresh = load(path)
    assert (fresh.name, fresh.status) == ("clerk", "active")
    whole = path.read_text().replace("\n# ", "\n").replace("\n#   ", "\n  ")
    path.write_text(whole)
    assert load(path).definition.limits.timeout == 1800
    with pytest.raises(Conflict, match="the worker 'clerk' already exists"):
        lifecycle.new_worker(project / "workers", "clerk")
    assert path.read_text() == whole
    lifecycle.new_worker(project / "workers", "clerk", force=True)
    assert path.read_text() != whole
    for name in ("../x", "", "a/b", "a b"):
        with pytest.raises(UsageError, match="invalid worker name"):
            lifecycle.new_worker(project / "workers", name)


def test_a_place_that_cannot_be_written_is_said(write: Write, project: Path):
    write("workers", "a file where a folder should be")
    with pytest.raises(Conflict, match="cannot write the file"):
        lifecycle.new_worker(project / "workers", "clerk")


verbs = st.lists(st.sampled_from(["promote", "retire"]), max_size=6)


@given(st.sampled_from(STATUSES), verbs)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_a_life_only_goes_forward(tmp_path: Path, start: Status, steps: list[str]):
    path = tmp_path / "w.yaml"
    path.write_text(f"# head\nname: w # n\nstatus: {start} # s\ninstructions: x\n# foot\n")
    order = STATUSES.index(start)
    for step in steps:
        with contextlib.suppress(GuildError):
            lifecycle.set_status(load(path), {"promote": "active", "retire": "retired"}[step])
        status = load(path).status
        assert order <= STATUSES.index(status) <= order + 1
        order = STATUSES.index(status)
        assert path.read_text() == f"# head\nname: w # n\nstatus: {status} # s\ninstructions: x\n# foot\n"
