"""Both runtimes, to be tested as one; and a warm parent that is up to no good, for those tests that need it."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.runtimes.forked.runtime import ForkedRuntime
from guildhall.runtimes.pydantic import PydanticRuntime
from tests.conftest import ROOT
from tests.run_processes import ForkServerLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from guildhall.runtimes.model import Assignment, Doors, Runtime


@pytest.fixture(scope="session")
def wild() -> Generator[ForkServerLoop]:
    """Its children do what their first message says (wild.py), and nothing that a run would."""
    boot = f"import sys; sys.path[:0] = {[str(ROOT), *sys.path]!r}; from tests.runtimes.wild import main; main()"
    fork_loop = ForkServerLoop([os.path.realpath(sys.executable), "-I", "-S", "-c", boot])
    yield fork_loop
    fork_loop.close()


@pytest.fixture(params=["here", "in a child"])
def executed(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Executes an assignment: both runtimes are to do the same."""

    def execute(doors: Doors, assignment: Assignment) -> Any:
        runtime: Runtime = PydanticRuntime()
        if request.param == "here":
            return asyncio.run(runtime.execute(assignment, doors)).output
        fork_loop: ForkServerLoop = request.getfixturevalue("fork_loop")
        runtime = ForkedRuntime(fork_loop.fork_server)
        return fork_loop.run(runtime.execute(assignment, doors)).output

    return execute
