"""Temporary database: creates a database and a folder that are deleted after use, in memory if possible.

The replay of a workflow uses it, because it must leave no trace. Does not open the database of a home (see
`store.engine`).
"""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import create_engine

from guildhall.store.engine import Store
from guildhall.store.tables import metadata

if TYPE_CHECKING:
    from collections.abc import Generator

IN_MEMORY = "/dev/shm"  # where a file is never waited for


def temporary(prefix: str, *, in_memory: bool = True) -> tempfile.TemporaryDirectory[str]:
    """A folder that is gone afterwards; in memory, where there is such a place."""
    place = IN_MEMORY if in_memory and os.access(IN_MEMORY, os.W_OK) else None
    return tempfile.TemporaryDirectory(prefix=prefix, dir=place, ignore_cleanup_errors=True)


def _make(path: Path) -> None:
    """Create all tables."""
    engine = create_engine(f"sqlite:///{path}")
    metadata.create_all(engine)
    engine.dispose()


@contextmanager
def scratch() -> Generator[Store]:
    """An empty database with all tables, gone afterwards."""
    with temporary("guild-scratch-") as folder:
        path = Path(folder) / "scratch.db"
        _make(path)
        store = Store(path)
        try:
            yield store
        finally:
            store.close()
