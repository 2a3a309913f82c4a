"""A parlour in a repository and a home of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.projects.meetings.parlour import Parlour

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home


@pytest.fixture
def parlour(home: Home, tmp_path: Path) -> Parlour:
    return Parlour.at(home, tmp_path / "shop")
