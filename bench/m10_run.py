"""Metric 10: a run with one tool call, compared with an Agent of pydantic-ai with the same scripted answers.

The share of the journal is the time in which the run waits for commits of its journal.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from bench.frame import Metric
from guildhall.core.paths import Home
from guildhall.core.request_frame import Frame
from guildhall.hall.composition.hall import Hall
from guildhall.hall.services.embedded import EmbeddedHall
from guildhall.runs.model import RunRequest
from guildhall.runs.record.journal import Journal
from guildhall.tools.definition import tool
from guildhall.tools.model import Toolbox

if TYPE_CHECKING:
    from pathlib import Path

RUNS = 20

_WORKER = """\
name: adder
instructions: Add.
model: script:model.yaml
base: false
toolboxes: [sums]
"""

_MODEL = """\
workers:
  adder:
    - - {call: add, with: {a: 1, b: 2}}
      - say: "3"
"""


@tool(repeatable=True, runs_in="hall")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def metrics(scratch: Path) -> list[Metric]:
    (scratch / "workers").mkdir()
    (scratch / "workers" / "adder.yaml").write_text(_WORKER)
    (scratch / "model.yaml").write_text(_MODEL)
    home = Home(scratch / "home")
    agent = Agent(FunctionModel(_answer), instructions="Add.")
    agent.tool_plain(add.handler.function)  # type: ignore[union-attr]

    async def run_agent() -> float:
        await agent.run("warm")
        began = time.perf_counter()
        for _ in range(RUNS):
            await agent.run("1 + 2")
        return (time.perf_counter() - began) / RUNS

    async def run_worker() -> float:
        hall = EmbeddedHall(Hall(home, environ=os.environ))
        frame = Frame.here(scratch, os.environ)
        await _run(hall, frame)
        began = time.perf_counter()
        for _ in range(RUNS):
            await _run(hall, frame)
        duration = time.perf_counter() - began
        await hall.close()
        return duration / RUNS

    def share() -> float:
        with _Stopwatch() as stopwatch:
            asyncio.run(run_worker())
        return stopwatch.seconds / (RUNS + 1)

    return [
        Metric(
            name="10 run with one tool call",
            floor_name="pydantic-ai",
            floor=lambda: asyncio.run(run_agent()),
            measured=lambda: asyncio.run(run_worker()),
            target=1.5,
            rounds=9,
        ),
        Metric(
            name="10 of which the journal",
            floor_name="the run",
            floor=lambda: asyncio.run(run_worker()),
            measured=share,
            target=None,
            rounds=5,
            note="its share of the run",
        ),
    ]


class _Stopwatch:
    """Counts the seconds in which runs wait for the journal."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._append = Journal.append

    def __enter__(self) -> _Stopwatch:
        async def append(journal: Journal, *args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return await self._append(journal, *args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - began

        Journal.append = append  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        Journal.append = self._append  # type: ignore[method-assign]


async def _run(hall: EmbeddedHall, frame: Frame) -> None:
    async with aclosing(
        hall.runs.run(RunRequest(worker="adder", input="1 + 2"), frame, [Toolbox("sums", add)])
    ) as events:
        async for event in events:
            if event.type == "error":
                raise RuntimeError(str(event.data))


def _answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if len(messages) == 1:
        return ModelResponse(parts=[ToolCallPart("add", {"a": 1, "b": 2}, "c1")])
    return ModelResponse(parts=[TextPart("3")])
