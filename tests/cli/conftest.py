"""Fixtures for command-line tests: a project and a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.places import Terminal, make_project

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from tests.conftest import Guild


@pytest.fixture
def scribe(project: Path) -> Path:
    """Return a project with one worker, `scribe`, which writes a line without asking."""
    make_project(project)
    return project


@pytest.fixture
def terminal(guild: Guild) -> Generator[Callable[..., Terminal]]:
    """Return a function that starts the real command at a terminal: `terminal("run", "scribe", "go")`."""
    started: list[Terminal] = []

    def start(*words: str, **options: Any) -> Terminal:
        started.append(Terminal(guild, *words, **options))
        return started[-1]

    yield start
    for one in started:
        one.close()
