"""Fixtures for memory tests: real files, a real database and a clock that advances by itself."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from guildhall.core.clock import SystemClock
from guildhall.core.request_frame import Frame
from guildhall.memory.folder import MemoryFolder
from guildhall.memory.model import Author
from guildhall.memory.service import Memory
from guildhall.store.engine import Store
from guildhall.store.schema import prepare
from guildhall.workers.definition import Definition
from guildhall.workers.model import Worker

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from guildhall.core.paths import Home

REVIEWER = Author(kind="worker", worker="reviewer", run="r-2222222222")
CODER = Author(kind="worker", worker="coder", run="r-3333333333")


@dataclass
class TickingClock(SystemClock):
    """A clock that advances by one second at each call of `now`."""

    current: datetime = field(default=datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC))

    def now(self) -> datetime:
        self.current += timedelta(seconds=1)
        return self.current


@pytest.fixture
def store(home: Home) -> Generator[Store]:
    prepare(home.database)
    store = Store(home.database)
    yield store
    store.close()


@pytest.fixture
def memory(home: Home, store: Store) -> Memory:
    return Memory(home, store, TickingClock())


@pytest.fixture
def folder(home: Home) -> MemoryFolder:
    return global_folder(home)


@pytest.fixture
def frame(project: Path) -> Frame:
    return Frame(cwd=project, root=project)


def global_folder(home: Home) -> MemoryFolder:
    return MemoryFolder(scope="global", path=home.path / "memory" / "global", name="global")


def make_worker(path: Path, name: str = "reviewer", scope: str = "project") -> Worker:
    definition = Definition.model_validate({"name": name, "instructions": "Review."})
    return Worker(definition=definition, instructions="Review.", scope=scope, digest="d", path=path)  # type: ignore[arg-type]


def edit_by_hand(folder: MemoryFolder, key: str, content: str | bytes, mtime: float = 0.0) -> Path:
    """Write the file of an entry without Guildhall. `mtime` is in seconds after a fixed day in 2023."""
    folder.path.mkdir(parents=True, exist_ok=True)
    path = folder.entry_path(key)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    os.utime(path, (1_700_000_000 + mtime, 1_700_000_000 + mtime))
    return path


def read_files(folder: MemoryFolder) -> dict[str, bytes]:
    """Return all files below the folder by relative path, without the internal ones."""
    return {
        str(path.relative_to(folder.path)): path.read_bytes()
        for path in folder.path.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }
