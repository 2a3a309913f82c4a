"""Processes of runs in tests: a shared fork server, and a runtime that kills its processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.runtimes.forked.fork_server_client import ForkServer
from guildhall.runtimes.forked.runtime import ForkedRuntime

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import ModelRequestParameters

    from guildhall.runtimes.model import Assignment, Doors, Outcome
    from guildhall.tools.model import ToolCall, ToolResult

TIMEOUT_S = 10.0


class ForkServerLoop:
    """An event loop with a fork server that is shared by the tests."""

    def __init__(self, command: Sequence[str] | None = None) -> None:
        self._runner = asyncio.Runner()
        self.fork_server = ForkServer(command)
        self.fork_server.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def run_with_timeout() -> Any:
            async with asyncio.timeout(20):
                return await work

        return self._runner.run(run_with_timeout())

    def close(self) -> None:
        self._runner.run(self.fork_server.close())
        self._runner.close()


class WatchedProcess:
    """A process that is watched by its pidfd, which stays valid if the pid is reused."""

    def __init__(self, pid: int) -> None:
        self.pidfd = os.pidfd_open(pid)

    def wait_exit(self) -> bool:
        """Wait for the exit, and return True if the process exited in time."""
        try:
            return bool(select.select([self.pidfd], [], [], TIMEOUT_S)[0])
        finally:
            os.close(self.pidfd)


def child_pids(*pids: int) -> list[int]:
    """Return the pids of all child processes."""
    found: list[int] = []
    for pid in pids:
        with contextlib.suppress(FileNotFoundError):
            found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return found


class KillingRuntime(ForkedRuntime):
    """The real runtime, which kills the process of a run after the given numbers of messages."""

    def __init__(self, fork_server: ForkServer, *numbers: int) -> None:
        super().__init__(fork_server)
        self.fork_server = fork_server
        self.numbers = numbers
        self.count = 0
        self.known_pids: set[int] = set()

    async def execute(self, assignment: Assignment, doors: Doors) -> Outcome:
        return await super().execute(assignment, _KillingDoors(self, doors))


class _KillingDoors:
    """Doors of one process that count its messages."""

    def __init__(self, runtime: KillingRuntime, doors: Doors) -> None:
        self._runtime = runtime
        self._doors = doors
        self._pid: int | None = None

    async def call_model(
        self, key: str, messages: Sequence[ModelMessage], parameters: ModelRequestParameters
    ) -> ModelResponse:
        await self._count_message()
        answer = await self._doors.call_model(key, messages, parameters)
        await self._count_message()
        return answer

    async def call_tool(self, call: ToolCall) -> ToolResult:
        await self._count_message()
        result = await self._doors.call_tool(call)
        await self._count_message()
        return result

    async def next_message(self, key: str) -> str:
        await self._count_message()
        message = await self._doors.next_message(key)
        await self._count_message()
        return message

    async def _count_message(self) -> None:
        runtime = self._runtime
        if self._pid is None:  # it was just forked
            (self._pid,) = set(runtime.fork_server.pids[1:]) - runtime.known_pids
            runtime.known_pids.add(self._pid)
        runtime.count += 1
        if runtime.count in runtime.numbers and self._pid in runtime.fork_server.pids:
            os.kill(self._pid, signal.SIGKILL)
            for _ in range(1000):
                if self._pid not in runtime.fork_server.pids:
                    return
                await asyncio.sleep(0.001)
            raise AssertionError("the process does not exit")
