"""Rooms on a real database, a clock that is set by hand, and somebody who listens."""

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
class Moments(SystemClock):
    """A clock that goes on by a second whenever it is looked at."""

    at: datetime = field(default=datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC))

    def now(self) -> datetime:
        self.at += timedelta(seconds=1)
        return self.at


@dataclass
class Heard:
    """What was told after it was committed."""

    wakes: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    happened: list[RoomEvent] = field(default_factory=list)

    @property
    def ears(self) -> RoomListener:
        return RoomListener(wake=lambda room, agents: self.wakes.append((room, agents)), on_event=self.happened.append)

    @property
    def woken(self) -> list[set[str]]:
        return [set(agents) for _, agents in self.wakes]


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of an empty database: created once, because that takes a while."""
    path = tmp_path_factory.mktemp("prepared") / "hall.db"
    prepare(path)
    return path.read_bytes()


@pytest.fixture
def database(home: Home, prepared: bytes) -> Path:
    home.path.mkdir(mode=0o700)
    home.database.write_bytes(prepared)
    return home.database


@pytest.fixture
def store(database: Path) -> Generator[Store]:
    opened = Store(database)
    yield opened
    opened.close()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def clock() -> Moments:
    return Moments()


@pytest.fixture
def rooms(store: Store, clock: Moments, heard: Heard) -> Rooms:
    return Rooms(store, clock, heard.ears)


def agent(name: str, run: str = "r-1", key: str | None = None) -> Actor:
    return Actor(name=name, run=run, key=key)
