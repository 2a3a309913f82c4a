"""A hall with its own project and home, for tests of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.jobs.job_hall import JobHall

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home


@pytest.fixture
def job_hall(home: Home, project: Path) -> JobHall:
    """Return a hall whose worker has a script that the test writes."""
    job_hall = JobHall(home=home, project=project)
    job_hall.worker()
    return job_hall
