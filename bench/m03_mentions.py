"""Metrics 3 and 4: the time from a mention to the run that it starts, compared with a commit of one row in SQLite.

The user mentions the agent bob. The agent ann has a long model call, so that the workflow stays live. If bob is busy,
the time starts at the end of its run. Every mention must start a run.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import time
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from bench.frame import Metric, seconds
from guildhall.core.paths import Home
from guildhall.core.request_frame import Frame
from guildhall.hall.composition.hall import Hall
from guildhall.hall.services.embedded import EmbeddedHall
from guildhall.room.model import Actor
from guildhall.runs.model import RunRequest
from guildhall.workflow.instance import Start

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from guildhall.runs.model import Run
    from guildhall.runtimes.model import Assignment, Doors, Outcome, Runtime

MENTIONS = 15  # in a round
MODEL_CALL_S = 0.05  # of a busy agent
_TIMEOUT_S = 10.0


def metrics(scratch: Path) -> list[Metric]:
    agents = {name: {"system_prompt": f"You are {name}.", "model": "script:model.yaml"} for name in ("ann", "bob")}
    parts = {"name": "pair", "agents": agents, "context": {"documentOwner": "none"}, "kickoff": "@ann begin"}
    (scratch / "pair.yaml").write_text(json.dumps(parts))
    row = _Row(scratch / "floor.db")
    bench = _Bench(scratch)
    return [
        Metric(
            name="3 mention, idle agent",
            floor_name="SQLite commit",
            floor=row.insert,
            measured=lambda: bench.round(_idle_decided),
            target=8.0,
            rounds=7,
            note="from the message to the decision to start a run",
        ),
        Metric(
            name="3 mention, process",
            floor_name="python -c pass",
            floor=lambda: seconds(_spawn),
            measured=lambda: bench.round(_idle_asks, children=True),
            target=3.0,
            rounds=7,
            note="from the message to the first model call",
        ),
        Metric(
            name="4 mention, busy agent",
            floor_name="SQLite commit",
            floor=row.insert,
            measured=lambda: bench.round(_busy_decided, model_call_s=MODEL_CALL_S),
            target=80.0,
            rounds=7,
            note="from the end of a run to the decision to start the next",
        ),
    ]


class _Row:
    """The floor: a row that another thread commits, because an event loop must not block."""

    def __init__(self, database: Path) -> None:
        self._store = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
        self._store.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; CREATE TABLE m (t)")

    def insert(self) -> float:
        async def insert_rows() -> float:
            durations: list[float] = []
            for number in range(10 * MENTIONS):
                began = time.perf_counter()
                await asyncio.to_thread(self._store.execute, "INSERT INTO m VALUES (?)", (f"@bob {number}",))
                durations.append(time.perf_counter() - began)
            return statistics.median(durations)

        return asyncio.run(insert_rows())


class _Watch:
    """A runtime that notes when runs of bob are decided, call their model and end."""

    def __init__(self) -> None:
        self.inner: Runtime | None = None
        self.decided: list[float] = []
        self.asked: list[float] = []
        self.ended: list[float] = []
        self.finished = 0
        self._news = asyncio.Event()

    def wrap(self, run_child: Callable[..., Coroutine[Any, Any, Run]]) -> Callable[..., Coroutine[Any, Any, Run]]:
        async def run_and_note(above: str, key: str, *arguments: Any, **more: Any) -> Run:
            if key.startswith("bob/"):
                self._note(self.decided)
            run = await run_child(above, key, *arguments, **more)
            if key.startswith("bob/"):
                self.finished += 1
                self._news.set()
            return run

        return run_and_note

    async def execute(self, assignment: Assignment, doors: Doors) -> Outcome:
        assert self.inner is not None
        if "You are bob" not in assignment.system_prompt:
            return await self.inner.execute(assignment, doors)
        model = doors.call_model

        async def note_call(*arguments: Any) -> Any:
            self._note(self.asked)
            return await model(*arguments)

        doors.call_model = note_call  # type: ignore[method-assign]
        outcome = await self.inner.execute(assignment, doors)
        self._note(self.ended)
        return outcome

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(_TIMEOUT_S):
            while not condition():
                await self._news.wait()
                self._news.clear()

    def _note(self, times: list[float]) -> None:
        times.append(time.perf_counter())
        self._news.set()


class _Bench:
    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._round = 0

    def round(
        self,
        once: Callable[[_Watch, Callable[[], Coroutine[Any, Any, Any]]], Coroutine[Any, Any, float]],
        *,
        model_call_s: float = 0.0,
        children: bool = False,
    ) -> float:
        """Return the median of several mentions in a new workflow."""
        self._round += 1
        answers = {"ann": [[{"sleep": 600, "say": "done"}]], "bob": [[{"sleep": model_call_s, "say": "done"}]]}
        (self._scratch / "model.yaml").write_text(json.dumps({"workers": answers, "repeat": True}))
        return asyncio.run(self._measure(once, f"t{self._round}", children=children))

    async def _measure(self, once: Any, tag: str, *, children: bool) -> float:
        hall = Hall(Home(self._scratch / f"home-{tag}"), environ=os.environ, forks_runs=children, is_persistent=True)
        watch = _Watch()
        frame = Frame.here(self._scratch, os.environ)
        watch.inner, hall.runtimes.runtime_for_run = hall.runtimes.runtime_for_run("pydantic", frame), lambda *_: watch
        hall.runs.run_child = watch.wrap(hall.runs.run_child)  # type: ignore[method-assign]
        client = EmbeddedHall(hall)
        is_live = asyncio.Event()
        following = asyncio.create_task(self._follow(client, tag, is_live))
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await is_live.wait()
            room = hall.main.rooms.find(str(self._scratch), "pair", tag)
            assert room is not None

            async def mention() -> None:
                await room.send("@bob there is something", Actor.person())

            durations = [await once(watch, mention) for _ in range(MENTIONS + 2)]
            return statistics.median(durations[2:])  # the first two warm up the hall
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
            await client.close()

    async def _follow(self, client: EmbeddedHall, tag: str, is_live: asyncio.Event) -> None:
        request = RunRequest(worker="pair.yaml", input="")
        frame = Frame.here(self._scratch, os.environ)
        start = Start(file="pair.yaml", tag=tag, params={})
        async with aclosing(client.workflows.run(start, request, frame)) as events:
            async for event in events:
                if event.type == "error":
                    raise RuntimeError(str(event.data))
                if event.type == "workflow" and event.data["phase"] == "live":
                    is_live.set()


async def _idle_decided(watch: _Watch, mention: Callable[[], Coroutine[Any, Any, Any]]) -> float:
    return await _idle(watch, mention, watch.decided)


async def _idle_asks(watch: _Watch, mention: Callable[[], Coroutine[Any, Any, Any]]) -> float:
    return await _idle(watch, mention, watch.asked)


async def _idle(watch: _Watch, mention: Callable[[], Coroutine[Any, Any, Any]], times: list[float]) -> float:
    before, finished = len(times), watch.finished
    began = time.perf_counter()
    await mention()
    await watch.until(lambda: len(times) > before and watch.finished > finished)
    await asyncio.sleep(0.01)  # the agent checks its inbox once more
    return times[before] - began


async def _busy_decided(watch: _Watch, mention: Callable[[], Coroutine[Any, Any, Any]]) -> float:
    asked, ended, decided, finished = len(watch.asked), len(watch.ended), len(watch.decided), watch.finished
    await mention()
    await watch.until(lambda: len(watch.asked) > asked)
    await mention()
    if len(watch.ended) > ended:
        raise RuntimeError("the agent was no longer busy when it was mentioned")
    await watch.until(lambda: len(watch.decided) > decided + 1 and watch.finished > finished + 1)
    await asyncio.sleep(0.01)
    return watch.decided[decided + 1] - watch.ended[ended]


def _spawn() -> None:
    subprocess.run([sys.executable, "-c", "pass"], check=True)
