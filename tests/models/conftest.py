"""Fixture: a store on a real database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from guildhall.store.engine import Store
from guildhall.store.schema import prepare

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Generator[Store]:
    prepare(tmp_path / "hall.db")
    opened = Store(tmp_path / "hall.db")
    yield opened
    opened.close()
