"""Fixtures: rooms on a real database, a ticking clock and a recording listener."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from guildhall.core.clock import SystemClock
from guildhall.room.model import Actor, RoomEvent, RoomListener
from guildhall.room.service import Rooms
from guildhall.store.engine import Store
from guildhall.store.schema import prepare

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from guildhall.core.paths import Home

TEAM = ("coordinator", "reviewer", "coder")
PERSON = Actor.person()


@dataclass
class TickingClock(SystemClock):
    """A clock that advances by a second at every look."""

    at: datetime = field(default=datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC))

    def now(self) -> datetime:
        self.at += timedelta(seconds=1)
        return self.at


@dataclass
class RecordingListener:
    """A listener that records wake-ups and events after their commit."""

    wakes: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    events: list[RoomEvent] = field(default_factory=list)

    @property
    def room_listener(self) -> RoomListener:
        return RoomListener(wake=lambda room, agents: self.wakes.append((room, agents)), on_event=self.events.append)

    @property
    def woken_agents(self) -> list[set[str]]:
        return [set(agents) for _, agents in self.wakes]


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the bytes of an empty database, which takes long to create."""
    path = tmp_path_factory.mktemp("prepared") / "hall.db"
    prepare(path)
    return path.read_bytes()


@pytest.fixture
def database(home: Home, empty_database: bytes) -> Path:
    home.path.mkdir(mode=0o700)
    home.database.write_bytes(empty_database)
    return home.database


@pytest.fixture
def store(database: Path) -> Generator[Store]:
    opened = Store(database)
    yield opened
    opened.close()


@pytest.fixture
def listener() -> RecordingListener:
    return RecordingListener()


@pytest.fixture
def clock() -> TickingClock:
    return TickingClock()


@pytest.fixture
def rooms(store: Store, clock: TickingClock, listener: RecordingListener) -> Rooms:
    return Rooms(store, clock, listener.room_listener)


def agent(name: str, run: str = "r-1", key: str | None = None) -> Actor:
    return Actor(name=name, run=run, key=key)
