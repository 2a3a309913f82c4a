"""Both runtimes, to be tested as one; and a warm parent that is up to no good, for those tests that need it."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.runtimes.forked.runtime import ForkedRuntime
from guildhall.runtimes.pydantic import PydanticRuntime
from tests.children import Place
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from guildhall.runtimes.model import Assignment, Doors, Runtime


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
        runtime = ForkedRuntime(place.nursery)
        return place.runs(runtime.execute(assignment, doors)).output

    return execute
