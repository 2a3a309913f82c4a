"""Schema: creates the database of a home from the tables, and checks an existing database before it is opened.

There is a single schema revision and no upgrade, because nothing is released. An existing database is checked without
SQLAlchemy, because every command does so.

Invariant: a file that is not a database of this application id and schema revision is never changed.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from functools import cache
from pathlib import Path

from guildhall.core.atomic_file import replace_file
from guildhall.core.errors import HallUnavailable

APPLICATION_ID = 0x4755494C  # "GUIL"
REVISION = "0001"

_MAGIC = b"SQLite format 3\x00"
_ID_OFFSET = 68  # offset of the application id in the header of an SQLite file
_MAX_REVISION_CHARS = 32
SET_HOME = "Set GUILDHALL_HOME to another folder."


def prepare(path: Path, choose_another: str = SET_HOME) -> None:
    """Create the database unless it exists. Raise HallUnavailable if it cannot be used. The caller holds its lock.

    `choose_another`: the hint that says how to use another database.
    """
    if not is_created(path, choose_another):
        _create(path, choose_another)
    _keep_private(path)


def is_created(path: Path, choose_another: str = SET_HOME) -> bool:
    """Return True if the database exists, and False if the file is missing or empty.

    Raise HallUnavailable if the file cannot be used.
    """
    try:
        header = _header(path)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error), choose_another) from None
    if not header:
        return False
    if not header.startswith(_MAGIC):
        raise _unusable(path, "not an SQLite database", f"{choose_another} Or move the file to another folder.")
    if int.from_bytes(header[_ID_OFFSET : _ID_OFFSET + 4], "big") != APPLICATION_ID:
        raise _unusable(path, "it belongs to another program", choose_another)
    revision = _revision(path, choose_another)
    if revision != REVISION:
        found = f"schema revision {revision!r}" if revision is not None else "no schema revision"
        raise _unusable(
            path,
            f"it has {found}, and this version of Guildhall requires {REVISION!r}",
            f"{choose_another} Or use the version of Guildhall that created the file, or move the file to another "
            "folder to start with an empty database.",
        )
    return True


def _header(path: Path) -> bytes:
    """Return the first 100 bytes of the file, or no bytes if it is missing or empty."""
    try:
        # Non-blocking, because the path could be a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "not a regular file")
        return os.read(descriptor, 100)
    finally:
        os.close(descriptor)


def _revision(path: Path, choose_another: str) -> str | None:
    """Return the schema revision of the database, or None if it has no revision."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=10)) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone():
                return None
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.Error as error:
        raise _unusable(
            path, f"cannot read it: {error}", f"{choose_another} Or restore the file from a backup."
        ) from None
    return str(row[0])[:_MAX_REVISION_CHARS] if row else None


def _create(path: Path, choose_another: str) -> None:
    """Create the database. An incomplete file is never visible."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, _blank(), durable=True, single_writer=True)
    except (OSError, sqlite3.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _unusable(path, f"cannot create it: {reason}", choose_another) from None


@cache
def _blank() -> bytes:
    """Return the bytes of an empty database. They are cached for processes that create many, such as test runs."""
    from tempfile import TemporaryDirectory

    from sqlalchemy.dialects.sqlite import dialect
    from sqlalchemy.schema import CreateIndex, CreateTable

    from guildhall.store.tables import metadata

    sqlite = dialect()
    with TemporaryDirectory() as folder:
        path = Path(folder, "blank.db")
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            connection.execute("BEGIN")
            for table in metadata.sorted_tables:
                connection.execute(str(CreateTable(table).compile(dialect=sqlite)))
                for index in sorted(table.indexes, key=lambda index: str(index.name)):
                    connection.execute(str(CreateIndex(index).compile(dialect=sqlite)))
            connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
            connection.execute("INSERT INTO alembic_version VALUES (?)", (REVISION,))
            connection.execute("COMMIT")
            connection.execute("PRAGMA journal_mode=WAL")
        return path.read_bytes()


def _keep_private(path: Path) -> None:
    """Remove the permissions of group and others. SQLite creates its other files with the mode of the database."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        path.chmod(mode & 0o700)


def _unusable(path: Path, reason: str, hint: str) -> HallUnavailable:
    return HallUnavailable(f"cannot use the database: {reason}", where=str(path), hint=hint)
