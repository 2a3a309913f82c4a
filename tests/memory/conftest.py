"""A memory on real files and a real database, a clock that is set by hand, and workers to remember things."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from guildhall.core.clock import SystemClock
from guildhall.core.frame import Frame
from guildhall.memory.memory import Memory
from guildhall.memory.model import Place, Writer
from guildhall.store.engine import Store
from guildhall.store.migrate import prepare
from guildhall.workers.definition import Definition
from guildhall.workers.model import Worker

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from guildhall.core.paths import Home

WRITER = Writer(by="worker", worker="reviewer", run="r-2222222222")
OTHER = Writer(by="worker", worker="writer", run="r-3333333333")
PERSON = Writer.person()


@dataclass
class Moments(SystemClock):
    """A clock that goes on by a second whenever it is looked at."""

    at: datetime = field(default=datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC))

    def now(self) -> datetime:
        self.at += timedelta(seconds=1)
        return self.at


@pytest.fixture
def store(home: Home) -> Generator[Store]:
    prepare(home.database)
    opened = Store(home.database)
    yield opened
    opened.close()


@pytest.fixture
def memory(home: Home, store: Store) -> Memory:
    return Memory(home, store, Moments())


@pytest.fixture
def place(home: Home) -> Place:
    return Place(scope="global", folder=home.path / "memory" / "global", name="global")


@pytest.fixture
def frame(project: Path) -> Frame:
    return Frame(cwd=project, root=project)


def worker(path: Path | None, name: str = "reviewer", scope: str = "project") -> Worker:
    definition = Definition.model_validate({"name": name, "instructions": "Review."})
    return Worker(definition=definition, instructions="Review.", scope=scope, digest="d", path=path)  # type: ignore[arg-type]


def put(place: Place, key: str, content: str | bytes, at: float = 0.0) -> Path:
    """An entry, as a person's editor leaves it; `at` counts seconds from some day."""
    place.folder.mkdir(parents=True, exist_ok=True)
    path = place.folder / f"{key}.md"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    os.utime(path, (1_700_000_000 + at, 1_700_000_000 + at))
    return path


def everything(place: Place) -> dict[str, bytes]:
    """Every file below the scope's folder that is not the shelf's own, by its path there."""
    return {
        str(path.relative_to(place.folder)): path.read_bytes()
        for path in place.folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }
