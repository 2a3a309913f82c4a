"""The fixture of the commission tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.projects.commissions.harness import CommissionProject

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home


@pytest.fixture
def harness(tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch) -> CommissionProject:
    made = CommissionProject.at(tmp_path, home)
    monkeypatch.chdir(made.repo.path)
    return made
