"""Database creation: the file is private and complete, and an unusable file is refused and not changed."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, inspect
from sqlalchemy.pool import NullPool

from guildhall.core.errors import HallUnavailable
from guildhall.store.schema import APPLICATION_ID, REVISION, is_created, prepare
from guildhall.store.tables import metadata

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Engine

    from guildhall.core.paths import Home
    from tests.conftest import Guild


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def schema(engine: Engine) -> dict[str, Any]:
    """Return all that SQLAlchemy finds in a database, except the table of the revision."""
    look = inspect(engine)
    return {
        table: {
            "columns": [{**column, "type": str(column["type"])} for column in look.get_columns(table)],
            "key": look.get_pk_constraint(table),
            "foreign": look.get_foreign_keys(table),
            "indexes": sorted(map(_index, look.get_indexes(table)), key=lambda index: str(index["name"])),
            "unique": look.get_unique_constraints(table),
            "checks": look.get_check_constraints(table),
        }
        for table in look.get_table_names()
        if table != "alembic_version"
    }


def _index(index: Any) -> dict[str, Any]:
    """Return an index with its conditions as text."""
    options = index.get("dialect_options", {})
    return {**index, "dialect_options": {name: str(value) for name, value in options.items()}}


def test_the_created_schema_equals_the_metadata(home: Home, tmp_path: Path):
    prepare(home.database)
    created = create_engine(f"sqlite:///{home.database}", poolclass=NullPool)
    declared = create_engine(f"sqlite:///{tmp_path / 'declared.db'}", poolclass=NullPool)
    metadata.create_all(declared)
    assert schema(created) == schema(declared)
    assert schema(created).keys() == metadata.tables.keys()
    with closing(sqlite3.connect(home.database)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(REVISION,)]


def test_a_new_home_is_private_and_in_wal_mode(home: Home):
    assert not is_created(home.database)
    umask = os.umask(0)
    try:
        prepare(home.database)
    finally:
        os.umask(umask)
    assert mode(home.path) == 0o700
    assert mode(home.database) == 0o600
    assert is_created(home.database)
    with closing(sqlite3.connect(home.database)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        connection.execute("BEGIN IMMEDIATE")
        assert {mode(path) for path in home.path.iterdir()} == {0o600}


def test_an_existing_folder_keeps_its_mode(tmp_path: Path):
    tmp_path.chmod(0o755)
    prepare(tmp_path / "hall.db")
    assert mode(tmp_path) == 0o755


def test_a_readable_database_becomes_private(home: Home):
    prepare(home.database)
    home.database.chmod(0o644)
    prepare(home.database)
    assert mode(home.database) == 0o600


def test_preparing_again_changes_nothing(home: Home):
    prepare(home.database)
    execute(home.database, "INSERT INTO locks VALUES ('a', 'b', 'c', 0)", "PRAGMA wal_checkpoint(TRUNCATE)")
    before = home.database.read_bytes()
    prepare(home.database)
    assert home.database.read_bytes() == before


def test_a_database_is_checked_without_sqlalchemy(home: Home):
    prepare(home.database)
    code = (
        "import sys; from pathlib import Path; from guildhall.store.schema import prepare; prepare(Path(sys.argv[1]));"
        "print('sqlalchemy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, home.database], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_an_empty_file_becomes_a_database(home: Home):
    home.path.mkdir()
    home.database.touch()
    assert not is_created(home.database)
    prepare(home.database)
    assert is_created(home.database)


def test_an_interrupted_creation_is_started_over(home: Home):
    home.path.mkdir()
    (home.path / ".hall.db.new").write_bytes(b"half")
    prepare(home.database)
    assert is_created(home.database)
    assert not (home.path / ".hall.db.new").exists()


@pytest.mark.parametrize("revision", ["0000", "0002", "0007", "0999", "", "a\n\x1b[31m", "x" * 5000])
def test_another_revision_is_refused_with_file_revision_and_hint(home: Home, revision: str):
    prepare(home.database)
    with closing(sqlite3.connect(home.database, isolation_level=None)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    home.database.chmod(0o644)
    before = home.database.read_bytes()
    with pytest.raises(HallUnavailable) as caught:
        prepare(home.database)
    assert caught.value.where == str(home.database)
    assert repr(revision[:32]) in caught.value.message
    assert repr(REVISION) in caught.value.message
    assert len(caught.value.message) < 200
    assert caught.value.hint is not None
    assert "move the file to another folder" in caught.value.hint
    assert "GUILDHALL_HOME" in caught.value.hint
    assert home.database.read_bytes() == before
    assert mode(home.database) == 0o644


@pytest.mark.parametrize("statement", ["DELETE FROM alembic_version", "DROP TABLE alembic_version"])
def test_a_database_without_a_revision_is_refused(home: Home, statement: str):
    prepare(home.database)
    execute(home.database, statement)
    with pytest.raises(HallUnavailable, match="no schema revision"):
        prepare(home.database)


def test_the_command_reports_another_revision(home: Home, guild: Guild):
    prepare(home.database)
    execute(home.database, "UPDATE alembic_version SET version_num = '0007'")
    done = guild("ls", "runs")
    assert done.code == 7
    assert all(part in done.err for part in (str(home.database), "'0007'", "move the file to another folder"))


@pytest.mark.parametrize(
    "content",
    [
        b"x",
        b"hello, this is a letter\n" * 50,
        b"SQLite format 3",
        b"\x00" * 4096,
        b"SQLite format 4\x00" + b"\x00" * 4080,
    ],
)
def test_a_file_that_is_not_a_database_is_refused_and_not_changed(home: Home, content: bytes):
    home.path.mkdir()
    home.database.write_bytes(content)
    home.database.chmod(0o644)
    with pytest.raises(HallUnavailable, match="not an SQLite database"):
        prepare(home.database)
    assert contents(home.path) == {"hall.db": content}
    assert mode(home.database) == 0o644


@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
def test_the_database_of_another_program_is_refused_and_not_changed(home: Home, journal: str):
    home.path.mkdir()
    execute(
        home.database,
        f"PRAGMA journal_mode={journal}",
        "CREATE TABLE alembic_version (version_num TEXT)",
        "INSERT INTO alembic_version VALUES ('0001')",
    )
    before = contents(home.path)
    with pytest.raises(HallUnavailable, match="another program"):
        prepare(home.database)
    assert contents(home.path) == before


def test_a_damaged_database_is_reported(home: Home):
    prepare(home.database)
    whole = home.database.read_bytes()
    home.database.write_bytes(whole[:100] + b"\xff" * (len(whole) - 100))
    with pytest.raises(HallUnavailable, match="cannot read it"):
        prepare(home.database)


def test_a_special_file_is_refused_without_blocking(home: Home):
    home.path.mkdir()
    os.mkfifo(home.database)
    with pytest.raises(HallUnavailable, match="not a regular file"):
        prepare(home.database)
    home.database.unlink()
    home.database.mkdir()
    with pytest.raises(HallUnavailable, match="not a regular file"):
        prepare(home.database)


def test_a_home_that_cannot_be_created_is_reported_with_the_reason(tmp_path: Path):
    (tmp_path / "letter").write_text("x")
    with pytest.raises(HallUnavailable, match="Not a directory") as caught:
        prepare(tmp_path / "letter" / "hall.db")
    assert caught.value.hint == "Set GUILDHALL_HOME to another folder."
    (tmp_path / "hall").mkdir()
    (tmp_path / "hall" / ".hall.db.new").mkdir()
    with pytest.raises(HallUnavailable, match="cannot create it"):
        prepare(tmp_path / "hall" / "hall.db")


@pytest.mark.parametrize("name", ["a b", "50%", "q?mode=memory", "x#y", "ü", "%2e%2e", "'"])
def test_unusual_folder_names_work(tmp_path: Path, name: str):
    database = tmp_path / name / "hall.db"
    prepare(database)
    prepare(database)
    assert is_created(database)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_concurrent_readers_do_not_disturb_the_check(home: Home):
    """Commands that only read open the file while the hall checks it."""
    prepare(home.database)

    def look(_: int) -> set[bool]:
        return {is_created(home.database) for _ in range(20)}

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(look, range(4))) == [{True}] * 4
