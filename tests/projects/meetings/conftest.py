"""The fixture of the meeting tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.projects.meetings.harness import MeetingProject

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home


@pytest.fixture
def harness(home: Home, tmp_path: Path) -> MeetingProject:
    return MeetingProject.at(home, tmp_path / "shop")
