"""Fixtures: a project with a workflow, and the frame of a request in it."""

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
    LoadWorkflow = Callable[..., Workflow]


@pytest.fixture
def write(project: Path) -> Write:
    """Return a function that writes a file of the project by its relative path."""

    def write_file(name: str, text: str) -> Path:
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        return path

    return write_file


@pytest.fixture
def load_workflow(write: Write, project: Path, home: Home) -> LoadWorkflow:
    """Return a function that writes a workflow file and loads it."""

    def write_and_load(text: str, name: str = "review.yaml") -> Workflow:
        registry = Registry(project, home)
        return load(write(name, text), lambda worker: registry.find(worker, project))

    return write_and_load


@pytest.fixture
def frame(project: Path) -> Frame:
    return Frame(cwd=project, root=project)


@pytest.fixture
def team(home: Home, project: Path) -> Team:
    """Return a team without a workflow file."""
    return Team(home=home, project=project)
