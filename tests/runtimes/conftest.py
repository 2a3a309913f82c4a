"""Fixtures: a function that executes an assignment with both runtimes, and a fork server with misbehaving children."""

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
def misbehaving_loop() -> Generator[ForkServerLoop]:
    """Start a fork server whose children execute the command in their first message."""
    paths = [str(ROOT), *sys.path]
    boot = f"import sys; sys.path[:0] = {paths!r}; from tests.runtimes.misbehaving_children import main; main()"
    fork_loop = ForkServerLoop([os.path.realpath(sys.executable), "-I", "-S", "-c", boot])
    yield fork_loop
    fork_loop.close()


@pytest.fixture(params=["here", "in a child"])
def run_assignment(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Return a function that executes an assignment, with each runtime in turn."""

    def execute(doors: Doors, assignment: Assignment) -> Any:
        runtime: Runtime = PydanticRuntime()
        if request.param == "here":
            return asyncio.run(runtime.execute(assignment, doors)).output
        fork_loop: ForkServerLoop = request.getfixturevalue("fork_loop")
        runtime = ForkedRuntime(fork_loop.fork_server)
        return fork_loop.run(runtime.execute(assignment, doors)).output

    return execute
