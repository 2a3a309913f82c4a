"""A project with a workflow in it, and a frame of a request that is made there."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from guildhall.core.request_frame import Frame
from guildhall.workers.registry import Registry
from guildhall.workflow.loader import load
from tests.workflow.teams import Team

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.workflow.model import Workflow

    Write = Callable[[str, str], Path]
    Loaded = Callable[..., Workflow]


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
def loaded(write: Write, project: Path, home: Home) -> Loaded:
    """Writes a workflow file and loads it."""

    def loads(text: str, name: str = "review.yaml") -> Workflow:
        registry = Registry(project, home)
        return load(write(name, text), lambda worker: registry.find(worker, project))

    return loads


@pytest.fixture
def frame(project: Path) -> Frame:
    return Frame(cwd=project, root=project)


@pytest.fixture
def team(home: Home, project: Path) -> Team:
    """A project in which a team can be put to work."""
    return Team(home=home, project=project)
