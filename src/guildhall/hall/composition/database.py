"""Database of a hall: locks and opens a database file, and provides its runs and asks.

Opening a database for writing marks the live runs of a hall that died as interrupted.
Does not execute runs: `run_services` does.

Invariant: only the holder of the lock writes to a database.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING, Any

from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import HallInUse, HallUnavailable, StorageFailed
from guildhall.runs.asks import Asks
from guildhall.runs.record.queries import History
from guildhall.runs.record.records import mark_interrupted
from guildhall.store.engine import Store
from guildhall.store.schema import is_created, prepare

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.hall.composition.environment import Environment
    from guildhall.runs.model import Ask


_MIN_FREE_BYTES = 1_000_000  # for new work; runs need some space to record their end
_CREATION_TIMEOUT_S = 5.0  # for a database that another process creates


class Database:
    """An open database. A hall that may write holds its lock. Any number of halls may read it."""

    def __init__(
        self,
        path: Path,
        environment: Environment,
        *,
        lock: Callable[..., IO[Any]],
        lock_timeout_s: float,
        choose_another: str,
        on_ask_closed: Callable[[Ask], None],
    ) -> None:
        """Open the database at a path, and create it if it does not exist.

        `lock(timeout_s=...)` locks the database. `choose_another`: the hint if the file cannot be used.
        `on_ask_closed` is called for each ask that is answered or expires.
        """
        self.path = path
        self._boot = environment.boot
        self._choose_another = choose_another
        self._lock: IO[Any] | None = None
        readonly = environment.readonly
        if readonly:
            self._create_and_repair(lock, environment.clock)
        else:
            self._lock = lock(timeout_s=lock_timeout_s)
        try:
            if not readonly:
                prepare(path, choose_another)
            self.store = Store(path, readonly=readonly)
        except BaseException:
            if self._lock is not None:
                self._lock.close()
            raise
        self._file_id = _read_file_id(path)
        if not readonly:
            self._mark_interrupted(self.store)
        self.asks = Asks(self.store, environment.clock, on_ask_closed)
        self.history = History(self.store, environment.clock)

    def _create_and_repair(self, lock: Callable[..., IO[Any]], clock: Clock) -> None:
        """Create the database and mark interrupted runs. If a hall holds the lock, wait until it has created it."""
        try:
            locked = lock()
        except HallUnavailable:
            deadline = clock.monotonic() + _CREATION_TIMEOUT_S
            while not is_created(self.path, self._choose_another):
                if clock.monotonic() >= deadline:
                    raise
                time.sleep(0.02)
            return
        with locked:
            prepare(self.path, self._choose_another)
            store = Store(self.path)
            self._mark_interrupted(store)
            store.close()

    def _mark_interrupted(self, store: Store) -> None:
        store.submit(lambda connection: mark_interrupted(connection, self._boot)).result()

    def is_in_place(self) -> bool:
        """Return False if the file was removed or replaced since it was opened."""
        return _read_file_id(self.path) == self._file_id

    def full_disk_error(self) -> StorageFailed | None:
        """Return an error if the disk has no space left for new work, or None."""
        space = os.statvfs(self.path.parent)
        blocks = space.f_bavail if os.geteuid() else space.f_bfree
        if blocks * space.f_frsize >= _MIN_FREE_BYTES:
            return None
        return StorageFailed(f"disk full at {self.path.parent}", hint="Free some space, then repeat the command.")

    def close(self) -> None:
        self.store.close()
        if self._lock is not None:
            self._lock.close()


def _read_file_id(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file, or None if it cannot be read."""
    try:
        file_stat = path.stat()
    except OSError:
        return None
    return file_stat.st_dev, file_stat.st_ino


LOCK_TIMEOUT_S = 1.0  # a command that only reads holds the lock for a moment
CHOOSE_ANOTHER_FILE = "Name another file in `context.config.db`."


def lock_home(home: Home, clock: Clock, *, timeout_s: float = 0.0, details: Mapping[str, Any] | None = None) -> IO[Any]:
    """Lock a home until the returned file is closed or the process ends. `details`: further fields for its content."""
    try:
        return _lock_home(home, clock, timeout_s, details or {})
    except OSError as error:
        raise home_error(error, home) from None


def home_error(error: OSError, home: Home) -> HallUnavailable:
    """Return the error for a home that the system does not let us use, such as that of a full disk."""
    hint = "Check the permissions and the free space of the home, or set GUILDHALL_HOME to another folder."
    where = str(error.filename or home.path)
    return HallUnavailable(f"cannot use the home: {error.strerror or error}", where=where, hint=hint)


def _lock_home(home: Home, clock: Clock, timeout_s: float, details: Mapping[str, Any]) -> IO[Any]:
    home.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = home.lock.open("a+")
    if not _try_lock(handle, clock, timeout_s):
        handle.seek(0)
        holder, action = _describe_holder(handle.read())
        handle.close()
        raise HallInUse(
            f"cannot open the hall at {home.path}: it is in use by {holder}",
            hint=f"{action}, or set GUILDHALL_HOME to another folder.",
        )
    handle.truncate(0)
    handle.write(json.dumps({"pid": os.getpid(), "since": stamp(clock.now()), **details}))
    handle.flush()
    return handle


def lock_database(path: Path, clock: Clock, *, timeout_s: float = 0.0) -> IO[Any]:
    """Lock a database outside of the home, which halls of other homes may use too."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.fdopen(os.open(path.with_name(f"{path.name}.lock"), flags, 0o600), "r")
    except OSError as error:
        message = f"cannot lock the database: {error.strerror or error}"
        raise HallUnavailable(message, where=str(path), hint=CHOOSE_ANOTHER_FILE) from None
    if _try_lock(handle, clock, timeout_s):
        return handle
    handle.close()
    hint = "Run `guild hall stop` with its GUILDHALL_HOME, or name another file in `context.config.db`."
    message = "cannot open the database: it is in use by the hall of another home"
    raise HallInUse(message, where=str(path), hint=hint)


def _try_lock(handle: IO[Any], clock: Clock, timeout_s: float) -> bool:
    """Lock a file. Return False if another process still holds the lock after the timeout."""
    deadline = clock.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if clock.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        else:
            return True


def _describe_holder(text: str) -> tuple[str, str]:
    """Return a description of the lock's holder and an action for the user, from the content of the lock file."""
    wait = "Wait until it exits"
    try:
        holder = json.loads(text)
        if holder["pid"] == os.getpid():
            return "another thread or event loop of this program", "Wait until it closes the hall"
        since = f"(pid {int(holder['pid'])}, since {holder['since']})"
        if holder.get("hall"):
            return f"its background process {since}", "Stop it with `guild hall stop`"
        return f"another guild command {since}", wait
    except (ValueError, KeyError, TypeError):
        return "another guild command", wait
