"""Metric 11: the start of a run in its own process, compared with an empty Python program.

Also a part of metric 9: the memory of the warm parent and of each child. Shared pages count once.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import ModelResponse, TextPart

from bench.frame import Metric, seconds
from guildhall.core.paths import Home
from guildhall.core.request_frame import Frame
from guildhall.hall.composition.hall import Hall
from guildhall.hall.services.embedded import EmbeddedHall
from guildhall.runs.model import RunRequest
from guildhall.runtimes.forked.fork_server_client import ForkServer
from guildhall.runtimes.forked.runtime import ForkedRuntime
from guildhall.runtimes.model import Assignment

if TYPE_CHECKING:
    from guildhall.runtimes.model import Doors, Outcome

AT_ONCE = 20
CHILDREN = 10  # children whose memory is measured
_WORKER = "name: scribe\ninstructions: Write.\nmodel: script:model.yaml\nbase: false\n"
_MODEL = "workers: {scribe: [[{say: done}]]}\nrepeat: true\n"
_ASSIGNMENT = Assignment(system_prompt="Write.", first_message="Go.", tools=())


def metrics(scratch: Path) -> list[Metric]:
    (scratch / "workers").mkdir()
    (scratch / "workers" / "scribe.yaml").write_text(_WORKER)
    (scratch / "model.yaml").write_text(_MODEL)
    bench = _Bench(scratch)
    return [
        Metric(
            name="11 run in its own process",
            floor_name="python -c pass",
            floor=lambda: seconds(_spawn),
            measured=bench.first_call,
            target=3.0,
            note="from the request to the first model call",
        ),
        Metric(
            name="11 twenty at once",
            floor_name="20 x python -c pass",
            floor=lambda: seconds(_spawn_many),
            measured=bench.at_once,
            target=None,
            rounds=7,
            note="until all have ended",
        ),
        Metric(
            name="9 the warm parent",
            floor_name="bare Python",
            floor=_bare_memory,
            measured=bench.parent_memory,
            target=None,
            rounds=3,
            note="on its own",
            unit="MB",
        ),
        Metric(
            name="9 each child",
            floor_name="bare Python",
            floor=_bare_memory,
            measured=bench.child_memory,
            target=None,
            rounds=3,
            note="of 10, during a run",
            unit="MB",
        ),
    ]


class _Bench:
    """A hall that forks runs, in an event loop that stays open between measurements."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._runner = asyncio.Runner()
        self._nursery = ForkServer()

    def first_call(self) -> float:
        async def once() -> float:
            hall = Hall(Home(self._scratch / "home"), environ=os.environ)
            timed = _Timed(self._nursery)
            hall.runtimes.runtime_for_run = lambda *_: timed
            client = EmbeddedHall(hall)
            frame = Frame.here(self._scratch, os.environ)
            for _ in range(3):  # the first run warms up the hall
                began = time.perf_counter()
                async for event in client.runs.run(RunRequest(worker="scribe", input="go"), frame):
                    if event.type == "error":
                        raise RuntimeError(str(event.data))
            await hall.close()
            return timed.asked - began

        return self._runner.run(once())

    def at_once(self) -> float:
        async def many() -> float:
            runtime = ForkedRuntime(self._nursery)
            began = time.perf_counter()
            await asyncio.gather(*(runtime.execute(_ASSIGNMENT, _Instant()) for _ in range(AT_ONCE)))
            return time.perf_counter() - began

        return self._runner.run(many())

    def parent_memory(self) -> float:
        async def measure() -> int:
            await ForkedRuntime(self._nursery).execute(_ASSIGNMENT, _Instant())
            return _pss(self._nursery.pids[0])

        return self._runner.run(measure())

    def child_memory(self) -> float:
        async def measure() -> float:
            doors = _Held()
            runtime = ForkedRuntime(self._nursery)
            running = [asyncio.create_task(runtime.execute(_ASSIGNMENT, doors)) for _ in range(CHILDREN)]
            await doors.full.wait()
            found = [_pss(pid) for pid in self._nursery.pids[1:]]
            doors.held.set()
            await asyncio.gather(*running)
            return sum(found) / len(found)

        return self._runner.run(measure())


class _Timed(ForkedRuntime):
    """Notes when a process calls its model."""

    asked = 0.0

    async def execute(self, assignment: Assignment, doors: Doors) -> Outcome:
        inner = doors.call_model

        async def model(*arguments: Any) -> ModelResponse:
            self.asked = time.perf_counter()
            return await inner(*arguments)

        doors.call_model = model  # type: ignore[method-assign]
        return await super().execute(assignment, doors)


class _Instant:
    """Doors whose model answers at once."""

    async def call_model(self, *_: Any) -> ModelResponse:
        return ModelResponse(parts=[TextPart("done")])

    async def call_tool(self, call: Any) -> Any:
        raise AssertionError


class _Held(_Instant):
    """Doors whose model answers when all children have called it."""

    def __init__(self) -> None:
        self.held = asyncio.Event()
        self.full = asyncio.Event()
        self._asked = 0

    async def call_model(self, *_: Any) -> ModelResponse:
        self._asked += 1
        if self._asked == CHILDREN:
            self.full.set()
        await self.held.wait()
        return await super().call_model()


def _spawn() -> None:
    subprocess.run([sys.executable, "-c", "pass"], check=True)


def _spawn_many() -> None:
    for process in [subprocess.Popen([sys.executable, "-c", "pass"]) for _ in range(AT_ONCE)]:
        process.wait()


def _bare_memory() -> float:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        time.sleep(0.1)
        found = _pss(process.pid)
        process.communicate(b"\n")
        return found


def _pss(pid: int) -> int:
    """Return the proportional set size of a process in bytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
