"""Metrics 3 and 4: from a mention to the run that it causes, against a row that is put into SQLite.

A person mentions an agent of a team that is kept together by another one, who thinks for long. It is idle, or it is at
work: then the time begins when its turn ends. Every mention must be taken up.
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
from guildhall.core.frame import Frame
from guildhall.core.paths import Home
from guildhall.hall.composition.hall import Hall
from guildhall.hall.services.embedded import EmbeddedHall
from guildhall.room.model import Actor
from guildhall.runs.model import RunRequest
from guildhall.workflow.target import Start

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from guildhall.runs.model import Run
    from guildhall.runtimes.model import Assignment, Doors, Outcome, Runtime

MENTIONS = 15  # in a round
THINKS = 0.05  # seconds: how long an agent is busy
_WITHIN = 10.0  # seconds


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
            floor=row.put,
            measured=lambda: bench.round(_idle_decided),
            target=8.0,
            rounds=7,
            note="from the sending to the run decided",
        ),
        Metric(
            name="3 mention, process",
            floor_name="python -c pass",
            floor=lambda: seconds(_spawn),
            measured=lambda: bench.round(_idle_asks, children=True),
            target=3.0,
            rounds=7,
            note="from the sending to its first model call",
        ),
        Metric(
            name="4 mention, busy agent",
            floor_name="SQLite commit",
            floor=row.put,
            measured=lambda: bench.round(_busy_decided, thinks=THINKS),
            target=80.0,
            rounds=7,
            note="from the end of its turn to the next run decided",
        ),
    ]


class _Row:
    """The floor: a row that is committed in another thread, as an event loop has to do it."""

    def __init__(self, database: Path) -> None:
        self._store = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
        self._store.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; CREATE TABLE m (t)")

    def put(self) -> float:
        async def put() -> float:
            taken: list[float] = []
            for number in range(10 * MENTIONS):
                began = time.perf_counter()
                await asyncio.to_thread(self._store.execute, "INSERT INTO m VALUES (?)", (f"@bob {number}",))
                taken.append(time.perf_counter() - began)
            return statistics.median(taken)

        return asyncio.run(put())


class _Watch:
    """When bob's runs were decided, came to their model, and ended. In the place of the runtime of the hall."""

    def __init__(self) -> None:
        self.inner: Runtime | None = None
        self.decided: list[float] = []
        self.asked: list[float] = []
        self.ended: list[float] = []
        self.rested = 0
        self._news = asyncio.Event()

    def hooks(self, take: Callable[..., Coroutine[Any, Any, Run]]) -> Callable[..., Coroutine[Any, Any, Run]]:
        async def taken(above: str, key: str, *arguments: Any, **more: Any) -> Run:
            if key.startswith("bob/"):
                self._note(self.decided)
            run = await take(above, key, *arguments, **more)
            if key.startswith("bob/"):
                self.rested += 1
                self._news.set()
            return run

        return taken

    async def execute(self, assignment: Assignment, doors: Doors) -> Outcome:
        assert self.inner is not None
        if "You are bob" not in assignment.system_prompt:
            return await self.inner.execute(assignment, doors)
        model = doors.model

        async def asked(*arguments: Any) -> Any:
            self._note(self.asked)
            return await model(*arguments)

        doors.model = asked  # type: ignore[method-assign]
        outcome = await self.inner.execute(assignment, doors)
        self._note(self.ended)
        return outcome

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(_WITHIN):
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
        thinks: float = 0.0,
        children: bool = False,
    ) -> float:
        """The median of some mentions in a team that is new."""
        self._round += 1
        answers = {"ann": [[{"sleep": 600, "say": "done"}]], "bob": [[{"sleep": thinks, "say": "done"}]]}
        (self._scratch / "model.yaml").write_text(json.dumps({"workers": answers, "repeat": True}))
        return asyncio.run(self._measured(once, f"t{self._round}", children=children))

    async def _measured(self, once: Any, tag: str, *, children: bool) -> float:
        hall = Hall(Home(self._scratch / f"home-{tag}"), environ=os.environ, children=children)
        watch = _Watch()
        frame = Frame.here(self._scratch, os.environ)
        watch.inner, hall.runtimes.for_run = hall.runtimes.for_run("pydantic", frame), lambda *_: watch
        hall.runs.run_child = watch.hooks(hall.runs.run_child)  # type: ignore[method-assign]
        client = EmbeddedHall(hall, stays=True)
        together = asyncio.Event()
        living = asyncio.create_task(self._live(client, tag, together))
        try:
            async with asyncio.timeout(_WITHIN):
                await together.wait()
            room = hall.main.rooms.find("pair", tag)
            assert room is not None

            async def mention() -> None:
                await room.send("@bob there is something", Actor.person())

            taken = [await once(watch, mention) for _ in range(MENTIONS + 2)]
            return statistics.median(taken[2:])  # the first ones find a cold hall
        finally:
            living.cancel()
            with suppress(asyncio.CancelledError):
                await living
            await client.close()

    async def _live(self, client: EmbeddedHall, tag: str, together: asyncio.Event) -> None:
        request = RunRequest(worker="pair.yaml", input="")
        frame = Frame.here(self._scratch, os.environ)
        start = Start(file="pair.yaml", tag=tag, params={})
        async with aclosing(client.workflows.run(start, request, frame)) as events:
            async for event in events:
                if event.type == "error":
                    raise RuntimeError(str(event.data))
                if event.type == "workflow" and event.data["phase"] == "live":
                    together.set()


async def _idle_decided(watch: _Watch, mention: Callable[[], Coroutine[Any, Any, Any]]) -> float:
    return await _idle(watch, mention, watch.decided)


async def _idle_asks(watch: _Watch, mention: Callable[[], Coroutine[Any, Any, Any]]) -> float:
    return await _idle(watch, mention, watch.asked)


async def _idle(watch: _Watch, mention: Callable[[], Coroutine[Any, Any, Any]], times: list[float]) -> float:
    before, rested = len(times), watch.rested
    began = time.perf_counter()
    await mention()
    await watch.until(lambda: len(times) > before and watch.rested > rested)
    await asyncio.sleep(0.01)  # it looks once more whether there is something to do
    return times[before] - began


async def _busy_decided(watch: _Watch, mention: Callable[[], Coroutine[Any, Any, Any]]) -> float:
    asked, ended, decided, rested = len(watch.asked), len(watch.ended), len(watch.decided), watch.rested
    await mention()
    await watch.until(lambda: len(watch.asked) > asked)
    await mention()
    if len(watch.ended) > ended:
        raise RuntimeError("the agent was not busy any more when it was mentioned")
    await watch.until(lambda: len(watch.decided) > decided + 1 and watch.rested > rested + 1)
    await asyncio.sleep(0.01)
    return watch.decided[decided + 1] - watch.ended[ended]


def _spawn() -> None:
    subprocess.run([sys.executable, "-c", "pass"], check=True)
