"""A project with workers, and a frame of a request that is made in it."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from guildhall.core.request_frame import Frame

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Write = Callable[[str, str], Path]


@pytest.fixture
def write(project: Path) -> Write:
    """Writes a file of the project, by its path there."""

    def writes(name: str, text: str) -> Path:
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        return path

    return writes


@pytest.fixture
def frame(project: Path) -> Frame:
    return Frame(cwd=project, root=project)
