"""A shop in a project and a home of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.jobs.shop import Shop

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home


@pytest.fixture
def shop(home: Home, project: Path) -> Shop:
    """Return a shop whose worker has a script that the test writes."""
    shop = Shop(home=home, project=project)
    shop.worker()
    return shop
