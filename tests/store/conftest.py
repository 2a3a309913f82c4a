"""Fixtures: a prepared database, and a store that opens it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from guildhall.store.engine import Store
from guildhall.store.schema import prepare

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from guildhall.core.paths import Home


@pytest.fixture
def database(home: Home) -> Path:
    prepare(home.database)
    return home.database


@pytest.fixture
def store(database: Path) -> Generator[Store]:
    opened = Store(database)
    yield opened
    opened.close()
