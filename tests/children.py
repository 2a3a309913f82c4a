"""What tests of processes of runs share: a warm parent, because it is expensive, and a hand that kills."""

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

PATIENCE = 10.0


class Place:
    """An event loop that outlives a test, with a nursery in it."""

    def __init__(self, command: Sequence[str] | None = None) -> None:
        self._runner = asyncio.Runner()
        self.nursery = ForkServer(command)
        self.nursery.start()

    def runs(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(20):
                return await work

        return self._runner.run(bounded())

    def close(self) -> None:
        self._runner.run(self.nursery.close())
        self._runner.close()


class Watched:
    """A process that is looked at by what stays its own, even when its number is given to another."""

    def __init__(self, pid: int) -> None:
        self.pidfd = os.pidfd_open(pid)

    def gone(self) -> bool:
        """Waits for its end."""
        try:
            return bool(select.select([self.pidfd], [], [], PATIENCE)[0])
        finally:
            os.close(self.pidfd)


def children_of(*pids: int) -> list[int]:
    """The processes whose parents these are."""
    found: list[int] = []
    for pid in pids:
        with contextlib.suppress(FileNotFoundError):
            found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return found


class Killing(ForkedRuntime):
    """The real runtime, with somebody at the doors who kills the process behind them when so many messages came."""

    def __init__(self, nursery: ForkServer, *numbers: int) -> None:
        super().__init__(nursery)
        self.nursery = nursery
        self.numbers = numbers
        self.count = 0
        self.theirs: set[int] = set()

    async def execute(self, assignment: Assignment, doors: Doors) -> Outcome:
        return await super().execute(assignment, _Killer(self, doors))


class _Killer:
    """The doors of one process."""

    def __init__(self, killing: Killing, doors: Doors) -> None:
        self._killing = killing
        self._doors = doors
        self._pid: int | None = None

    async def call_model(
        self, key: str, messages: Sequence[ModelMessage], parameters: ModelRequestParameters
    ) -> ModelResponse:
        await self._message()
        answer = await self._doors.call_model(key, messages, parameters)
        await self._message()
        return answer

    async def call_tool(self, call: ToolCall) -> ToolResult:
        await self._message()
        result = await self._doors.call_tool(call)
        await self._message()
        return result

    async def next_message(self, key: str) -> str:
        await self._message()
        words = await self._doors.next_message(key)
        await self._message()
        return words

    async def _message(self) -> None:
        killing = self._killing
        if self._pid is None:  # it has just been born
            (self._pid,) = set(killing.nursery.pids[1:]) - killing.theirs
            killing.theirs.add(self._pid)
        killing.count += 1
        if killing.count in killing.numbers and self._pid in killing.nursery.pids:
            os.kill(self._pid, signal.SIGKILL)
            for _ in range(1000):
                if self._pid not in killing.nursery.pids:
                    return
                await asyncio.sleep(0.001)
            raise AssertionError("it does not die")
