"""A driver and a model server for each process that runs tests; a harness for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from guildhall.testing.scripted_server import ScriptedServer
from tests.kill.harness import SCRIPT, Driver, KillHarness, Undisturbed, write_project

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.warm import WarmProcess


@pytest.fixture(scope="session")
def driver(warm: WarmProcess) -> Generator[Driver]:
    driver = Driver(warm)
    yield driver
    driver.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ScriptedServer]:
    script = tmp_path_factory.mktemp("script") / "answers.yaml"
    script.write_text(SCRIPT)
    with ScriptedServer(script) as server:
        yield server


@pytest.fixture
def harness(project: Path, home: Home, driver: Driver, server: ScriptedServer) -> Generator[KillHarness]:
    write_project(project, home.path)
    yield KillHarness(project=project, home=home.path, driver=driver, server=server)
    driver.settle()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, driver: Driver, server: ScriptedServer) -> Undisturbed:
    """Return the outcome of a run that is not killed."""
    place = tmp_path_factory.mktemp("undisturbed")
    (place / "project").mkdir()
    write_project(place / "project", place / "home")
    harness = KillHarness(project=place / "project", home=place / "home", driver=driver, server=server)
    return Undisturbed.of(harness)
