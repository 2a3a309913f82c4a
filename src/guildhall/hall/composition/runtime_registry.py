"""Runtime registry of a hall: selects the runtime of a run, and owns the fork server, the doors and the tokens.

Nothing is imported or started before a run needs it.
Does not implement runtimes: `guildhall.runtimes` does.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from guildhall.core.config import load_settings
from guildhall.hall.composition.environment import Environment, peek
from guildhall.models.credentials import merge_environ

if TYPE_CHECKING:
    from guildhall.core.request_frame import Frame
    from guildhall.hall.doors import DoorApp
    from guildhall.runs.assembly.tool_sources import ToolboxCache
    from guildhall.runs.execution.tokens import TokenRegistry
    from guildhall.runtimes.catalog import RuntimeInfo
    from guildhall.runtimes.discovery import Programs
    from guildhall.runtimes.forked.fork_server_client import ForkServer
    from guildhall.runtimes.model import Runtime
    from guildhall.workers.definition import RuntimeName


class RuntimeRegistry:
    """Selects the runtime of a run: a forked process, a program of another vendor, or this process."""

    def __init__(self, environment: Environment, *, forks_runs: bool) -> None:
        """`forks_runs`: execute each run in a process of its own."""
        self._environment = environment
        self._forks_runs = forks_runs

    @cached_property
    def tokens(self) -> TokenRegistry:
        from guildhall.runs.execution.tokens import TokenRegistry

        return TokenRegistry()

    @cached_property
    def toolbox_descriptions(self) -> ToolboxCache:
        from guildhall.runs.assembly.tool_sources import ToolboxCache

        return ToolboxCache()

    @cached_property
    def door_app(self) -> DoorApp:
        from guildhall.hall.doors import DoorApp

        return DoorApp(self.tokens.find)

    @cached_property
    def programs(self) -> Programs:
        from guildhall.runtimes.discovery import Programs, VersionCache

        return Programs(self._environment.environ, VersionCache(self._environment.home.programs))

    @cached_property
    def fork_server(self) -> ForkServer | None:
        """Return the server that forks the processes of runs, or None if this process executes them."""
        if not self._forks_runs:
            return None
        from guildhall.runtimes.forked.fork_server_client import ForkServer, is_available

        return ForkServer() if is_available() else None

    @cached_property
    def _forked_runtime(self) -> Runtime:
        from guildhall.runtimes.forked.runtime import ForkedRuntime

        assert self.fork_server is not None
        self.start_fork_server()
        home = self._environment.home
        limit_bytes = load_settings(home, home.path).hall.run_memory  # a project must not change it
        return ForkedRuntime(self.fork_server, memory_bytes=limit_bytes)

    def runtime_for_run(self, runtime: RuntimeName, frame: Frame) -> Runtime:
        """Return the runtime of a new or resumed run."""
        if self._environment.policy.runtime_of is None and runtime == "pydantic" and self.fork_server is not None:
            return self._forked_runtime
        return self.runtime_for_replay(runtime, frame)

    def runtime_for_replay(self, runtime: RuntimeName, frame: Frame) -> Runtime:
        """Return the runtime of a replay. The runtime `pydantic` replays in this process."""
        if (runtime_of := self._environment.policy.runtime_of) is not None:
            return runtime_of(runtime, frame)
        if runtime == "pydantic":
            from guildhall.runtimes.pydantic import PydanticRuntime

            return PydanticRuntime()
        from guildhall.runtimes.programs.runtime import ProgramRuntime, driver_factory

        programs = self.programs.with_variables(frame.keys)
        driver = driver_factory(runtime, merge_environ(self._environment.environ, frame.keys))
        return ProgramRuntime(driver, programs, self.door_app.listen)

    def check_program(self, runtime: RuntimeInfo, frame: Frame) -> None:
        """Raise if the program that a runtime needs is not installed."""
        if self._environment.policy.runtime_of is None:
            self.programs.with_variables(frame.keys).check_installed(runtime)

    def start_fork_server(self) -> None:
        """Start the fork server in the background. Call it in the thread that has the hall's event loop."""
        if self.fork_server is not None:
            self.fork_server.start()

    async def close(self) -> None:
        if (fork_server := peek(self, RuntimeRegistry.fork_server)) is not None:
            await fork_server.close()
