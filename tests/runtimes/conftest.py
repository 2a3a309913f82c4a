"""A warm parent for each process that runs tests, and one that is up to no good for those that need it."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.runtimes.childruntime import ChildRuntime
from guildhall.runtimes.nursery import Nursery
from guildhall.runtimes.pydantic import PydanticRuntime
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Sequence

    from guildhall.runtimes.model import Assignment, Doors, Runtime


class Place:
    """An event loop that outlives a test, with a nursery in it."""

    def __init__(self, command: Sequence[str] | None = None) -> None:
        self._runner = asyncio.Runner()
        self.nursery = Nursery(command)
        self.nursery.start()

    def runs(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(20):
                return await work

        return self._runner.run(bounded())

    def close(self) -> None:
        self._runner.run(self.nursery.close())
        self._runner.close()


@pytest.fixture(scope="session")
def place() -> Generator[Place]:
    place = Place()
    yield place
    place.close()


@pytest.fixture(scope="session")
def wild() -> Generator[Place]:
    """Its children do what their first message says (wild.py), and nothing that a run would."""
    boot = f"import sys; sys.path[:0] = {[str(ROOT), *sys.path]!r}; from tests.runtimes.wild import main; main()"
    place = Place([os.path.realpath(sys.executable), "-I", "-S", "-c", boot])
    yield place
    place.close()


@pytest.fixture(params=["here", "in a child"])
def executed(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Executes an assignment: both runtimes are to do the same."""

    def execute(doors: Doors, assignment: Assignment) -> Any:
        runtime: Runtime = PydanticRuntime()
        if request.param == "here":
            return asyncio.run(runtime.execute(assignment, doors)).output
        place: Place = request.getfixturevalue("place")
        runtime = ChildRuntime(place.nursery)
        return place.runs(runtime.execute(assignment, doors)).output

    return execute
