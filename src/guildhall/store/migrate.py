"""Makes the database of a home, and brings one of an earlier version up to date.

What is nobody's business stays untouched: a file that is no database, one of another program, one of a newer version
of this program. A file is known as ours by SQLite's application id, which it has from the moment it appears under its
name. Most commands find everything current, and for them nothing heavier than sqlite3 is imported.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from guildhall.core.errors import HallUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

APPLICATION_ID = 0x4755494C  # "GUIL"
REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007")  # every step of the schema, oldest first
HEAD = REVISIONS[-1]

Standing = Literal["missing", "old", "current"]

_MAGIC = b"SQLite format 3\x00"
_ID_OFFSET = 68  # of the application id, in SQLite's file header
_MIGRATIONS = Path(__file__).parent / "migrations"
SET_HOME = "Set GUILDHALL_HOME to another folder."


def prepare(path: Path, choose_another: str = SET_HOME) -> None:
    """Create the database at `path`, or upgrade it to the current schema. The caller holds its lock.

    `choose_another`: a hint that tells the user how to use another database. Raise HallUnavailable with that hint if
    this one cannot be used.
    """
    standing = standing_of(path, choose_another)
    if standing == "missing":
        _create(path, choose_another)
    _keep_private(path)
    if standing == "old":
        _upgrade(path, choose_another)


def standing_of(path: Path, choose_another: str = SET_HOME) -> Standing:
    """Return the state of a database without changing it. Raise HallUnavailable if it cannot be used."""
    try:
        header = _header(path)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error), choose_another) from None
    if not header:
        return "missing"
    if not header.startswith(_MAGIC):
        raise _unusable(path, "it is not a database", f"Move the file away if nothing needs it. Or: {choose_another}")
    if int.from_bytes(header[_ID_OFFSET : _ID_OFFSET + 4], "big") != APPLICATION_ID:
        raise _unusable(path, "it is the database of another program", choose_another)
    revision = _revision(path, choose_another)
    if revision == HEAD:
        return "current"
    if revision is not None and revision not in REVISIONS:
        raise _unusable(
            path,
            f"a newer version of Guildhall made it (schema {revision}, this program knows up to {HEAD})",
            f"Update Guildhall. Or: {choose_another}",
        )
    return "old"


def _header(path: Path) -> bytes:
    """The first bytes of the file; none where there is no file or nothing in it."""
    try:
        # Not blocking: a pipe in the place of the file must not hold up the command.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "it is not a regular file")
        return os.read(descriptor, 100)
    finally:
        os.close(descriptor)


def _revision(path: Path, choose_another: str) -> str | None:
    """The schema's version; None where the first step has not been taken."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=10)) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone():
                return None
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.Error as error:
        raise _unusable(path, f"it cannot be read ({error})", f"Restore it from a copy. Or: {choose_another}") from None
    return row[0] if row else None


def _create(path: Path, choose_another: str) -> None:
    """A database with today's tables, made beside its place and then put there: nobody ever sees half of one."""
    draft = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_blank())
            file.flush()
            os.fsync(descriptor)
        draft.replace(path)
    except (OSError, sqlite3.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _unusable(path, f"it cannot be made: {reason}", choose_another) from None


@cache
def _blank() -> bytes:
    """The file of a database with today's tables and nothing in them; a process that needs many makes it once."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = Path(folder, "blank.db")
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            connection.execute("BEGIN")
            for statement in _schema():
                connection.execute(statement)
            connection.execute("INSERT INTO alembic_version VALUES (?)", (HEAD,))
            connection.execute("COMMIT")
            connection.execute("PRAGMA journal_mode=WAL")
        return path.read_bytes()


def _schema() -> Iterator[str]:
    """What makes today's tables at once, as the migrations make them step by step."""
    from sqlalchemy.dialects.sqlite import dialect
    from sqlalchemy.schema import CreateIndex, CreateTable

    from guildhall.store.schema import metadata

    ours = dialect()
    for table in metadata.sorted_tables:
        yield str(CreateTable(table).compile(dialect=ours))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            yield str(CreateIndex(index).compile(dialect=ours))
    yield "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"


def _keep_private(path: Path) -> None:
    """Takes from others what they may have been given; SQLite gives its side files the same mode."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        path.chmod(mode & 0o700)


def _upgrade(path: Path, choose_another: str) -> None:
    """Takes every step that is missing, each in a transaction of its own."""
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory
    from sqlalchemy import create_engine, event
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.pool import NullPool

    uri = f"{path.absolute().as_uri()}?mode=rw"
    engine = create_engine(
        "sqlite://",
        creator=lambda: sqlite3.connect(uri, uri=True, timeout=10, isolation_level=None),
        poolclass=NullPool,
    )
    event.listen(engine, "begin", _begin)
    script = ScriptDirectory(str(_MIGRATIONS))
    try:
        for step in reversed(list(script.walk_revisions())):
            with engine.begin() as connection:
                context = MigrationContext.configure(connection)
                if context.get_current_revision() == step.down_revision:
                    with Operations.context(context):
                        step.module.upgrade()
                    context.stamp(script, step.revision)
    except DBAPIError as error:
        raise _unusable(path, f"its schema cannot be brought up to date ({error.orig})", choose_another) from error
    finally:
        engine.dispose()


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _unusable(path: Path, reason: str, hint: str) -> HallUnavailable:
    return HallUnavailable(f"the database cannot be used: {reason}", where=str(path), hint=hint)
