"""A workshop for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.projects.commissions.workshop import Workshop

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home


@pytest.fixture
def workshop(tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    made = Workshop.at(tmp_path, home)
    monkeypatch.chdir(made.repo.path)
    return made
