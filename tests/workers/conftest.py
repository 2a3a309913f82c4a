"""A project with workers, and a frame of a request that is made in it."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core import yaml
from guildhall.core.request_frame import Frame
from guildhall.workers.definition import Definition
from guildhall.workers.loader import parse_definition
from guildhall.workers.model import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    Write = Callable[[str, str], Path]


def make_worker(name: str = "w", **fields: Any) -> Worker:
    """Return a worker of the home whose file was not written."""
    path = Path(f"/guild/workers/{name}.yaml")
    definition = parse_definition(yaml.Source(path, "", {"name": name, **fields}, {}), Definition)
    return Worker(definition=definition, instructions="x", scope="home", digest="d", path=path)


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
