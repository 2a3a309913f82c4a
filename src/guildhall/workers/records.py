"""Queries for the locks of workers, for trusted files and for the unfinished work of a worker.

Trust is decided in `workers.code_trust`, and locks in `workers.lifecycle`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects.sqlite import insert

from guildhall.store.tables import commissions, locks, meetings, trust
from guildhall.workers.model import Lock, Pin

# The ended statuses of commissions and meetings. This package cannot import `projects`; a test compares them.
_ENDED = ("completed", "failed", "cancelled", "abandoned", "closed", "declined")


def all_locks(connection: Connection) -> dict[Path, Lock]:
    rows = connection.execute(select(locks.c.path, locks.c.digest, locks.c.locked_at, locks.c.requested))
    found = (
        Lock(path=Path(path), digest=pin, locked_at=at, is_requested=requested) for path, pin, at, requested in rows
    )
    return {lock.path: lock for lock in found}


def put_lock(connection: Connection, lock: Lock) -> None:
    values = {"digest": lock.digest, "locked_at": lock.locked_at, "requested": lock.is_requested}
    statement = insert(locks).values(path=str(lock.path), **values)
    connection.execute(statement.on_conflict_do_update(index_elements=["path"], set_=values))


def add_requested_lock(connection: Connection, lock: Lock) -> Lock:
    """Add a lock that the worker file requests, unless the file is locked. Return the current lock."""
    values = {"digest": lock.digest, "locked_at": lock.locked_at, "requested": True}
    connection.execute(insert(locks).values(path=str(lock.path), **values).on_conflict_do_nothing())
    return all_locks(connection)[lock.path]


def drop_lock(connection: Connection, path: Path) -> bool:
    """Remove the lock of a file. Return False if the file was not locked."""
    return connection.execute(delete(locks).where(locks.c.path == str(path))).rowcount > 0


def all_pins(connection: Connection) -> dict[Path, Pin]:
    rows = connection.execute(select(trust.c.path, trust.c.digest, trust.c.trusted_at))
    found = (Pin(path=Path(path), digest=pin, trusted_at=at) for path, pin, at in rows)
    return {pin.path: pin for pin in found}


def put_pins(connection: Connection, pins: Iterable[Pin]) -> None:
    for pin in pins:
        values = {"digest": pin.digest, "trusted_at": pin.trusted_at}
        statement = insert(trust).values(path=str(pin.path), **values)
        connection.execute(statement.on_conflict_do_update(index_elements=["path"], set_=values))


def drop_pins(connection: Connection, paths: Iterable[Path]) -> None:
    for path in paths:
        connection.execute(delete(trust).where(trust.c.path == str(path)))


def unfinished_work(connection: Connection, workers: Iterable[str]) -> list[str]:
    """Return the ids of the unfinished commissions and meetings of workers."""
    found: list[str] = []
    for work in (commissions, meetings):
        unfinished = work.c.worker.in_(tuple(workers)) & work.c.status.not_in(_ENDED)
        found += connection.execute(select(work.c.id).where(unfinished).order_by(work.c.id)).scalars()
    return found
